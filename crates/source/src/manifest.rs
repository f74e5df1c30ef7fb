//! Manifests and the model events that they become.

use std::fmt::Debug;

use portwarden_model::{Event, Interner, Kind, Name, NamespacedName, Problem, manifest, object};
use serde::de::DeserializeOwned;

/// A manifest of one of the kinds that a proxy uses.
pub trait Manifest: prost::Message + DeserializeOwned + Default + Debug + PartialEq + 'static {
    /// The kind for the model.
    const KIND: Kind;
    /// The kind in Kubernetes.
    const NAME: &'static str;

    /// `metadata` of the object.
    fn metadata(&self) -> &manifest::Metadata;

    /// The event for a created or changed object, and the parts that cannot be used.
    fn applied(&self, names: &mut Interner) -> (Event, Vec<Problem>);

    /// The event for a deleted object.
    fn deleted(&self) -> Event;
}

impl Manifest for manifest::Service {
    const KIND: Kind = Kind::Service;
    const NAME: &'static str = "Service";

    fn metadata(&self) -> &manifest::Metadata {
        &self.metadata
    }

    fn applied(&self, names: &mut Interner) -> (Event, Vec<Problem>) {
        let (service, problems) = object::Service::from_manifest(self, names);
        (service.map_or_else(|| self.deleted(), Event::ServiceApplied), problems)
    }

    fn deleted(&self) -> Event {
        Event::ServiceDeleted(NamespacedName::new(&self.metadata.namespace, &self.metadata.name))
    }
}

impl Manifest for manifest::EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;
    const NAME: &'static str = "EndpointSlice";

    fn metadata(&self) -> &manifest::Metadata {
        &self.metadata
    }

    fn applied(&self, names: &mut Interner) -> (Event, Vec<Problem>) {
        let (slice, problems) = object::EndpointSlice::from_manifest(self, names);
        (slice.map_or_else(|| self.deleted(), Event::SliceApplied), problems)
    }

    fn deleted(&self) -> Event {
        Event::SliceDeleted(NamespacedName::new(&self.metadata.namespace, &self.metadata.name))
    }
}

impl Manifest for manifest::Node {
    const KIND: Kind = Kind::Node;
    const NAME: &'static str = "Node";

    fn metadata(&self) -> &manifest::Metadata {
        &self.metadata
    }

    fn applied(&self, _names: &mut Interner) -> (Event, Vec<Problem>) {
        let (node, problems) = object::Node::from_manifest(self);
        (Event::NodeApplied(node), problems)
    }

    fn deleted(&self) -> Event {
        Event::NodeDeleted(Name::from(self.metadata.name.as_str()))
    }
}

impl Manifest for manifest::ServiceCidr {
    const KIND: Kind = Kind::ServiceCidr;
    const NAME: &'static str = "ServiceCIDR";

    fn metadata(&self) -> &manifest::Metadata {
        &self.metadata
    }

    fn applied(&self, _names: &mut Interner) -> (Event, Vec<Problem>) {
        let (cidr, problems) = object::ServiceCidr::from_manifest(self);
        (Event::ServiceCidrApplied(cidr), problems)
    }

    fn deleted(&self) -> Event {
        Event::ServiceCidrDeleted(Name::from(self.metadata.name.as_str()))
    }
}
