//! Mode nftables.

use super::{Entry, Section};

pub(super) static ENTRY: Entry = Entry {
    name: "nftables",
    known_to_kube_proxy: true,
    gate: None,
    deprecation: None,
    periods: Section::Nftables,
    masquerade: Section::Nftables,
    node_port_addresses: &["primary"],
};
