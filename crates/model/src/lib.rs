//! The pure middle of Portwarden: from Kubernetes objects to the desired state of the node.
//!
//! No clock, socket or file in here. [`Cluster`] takes [`Event`]s and keeps one [`Desired`] per IP family; a [`Dataplane`] brings the kernel
//! to it. `ARCHITECTURE.md` explains how the parts fit together.
//!
//! ```text
//! manifest ──> object ──> event ──> cluster ──> desired ──> (a dataplane)
//! as written   parsed               │  endpoints, endpoint_selection
//!                                   │  frontend, node_view ├──> changes ──> stale_flows
//!                                   │  address_conflicts   └──> explain
//! ```
//!
//! # Where is ...?
//!
//! | behaviour | file |
//! |---|---|
//! | the fields of objects that are read, in JSON, YAML and protobuf | `manifest.rs` |
//! | addresses and CIDRs: padded zeros, IPv4-mapped IPv6, blanks | `ip.rs` |
//! | timestamps in objects | `timestamp.rs` |
//! | which Services are proxied; cluster, external and load-balancer addresses, `ipMode`, traffic policies | `object/service.rs` |
//! | `loadBalancerSourceRanges` | `source_ranges.rs` |
//! | `sessionAffinity` and its timeout | `session_affinity.rs` |
//! | `healthCheckNodePort` and its count of local endpoints | `object/service.rs`, `health_check.rs` |
//! | which slices are used; their ports, conditions, nodes and hints | `object/slice.rs` |
//! | the Node's addresses, zone, pod ranges and eligibility | `object/node.rs` |
//! | the ranges of cluster addresses | `object/service_cidr.rs` |
//! | messages about fields that cannot be used | `problem.rs` |
//! | what a source sends; lists and watches | `event.rs`, `cluster/lists.rs` |
//! | which Services an event affects, what a resolve returns, trigger times, the retention of a deleted Node | `cluster/mod.rs` |
//! | stored objects; a slice that moves to another Service | `cluster/store.rs` |
//! | slices merged into endpoints: port names, duplicates, order | `endpoints.rs` |
//! | which endpoints are used: ready, terminating, local, topology hints | `endpoint_selection.rs` |
//! | frontends: verdicts, traffic policies, masquerading | `frontend.rs` |
//! | several frontends with one address | `address_conflicts.rs` |
//! | the node's address, how pod traffic is identified | `node_view.rs` |
//! | `nodePortAddresses`: where node ports answer, also on loopback addresses | `node_port_addresses.rs` |
//! | node ports that Portwarden's own servers use | `reserved_ports.rs` |
//! | the operator's settings | `settings.rs` |
//! | reasons of decisions (`portwarden explain`) | `explain.rs` |
//! | a desired state and a kernel, compared | `observed.rs` |
//! | the result, as dataplanes read it | `desired.rs`, `pool.rs`, `changes.rs` |
//! | the contract of a dataplane; several dataplanes in one mode | `dataplane.rs`, `layers.rs` |
//! | when to sync: intervals, bursts, retries | `pacer.rs` |
//! | stale conntrack entries | `stale_flows.rs` |
//! | when the proxy is unhealthy | `health.rs` |
//! | shared names | `name.rs` |
//! | builders of manifests for tests | `build.rs` (feature `build`), `sample.rs` |
//!
//! Unit tests are beside each file. Properties of all clusters and event sequences are in `tests/properties`; benchmarks in
//! `benches/model.rs`.

mod address_conflicts;
#[cfg(any(test, feature = "build"))]
pub mod build;
mod changes;
mod cluster;
mod dataplane;
mod desired;
mod endpoint_selection;
mod endpoints;
mod event;
mod explain;
mod frontend;
mod health;
mod health_check;
mod ip;
mod layers;
pub mod manifest;
mod name;
mod node_port_addresses;
mod node_view;
pub mod object;
mod observed;
mod pacer;
mod pool;
mod problem;
mod reserved_ports;
#[cfg(test)]
mod sample;
mod session_affinity;
mod settings;
mod source_ranges;
mod stale_flows;
mod timestamp;

pub use changes::{Changes, GoneFrontend};
pub use cluster::{Cluster, FrontendAt};
pub use dataplane::{
    Count, Dataplane, FULL_SYNC_INTERVAL, Gauge, Notification, RefusedService, Report, Retry, SyncError,
};
pub use desired::{
    Admission, Desired, Exposure, Frontend, Masquerade, NodeView, PodTraffic, PoolKind, ProxiedPort,
    ProxiedService, Totals, TrafficPolicy, Verdict,
};
pub use endpoint_selection::{Reason, Topology};
pub use event::{Event, Kind};
pub use explain::{
    EndpointExplanation, Explanation, FrontendExplanation, FrontendReason, PortExplanation, UnmatchedPort,
};
pub use health::{FamilyHealth, HealthReport, ProxyHealth};
pub use health_check::HealthCheck;
pub use ip::{Family, PerFamily, normalise, parse_cidr, parse_ip};
pub use layers::Layers;
pub use name::{Interner, Name, NamespacedName, PortName, Protocol};
pub use node_port_addresses::{LoopbackNodePorts, NodePortAddresses, NodePortRange, loopback_node_ports};
pub use observed::{FrontendKey, ObservedFrontend, Treatment};
pub use pacer::{Pacer, PacerConfig};
pub use pool::{Backend, Pool};
pub use problem::Problem;
pub use settings::{DetectLocal, Settings};
pub use source_ranges::SourceRanges;
pub use stale_flows::{Flow, StaleFlows};
pub use timestamp::Timestamp;
