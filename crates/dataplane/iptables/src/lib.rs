//! The iptables dataplane: kube-proxy's rules, byte for byte, kept up to date through the iptables programs.
//!
//! [`render`] turns the desired state into rules, [`diff`] finds the chains that differ from what the kernel acknowledged ([`draft`]:
//! from what its tables have), `portwarden_xtables` hands them to `iptables-restore`. [`IptablesDataplane`] ties this together for one family. `docs/iptables.md` shows the
//! path of a packet and how to look at the rules.

mod background_job;
mod cleanup;
mod counters;
mod dataplane;
pub mod diff;
pub mod draft;
mod earlier_restores;
mod error;
mod family_rules;
mod family_worker;
mod full_sync;
pub mod jumps;
pub mod names;
mod options;
mod other_variant;
pub mod plan;
mod quarantine;
pub mod render;
pub mod ruleset;
mod sysctl;
mod tampering;

pub use cleanup::{cleanup, cleanup_with};
pub use counters::{PACKET_COUNTERS, PacketCounter};
pub use dataplane::IptablesDataplane;
pub use error::{CleanupError, Error};
pub use options::Options;
pub use other_variant::other_rules;
pub use sysctl::allow_localhost_node_ports;
