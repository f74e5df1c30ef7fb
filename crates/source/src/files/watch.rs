//! Notices changes with inotify, and waits until those who write are done.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::Instant;

use super::route::{Interest, Points};

/// A change counts as over after this much silence: tools touch a file several times in a row.
const QUIET: Duration = Duration::from_millis(25);
/// Nobody is waited for longer than this, so that a folder that never rests is still read.
const PATIENCE: Duration = Duration::from_secs(2);

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

/// Follows a set of directories.
#[derive(Debug)]
pub(super) struct Watch {
    events: EventStream<Vec<u8>>,
    directories: HashMap<WatchDescriptor, (PathBuf, Interest)>,
    /// Files with changes whose writer has not closed them yet.
    open: HashSet<(WatchDescriptor, OsString)>,
}

impl Watch {
    /// Follows nothing yet.
    pub(super) fn new() -> io::Result<Self> {
        let events = Inotify::init()?.into_event_stream(vec![0; 4096])?;
        Ok(Watch { events, directories: HashMap::new(), open: HashSet::new() })
    }

    /// Follows exactly these directories from now on; one that is gone in the meantime is left out.
    pub(super) fn follow(&mut self, points: &Points) -> io::Result<()> {
        let mut watches = self.events.watches();
        let mut directories = HashMap::new();
        for (directory, interest) in points.iter() {
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
            // The kernel has dropped the watch of a deleted directory by itself.
            let _ = watches.remove(descriptor.clone());
        }
        self.open.retain(|(descriptor, _)| directories.contains_key(descriptor));
        self.directories = directories;
        Ok(())
    }

    /// Returns after a change, once nothing more happens and no writer is at work.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        while !self.read().await? {}
        let deadline = Instant::now() + PATIENCE;
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

    /// Waits for an event; says whether it matters.
    async fn read(&mut self) -> io::Result<bool> {
        match self.events.next().await {
            Some(event) => Ok(self.note(event?)),
            None => Err(io::Error::other("inotify ended by itself")),
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
