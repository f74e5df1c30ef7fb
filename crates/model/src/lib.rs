//! The pure middle of Portwarden: from objects to the desired state of the node.
//!
//! Nothing in here has a clock, a socket or a file. [`Cluster`] takes [`Event`]s and keeps one [`Desired`] per IP family;
//! a [`Dataplane`] brings a kernel to it. `ARCHITECTURE.md` tells how the parts hang together.
//!
//! ```text
//! manifest ──> object ──> event ──> cluster ──> desired ──> (a dataplane)
//! as written   settled              │  endpoints, choice   │
//!                                   │  frontend, claims    ├──> changes ──> stale_flows
//!                                   │  node_view           └──> explain
//! ```
//!
//! # Where is ...?
//!
//! | behaviour | file |
//! |---|---|
//! | how objects are written: JSON, YAML and protobuf, fields that are read | `manifest.rs` |
//! | addresses and CIDRs: padded zeros, IPv4-mapped IPv6, blanks | `ip.rs` |
//! | times as objects give them | `timestamp.rs` |
//! | which Services are proxied; cluster, external and load-balancer addresses, `ipMode`, source ranges, affinity, policies, health-check port | `object/service.rs` |
//! | which slices count; their ports, conditions, nodes and hints | `object/slice.rs` |
//! | the Node's addresses, zone, pod ranges and eligibility | `object/node.rs` |
//! | the ranges of cluster addresses | `object/service_cidr.rs` |
//! | what is wrong with an object, in words | `problem.rs` |
//! | what a source tells; lists and watches | `event.rs`, `cluster/lists.rs` |
//! | which Services an event touches, what a resolve reports, trigger times | `cluster/mod.rs` |
//! | objects that are kept; a slice that moves to another Service | `cluster/store.rs` |
//! | slices merged into endpoints: port names, duplicates, order | `endpoints.rs` |
//! | which endpoints are used: ready, terminating, local, hinted for our node or zone | `choice.rs` |
//! | frontends: verdicts without endpoints, Local policies, masquerading, source ranges, health-check counts | `frontend.rs` |
//! | several frontends that want one address | `claims.rs` |
//! | the node's address, where node ports answer, how pod traffic is told | `node_view.rs` |
//! | what the operator sets and all of that depends on | `settings.rs` |
//! | why all of that is so | `explain.rs` |
//! | the outcome, as dataplanes read it | `desired.rs`, `pool.rs`, `changes.rs`, `dataplane.rs` |
//! | when to sync: intervals, bursts, repetition of failures | `pacer.rs` |
//! | which UDP flows the kernel should forget | `stale_flows.rs` |
//! | when the proxy counts as unhealthy | `health.rs` |
//! | names that are stored once | `name.rs` |
//!
//! Tests stand beside each file. What holds for any cluster and any sequence of events is in `tests/properties`; what it costs, in
//! `benches/model.rs`.

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
mod layers;
pub mod manifest;
mod name;
mod node_view;
pub mod object;
mod pacer;
mod pool;
mod problem;
mod reserved_ports;
#[cfg(test)]
mod sample;
mod settings;
mod stale_flows;
mod timestamp;

pub use changes::{Changes, GoneFrontend};
pub use choice::{Reason, Topology};
pub use cluster::Cluster;
pub use dataplane::{
    Count, Dataplane, FULL_SYNC_INTERVAL, Gauge, Notification, RefusedService, Report, Retry, SyncError,
};
pub use desired::{
    Admission, Desired, Exposure, Frontend, HealthCheck, LoopbackNodePorts, Masquerade, NodePortAddresses,
    NodeView, PodTraffic, PoolKind, ProxiedPort, ProxiedService, SourceRanges, Totals, TrafficPolicy,
    Verdict,
};
pub use event::{Event, Kind};
pub use explain::{
    EndpointExplanation, Explanation, FrontendExplanation, FrontendReason, PortExplanation, UnmatchedPort,
};
pub use health::{FamilyHealth, HealthReport, ProxyHealth};
pub use ip::{Family, PerFamily, normalise, parse_cidr, parse_ip};
pub use layers::Layers;
pub use name::{Interner, Name, NamespacedName, PortName, Protocol};
pub use node_view::loopback_node_ports;
pub use pacer::{Pacer, PacerConfig};
pub use pool::{Backend, Pool};
pub use problem::Problem;
pub use settings::{DetectLocal, NodePortRange, Settings};
pub use stale_flows::{Flow, StaleFlows};
pub use timestamp::Timestamp;
