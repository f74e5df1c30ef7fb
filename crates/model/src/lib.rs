//! The pure middle of Portwarden: from objects to the desired state of the node.
//!
//! Nothing in here has a clock, a socket or a file. [`Cluster`] takes [`Event`]s and keeps one [`Desired`] per IP family;
//! a [`Dataplane`] brings a kernel to it. `ARCHITECTURE.md` tells how the parts hang together.

mod changes;
mod choice;
mod claims;
mod cluster;
mod dataplane;
mod desired;
mod endpoints;
mod event;
mod explain;
mod frontend;
mod health;
mod ip;
pub mod manifest;
mod name;
mod node_view;
pub mod object;
mod pacer;
mod pool;
mod problem;
#[cfg(test)]
mod sample;
mod settings;
mod stale_flows;
mod timestamp;

pub use changes::{Changes, GoneFrontend};
pub use choice::{Reason, Topology};
pub use cluster::Cluster;
pub use dataplane::{Dataplane, Gauge, Isolated, Report, SyncError};
pub use desired::{
    Desired, Exposure, Frontend, HealthCheck, Masquerade, NodePortAddresses, NodeView, PodTraffic, PoolKind,
    ProxiedPort, ProxiedService, SourceRanges, Totals, Verdict,
};
pub use event::{Event, Kind};
pub use explain::{
    EndpointExplanation, Explanation, FrontendExplanation, FrontendReason, PortExplanation, UnmatchedPort,
};
pub use health::{FamilyHealth, HealthReport, ProxyHealth};
pub use ip::{Family, PerFamily, normalise, parse_cidr, parse_ip};
pub use name::{Interner, Name, NamespacedName, PortName, Protocol};
pub use pacer::{Pacer, PacerConfig};
pub use pool::{Backend, Pool};
pub use problem::Problem;
pub use settings::{DetectLocal, NodePortRange, Settings};
pub use stale_flows::{Flow, StaleFlows};
pub use timestamp::Timestamp;
