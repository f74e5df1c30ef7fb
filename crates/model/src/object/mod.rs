//! Kubernetes objects as settled: parsed, checked, and only what a proxy uses.
//!
//! Each type has one way in, `from_manifest`, which also tells what it had to leave out.

mod node;
mod service;
mod service_cidr;
mod slice;

pub use node::Node;
pub use service::{Service, ServicePort, ServiceType};
pub use service_cidr::ServiceCidr;
pub use slice::{Conditions, Endpoint, EndpointSlice, Hints, SlicePort};
