//! What every proxy in user space shares: listeners, endpoint selection, dialling and copying. It knows nothing of the kernel's rules.

mod accept;
mod balancer;
mod clock;
mod counters;
mod datagrams;
mod dial;
mod drain;
mod handover;
mod limits;
mod pipe;
mod relay;
mod shared_udp;
mod socket;
mod udp;
mod workers;

pub(crate) use accept::{Listener, Route, Router, Shared, Target};
pub use counters::{Counters, ServiceCounters, Snapshot};
pub use drain::Drain;
pub(crate) use handover::{HandedOver, Offer, Predecessor};
pub(crate) use limits::Limits;
pub(crate) use shared_udp::UdpSockets;
pub(crate) use socket::{Sharing, bind_udp, listen};
pub(crate) use udp::{UdpListener, UdpRoute};
pub(crate) use workers::Workers;
