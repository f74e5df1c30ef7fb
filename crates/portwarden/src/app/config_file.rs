//! Detects changes of the configuration file: written in place, replaced by another file or, as with a ConfigMap, through a swapped
//! symbolic link in its path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use tracing::warn;

use crate::config::read_file;

/// Editors often write a file in several steps; this much silence means that they are done.
const QUIET: Duration = Duration::from_millis(100);

/// Other files may be written in the same folder without a pause: then the wait for silence ends after this time.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The polling interval where inotify does not work (some network and overlay file systems).
const LOOK: Duration = Duration::from_secs(60);

/// The maximum number of links in a path, the same as the kernel's.
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
        let content = path.as_ref().and_then(|path| read_file(path.to_str()?).ok());
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
            // A missing file may reappear in a moment; the last configuration stays in force. Read on another thread: the file system may hang.
            let read = move || read_file(path.to_str().unwrap_or_default());
            if let Ok(Ok(content)) = tokio::task::spawn_blocking(read).await
                && self.content.as_ref() != Some(&content)
            {
                self.content = Some(content);
                return;
            }
        }
    }

    /// Returns some time after the last change near the file, or after the polling interval.
    async fn wait(&mut self) {
        let Some(events) = &mut self.events else { return tokio::time::sleep(LOOK).await };
        if tokio::time::timeout(LOOK, events.next()).await.is_ok() {
            let calm = async {
                while tokio::time::timeout(QUIET, events.next()).await.is_ok_and(|event| event.is_some()) {}
            };
            let _ = tokio::time::timeout(LONGEST_WAIT, calm).await;
        }
    }

    /// Watches every folder in the path: any of them may hold the link that is swapped.
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

/// The folders of the file and of every link in its path.
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
        // A folder in the path may be a link itself, like `..data` of a ConfigMap.
        if folder.file_name().is_some() {
            pending.push(folder.clone());
        }
        if folder.is_dir() {
            folders.insert(folder);
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    async fn changes(file: &mut ConfigFile) -> bool {
        tokio::time::timeout(TIMEOUT, file.changed()).await.is_ok()
    }

    fn text(path: &Path) -> &str {
        path.to_str().expect("a plain path")
    }

    #[tokio::test]
    async fn a_file_written_in_place_or_renamed_over_is_noticed_again_and_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.conf");
        fs::write(&path, "1").expect("writes");
        let mut file = ConfigFile::follow(Some(text(&path)));
        for round in 0..3 {
            fs::write(&path, format!("in place {round}")).expect("writes");
            assert!(changes(&mut file).await);
            let other = folder.path().join("other");
            fs::write(&other, format!("renamed {round}")).expect("writes");
            fs::rename(&other, &path).expect("renames");
            assert!(changes(&mut file).await);
        }
        fs::remove_file(&path).expect("removes");
        fs::write(&path, "back").expect("writes");
        assert!(changes(&mut file).await);
    }

    /// As the kubelet does it: `config.conf` leads through `..data` to a folder with a time in its name.
    #[tokio::test]
    async fn a_config_map_is_followed_through_its_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = folder.path();
        let publish = |version: &str| {
            fs::create_dir(volume.join(version)).expect("a folder");
            fs::write(volume.join(version).join("config.conf"), version).expect("writes");
            symlink(version, volume.join("..data_tmp")).expect("a link");
            fs::rename(volume.join("..data_tmp"), volume.join("..data")).expect("renames");
        };
        publish("..2026_01");
        symlink("..data/config.conf", volume.join("config.conf")).expect("a link");
        let mut file = ConfigFile::follow(Some(text(&volume.join("config.conf"))));
        for version in ["..2026_02", "..2026_03"] {
            publish(version);
            assert!(changes(&mut file).await, "{version}");
        }
    }

    #[tokio::test]
    async fn the_same_content_is_no_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.conf");
        fs::write(&path, "same").expect("writes");
        let mut file = ConfigFile::follow(Some(text(&path)));
        fs::write(&path, "same").expect("writes");
        fs::write(folder.path().join("neighbour"), "x").expect("writes");
        assert!(futures::poll!(std::pin::pin!(file.changed())).is_pending());
        fs::write(&path, "other").expect("writes");
        assert!(changes(&mut file).await);
        assert_eq!(file.content.as_deref(), Some(&b"other"[..]), "one change, not two");
    }

    /// A log file in the same folder, for example, must not delay the new configuration for as long as it grows.
    #[tokio::test]
    async fn a_file_beside_it_that_is_written_all_the_time_does_not_delay_a_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.conf");
        fs::write(&path, "old").expect("writes");
        let mut file = ConfigFile::follow(Some(text(&path)));
        let neighbour = folder.path().join("neighbour");
        let noise = async {
            loop {
                fs::write(&neighbour, "x").expect("writes");
                tokio::time::sleep(QUIET / 10).await;
            }
        };
        fs::write(&path, "new").expect("writes");
        tokio::select! {
            noticed = changes(&mut file) => assert!(noticed),
            () = noise => {}
        }
        assert_eq!(file.content.as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn every_folder_on_the_way_is_watched() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        fs::create_dir(&a).expect("a folder");
        fs::create_dir(&b).expect("a folder");
        symlink(&b, a.join("link")).expect("a link");
        fs::write(b.join("file"), "").expect("writes");
        let found = folders(&a.join("link/file"));
        assert!(found.contains(&a) && found.contains(&a.join("link")), "{found:?}");
    }
}
