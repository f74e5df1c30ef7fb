//! Notices changes of the configuration file, however they are made: written in place, another file renamed over it, or, as with a
//! ConfigMap, a symbolic link on the way to it swapped.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use tracing::warn;

/// Those who write a file often do it in several steps; this much silence means that they are done.
const QUIET: Duration = Duration::from_millis(100);

/// Where inotify does not work (some network and overlay file systems), looking now and then has to do.
const LOOK: Duration = Duration::from_secs(60);

/// So many links may follow on each other, as in the kernel.
const LINKS: usize = 40;

/// Follows one file.
pub(super) struct ConfigFile {
    path: Option<PathBuf>,
    events: Option<EventStream<Vec<u8>>>,
    content: Option<Vec<u8>>,
}

impl ConfigFile {
    /// Follows the file as it is now. Without a path there is never a change. Must run inside a runtime.
    pub(super) fn follow(path: Option<&str>) -> Self {
        let path = path.map(PathBuf::from);
        let content = path.as_ref().and_then(|path| std::fs::read(path).ok());
        let mut file = ConfigFile { path, events: None, content };
        file.watch();
        file
    }

    /// Returns when the file has another content.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(path) = self.path.clone() else { return std::future::pending().await };
            self.wait().await;
            self.watch();
            // A file that is gone may come back in a moment; what was read last stays in force.
            if let Ok(content) = std::fs::read(&path)
                && self.content.as_ref() != Some(&content)
            {
                self.content = Some(content);
                return;
            }
        }
    }

    /// Returns after something happened near the file and calm is back, or after a while.
    async fn wait(&mut self) {
        let Some(events) = &mut self.events else { return tokio::time::sleep(LOOK).await };
        if tokio::time::timeout(LOOK, events.next()).await.is_ok() {
            while tokio::time::timeout(QUIET, events.next()).await.is_ok_and(|event| event.is_some()) {}
        }
    }

    /// Watches every folder on the way to the file: any of them may hold the link that is swapped.
    fn watch(&mut self) {
        let Some(path) = &self.path else { return };
        let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::DELETE;
        let watched = Inotify::init().and_then(|inotify| {
            for folder in folders(path) {
                inotify.watches().add(folder, mask)?;
            }
            inotify.into_event_stream(vec![0; 4096])
        });
        match watched {
            Ok(events) => self.events = Some(events),
            Err(error) => {
                warn!(file = ?path, err = %error, "Cannot watch the configuration file; looking at it every {LOOK:?}");
                self.events = None;
            }
        }
    }
}

/// The folders of the file and of everything that links lead through.
fn folders(path: &Path) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    let mut pending = vec![path.to_owned()];
    for _ in 0..LINKS {
        let Some(path) = pending.pop() else { break };
        let folder = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_owned(),
            None => continue,
        };
        if let Ok(target) = std::fs::read_link(&path) {
            pending.push(folder.join(target));
        }
        // A folder on the way may be a link itself, as `..data` of a ConfigMap is.
        if folder.file_name().is_some() {
            pending.push(folder.clone());
        }
        if folder.is_dir() {
            folders.insert(folder);
        }
    }
    folders
}
