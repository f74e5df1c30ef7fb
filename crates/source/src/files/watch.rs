//! Watches directories with inotify, and waits until writers are done.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::Instant;

use super::watched_paths::{Interest, WatchedPaths};

/// A change is complete after this time without events: tools touch a file several times in a row.
const QUIET: Duration = Duration::from_millis(25);
/// The longest wait for writers, so that a folder that changes all the time is still read.
const MAX_WAIT: Duration = Duration::from_secs(2);

const MASK: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::MODIFY)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::ATTRIB)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::ONLYDIR);

/// An inotify instance.
#[derive(Debug)]
pub(super) struct Watch {
    events: EventStream<Vec<u8>>,
    directories: HashMap<WatchDescriptor, (PathBuf, Interest)>,
    /// Changed files that are not closed yet.
    open: HashSet<(WatchDescriptor, OsString)>,
}

impl Watch {
    /// Watches nothing yet.
    pub(super) fn new() -> io::Result<Self> {
        let events = Inotify::init()?.into_event_stream(vec![0; 4096])?;
        Ok(Watch { events, directories: HashMap::new(), open: HashSet::new() })
    }

    /// Replaces the watched directories; missing ones are skipped.
    pub(super) fn set_paths(&mut self, paths: &WatchedPaths) -> io::Result<()> {
        let mut watches = self.events.watches();
        let mut directories = HashMap::new();
        for (directory, interest) in paths.iter() {
            match watches.add(directory, MASK) {
                Ok(descriptor) => {
                    directories.insert(descriptor, (directory.clone(), interest.clone()));
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) => return Err(error),
            }
        }
        for descriptor in self.directories.keys().filter(|descriptor| !directories.contains_key(*descriptor))
        {
            // The kernel removes the watch of a deleted directory.
            let _ = watches.remove(descriptor.clone());
        }
        self.open.retain(|(descriptor, _)| directories.contains_key(descriptor));
        self.directories = directories;
        Ok(())
    }

    /// Returns after a change, once events stop and all written files are closed.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        while !self.read().await? {}
        let deadline = Instant::now() + MAX_WAIT;
        while Instant::now() < deadline {
            let limit = if self.open.is_empty() { (Instant::now() + QUIET).min(deadline) } else { deadline };
            match tokio::time::timeout_at(limit, self.read()).await {
                Ok(read) => read.map(drop)?,
                Err(_quiet) => break,
            }
        }
        self.open.clear();
        Ok(())
    }

    /// Waits for an event, and returns whether it is relevant.
    async fn read(&mut self) -> io::Result<bool> {
        match self.events.next().await {
            Some(event) => Ok(self.note(event?)),
            None => Err(io::Error::other("inotify ended")),
        }
    }

    fn note(&mut self, event: EventOwned) -> bool {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return true;
        }
        let Some((_, interest)) = self.directories.get(&event.wd) else { return false };
        if !interest.covers(event.name.as_deref()) {
            return false;
        }
        if let Some(name) = event.name {
            let file = (event.wd, name);
            if event.mask.contains(EventMask::MODIFY) {
                self.open.insert(file);
            } else if !event.mask.contains(EventMask::ATTRIB) {
                self.open.remove(&file);
            }
        }
        true
    }
}
