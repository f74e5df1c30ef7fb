//! From a mode to its dataplanes, and away from all others.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use portwarden_iptables::IptablesDataplane;
use portwarden_model::{Dataplane, FULL_SYNC_INTERVAL, Family, PerFamily};
use portwarden_nftables::Nftables;
use portwarden_xtables::{Programs, Variant};
use tracing::{debug, info};

use super::ipvs;
use crate::config::gates::Feature;
use crate::config::{Config, ExcludedRanges, Mode};
use crate::host::{FamilySupport, has_ipv6};
use crate::metrics::{ModeMetrics, PacketCounter};

/// Finds out which families can be served in a mode.
pub(super) fn families(mode: Mode) -> anyhow::Result<FamilySupport> {
    let works = |family| match mode {
        Mode::Nftables | Mode::Ebpf => true,
        Mode::Iptables | Mode::Ipvs | Mode::Userspace => {
            match Programs::new(family, Variant::Installed).check() {
                Ok(()) => true,
                Err(error) => {
                    info!(ipFamily = %family, err = crate::logging::chain(&error), "No iptables support for family");
                    false
                }
            }
        }
    };
    let support = FamilySupport(PerFamily {
        v4: works(Family::V4),
        v6: has_ipv6(Path::new("/proc")) && works(Family::V6),
    });
    match support.families().as_slice() {
        [] => bail!(
            "{} is not available on this host: neither IPv4 nor IPv6 rules can be written",
            mode.as_str()
        ),
        [only] => info!(ipFamily = %only, "kube-proxy running in single-stack mode"),
        _ => info!("kube-proxy running in dual-stack mode"),
    }
    Ok(support)
}

/// Makes the dataplanes of a mode. Nothing is written to the kernel yet.
pub(super) fn build(config: &Config, support: FamilySupport) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
    info!("Using {} Proxier", config.mode.as_str());
    let least =
        config.fixed_min_sync_period().map_or_else(|| "adaptive".to_owned(), |time| format!("{time:?}"));
    debug!(
        minSyncPeriod = least, syncPeriod = ?config.pacing.sync_period, maxSyncPeriod = ?FULL_SYNC_INTERVAL,
        "{} sync params", config.mode.as_str()
    );
    let failed = |family: Family| format!("cannot create the {} proxier for {family}", config.mode.as_str());
    let families = support.families().into_iter();
    match config.mode {
        Mode::Nftables => {
            let options = portwarden_nftables::Options {
                masquerade_bit: config.masquerade.bit,
                loopback_node_ports: config.gates.enabled(Feature::NftablesLocalhostNodePorts),
            };
            let families: Vec<Family> = families.collect();
            let built = Nftables::new(&families, options).context("cannot create the nftables proxier")?;
            Ok(vec![Box::new(built)])
        }
        Mode::Iptables => {
            let build = |family| -> anyhow::Result<Box<dyn Dataplane>> {
                let options = portwarden_iptables::Options {
                    masquerade_bit: config.masquerade.bit.into(),
                    localhost_node_ports: config.localhost_node_ports,
                    sync_period: config.pacing.sync_period,
                    variant: Variant::Installed,
                };
                Ok(Box::new(IptablesDataplane::new(family, options).with_context(|| failed(family))?))
            };
            families.map(build).collect()
        }
        Mode::Ipvs | Mode::Userspace | Mode::Ebpf => {
            bail!(
                "mode {} is not built in yet; use --proxy-mode=nftables or --proxy-mode=iptables",
                config.mode
            )
        }
    }
}

/// Shows the packets that rules of this mode count.
pub(super) fn show_packets(mode: Mode, metrics: &ModeMetrics) {
    if mode != Mode::Iptables {
        return;
    }
    let counter = |counter: portwarden_iptables::PacketCounter| PacketCounter {
        name: counter.metric,
        help: counter.help,
        read: Box::new(move || counter.read().ok().flatten()),
    };
    metrics.show_packets(portwarden_iptables::PACKET_COUNTERS.map(counter).into());
}

/// Something of ours or kube-proxy's that a mode may have left in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leftover {
    Nftables(Family),
    /// Rules of iptables mode, and of ipvs mode if this says so.
    Iptables(Family, Variant, bool),
    /// What ipvs mode has besides rules.
    Ipvs(Ipvs),
}

/// A part of what ipvs mode has besides rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ipvs {
    Sets,
    /// The device, and the virtual servers on its addresses and others.
    Device,
}

/// Removes what all modes but this one may have left behind. Goes on after failures and returns all of them.
pub fn clean_up(except: Option<Mode>, config: &Config) -> Vec<anyhow::Error> {
    leftovers(except)
        .into_iter()
        .filter_map(|leftover| remove(leftover, &config.ipvs_excluded).err())
        .collect()
}

fn leftovers(except: Option<Mode>) -> Vec<Leftover> {
    let mut all = Vec::new();
    // Both modes share the names of chains: what one of them needs cannot be told from what the other left.
    let with_ipvs = !matches!(except, Some(Mode::Iptables | Mode::Ipvs));
    for family in Family::BOTH {
        if except != Some(Mode::Nftables) {
            all.push(Leftover::Nftables(family));
        }
        // Both implementations of iptables can hold rules at once; of our own mode only the other one is a leftover.
        let own = (except == Some(Mode::Iptables)).then(|| variant_in_path(family)).flatten();
        for variant in [Variant::Nft, Variant::Legacy] {
            let in_use = variant != Variant::Legacy || legacy_tables(family);
            if in_use && own != Some(variant) && (except != Some(Mode::Iptables) || own.is_some()) {
                all.push(Leftover::Iptables(family, variant, with_ipvs));
            }
        }
    }
    if with_ipvs {
        // After the rules, which look into the sets.
        all.extend([Ipvs::Sets, Ipvs::Device].map(Leftover::Ipvs));
    }
    all
}

/// Virtual servers in the ranges `excluded` stay.
fn remove(leftover: Leftover, excluded: &ExcludedRanges) -> anyhow::Result<()> {
    match leftover {
        Leftover::Nftables(family) => {
            let found = portwarden_nftables::cleanup(family)
                .with_context(|| format!("nftables rules for {family}"))?;
            debug!(ipFamily = %family, found, "Looked for nftables leftovers");
        }
        Leftover::Iptables(family, variant, with_ipvs) => {
            let about = || format!("iptables rules for {family} ({variant:?})");
            // One after the other, whatever fails: each removes what it can.
            let jumps = if with_ipvs { ipvs::remove_jumps(family, variant) } else { Ok(()) };
            let rules = portwarden_iptables::cleanup(family, variant);
            let chains = if with_ipvs { ipvs::remove_chains(family, variant) } else { Ok(()) };
            jumps.with_context(about)?;
            rules.with_context(about)?;
            chains.with_context(about)?;
            debug!(ipFamily = %family, ?variant, "Looked for iptables leftovers");
        }
        Leftover::Ipvs(Ipvs::Sets) => ipvs::remove_sets().context("sets of ipvs mode")?,
        Leftover::Ipvs(Ipvs::Device) => {
            ipvs::remove_device(Path::new("/proc"), excluded).context("addresses of ipvs mode")?;
        }
    }
    Ok(())
}

fn variant_in_path(family: Family) -> Option<Variant> {
    Programs::new(family, Variant::Installed).detect_variant().ok()
}

/// Whether the kernel has tables of the old iptables. Asking the program itself would create them.
fn legacy_tables(family: Family) -> bool {
    let path = match family {
        Family::V4 => "/proc/net/ip_tables_names",
        Family::V6 => "/proc/net/ip6_tables_names",
    };
    fs::read_to_string(path).is_ok_and(|names| !names.trim().is_empty())
}
