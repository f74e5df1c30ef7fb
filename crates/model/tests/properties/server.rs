//! The objects of an API server, and the events that its clients get.

use std::collections::BTreeMap;

use portwarden_model::{Cluster, Desired, Event, Family, Interner, Kind, Name, NamespacedName, object};
use portwarden_testkit::strategies::{Object, Shape, objects};
use proptest::prelude::*;

/// One write to the API server.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// The object is this now.
    Write(Object),
    /// The object of this kind and name is gone.
    Delete(Object),
}

/// Kind and name of an object.
pub(crate) type Key = (Kind, String);

impl Change {
    pub(crate) fn key(&self) -> Key {
        match self {
            Change::Write(object) | Change::Delete(object) => key(object),
        }
    }

    /// The event of a watch.
    pub(crate) fn event(&self) -> Event {
        match self {
            Change::Write(object) => applied(object),
            Change::Delete(object) => deleted(object),
        }
    }
}

/// Writes that often concern the same objects.
pub(crate) fn histories(shape: &Shape) -> impl Strategy<Value = Vec<Change>> + use<> {
    prop::collection::vec(changes(shape), 1..40)
}

/// One write. A Node is never deleted: what it said is retained, so the outcome would depend on who saw it.
pub(crate) fn changes(shape: &Shape) -> impl Strategy<Value = Change> + use<> {
    (objects(shape), prop::bool::weighted(0.2)).prop_map(|(object, gone)| match (gone, &object) {
        (false, _) | (true, Object::Node(_)) => Change::Write(object),
        (true, _) => Change::Delete(object),
    })
}

/// The objects that exist.
#[derive(Debug, Clone, Default)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<Key, Object>,
}

impl Server {
    pub(crate) fn after(history: &[Change]) -> Self {
        let mut server = Server::default();
        for change in history {
            server.take(change);
        }
        server
    }

    pub(crate) fn take(&mut self, change: &Change) {
        match change {
            Change::Write(object) => {
                self.objects.insert(key(object), object.clone());
            }
            Change::Delete(object) => {
                self.objects.remove(&key(object));
            }
        }
    }

    /// The events of a list of one kind.
    pub(crate) fn list(&self, kind: Kind) -> Vec<Event> {
        self.objects
            .iter()
            .filter(|((other, _), _)| *other == kind)
            .map(|(_, object)| applied(object))
            .collect()
    }

    /// The events of all lists.
    pub(crate) fn events(&self) -> Vec<Event> {
        Kind::ALL.into_iter().flat_map(|kind| self.list(kind)).collect()
    }
}

/// The event that a source sends for an object: applied, or deleted if it must not be used.
pub(crate) fn applied(object: &Object) -> Event {
    let names = &mut Interner::default();
    match object {
        Object::Service(service) => {
            let (parsed, _) = object::Service::from_manifest(service, names);
            parsed.map_or_else(|| deleted(object), Event::ServiceApplied)
        }
        Object::Slice(slice) => {
            let (parsed, _) = object::EndpointSlice::from_manifest(slice, names);
            parsed.map_or_else(|| deleted(object), Event::SliceApplied)
        }
        Object::Node(node) => Event::NodeApplied(object::Node::from_manifest(node).0),
        Object::ServiceCidr(cidr) => Event::ServiceCidrApplied(object::ServiceCidr::from_manifest(cidr).0),
    }
}

fn deleted(object: &Object) -> Event {
    let (kind, name) = key(object);
    match kind {
        Kind::Service => Event::ServiceDeleted(NamespacedName::new("demo", &name)),
        Kind::EndpointSlice => Event::SliceDeleted(NamespacedName::new("demo", &name)),
        Kind::Node => Event::NodeDeleted(Name::from(name.as_str())),
        Kind::ServiceCidr => Event::ServiceCidrDeleted(Name::from(name.as_str())),
    }
}

fn key(object: &Object) -> Key {
    match object {
        Object::Service(service) => (Kind::Service, service.metadata.name.clone()),
        Object::Slice(slice) => (Kind::EndpointSlice, slice.metadata.name.clone()),
        Object::Node(node) => (Kind::Node, node.metadata.name.clone()),
        Object::ServiceCidr(cidr) => (Kind::ServiceCidr, cidr.metadata.name.clone()),
    }
}

/// Applies all events and resolves once.
pub(crate) fn feed(cluster: &mut Cluster, events: impl IntoIterator<Item = Event>) {
    for event in events {
        cluster.apply(event);
    }
    cluster.resolve();
}

/// The desired state of both families.
pub(crate) fn desired(cluster: &Cluster) -> [Desired; 2] {
    Family::BOTH.map(|family| cluster.desired(family).clone())
}
