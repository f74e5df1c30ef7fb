//! Mode ipvs: virtual servers of the kernel. Not built in yet; what kube-proxy leaves behind in this mode is removed.

use std::path::Path;

use portwarden_model::{Dataplane, Family};
use portwarden_xtables::{Programs, Variant};

use super::iptables::variants_with_leftovers;
use super::leftovers::{Leftover, Phase};
use super::{BuildContext, Deprecation, Entry, Mode, Operations, Section, ipvs_leftovers, not_built_in};
use crate::config::Config;
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
    operations: &IpvsMode,
};

struct IpvsMode;

impl Operations for IpvsMode {
    fn probe(&self, family: Family) -> anyhow::Result<()> {
        Ok(Programs::new(family, Variant::Installed).check()?)
    }

    fn build(&self, _context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
        not_built_in(Mode::Ipvs)
    }

    fn leftovers(&self, kept: Option<Mode>, config: &Config) -> Vec<Leftover> {
        // Both modes share the names of chains: what iptables mode needs cannot be distinguished from what this one left.
        if matches!(kept, Some(Mode::Iptables | Mode::Ipvs)) {
            return Vec::new();
        }
        let mut all = Vec::new();
        for family in Family::BOTH {
            for variant in variants_with_leftovers(false, family) {
                let what = format!("rules of ipvs mode for {family} ({variant:?})");
                // Chains of both modes lead to each other: these are emptied before those of iptables mode go, and removed after them.
                all.push(Leftover::new(Phase::Jumps, what.clone(), move || {
                    ipvs_leftovers::remove_jumps(family, variant)?;
                    ipvs_leftovers::empty_chains(family, variant)
                }));
                all.push(Leftover::new(Phase::EmptyChains, what, move || {
                    ipvs_leftovers::remove_chains(family, variant)
                }));
            }
        }
        all.push(Leftover::new(Phase::Sets, "sets of ipvs mode", ipvs_leftovers::remove_sets));
        let excluded = config.ipvs_excluded.clone();
        all.push(Leftover::new(Phase::Devices, "addresses of ipvs mode", move || {
            ipvs_leftovers::remove_device(Path::new("/proc"), &excluded)
        }));
        all
    }
}
