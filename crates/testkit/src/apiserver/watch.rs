//! One watch: what is, what happens, and where it stands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::encode::{Media, bookmark_event, error_event, event};
use super::object::Stored;
use super::resource::Resource;
use super::selector::Selection;
use super::shared::Shared;
use super::status::Refusal;
use super::store::Change;

/// A watch of one kind.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) shared: Arc<Shared>,
    pub(super) resource: Resource,
    pub(super) selection: Selection,
    pub(super) media: Media,
    /// Everything up to this version was sent.
    pub(super) position: u64,
    /// What comes first.
    pub(super) initial: Vec<Bytes>,
    /// Whether bookmarks come, and when the next one is due.
    pub(super) bookmark: Option<(Duration, Instant)>,
    pub(super) due: Instant,
    pub(super) versions: tokio::sync::watch::Receiver<u64>,
    pub(super) ended: bool,
}

impl Watch {
    /// The next events; nothing at the end.
    pub(super) async fn next(&mut self) -> Option<Vec<Bytes>> {
        if !self.initial.is_empty() {
            return Some(std::mem::take(&mut self.initial));
        }
        while !self.ended {
            self.versions.mark_unchanged();
            let events = self.happened();
            if !events.is_empty() {
                return Some(events);
            }
            let bookmark = self.bookmark.map_or(self.due, |(_, due)| due);
            tokio::select! {
                result = self.versions.changed() => self.ended |= result.is_err(),
                () = sleep_until(self.due) => self.ended = true,
                () = sleep_until(bookmark), if self.bookmark.is_some() => {
                    self.bookmark = self.bookmark.map(|(every, due)| (every, due + every));
                    return Some(vec![bookmark_event(self.media, self.resource, self.position, false)]);
                }
            }
        }
        None
    }

    /// What happened since the last look.
    fn happened(&mut self) -> Vec<Bytes> {
        let shared = self.shared.clone();
        let store = shared.store();
        match store.after(self.resource, self.position) {
            Ok(changes) => {
                let events = changes.iter().filter_map(|change| self.event(change)).collect();
                self.position = self.position.max(store.version());
                events
            }
            // Events that were not sent yet were discarded.
            Err(compacted) => {
                self.ended = true;
                vec![error_event(self.media, &Refusal::too_old(self.position, compacted.oldest))]
            }
        }
    }

    /// What a change means to those who see only what is selected.
    fn event(&self, change: &Change) -> Option<Bytes> {
        let before = change.previous.as_ref().filter(|previous| self.selection.matches(previous));
        let after = Some(&change.object).filter(|object| !change.deleted && self.selection.matches(object));
        let (kind, stored) = match (before, after) {
            (None, None) => return None,
            (None, Some(object)) => ("ADDED", object),
            (Some(_), Some(object)) => ("MODIFIED", object),
            (Some(_), None) if change.deleted => ("DELETED", &change.object),
            (Some(previous), None) => {
                let last = Stored::new(previous.object.clone(), change.version);
                return Some(event(self.media, "DELETED", &last));
            }
        };
        Some(event(self.media, kind, stored))
    }
}
