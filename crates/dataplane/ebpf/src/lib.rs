//! The eBPF dataplane: a socket of this node that connects to a Service is pointed at an endpoint, and no packet is ever translated.
//!
//! ```text
//! connect, sendmsg ──> services ──> pools ──> slots ──> backends     what the programs read
//!                      address,     one word  numbers   addresses
//!                      port                   of backends
//! ```
//!
//! Traffic from outside, source ranges, dropped traffic and everything that does not fit into the maps is left to the nftables dataplane below
//! (`model::Layers`). A record that is missing here is therefore never an error.
//!
//! # Where is ...?
//!
//! | behaviour | file |
//! |---|---|
//! | what happens in a system call of a process | `programs/socket.bpf.c` |
//! | a sync: pools, then records, then what is no longer needed | `dataplane.rs`, `service.rs` |
//! | which frontends get a record | `frontends.rs` |
//! | the table in which programs find frontends | `service_table.rs` |
//! | endpoints of a pool: one change is a few writes, many are one switch | `pools.rs`, `ranges.rs` |
//! | what survives a restart | `adoption.rs` |
//! | loading, kernel features | `object.rs`, `features.rs` |
//! | attaching, replacing and removing programs | `links.rs`, `cleanup.rs` |
//! | pins that disappear | `pins.rs`, `links.rs` |
//! | the root of cgroup v2, network namespaces | `cgroup.rs`, `namespaces.rs` |
//! | connected UDP sockets of endpoints that left | `stale_sockets.rs` |
//! | counters of Services | `counters.rs` |
//! | `bpf(2)` and maps in memory, the only unsafe code | `sys.rs` |

mod adoption;
mod cgroup;
mod cleanup;
mod counters;
mod dataplane;
mod error;
mod features;
mod frontends;
mod layout;
mod links;
mod maps;
mod namespaces;
mod object;
mod options;
mod pins;
mod pools;
mod ranges;
mod service;
mod service_table;
mod stale_sockets;
mod sys;

pub use cgroup::find_cgroup_root;
pub use cleanup::{cleanup, is_attached};
pub use counters::{PortCounts, ServiceCounters};
pub use dataplane::Ebpf;
pub use error::Error;
pub use options::{Options, PIN_DIRECTORY, Sizes};
