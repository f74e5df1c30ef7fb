//! Mode ebpf, which kube-proxy does not have. It stands on the nftables dataplane and shares its settings.

use super::{Entry, Section};
use crate::engine::ModeWords;

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords { name: "ebpf", sync_failed: "ebpf sync failed", counters: &[] },
    known_to_kube_proxy: false,
    gate: None,
    deprecation: None,
    periods: Section::Nftables,
    masquerade: Section::Nftables,
    node_port_addresses: &["primary"],
};
