//! The files of the folder, and the last valid content of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portwarden_model::{Event, Interner, Kind, NamespacedName, Problem, manifest};

use super::defaults;
use super::parse::{Object, Unknown, parse};
use super::watched_paths::WatchedPaths;
use crate::manifest::Manifest;

/// The largest file that is read. A quarter of a million endpoints take about a third of it.
const LARGEST: u64 = 256 << 20;

/// Two writes within this time can leave a file with the same size and times.
const CLOCK_STEP: Duration = Duration::from_millis(100);

/// What identifies an object; the namespace is empty for cluster-wide kinds.
pub(super) type Key = (Kind, NamespacedName);

/// All files as of the last scan.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    node_name: String,
    names: Interner,
    files: BTreeMap<PathBuf, File>,
    /// Nodes with another name than ours, in any file so far.
    other_nodes: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub(super) struct File {
    version: Option<FileVersion>,
    /// The last valid content.
    pub(super) objects: Vec<FileObject>,
    /// The current error.
    pub(super) problem: Option<Problem>,
}

#[derive(Debug)]
pub(super) struct FileObject {
    pub(super) key: Key,
    /// `None` for an object that is not proxied.
    pub(super) event: Option<Arc<Event>>,
    pub(super) problems: Vec<Problem>,
}

/// Detects whether a file may have changed since it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileVersion {
    identity: (u64, u64, u64, i64, i64, i64, i64),
    /// Whether a later change would show in `identity`.
    conclusive: bool,
    hash: u64,
}

impl Folder {
    /// Nothing is read yet.
    pub(super) fn new(root: PathBuf, node_name: String) -> Self {
        Folder {
            root,
            node_name,
            names: Interner::default(),
            files: BTreeMap::new(),
            other_nodes: BTreeSet::new(),
        }
    }

    /// The files in the order of their names.
    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.files.iter().map(|(path, file)| (path.as_path(), file))
    }

    /// The name of our Node and those of the Nodes in the files, if ours is not among them.
    pub(super) fn missing_node(&self) -> Option<(&str, String)> {
        let ours =
            self.files.values().flat_map(|file| &file.objects).any(|object| object.key.0 == Kind::Node);
        let others = || self.other_nodes.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        (!ours && !self.other_nodes.is_empty()).then(|| (self.node_name.as_str(), others()))
    }

    /// The directories to watch for changes.
    pub(super) fn watched_paths(&self) -> WatchedPaths {
        let mut paths_to_watch = WatchedPaths::default();
        if let Some(target) = paths_to_watch.add_path(&self.root)
            && target.is_dir()
        {
            for path in manifests_in(&target).unwrap_or_default() {
                if path.is_symlink() {
                    paths_to_watch.add_path(&path);
                }
            }
            paths_to_watch.add_directory(target);
        }
        paths_to_watch
    }

    /// Reads the files that changed. Fails if the folder itself cannot be read.
    pub(super) fn scan(&mut self) -> io::Result<()> {
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
        if file.version.as_ref().is_some_and(|last| last.conclusive && last.identity == identity(&metadata)) {
            return Ok(());
        }
        if metadata.len() > LARGEST {
            return Err(io::Error::other(format!(
                "it has {} MiB, more than {}; split it into several files",
                metadata.len() >> 20,
                LARGEST >> 20
            )));
        }
        let mut bytes = Vec::new();
        fs::File::open(path)?.take(LARGEST).read_to_end(&mut bytes)?;
        let version = FileVersion {
            identity: identity(&metadata),
            conclusive: is_conclusive(&metadata),
            hash: hash(&bytes),
        };
        let same = file.version.as_ref().is_some_and(|before| before.hash == version.hash);
        file.version = Some(version);
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
                tracing::info!(file = %path.display(), object = %what, "Ignored an object that a proxy does not use");
            }
            for Unknown { what, hint } in &content.unknown {
                tracing::warn!(file = %path.display(), object = %what, "Ignored an object of an unknown kind{hint}");
            }
            self.convert_all(content.objects)
        }) {
            Ok(objects) => *file = File { version: file.version.take(), objects, problem: None },
            Err((place, reason)) => file.fail(path, &place, &reason),
        }
        Ok(())
    }

    fn convert_all(&mut self, objects: Vec<Object>) -> Result<Vec<FileObject>, (String, String)> {
        let mut converted = Vec::with_capacity(objects.len());
        for (index, object) in objects.into_iter().enumerate() {
            let object = match object {
                Object::Service(mut service) => {
                    let problems = defaults::service(&mut service);
                    self.convert(&*service, problems)
                }
                Object::EndpointSlice(mut slice) => {
                    defaults::endpoint_slice(&mut slice);
                    self.convert(&slice, Vec::new())
                }
                Object::Node(node) if node.metadata.name != self.node_name => {
                    self.other_nodes.insert(node.metadata.name);
                    continue;
                }
                Object::Node(node) => self.convert(&node, Vec::new()),
                Object::ServiceCidr(cidr) => self.convert(&cidr, Vec::new()),
            };
            converted.push(object.ok_or((format!("object {}", index + 1), "no `metadata.name`".to_owned()))?);
        }
        Ok(converted)
    }

    fn convert<M: Manifest>(&mut self, from: &M, mut problems: Vec<Problem>) -> Option<FileObject> {
        let manifest::Metadata { name, namespace, .. } = from.metadata();
        if name.is_empty() {
            return None;
        }
        let namespace = if matches!(M::KIND, Kind::Service | Kind::EndpointSlice) { namespace } else { "" };
        let (event, more) = from.applied(&mut self.names);
        problems.extend(more);
        Some(FileObject {
            key: (M::KIND, NamespacedName::new(namespace, name)),
            event: (event != from.deleted()).then(|| Arc::new(event)),
            problems,
        })
    }
}

impl File {
    fn fail(&mut self, path: &Path, place: &str, reason: &str) {
        let outcome = if self.objects.is_empty() { "ignored" } else { "its last valid content stays" };
        self.problem = Some(Problem {
            object: path.display().to_string(),
            field: place.to_owned(),
            text: format!("{reason}; {outcome} until this is fixed"),
        });
    }
}

/// The manifests of a folder. Hidden files are the versions of a ConfigMap and temporary files of editors.
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

/// Whether a later change would show in the times of the file.
fn is_conclusive(metadata: &fs::Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    age.is_some_and(|age| age > CLOCK_STEP)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
