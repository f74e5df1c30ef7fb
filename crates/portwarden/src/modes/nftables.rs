//! Mode nftables.

use super::{Entry, Section};
use crate::engine::ModeWords;

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords {
        name: "nftables",
        sync_failed: "nftables sync failed",
        counters: &[
            (
                "sync_proxy_rules_nftables_sync_failures_total",
                "[ALPHA] Syncs that the kernel's nf_tables refused",
            ),
            (
                "sync_proxy_rules_nftables_cleanup_failures_total",
                "[ALPHA] Removals of stale chains that failed; Portwarden removes in the sync itself, so this stays empty",
            ),
        ],
    },
    known_to_kube_proxy: true,
    gate: None,
    deprecation: None,
    periods: Section::Nftables,
    masquerade: Section::Nftables,
    node_port_addresses: &["primary"],
};
