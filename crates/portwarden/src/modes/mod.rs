//! The registry of proxy modes. One file per mode holds everything that differs between modes: its facts ([`Entry`]) and what it does
//! ([`Operations`]). Nothing outside this folder branches on a mode.
//!
//! A new mode is a variant of [`Mode`], a file with an `ENTRY`, and a line in [`Mode::entry`].

mod ebpf;
mod iptables;
mod ipvs;
mod leftovers;
mod nftables;
mod userspace;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;

use anyhow::bail;
use portwarden_model::{
    Cluster, Dataplane, Desired, FULL_SYNC_INTERVAL, Family, FrontendKey, GoneFrontend, ObservedFrontend,
    PerFamily, Protocol,
};
use tracing::{debug, info};

use crate::config::Config;

use crate::config::gates::Feature;
use crate::engine::ModeWords;
use crate::host::{FamilySupport, has_ipv6};
use crate::metrics::{MetricError, Metrics};

use leftovers::Leftover;
pub use leftovers::clean_up;
pub(crate) use leftovers::clean_up_families;

/// A way to program the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
    /// Rules for `iptables-restore`.
    #[default]
    Iptables,
    /// Kernel virtual servers.
    Ipvs,
    /// An nftables table per family.
    Nftables,
    /// A proxy in user space, with redirecting rules.
    Userspace,
    /// eBPF programs, with nftables for what they leave out.
    Ebpf,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 5] = [Mode::Iptables, Mode::Ipvs, Mode::Nftables, Mode::Userspace, Mode::Ebpf];

    /// What is used when no mode was chosen, as in kube-proxy.
    pub const DEFAULT: Mode = Mode::Iptables;

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == name)
    }

    /// The name in the configuration, which `/proxyMode` shows.
    pub fn as_str(self) -> &'static str {
        self.entry().words.name
    }

    /// Whether everything that the mode needs for a family is there. Changes nothing.
    pub(crate) fn check(self, config: &Config, family: Family) -> anyhow::Result<()> {
        self.entry().operations.check(config, family)
    }

    /// Reads back what the kernel holds of the mode; `None` if there is nothing that can be read.
    pub(crate) fn read_back(self, family: Family) -> anyhow::Result<Option<Box<dyn ReadBack>>> {
        self.entry().operations.read_back(family)
    }

    /// Whose address endpoints see.
    pub fn source_address(self) -> SourceAddress {
        self.entry().source_address
    }

    /// Whether the mode uses the rules of another one, and has no others.
    pub(crate) fn uses_rules_of_another(self) -> bool {
        self.entry().operations.stands_on().is_some()
    }

    /// What the mode makes of a frontend whose desired treatment its mechanism cannot express. `cluster` are the endpoints of policy Cluster.
    pub(crate) fn adapt(self, desired: ObservedFrontend, cluster: &BTreeSet<SocketAddr>) -> ObservedFrontend {
        self.entry().operations.adapt(desired, cluster)
    }

    /// Whether one of the two modes uses the rules of the other.
    pub(crate) fn shares_rules_with(self, other: Mode) -> bool {
        let uses = |mode: Mode| mode.entry().operations.stands_on();
        self == other || uses(self) == Some(other) || uses(other) == Some(self)
    }

    /// The mode that is in force when the kernel has rules of this one, which another mode may use as well.
    pub(crate) fn in_force_over_rules(self, config: &Config) -> Mode {
        let rules = self.entry().operations.stands_on().unwrap_or(self);
        let is_above = |mode: &Mode| {
            let operations = mode.entry().operations;
            operations.stands_on() == Some(rules) && operations.is_on_top(config)
        };
        Mode::ALL.into_iter().find(is_above).unwrap_or(rules)
    }

    /// The rules that a full sync would add, remove or reorder, one line each; `None` if the mode writes no text.
    pub(crate) fn preview(self, config: &Config, desired: &Desired) -> anyhow::Result<Option<Vec<String>>> {
        self.entry().operations.preview(config, desired)
    }

    /// How the mode appears in logs and metrics.
    pub fn words(self) -> ModeWords {
        self.entry().words
    }

    /// Everything that is particular to the mode.
    pub(crate) fn entry(self) -> &'static Entry {
        match self {
            Mode::Iptables => &iptables::ENTRY,
            Mode::Ipvs => &ipvs::ENTRY,
            Mode::Nftables => &nftables::ENTRY,
            Mode::Userspace => &userspace::ENTRY,
            Mode::Ebpf => &ebpf::ENTRY,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whose address endpoints see as the source of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceAddress {
    /// The client's, unless the connection is masqueraded.
    Client,
    /// Always the node's: the proxy itself connects to endpoints.
    Node,
}

/// The facts about one mode, and the way to what it does.
pub(crate) struct Entry {
    /// How the mode appears in logs and metrics.
    pub(crate) words: ModeWords,
    /// Whether kube-proxy has the mode too, and lists it when it rejects an unknown name.
    pub(crate) known_to_kube_proxy: bool,
    /// The mode may only be chosen while this gate is on.
    pub(crate) gate: Option<Feature>,
    /// Why the operator should choose another mode.
    pub(crate) deprecation: Option<Deprecation>,
    /// Where the configuration file has the sync periods.
    pub(crate) periods: Section,
    /// Where the configuration file has the masquerade settings.
    pub(crate) masquerade: Section,
    /// Whose address endpoints see.
    pub(crate) source_address: SourceAddress,
    /// `nodePortAddresses` when none are given; empty means all addresses.
    pub(crate) node_port_addresses: &'static [&'static str],
    /// What the mode does.
    pub(crate) operations: &'static dyn Operations,
}

/// What a mode does with the host.
pub(crate) trait Operations: Sync {
    /// Checks whether a family can be served: programs, kernel features. Changes nothing.
    fn probe(&self, family: Family) -> anyhow::Result<()>;

    /// Checks everything that the mode needs, more thoroughly than [`Operations::probe`]. Changes nothing.
    fn check(&self, _config: &Config, family: Family) -> anyhow::Result<()> {
        self.probe(family)
    }

    /// Reads back what the kernel holds; `None` if there is nothing that can be read.
    fn read_back(&self, _family: Family) -> anyhow::Result<Option<Box<dyn ReadBack>>> {
        Ok(None)
    }

    /// What the mode makes of a frontend whose desired treatment its mechanism cannot express. `cluster` are the endpoints of policy Cluster.
    fn adapt(&self, desired: ObservedFrontend, _cluster: &BTreeSet<SocketAddr>) -> ObservedFrontend {
        desired
    }

    /// The mode whose rules this one uses, too.
    fn stands_on(&self) -> Option<Mode> {
        None
    }

    /// For a mode that stands on another: whether the kernel has the part that is its own.
    fn is_on_top(&self, _config: &Config) -> bool {
        false
    }

    /// The rules that a full sync would add (`+`), remove (`-`) or reorder (`~`) on this node, one line each; `None` if the mode writes no
    /// text.
    fn preview(&self, _config: &Config, _desired: &Desired) -> anyhow::Result<Option<Vec<String>>> {
        Ok(None)
    }

    /// Makes the dataplanes. Writes nothing to the kernel yet.
    fn build(&self, context: &BuildContext<'_>) -> anyhow::Result<Vec<Box<dyn Dataplane>>>;

    /// What `--init-only` does for the mode, beside what it does for every mode.
    fn prepare_host(&self, _config: &Config) -> anyhow::Result<()> {
        Ok(())
    }

    /// Publishes metrics that only this mode has. Called at the start and after each reload that concerns the dataplanes.
    fn publish_metrics(&self, _config: &Config, _metrics: &Metrics) -> Result<(), MetricError> {
        Ok(())
    }

    /// Logs what the operator should know about the mode on this node, once the Node is known.
    fn log_node_notes(&self, _config: &Config, _families: FamilySupport, _cluster: &Cluster) {}

    /// Waits for what should not end with the engine, such as connections that a proxy carries. Called when the process is about to end; blocks.
    fn drain(&self) {}

    /// What the mode, ours or kube-proxy's, may have left in the kernel. `kept` is the mode that is in force.
    fn leftovers(&self, kept: Option<Mode>, config: &Config) -> Vec<Leftover>;
}

/// What the kernel holds for one family.
pub(crate) trait ReadBack {
    /// What happens to connections to a frontend.
    fn frontend(&mut self, key: &FrontendKey) -> anyhow::Result<ObservedFrontend>;

    /// The same, with the differences from what should happen, one sentence each.
    fn compare(
        &mut self,
        key: &FrontendKey,
        desired: &ObservedFrontend,
    ) -> anyhow::Result<(ObservedFrontend, Vec<String>)> {
        let seen = self.frontend(key)?;
        let differences = seen.differences(desired);
        Ok((seen, differences))
    }

    /// Every frontend that the kernel knows.
    fn frontends(&mut self) -> anyhow::Result<BTreeSet<FrontendKey>>;

    /// What another program wrote where the mode writes, if it cannot be read.
    fn unreadable(&self) -> Option<String> {
        None
    }
}

/// What dataplanes are made from.
pub(crate) struct BuildContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) families: &'a [Family],
}

/// Finds out which families a mode can serve on this host.
pub(crate) fn families(mode: Mode) -> anyhow::Result<FamilySupport> {
    // Side by side: in some modes each is the run of a program.
    let probes = thread::scope(|scope| {
        let v6 = scope.spawn(|| {
            if has_ipv6(Path::new("/proc")) {
                probe(mode, Family::V6)
            } else {
                Err("this kernel has no IPv6, or it is disabled".to_owned())
            }
        });
        let v4 = probe(mode, Family::V4);
        PerFamily { v4, v6: v6.join().unwrap_or_else(|_| Err("the probe panicked".to_owned())) }
    });
    let support = FamilySupport(PerFamily::from_fn(|family| probes[family].is_ok()));
    for (family, probed) in probes.iter() {
        if let Err(reason) = probed
            && !support.families().is_empty()
        {
            info!(ipFamily = %family, err = reason, "No {mode} support for family");
        }
    }
    match support.families().as_slice() {
        [] => {
            let reasons = probes.iter().filter_map(|(family, probed)| Some((family, probed.as_ref().err()?)));
            let reasons: Vec<String> =
                reasons.map(|(family, reason)| format!("{family}: {reason}")).collect();
            bail!("mode {mode} cannot be used on this host. {}", reasons.join(". "))
        }
        [only] => info!(ipFamily = %only, "kube-proxy running in single-stack mode"),
        _ => info!("kube-proxy running in dual-stack mode"),
    }
    Ok(support)
}

/// The UDP frontends that an earlier process of this mode left in the kernel. Flows to those that no Service has any more are stale, and nothing
/// else names them: they may have been deleted while no process ran.
pub(crate) fn earlier_udp_frontends(mode: Mode, support: FamilySupport) -> PerFamily<BTreeSet<GoneFrontend>> {
    let read = |family: Family| -> anyhow::Result<BTreeSet<GoneFrontend>> {
        let Some(mut kernel) = mode.read_back(family)? else { return Ok(BTreeSet::new()) };
        let udp = kernel.frontends()?.into_iter().filter(|key| key.protocol == Protocol::Udp);
        Ok(udp.map(|FrontendKey { ip, port, protocol }| GoneFrontend { ip, port, protocol }).collect())
    };
    PerFamily::from_fn(|family| {
        if !support.families().contains(&family) {
            return BTreeSet::new();
        }
        read(family).unwrap_or_else(|error| {
            debug!(ipFamily = %family, err = format!("{error:#}"), "Cannot read what an earlier process left; UDP flows to Services that were deleted meanwhile may stay");
            BTreeSet::new()
        })
    })
}

fn probe(mode: Mode, family: Family) -> Result<(), String> {
    mode.entry().operations.probe(family).map_err(|error| format!("{error:#}"))
}

/// Makes the dataplanes of the configured mode. Writes nothing to the kernel yet.
pub(crate) fn build(config: &Config, support: FamilySupport) -> anyhow::Result<Vec<Box<dyn Dataplane>>> {
    let mode = config.mode;
    info!("Using {mode} Proxier");
    let least =
        config.fixed_min_sync_period().map_or_else(|| "adaptive".to_owned(), |time| format!("{time:?}"));
    debug!(
        minSyncPeriod = least, syncPeriod = ?config.pacing.sync_period, maxSyncPeriod = ?FULL_SYNC_INTERVAL,
        "{mode} sync params"
    );
    mode.entry().operations.build(&BuildContext { config, families: &support.families() })
}

/// A section of the configuration file that several modes may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Iptables,
    Ipvs,
    Nftables,
}

/// A mode that will be removed.
#[derive(Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// The reason of the Event.
    pub reason: &'static str,
    /// What to do about it.
    pub message: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_modes_are_one_to_one() {
        for mode in Mode::ALL {
            assert_eq!(Mode::from_name(mode.as_str()), Some(mode));
        }
        for unknown in ["", "IPTables", "nftables ", "kernelspace"] {
            assert_eq!(Mode::from_name(unknown), None, "{unknown:?}");
        }
    }
}
