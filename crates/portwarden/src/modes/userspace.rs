//! Mode userspace, which kube-proxy had until 1.25; it shared the periods of mode iptables.

use super::{Entry, Section};

pub(super) static ENTRY: Entry = Entry {
    name: "userspace",
    known_to_kube_proxy: false,
    gate: None,
    deprecation: None,
    periods: Section::Iptables,
    masquerade: Section::Iptables,
    node_port_addresses: &[],
};
