//! The dataplane that terminates connections: it accepts a client, dials an endpoint and copies bytes between the two.
//!
//! ```text
//! kernel rules ──> listener ──> route ──> balancer ──> dial ──> relay
//! (redirection)    accepts      which     which        retries  copies
//!                               Service   endpoint
//! ```
//!
//! # Where is ...?
//!
//! | behaviour | file |
//! |---|---|
//! | a sync: sockets, then rules, then what is no longer needed | `dataplane.rs` |
//! | kernel rules: by nf_tables, by iptables, what a change writes | `redirect/nftables/`, `redirect/iptables/`, `redirect/ledger.rs` |
//! | UDP flows that the kernel should forget | `flows.rs` |
//! | which Service a connection was for | `routes.rs` |
//! | `--proxy-port-range`, ports kept over a restart | `ports.rs` |
//! | what the kernel has, for `portwarden explain` | `read_back.rs`, `redirect/nftables/redirections.rs` |
//! | node ports on 127.0.0.1 and ::1 beside mode nftables | `loopback.rs` |
//! | TCP listeners, the address they are on | `dataplane/sockets.rs` |
//! | sockets that go from process to process, which process reads UDP | `core/handover.rs`, `core/shared_udp.rs` |
//! | UDP sessions | `core/udp.rs` |
//! | threads that move bytes, which of them has a connection, draining | `core/workers.rs` |
//! | accepting, limits, exhausted descriptors | `core/accept.rs`, `core/limits.rs` |
//! | which endpoint, session affinity, dials in flight | `core/balancer.rs` |
//! | attempts and their timeouts | `core/dial.rs` |
//! | half-close, resets, keep-alive | `core/relay.rs` |
//! | copying, `splice(2)` | `core/relay/direction.rs`, `core/pipe.rs` |
//! | what may happen a few seconds late | `core/clock.rs` |
//! | what is counted | `core/counters.rs` |

mod core;
mod dataplane;
mod error;
mod flows;
mod loopback;
mod ports;
mod read_back;
mod redirect;
mod routes;

pub use core::{Counters, Drain, ServiceCounters, Snapshot};
pub use dataplane::{Options, Redirection, Userspace, cleanup};
pub use error::Error;
pub use loopback::{CREATION_FAILURES, LISTENERS, LoopbackProxy};
pub use read_back::ReadBack;
pub use redirect::RedirectError;
