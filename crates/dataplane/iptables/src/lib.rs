//! The iptables dataplane: kube-proxy's rules, byte for byte, kept up to date through the iptables programs.
//!
//! [`render`] turns the desired state into rules, [`diff`] finds the chains that differ from what the kernel acknowledged ([`draft`]:
//! from what its tables have), `portwarden_xtables` hands them to `iptables-restore`. [`IptablesDataplane`] ties this together for one family. `docs/iptables.md` shows the
//! path of a packet and how to look at the rules.

mod aside;
mod cleanup;
mod counters;
mod dataplane;
pub mod diff;
pub mod draft;
mod error;
mod full;
pub mod jumps;
mod monitor;
pub mod names;
mod options;
pub mod plan;
pub mod render;
pub mod ruleset;
mod sysctl;
mod variant;

pub use cleanup::{cleanup, cleanup_with};
pub use counters::{PACKET_COUNTERS, PacketCounter};
pub use dataplane::{Failures, IptablesDataplane};
pub use error::{CleanupError, Error};
pub use options::Options;
pub use sysctl::allow_localhost_node_ports;
pub use variant::other_rules;
