//! Mode iptables.

use super::{Entry, Section};

pub(super) static ENTRY: Entry = Entry {
    name: "iptables",
    known_to_kube_proxy: true,
    gate: None,
    deprecation: None,
    periods: Section::Iptables,
    masquerade: Section::Iptables,
    node_port_addresses: &[],
};
