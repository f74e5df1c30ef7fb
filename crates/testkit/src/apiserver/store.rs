//! All objects, and how they came to be what they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::object::{Key, Stored, metadata, metadata_mut, resource};
use super::resource::Resource;
use crate::rig::Object;

/// Versions begin somewhere, as those of a server that has lived for a while.
const FIRST_VERSION: u64 = 1000;

/// Objects of all kinds under one sequence of versions.
#[derive(Debug)]
pub(super) struct Store {
    version: u64,
    created: u64,
    /// Changes up to this version are forgotten.
    compacted: u64,
    collections: BTreeMap<Resource, Collection>,
    /// Events are kept as they come.
    pub(super) events: BTreeMap<Key, Value>,
}

#[derive(Debug, Default)]
struct Collection {
    objects: BTreeMap<Key, Arc<Stored>>,
    /// In the order of their versions.
    changes: Vec<Change>,
}

/// One write.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    /// What the object is now; for a deletion, what it was, with the version of the deletion.
    pub(super) object: Arc<Stored>,
    pub(super) previous: Option<Arc<Stored>>,
    pub(super) deleted: bool,
}

/// A version is older than the oldest that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compacted {
    pub(super) oldest: u64,
}

/// The objects of a kind at one version, in order.
pub(super) type Snapshot = BTreeMap<Key, Arc<Stored>>;

impl Default for Store {
    fn default() -> Self {
        let collections =
            Resource::ALL.into_iter().map(|resource| (resource, Collection::default())).collect();
        Store {
            version: FIRST_VERSION,
            created: 0,
            compacted: FIRST_VERSION - 1,
            collections,
            events: BTreeMap::new(),
        }
    }
}

impl Store {
    /// The version of the last write.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Creates or changes an object; one that is the same already keeps its version.
    pub(super) fn apply(&mut self, mut object: Object) -> Arc<Stored> {
        let Key { namespace, name } = Key::of(&object);
        let previous = self.get(resource(&object), &namespace, &name);
        let now = metadata_mut(&mut object);
        now.resource_version.clear();
        match &previous {
            Some(previous) => {
                now.uid.clone_from(&previous.metadata().uid);
                now.resource_version.clone_from(&previous.metadata().resource_version);
                if object == previous.object {
                    return previous.clone();
                }
            }
            None => {
                self.created += 1;
                now.uid = format!("5b1f0d3c-0000-4000-8000-{:012x}", self.created);
            }
        }
        self.version += 1;
        let stored = Arc::new(Stored::new(object, self.version));
        let change = Change { version: self.version, object: stored.clone(), previous, deleted: false };
        let collection = self.collections.entry(stored.resource()).or_default();
        collection.objects.insert(stored.key.clone(), stored.clone());
        collection.changes.push(change);
        stored
    }

    /// Deletes an object; gives what it was.
    pub(super) fn delete(&mut self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Stored>> {
        let collection = self.collections.get_mut(&resource)?;
        let previous = collection.objects.remove(&Key::new(namespace, name))?;
        self.version += 1;
        let object = Arc::new(Stored::new(previous.object.clone(), self.version));
        let change =
            Change { version: self.version, object: object.clone(), previous: Some(previous), deleted: true };
        collection.changes.push(change);
        Some(object)
    }

    pub(super) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Stored>> {
        self.collections.get(&resource)?.objects.get(&Key::new(namespace, name)).cloned()
    }

    /// The objects of a kind now.
    pub(super) fn now(&self, resource: Resource) -> Snapshot {
        self.collections.get(&resource).map(|collection| collection.objects.clone()).unwrap_or_default()
    }

    /// The objects of a kind as they were at a version.
    pub(super) fn at(&self, resource: Resource, version: u64) -> Result<Snapshot, Compacted> {
        let mut objects = self.now(resource);
        for change in self.after(resource, version)?.iter().rev() {
            match &change.previous {
                Some(previous) => objects.insert(previous.key.clone(), previous.clone()),
                None => objects.remove(&change.object.key),
            };
        }
        Ok(objects)
    }

    /// The changes to a kind after a version.
    pub(super) fn after(&self, resource: Resource, version: u64) -> Result<&[Change], Compacted> {
        if version < self.compacted {
            return Err(Compacted { oldest: self.compacted });
        }
        let Some(collection) = self.collections.get(&resource) else { return Ok(&[]) };
        let start = collection.changes.partition_point(|change| change.version <= version);
        Ok(collection.changes.get(start..).unwrap_or_default())
    }

    /// Writes all objects as protobuf, which is kept.
    pub(super) fn prepare(&self) {
        for stored in self.collections.values().flat_map(|collection| collection.objects.values()) {
            stored.protobuf();
        }
    }

    /// Forgets how things came to be what they were at a version, or at the newest: versions before that are too old from now on.
    pub(super) fn compact_until(&mut self, version: u64) {
        let version = version.min(self.version);
        self.compacted = self.compacted.max(version);
        for collection in self.collections.values_mut() {
            let end = collection.changes.partition_point(|change| change.version <= version);
            collection.changes.drain(..end);
        }
    }
}

impl Key {
    pub(super) fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn of(object: &Object) -> Key {
        let metadata = metadata(object);
        Key::new(&metadata.namespace, &metadata.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{service, slice};

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.keys().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn versions_grow_over_all_kinds_and_the_past_can_be_listed() {
        let mut store = Store::default();
        let web = store.apply(service("web").into());
        let pods = store.apply(slice("web", "web-1").into());
        let api = store.apply(service("api").into());
        let changed = store.apply(service("web").label("a", "b").into());
        let gone = store.delete(Resource::Services, "demo", "web").unwrap();
        let versions = [&web, &pods, &api, &changed, &gone].map(|stored| stored.version - FIRST_VERSION);
        assert_eq!(versions, [1, 2, 3, 4, 5]);
        assert_eq!(web.metadata().uid, gone.metadata().uid);
        assert_eq!(names(&store.now(Resource::Services)), ["api"]);
        let then = store.at(Resource::Services, api.version).unwrap();
        assert_eq!(names(&then), ["api", "web"]);
        assert!(then[&web.key].metadata().labels.is_empty());
        assert_eq!(names(&store.at(Resource::Services, web.version).unwrap()), ["web"]);
        let later: Vec<bool> = store
            .after(Resource::Services, api.version)
            .unwrap()
            .iter()
            .map(|change| change.deleted)
            .collect();
        assert_eq!(later, [false, true]);
        assert!(store.apply(service("web").into()).metadata().uid != web.metadata().uid, "another one");
    }

    #[test]
    fn the_same_again_is_no_change() {
        let mut store = Store::default();
        let first = store.apply(service("web").into());
        assert_eq!(store.apply(service("web").into()).version, first.version);
        assert_eq!(store.version(), first.version);
        assert!(store.delete(Resource::Services, "demo", "none").is_none());
    }

    #[test]
    fn what_is_compacted_is_gone() {
        let mut store = Store::default();
        let first = store.apply(service("web").into());
        let second = store.apply(service("api").into());
        store.compact_until(u64::MAX);
        assert!(store.after(Resource::Services, second.version).unwrap().is_empty());
        assert_eq!(
            store.at(Resource::Services, first.version).unwrap_err(),
            Compacted { oldest: second.version }
        );
    }
}
