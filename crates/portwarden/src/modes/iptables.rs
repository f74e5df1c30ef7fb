//! Mode iptables: kube-proxy's rules through `iptables-restore`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Context;
use portwarden_iptables::{DryRun, IptablesDataplane, Options, RuleDifference};
use portwarden_model::{
    Cluster, Dataplane, Desired, Family, FrontendKey, LoopbackNodePorts, ObservedFrontend,
    loopback_node_ports,
};
use portwarden_xtables::{Programs, Variant};
use tracing::{debug, info};

use super::leftovers::{Leftover, Phase, programs};
use super::{BuildContext, Entry, Mode, Operations, ReadBack, Section, SourceAddress};
use crate::config::Config;
use crate::engine::ModeWords;
use crate::host::FamilySupport;
use crate::metrics::{MetricError, Metrics, PacketCounter};

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
    source_address: SourceAddress::Client,
    node_port_addresses: &[],
    operations: &IptablesMode,
};

struct IptablesMode;

impl Operations for IptablesMode {
    fn probe(&self, family: Family) -> anyhow::Result<()> {
        Ok(Programs::new(family, Variant::Installed).check()?)
    }

    fn read_back(&self, family: Family) -> anyhow::Result<Option<Box<dyn ReadBack>>> {
        let programs = Programs::new(family, Variant::Installed);
        Ok(Some(Box::new(portwarden_iptables::ReadBack::read(&programs)?)))
    }

    fn preview(&self, config: &Config, desired: &Desired) -> anyhow::Result<Option<Vec<String>>> {
        let run = DryRun::new(desired.family, &options(config))?.on_this_node();
        let programs = Programs::new(desired.family, Variant::Installed);
        let RuleDifference { added, removed, reordered } = run.difference(desired, &programs)?;
        let removed = removed.into_iter().map(|rule| format!("- {rule}"));
        let added = added.into_iter().map(|rule| format!("+ {rule}"));
        let reordered =
            reordered.into_iter().map(|chain| format!("~ {chain}: the same rules in another order"));
        Ok(Some(removed.chain(added).chain(reordered).collect()))
    }

    fn build(&self, context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
        let dataplane = IptablesDataplane::new(context.families, &options(context.config));
        Ok(vec![Box::new(dataplane.context("cannot create the iptables proxier")?)])
    }

    fn prepare_host(&self, config: &Config) -> anyhow::Result<()> {
        // The Node's own addresses, which are not known here, are no loopback addresses.
        let ranges = loopback_node_ports(Family::V4, &config.node_port_addresses);
        if config.localhost_node_ports && ranges != LoopbackNodePorts::Excluded {
            log_route_localnet();
            portwarden_iptables::allow_loopback_node_ports()?;
        }
        Ok(())
    }

    /// Packets that rules of this mode count.
    fn publish_metrics(&self, _config: &Config, metrics: &Metrics) -> Result<(), MetricError> {
        let counter = |counter: portwarden_iptables::PacketCounter| PacketCounter {
            name: counter.metric,
            help: counter.help,
            read: Box::new(move || counter.read().ok().flatten()),
        };
        metrics.mode.show_packets(portwarden_iptables::PACKET_COUNTERS.map(counter).into());
        Ok(())
    }

    fn log_node_notes(&self, config: &Config, families: FamilySupport, cluster: &Cluster) {
        let ranges = cluster.desired(Family::V4).node.loopback_node_ports;
        if families.0.v4 && config.localhost_node_ports && ranges != LoopbackNodePorts::Excluded {
            log_route_localnet();
        }
    }

    fn leftovers(&self, kept: Option<Mode>, _config: &Config) -> Vec<Leftover> {
        let variants = |family| variants_with_leftovers(kept == Some(Mode::Iptables), family);
        let rules = |family: Family, variant: Variant| {
            Leftover::new(Phase::Rules, format!("iptables rules for {family} ({variant:?})"), move || {
                // Both modes share names of chains and some jumps; only in the variant in force they are needed.
                let others = variants_with_leftovers(true, family);
                if kept == Some(Mode::Ipvs) && !others.contains(&variant) {
                    super::ipvs::clean_up_iptables(&programs(family, variant))?;
                } else {
                    portwarden_iptables::cleanup_with(&programs(family, variant))?;
                }
                debug!(ipFamily = %family, ?variant, "Looked for iptables leftovers");
                Ok(())
            })
            .of(family)
        };
        let all = Family::BOTH
            .into_iter()
            .flat_map(|family| variants(family).into_iter().map(move |v| (family, v)));
        all.map(|(family, variant)| rules(family, variant)).collect()
    }
}

impl ReadBack for portwarden_iptables::ReadBack {
    fn frontend(&mut self, key: &FrontendKey) -> anyhow::Result<ObservedFrontend> {
        Ok(portwarden_iptables::ReadBack::frontend(self, key))
    }

    fn frontends(&mut self) -> anyhow::Result<BTreeSet<FrontendKey>> {
        Ok(portwarden_iptables::ReadBack::frontends(self))
    }
}

fn options(config: &Config) -> Options {
    Options {
        masquerade_bit: config.masquerade.bit.into(),
        loopback_node_ports: config.localhost_node_ports,
        sync_period: config.pacing.sync_period,
        ..Options::default()
    }
}

/// The setting opens the host to packets for 127.0.0.0/8 from outside, so the log says how to prevent it.
fn log_route_localnet() {
    info!(
        "Setting route_localnet=1 to allow node-ports on localhost; to prevent this, set --iptables-localhost-nodeports=false, or leave \
         loopback addresses out of --nodeport-addresses"
    );
}

/// Both implementations of iptables can hold rules at once. Of the one in force only the other one is a leftover.
pub(super) fn variants_with_leftovers(in_force: bool, family: Family) -> Vec<Variant> {
    let installed = in_force.then(|| programs(family, Variant::Installed).detect_variant().ok());
    let is_leftover = |variant: &Variant| match installed {
        None => true,
        Some(None) => false,
        Some(Some(own)) => own != *variant,
    };
    let all = [Variant::Nft, Variant::Legacy].into_iter().filter(is_leftover);
    all.filter(|variant| *variant != Variant::Legacy || has_legacy_tables(family)).collect()
}

/// Whether the kernel has tables of the old iptables. Running the program would create them.
fn has_legacy_tables(family: Family) -> bool {
    let path = match family {
        Family::V4 => "/proc/net/ip_tables_names",
        Family::V6 => "/proc/net/ip6_tables_names",
    };
    fs::read_to_string(path).is_ok_and(|names| !names.trim().is_empty())
}
