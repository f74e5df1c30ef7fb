//! Mode iptables.

use super::{Entry, Section};
use crate::engine::ModeWords;

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords {
        name: "iptables",
        sync_failed: "Failed to execute iptables-restore",
        counters: &[
            (
                "sync_proxy_rules_iptables_restore_failures_total",
                "[ALPHA] Syncs that iptables-restore refused",
            ),
            (
                "sync_proxy_rules_iptables_partial_restore_failures_total",
                "[ALPHA] Syncs of only changes that iptables-restore refused",
            ),
        ],
    },
    known_to_kube_proxy: true,
    gate: None,
    deprecation: None,
    periods: Section::Iptables,
    masquerade: Section::Iptables,
    node_port_addresses: &[],
};
