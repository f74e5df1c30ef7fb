//! Mode ipvs.

use super::{Deprecation, Entry, Section};
use crate::config::gates::Feature;
use crate::engine::ModeWords;

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords { name: "ipvs", sync_failed: "ipvs sync failed", counters: &[] },
    known_to_kube_proxy: true,
    gate: Some(Feature::KubeProxyIpvs),
    deprecation: Some(Deprecation {
        reason: "IPVSDeprecation",
        message: "mode ipvs is deprecated: off by default from Kubernetes 1.40 and gone in 1.43; mode nftables takes its place",
    }),
    periods: Section::Ipvs,
    masquerade: Section::Iptables,
    node_port_addresses: &[],
};
