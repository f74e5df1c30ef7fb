//! The nftables dataplane: a constant number of rules, everything that varies in a few hash maps, straight over netlink.
//!
//! `docs/nftables.md` explains the layout and the measurements behind it. [`chains`] assembles the rules, [`sets`] defines the maps,
//! [`route`] the values that lead from one to the other; [`endpoint_list`] and [`port_elements`] produce the elements, and [`installed`]
//! remembers what the kernel has acknowledged. Each behaviour has a module of its name.

mod affinity_entries;
mod affinity_recovery;
mod chains;
mod dataplane;
mod endpoint_list;
mod error;
mod expressions;
mod family_table;
mod installed;
mod kernel;
mod list_numbers;
mod load_balancing;
mod loopback_node_ports;
mod masquerading;
mod no_endpoints;
mod node_ports;
mod plan;
mod pod_traffic;
mod port_elements;
mod port_lists;
mod probe;
mod read_back;
mod route;
#[cfg(test)]
mod samples;
mod service_addresses;
mod session_affinity;
mod sets;
mod shared_elements;
#[cfg(test)]
mod snapshots;
mod source_ranges;
mod tampering;
mod untracked_pods;

pub use dataplane::{Nftables, Options, cleanup};
pub use error::Error;
pub use loopback_node_ports::loopback_rejected_packets;
pub use read_back::ReadBack;
