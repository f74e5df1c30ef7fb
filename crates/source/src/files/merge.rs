//! Merges all files into one set of objects, and finds what changed since the last scan.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portwarden_model::{Event, Kind, Name, Problem, manifest};

use super::folder::{FileObject, Folder, Key};
use crate::manifest::Manifest;
use crate::reported_problems::ReportedProblems;

/// The objects as of the last scan.
#[derive(Debug, Default)]
pub(super) struct MergedFiles {
    /// `None` before the first scan.
    objects: Option<BTreeMap<Key, Arc<Event>>>,
    objects_reported: ReportedProblems<Key>,
    files_reported: ReportedProblems<PathBuf>,
}

#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) events: Vec<Event>,
    pub(super) problems: Vec<Problem>,
}

impl MergedFiles {
    /// Compares with the files. The first difference consists of complete lists of all kinds.
    pub(super) fn update(&mut self, folder: &Folder) -> Difference {
        let mut problems = Vec::new();
        let winners = self.winners(folder, &mut problems);
        let now: BTreeMap<Key, Arc<Event>> = winners
            .into_iter()
            .filter_map(|(key, (_, object))| Some((key.clone(), object.event.clone()?)))
            .collect();
        let events = match &self.objects {
            None => lists(&now),
            Some(before) => changes(before, &now),
        };
        self.objects = Some(now);
        Difference { events, problems }
    }

    /// The object in use for each key: the first one, by file name and then by position in the file.
    fn winners<'a>(
        &mut self,
        folder: &'a Folder,
        fresh: &mut Vec<Problem>,
    ) -> BTreeMap<&'a Key, (&'a Path, &'a FileObject)> {
        let mut winners: BTreeMap<&Key, (&Path, &FileObject)> = BTreeMap::new();
        self.objects_reported.list_started();
        self.files_reported.list_started();
        for (path, file) in folder.files() {
            let mut problems: Vec<Problem> = file.problem.iter().cloned().collect();
            for object in &file.objects {
                match winners.entry(&object.key) {
                    Entry::Vacant(free) => {
                        free.insert((path, object));
                    }
                    Entry::Occupied(taken) => problems.push(duplicate(path, &object.key, taken.get().0)),
                }
            }
            fresh.extend(self.files_reported.fresh(|| path.to_owned(), problems));
        }
        for (key, (_, object)) in &winners {
            fresh.extend(self.objects_reported.fresh(|| (*key).clone(), object.problems.clone()));
        }
        self.objects_reported.list_done();
        self.files_reported.list_done();
        winners
    }
}

fn duplicate(path: &Path, (kind, name): &Key, winner: &Path) -> Problem {
    let kind = match kind {
        Kind::Service => manifest::Service::NAME,
        Kind::EndpointSlice => manifest::EndpointSlice::NAME,
        Kind::Node => manifest::Node::NAME,
        Kind::ServiceCidr => manifest::ServiceCidr::NAME,
    };
    Problem {
        object: path.display().to_string(),
        field: format!("{kind} {}", name.as_str().trim_start_matches('/')),
        text: format!("already in {}, which is used; this one is ignored", winner.display()),
    }
}

fn lists(now: &BTreeMap<Key, Arc<Event>>) -> Vec<Event> {
    let mut events = Vec::with_capacity(now.len() + 2 * Kind::ALL.len());
    for kind in Kind::ALL {
        events.push(Event::ListStarted(kind));
        events.extend(now.iter().filter(|((of, _), _)| *of == kind).map(|(_, event)| Event::clone(event)));
        events.push(Event::ListDone(kind));
    }
    events
}

fn changes(before: &BTreeMap<Key, Arc<Event>>, now: &BTreeMap<Key, Arc<Event>>) -> Vec<Event> {
    let gone = before.keys().filter(|key| !now.contains_key(*key)).map(deleted);
    let changed = now.iter().filter(|(key, event)| {
        // Files that did not change share their events with the last time, so most comparisons are free.
        before.get(*key).is_none_or(|old| !Arc::ptr_eq(old, event) && old != *event)
    });
    gone.chain(changed.map(|(_, event)| Event::clone(event))).collect()
}

fn deleted((kind, name): &Key) -> Event {
    match kind {
        Kind::Service => Event::ServiceDeleted(name.clone()),
        Kind::EndpointSlice => Event::SliceDeleted(name.clone()),
        Kind::Node => Event::NodeDeleted(Name::from(name.name())),
        Kind::ServiceCidr => Event::ServiceCidrDeleted(Name::from(name.name())),
    }
}
