//! What a source tells: objects that came, changed or went.

use std::net::IpAddr;

use crate::name::{Name, NamespacedName};
use crate::object::{EndpointSlice, Node, Service, ServiceCidr};

/// A kind of object that a source lists and watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    EndpointSlice,
    /// The own Node.
    Node,
    /// ServiceCIDRs.
    ServiceCidr,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];
}

/// One change. Applying the same event twice changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A Service is this now. One that is not to be proxied (any more) comes as [`Event::ServiceDeleted`].
    ServiceApplied(Service),
    /// There is no such Service.
    ServiceDeleted(NamespacedName),
    /// A slice is this now. One that is not to be used (any more) comes as [`Event::SliceDeleted`].
    SliceApplied(EndpointSlice),
    /// There is no such slice.
    SliceDeleted(NamespacedName),
    /// The Node is this now.
    NodeApplied(Node),
    /// The Node is gone.
    NodeDeleted(Name),
    /// A ServiceCIDR is this now.
    ServiceCidrApplied(ServiceCidr),
    /// There is no such ServiceCIDR.
    ServiceCidrDeleted(Name),
    /// A new list of this kind begins: every object of it follows, then [`Event::ListDone`].
    ListStarted(Kind),
    /// The list is whole: objects of this kind that it did not bring are gone. The first one means that the kind is synced.
    ListDone(Kind),
    /// These are the addresses of this host's interfaces.
    HostAddresses(Box<[IpAddr]>),
}
