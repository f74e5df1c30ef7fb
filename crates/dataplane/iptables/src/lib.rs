//! The iptables dataplane: kube-proxy's rules, byte for byte, kept up to date through the iptables programs.
//!
//! `render` turns the desired state into rules, `diff` finds the chains that differ from what the kernel acknowledged, `draft` those that
//! differ from what its tables have, and `portwarden_xtables` hands them to `iptables-restore`. `family_rules` ties this together for one
//! family, `family_worker` runs it on a thread, and [`IptablesDataplane`] keeps the contract of all dataplanes. `docs/iptables.md` shows
//! the path of a packet and how to look at the rules.

mod background_job;
mod cleanup;
mod counters;
mod dataplane;
mod diff;
mod draft;
mod dry_run;
mod earlier_restores;
mod error;
mod family_rules;
mod family_worker;
mod full_sync;
mod jumps;
mod names;
mod options;
mod other_variant;
mod plan;
mod quarantine;
mod read_back;
mod render;
mod rule_difference;
mod ruleset;
mod sysctl;
mod tampering;

pub use cleanup::{cleanup, cleanup_beside, cleanup_with};
pub use counters::{PACKET_COUNTERS, PacketCounter};
pub use dataplane::IptablesDataplane;
pub use dry_run::DryRun;
pub use error::{CleanupError, Error};
pub use names::chain_level;
pub use options::Options;
pub use other_variant::other_rules;
pub use read_back::ReadBack;
pub use rule_difference::RuleDifference;
pub use sysctl::allow_loopback_node_ports;
