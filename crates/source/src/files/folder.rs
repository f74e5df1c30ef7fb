//! The files: which there are, and the last good content of each.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portwarden_model::{Event, Interner, Kind, NamespacedName, Problem, manifest};

use super::defaults;
use super::parse::{Object, parse};
use super::route::Points;
use crate::settle::Manifest;

/// Two writes within this time can leave a file with equal size and times.
const CLOCK_STEP: Duration = Duration::from_millis(100);

/// What identifies an object; the namespace is empty for cluster-wide kinds.
pub(super) type Key = (Kind, NamespacedName);

/// Whether the folder itself could be read.
pub(super) type Look = io::Result<()>;

/// All files, as last seen.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    node_name: String,
    names: Interner,
    files: BTreeMap<PathBuf, File>,
}

/// One file.
#[derive(Debug, Default)]
pub(super) struct File {
    seen: Option<Seen>,
    /// Its last good content.
    pub(super) objects: Vec<Settled>,
    /// What is wrong with it now.
    pub(super) problem: Option<Problem>,
}

/// An object of a file.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) key: Key,
    /// How the object is applied; nothing if it is not to be proxied.
    pub(super) event: Option<Arc<Event>>,
    pub(super) problems: Vec<Problem>,
}

/// Tells whether a file may have changed since it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    identity: (u64, u64, u64, i64, i64, i64, i64),
    settled: bool,
    hash: u64,
}

impl Folder {
    /// Nothing is read yet.
    pub(super) fn new(root: PathBuf, node_name: String) -> Self {
        Folder { root, node_name, names: Interner::default(), files: BTreeMap::new() }
    }

    /// The files in the order of their names.
    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.files.iter().map(|(path, file)| (path.as_path(), file))
    }

    /// Where changes must be noticed.
    pub(super) fn points(&self) -> Points {
        let mut points = Points::default();
        if let Some(target) = points.add_route(&self.root)
            && target.is_dir()
        {
            for path in manifests_in(&target).unwrap_or_default() {
                if path.is_symlink() {
                    points.add_route(&path);
                }
            }
            points.add_all(target);
        }
        points
    }

    /// Reads what changed.
    pub(super) fn look(&mut self) -> Look {
        let is_folder = fs::metadata(&self.root)?.is_dir();
        let paths = if is_folder { manifests_in(&self.root)? } else { vec![self.root.clone()] };
        let mut files = std::mem::take(&mut self.files);
        for path in paths {
            let mut file = files.remove(&path).unwrap_or_default();
            match self.read(&path, &mut file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => file.fail(&path, "its text", &format!("cannot read it: {error}")),
                Ok(()) => {}
            }
            self.files.insert(path, file);
        }
        self.names.prune();
        Ok(())
    }

    fn read(&mut self, path: &Path, file: &mut File) -> io::Result<()> {
        let metadata = fs::metadata(path)?;
        // Opening a pipe would wait for a writer.
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if file.seen.as_ref().is_some_and(|seen| seen.settled && seen.identity == identity(&metadata)) {
            return Ok(());
        }
        let bytes = fs::read(path)?;
        let seen = Seen { identity: identity(&metadata), settled: is_settled(&metadata), hash: hash(&bytes) };
        let same = file.seen.as_ref().is_some_and(|before| before.hash == seen.hash);
        file.seen = Some(seen);
        if same {
            return Ok(());
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let good = error.utf8_error().valid_up_to();
                let line = error.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count() + 1;
                file.fail(path, &format!("line {line}"), "not UTF-8 text");
                return Ok(());
            }
        };
        let content = parse(&text).map_err(|error| (format!("line {}", error.line), error.reason));
        match content.and_then(|content| {
            for what in &content.ignored {
                tracing::info!(file = %path.display(), object = %what, "not used by a proxy, ignored");
            }
            self.settle(content.objects)
        }) {
            Ok(objects) => *file = File { seen: file.seen.take(), objects, problem: None },
            Err((place, reason)) => file.fail(path, &place, &reason),
        }
        Ok(())
    }

    fn settle(&mut self, objects: Vec<Object>) -> Result<Vec<Settled>, (String, String)> {
        let mut settled = Vec::with_capacity(objects.len());
        for (index, object) in objects.into_iter().enumerate() {
            let object = match object {
                Object::Service(mut service) => {
                    let problems = defaults::service(&mut service);
                    self.settle_one(&*service, problems)
                }
                Object::EndpointSlice(mut slice) => {
                    defaults::endpoint_slice(&mut slice);
                    self.settle_one(&slice, Vec::new())
                }
                Object::Node(node) if node.metadata.name != self.node_name => continue,
                Object::Node(node) => self.settle_one(&node, Vec::new()),
                Object::ServiceCidr(cidr) => self.settle_one(&cidr, Vec::new()),
            };
            settled.push(object.ok_or((format!("object {}", index + 1), "no `metadata.name`".to_owned()))?);
        }
        Ok(settled)
    }

    fn settle_one<M: Manifest>(&mut self, from: &M, mut problems: Vec<Problem>) -> Option<Settled> {
        let manifest::Metadata { name, namespace, .. } = from.metadata();
        if name.is_empty() {
            return None;
        }
        let namespace = if matches!(M::KIND, Kind::Service | Kind::EndpointSlice) { namespace } else { "" };
        let (event, more) = from.applied(&mut self.names);
        problems.extend(more);
        Some(Settled {
            key: (M::KIND, NamespacedName::new(namespace, name)),
            event: (event != from.deleted()).then(|| Arc::new(event)),
            problems,
        })
    }
}

impl File {
    fn fail(&mut self, path: &Path, place: &str, reason: &str) {
        let outcome = if self.objects.is_empty() { "left out" } else { "its last good content stays" };
        self.problem = Some(Problem {
            object: path.display().to_string(),
            field: place.to_owned(),
            text: format!("{reason}; {outcome} until this is fixed"),
        });
    }
}

/// The manifests of a folder. Names with a dot in front are a ConfigMap's versions and editors' own files.
fn manifests_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let wanted = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if wanted && !hidden && !path.is_dir() {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn identity(metadata: &fs::Metadata) -> (u64, u64, u64, i64, i64, i64, i64) {
    (
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    )
}

/// Whether a later change would show in the file's times.
fn is_settled(metadata: &fs::Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    age.is_some_and(|age| age > CLOCK_STEP)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
