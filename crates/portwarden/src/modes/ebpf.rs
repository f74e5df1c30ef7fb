//! Mode ebpf, which kube-proxy does not have. It stands on the nftables dataplane and shares its settings.

use super::{Entry, Section};

pub(super) static ENTRY: Entry = Entry {
    name: "ebpf",
    known_to_kube_proxy: false,
    gate: None,
    deprecation: None,
    periods: Section::Nftables,
    masquerade: Section::Nftables,
    node_port_addresses: &["primary"],
};
