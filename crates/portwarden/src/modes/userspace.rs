//! Mode userspace, which kube-proxy had until 1.25; it shared the periods of mode iptables.

use super::{Entry, Section};
use crate::engine::ModeWords;

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords { name: "userspace", sync_failed: "userspace sync failed", counters: &[] },
    known_to_kube_proxy: false,
    gate: None,
    deprecation: None,
    periods: Section::Iptables,
    masquerade: Section::Iptables,
    node_port_addresses: &[],
};
