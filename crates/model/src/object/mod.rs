//! Kubernetes objects, parsed and validated: only the fields that a proxy uses.
//!
//! Each type has one constructor, `from_manifest`, which also reports the fields it had to leave out.

mod node;
mod service;
mod service_cidr;
mod slice;

pub use node::Node;
pub use service::{Service, ServicePort, ServiceType};
pub use service_cidr::ServiceCidr;
pub use slice::{Conditions, Endpoint, EndpointSlice, Hints, SlicePort};
