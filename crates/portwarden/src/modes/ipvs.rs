//! Mode ipvs: virtual servers of the kernel.

mod read_back;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use portwarden_ipvs::{CHAINS, Ipvs, JUMPS, Jump, Leftovers, Options};
use portwarden_model::{Dataplane, Family, ObservedFrontend};
use portwarden_netlink::ipvs::Timeouts;
use portwarden_xtables::{Programs, Variant};
use tracing::{info, warn};

use super::iptables::variants_with_leftovers;
use super::leftovers::{Leftover, Phase, programs};
use super::{BuildContext, Deprecation, Entry, Mode, Operations, ReadBack, Section, SourceAddress};
use crate::config::gates::Feature;
use crate::config::{Config, ExcludedRanges};
use crate::engine::ModeWords;
use crate::logging::chain;

pub(super) static ENTRY: Entry = Entry {
    words: ModeWords {
        name: "ipvs",
        sync_failed: "ipvs sync failed",
        counters: &[
            (
                "sync_proxy_rules_iptables_restore_failures_total",
                "[ALPHA] Syncs that iptables-restore refused",
            ),
            (
                "ipvs_real_servers_drained_total",
                "[ALPHA] Real servers that were removed when their last connection had ended or their time was up",
            ),
        ],
    },
    known_to_kube_proxy: true,
    gate: Some(Feature::KubeProxyIpvs),
    deprecation: Some(Deprecation {
        reason: "IPVSDeprecation",
        message: "mode ipvs is deprecated: off by default from Kubernetes 1.40 and gone in 1.43; mode nftables takes its place",
    }),
    periods: Section::Ipvs,
    masquerade: Section::Iptables,
    source_address: SourceAddress::Client,
    node_port_addresses: &[],
    operations: &IpvsMode,
};

/// How often the dataplane was built in this process. What drains leftovers of ipvs mode ends when the mode is in force again.
static BUILDS: AtomicUsize = AtomicUsize::new(0);

/// Time between two looks at the connections of virtual servers that are left over.
const DRAIN_INTERVAL: Duration = Duration::from_secs(2);

struct IpvsMode;

impl Operations for IpvsMode {
    fn probe(&self, family: Family) -> anyhow::Result<()> {
        Ok(Programs::new(family, Variant::Installed).check()?)
    }

    fn check(&self, config: &Config, family: Family) -> anyhow::Result<()> {
        self.probe(family)?;
        let scheduler = config.ipvs.as_ref().map(|ipvs| ipvs.scheduler.as_str()).unwrap_or_default();
        Ok(portwarden_ipvs::check_kernel(&[family], scheduler)?)
    }

    fn read_back(&self, family: Family) -> anyhow::Result<Option<Box<dyn ReadBack>>> {
        Ok(Some(Box::new(read_back::VirtualServers::read(family)?)))
    }

    fn adapt(&self, desired: ObservedFrontend, cluster: &BTreeSet<SocketAddr>) -> ObservedFrontend {
        read_back::adapt(desired, cluster)
    }

    fn build(&self, context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
        let config = context.config;
        let ipvs = config.ipvs.as_ref().context("there are no settings for mode ipvs")?;
        BUILDS.fetch_add(1, Ordering::SeqCst);
        portwarden_ipvs::check_kernel(context.families, &ipvs.scheduler)?;
        self.prepare_host(config)?;
        let options = Options {
            scheduler: ipvs.scheduler.clone(),
            exclude_cidrs: config.ipvs_excluded.cidrs.clone(),
            sync_period: config.pacing.sync_period,
            drain_limit: (!ipvs.drain_limit.is_zero()).then_some(ipvs.drain_limit),
            masquerade_mark: config.masquerade.mark(),
            variant: Variant::Installed,
        };
        Ok(vec![Box::new(Ipvs::new(context.families, options)?)])
    }

    fn prepare_host(&self, config: &Config) -> anyhow::Result<()> {
        let Some(ipvs) = &config.ipvs else { return Ok(()) };
        // The settings appear with the module.
        portwarden_ipvs::load_module()?;
        portwarden_ipvs::apply_sysctls(Path::new("/proc"), ipvs.strict_arp)?;
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let timeouts = Timeouts {
            tcp: seconds(ipvs.tcp_timeout),
            tcp_fin: seconds(ipvs.tcp_fin_timeout),
            udp: seconds(ipvs.udp_timeout),
        };
        if let Err(error) = portwarden_ipvs::set_timeouts(timeouts) {
            warn!(err = chain(&error), "Cannot set the timeouts of IPVS; the kernel's values stay");
        }
        Ok(())
    }

    fn leftovers(&self, kept: Option<Mode>, config: &Config) -> Vec<Leftover> {
        let mut all = Vec::new();
        for family in Family::BOTH {
            for variant in variants_with_leftovers(kept == Some(Mode::Ipvs), family) {
                let what = format!("rules of ipvs mode for {family} ({variant:?})");
                // Chains of both modes lead to each other: these are emptied before those of iptables mode go, and removed after them.
                let jumps = Leftover::new(Phase::Jumps, what.clone(), move || {
                    with_rules(family, variant, |programs| {
                        portwarden_ipvs::remove_jumps(programs, family)?;
                        portwarden_ipvs::empty_chains(programs, family)
                    })
                });
                let chains = Leftover::new(Phase::EmptyChains, what, move || {
                    with_rules(family, variant, |programs| portwarden_ipvs::remove_chains(programs, family))
                });
                all.extend([jumps, chains].map(|leftover| leftover.of(family)));
            }
        }
        if kept == Some(Mode::Ipvs) {
            return all;
        }
        let excluded = config.ipvs_excluded.clone();
        all.push(Leftover::new(
            Phase::Devices,
            "virtual servers, addresses and sets of ipvs mode",
            move || {
                remove_servers_and_device(kept.is_some(), &excluded)?;
                portwarden_ipvs::remove_sets().map_err(|errors| joined(&errors))
            },
        ));
        all
    }
}

/// Removes the rules of iptables mode beside those of this mode.
pub(super) fn clean_up_iptables(programs: &Programs) -> Result<(), portwarden_iptables::CleanupError> {
    portwarden_iptables::cleanup_beside(
        programs,
        |table, from, arguments| {
            let same =
                |jump: &Jump| jump.table == table && jump.from == from && jump.arguments() == arguments;
            JUMPS.iter().any(same)
        },
        |table, name| CHAINS.contains(&(table, name)),
    )
}

/// Without the programs, or the table, there cannot be rules. Without chains there cannot be jumps.
fn with_rules(
    family: Family,
    variant: Variant,
    remove: impl FnOnce(&Programs) -> Result<(), portwarden_ipvs::Error>,
) -> anyhow::Result<()> {
    let programs = programs(family, variant);
    if programs.check().is_err() || !portwarden_ipvs::has_chains(&programs, family)? {
        return Ok(());
    }
    Ok(remove(&programs)?)
}

/// Removes the virtual servers that the device and the sets identify as kube-proxy's or ours, and then the device. While another mode works,
/// established connections may end first: they pass the virtual servers, new ones do not.
fn remove_servers_and_device(gracefully: bool, excluded: &ExcludedRanges) -> anyhow::Result<()> {
    let Some(leftovers) = Leftovers::find(&excluded.cidrs)? else {
        if has_virtual_servers(Path::new("/proc")) {
            info!("There are ipvs virtual servers; without kube-ipvs0 they are another program's, and stay");
        }
        return Ok(());
    };
    if !excluded.invalid.is_empty() {
        bail!(
            "ipvs.excludeCIDRs has entries that are not CIDRs ({}), so the virtual servers that they exclude are unknown: kube-ipvs0 and all \
             virtual servers stay; correct the entries and clean up again",
            excluded.invalid.join(", ")
        );
    }
    // Asking by netlink would load the module where it is not in use.
    if has_virtual_servers(Path::new("/proc")) {
        if gracefully {
            drain(&leftovers)?;
        } else {
            leftovers.remove_servers().map_err(|errors| joined(&errors))?;
        }
    }
    Ok(leftovers.remove_device()?)
}

fn drain(leftovers: &Leftovers) -> anyhow::Result<()> {
    let builds = BUILDS.load(Ordering::SeqCst);
    let started = Instant::now();
    let mut reported = false;
    while BUILDS.load(Ordering::SeqCst) == builds {
        let left = leftovers.drain_servers()?;
        if left == 0 {
            info!(
                seconds = started.elapsed().as_secs(),
                "All connections through ipvs virtual servers have ended"
            );
            return Ok(());
        }
        if !reported {
            reported = true;
            info!(
                left,
                "Established connections still pass ipvs virtual servers, which stay until these have ended"
            );
        }
        thread::sleep(DRAIN_INTERVAL);
    }
    bail!("mode ipvs is in force again")
}

fn has_virtual_servers(proc: &Path) -> bool {
    // Real servers are indented, and so is the third line of the heading; without ipvs there is no such file.
    let servers = |text: String| text.lines().skip(2).any(|line| !line.starts_with(' '));
    fs::read_to_string(proc.join("net/ip_vs")).is_ok_and(servers)
}

fn joined(errors: &[portwarden_netlink::Error]) -> anyhow::Error {
    anyhow::anyhow!("{}", errors.iter().map(|error| chain(error)).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_servers_are_found_without_asking_for_them() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!has_virtual_servers(folder.path()), "no ipvs in the kernel");
        fs::create_dir(folder.path().join("net")).expect("a folder");
        let heading = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        for (servers, expected) in [
            ("", false),
            ("TCP  0A60000A:0050 rr  \n  -> 0AF40005:1F90      Masq    1      0          0\n", true),
            ("FWM  00000007 rr\n", true),
        ] {
            fs::write(folder.path().join("net/ip_vs"), format!("{heading}{servers}")).expect("writes");
            assert_eq!(has_virtual_servers(folder.path()), expected);
        }
    }
}
