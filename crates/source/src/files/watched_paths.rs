//! The directories to watch so that every change of a file is noticed, symbolic links included.
//!
//! Any part of a path can be replaced: a mounted ConfigMap is `web.yaml -> ..data/web.yaml`, and `..data` is a link that is swapped.
//! So the entry of each link is watched.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

/// The limit of the kernel for links in one path.
const LINKS: usize = 40;

/// Directories, and the entries to watch in each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WatchedPaths(BTreeMap<PathBuf, Interest>);

/// The entries to watch in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Interest {
    /// All of them.
    All,
    /// Those with these names.
    Entries(BTreeSet<OsString>),
}

impl Interest {
    /// Whether an event on this entry is relevant. Events on the directory itself have no name and always are.
    pub(super) fn covers(&self, name: Option<&OsStr>) -> bool {
        match (self, name) {
            (Interest::All, _) | (_, None) => true,
            (Interest::Entries(names), Some(name)) => names.contains(name),
        }
    }
}

impl WatchedPaths {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&PathBuf, &Interest)> {
        self.0.iter()
    }

    /// Adds every link of an absolute path and its last entry. Returns the target, if it exists.
    pub(super) fn add_path(&mut self, path: &Path) -> Option<PathBuf> {
        let mut left: Vec<OsString> = components(path);
        left.reverse();
        let mut here = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&name);
            let Ok(metadata) = std::fs::symlink_metadata(&next) else {
                self.add_entry(&here, name);
                return None;
            };
            if metadata.is_symlink() {
                self.add_entry(&here, name);
                let target = std::fs::read_link(&next).ok()?;
                links += 1;
                if links > LINKS {
                    return None;
                }
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                left.extend(components(&target).into_iter().rev());
            } else {
                if left.is_empty() {
                    self.add_entry(&here, name);
                }
                here = next;
            }
        }
        Some(here)
    }

    /// Adds a directory with all its entries.
    pub(super) fn add_directory(&mut self, directory: PathBuf) {
        self.0.insert(directory, Interest::All);
    }

    fn add_entry(&mut self, directory: &Path, name: OsString) {
        let interest =
            self.0.entry(directory.to_owned()).or_insert_with(|| Interest::Entries(BTreeSet::new()));
        if let Interest::Entries(names) = interest {
            names.insert(name);
        }
    }
}

fn components(path: &Path) -> Vec<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn entries(paths: &WatchedPaths, root: &Path) -> Vec<String> {
        let names = |interest: &Interest| match interest {
            Interest::All => vec!["*".to_owned()],
            Interest::Entries(names) => names.iter().map(|n| n.display().to_string()).collect(),
        };
        let under = |(dir, interest): (&PathBuf, &Interest)| {
            let dir = dir.strip_prefix(root).ok()?.display().to_string();
            Some(names(interest).into_iter().map(move |name| format!("{dir}/{name}")).collect::<Vec<_>>())
        };
        paths.iter().filter_map(under).flatten().collect()
    }

    #[test]
    fn every_link_of_a_path_is_watched() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path().canonicalize().expect("it exists");
        fs::create_dir_all(root.join("mount/..1")).expect("a folder");
        fs::write(root.join("mount/..1/web.yaml"), "").expect("a file");
        symlink("..1", root.join("mount/..data")).expect("a link");
        symlink("..data/web.yaml", root.join("mount/web.yaml")).expect("a link");
        let mut paths = WatchedPaths::default();
        let target = paths.add_path(&root.join("mount/web.yaml"));
        assert_eq!(target, Some(root.join("mount/..1/web.yaml")));
        assert_eq!(entries(&paths, &root), ["mount/..data", "mount/web.yaml", "mount/..1/web.yaml"]);
    }

    #[test]
    fn a_missing_part_is_watched_for_in_its_parent() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path().canonicalize().expect("it exists");
        let mut paths = WatchedPaths::default();
        assert_eq!(paths.add_path(&root.join("a/b/c.yaml")), None);
        assert_eq!(entries(&paths, &root), ["/a"]);
    }

    #[test]
    fn links_in_a_circle_end() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path().canonicalize().expect("it exists");
        symlink("b", root.join("a")).expect("a link");
        symlink("a", root.join("b")).expect("a link");
        let mut paths = WatchedPaths::default();
        assert_eq!(paths.add_path(&root.join("a")), None);
        assert_eq!(entries(&paths, &root), ["/a", "/b"]);
    }
}
