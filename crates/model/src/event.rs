//! What a source reports: objects that were added, changed or deleted.

use std::net::IpAddr;

use crate::name::{Name, NamespacedName};
use crate::object::{EndpointSlice, Node, Service, ServiceCidr};

/// A kind of object that a source lists and watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `v1` Node; only our own is watched.
    Node,
    /// `networking.k8s.io` ServiceCIDR.
    ServiceCidr,
}

impl Kind {
    /// Every kind, each once.
    pub const ALL: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];
}

/// One change. Applying the same event twice changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A Service was added or changed. One that must not be proxied is sent as [`Event::ServiceDeleted`].
    ServiceApplied(Service),
    /// The Service does not exist, or must not be proxied.
    ServiceDeleted(NamespacedName),
    /// A slice was added or changed. One that must not be used is sent as [`Event::SliceDeleted`].
    SliceApplied(EndpointSlice),
    /// The slice does not exist, or must not be used.
    SliceDeleted(NamespacedName),
    /// A Node was added or changed; others than our own are ignored.
    NodeApplied(Node),
    /// The Node was deleted.
    NodeDeleted(Name),
    /// A ServiceCIDR was added or changed.
    ServiceCidrApplied(ServiceCidr),
    /// The ServiceCIDR was deleted.
    ServiceCidrDeleted(Name),
    /// A new list of this kind begins: all its objects follow, then [`Event::ListDone`].
    ListStarted(Kind),
    /// The list is complete: objects of this kind that it did not contain are gone. The first one makes the kind synced.
    ListDone(Kind),
    /// The addresses of this host's interfaces; replaces the previous ones.
    HostAddresses(Box<[IpAddr]>),
}
