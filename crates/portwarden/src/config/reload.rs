//! What a changed configuration means for the running process.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::gates::Feature;
use super::typed::Config;
use super::write::leaves;
use crate::modes::Mode;

/// What has to be done to get from one configuration to another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Every field that differs, in order of name.
    pub changes: Vec<Change>,
}

/// A field that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The field, such as `iptables.masqueradeBit`.
    pub field: String,
    /// Its old value.
    pub before: Value,
    /// Its new value.
    pub after: Value,
    /// What it needs; nothing if the field has no effect in this mode.
    pub effects: Vec<Effect>,
}

/// What a change needs of one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The part takes the new value as it runs.
    Live(Part),
    /// The part has to be stopped and built again; the kernel's rules stay meanwhile.
    Restart(Part),
}

/// A part of the process that can take a new configuration of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Log format, verbosity and streams.
    Logs,
    /// Sync period and the shortest time between writes.
    Pacing,
    /// The settings from which the desired state is derived.
    Rules,
    /// The mode's dataplane.
    Dataplane,
    /// The API client and its watches.
    Source,
    /// The health server.
    HealthServer,
    /// The metrics server.
    MetricsServer,
    /// Connection tracking settings of the kernel.
    Kernel,
    /// The process itself: its out-of-memory score.
    Process,
}

use Effect::{Live, Restart};

/// What each field needs, and in which modes it counts; a row stands for all fields below its path.
const EFFECTS: &[(&str, &[Mode], &[Effect])] = &[
    ("bindAddress", ALL_MODES, &[Live(Part::Rules)]),
    ("bindAddressHardFail", ALL_MODES, &[Live(Part::HealthServer), Live(Part::MetricsServer)]),
    ("clientConnection", ALL_MODES, &[Restart(Part::Source)]),
    ("clusterCIDR", ALL_MODES, &[Live(Part::Rules)]),
    ("configSyncPeriod", ALL_MODES, &[Live(Part::Source)]),
    ("conntrack", ALL_MODES, &[Live(Part::Kernel)]),
    ("detectLocal", ALL_MODES, &[Live(Part::Rules)]),
    ("detectLocalMode", ALL_MODES, &[Live(Part::Rules)]),
    ("enableProfiling", ALL_MODES, &[Live(Part::MetricsServer)]),
    ("healthzBindAddress", ALL_MODES, &[Restart(Part::HealthServer)]),
    ("hostnameOverride", ALL_MODES, &[Restart(Part::Source), Live(Part::Rules)]),
    ("iptables.localhostNodePorts", &[Mode::Iptables], &[Restart(Part::Dataplane)]),
    ("iptables.masqueradeAll", &[Mode::Iptables, Mode::Ipvs], &[Live(Part::Rules)]),
    ("iptables.masqueradeBit", &[Mode::Iptables, Mode::Ipvs], &[Restart(Part::Dataplane)]),
    ("iptables.minSyncPeriod", &[Mode::Iptables], &[Live(Part::Pacing)]),
    ("iptables.syncPeriod", &[Mode::Iptables], &[Live(Part::Pacing), Live(Part::HealthServer)]),
    ("ipvs.minSyncPeriod", &[Mode::Ipvs], &[Live(Part::Pacing)]),
    ("ipvs.syncPeriod", &[Mode::Ipvs], &[Live(Part::Pacing), Live(Part::HealthServer)]),
    ("ipvs", &[Mode::Ipvs], &[Restart(Part::Dataplane)]),
    ("logging.verbosity", ALL_MODES, &[Live(Part::Logs)]),
    ("logging.vmodule", ALL_MODES, &[Live(Part::Logs)]),
    ("logging", ALL_MODES, &[Restart(Part::Logs)]),
    ("metricsBindAddress", ALL_MODES, &[Restart(Part::MetricsServer)]),
    ("mode", ALL_MODES, &[Restart(Part::Dataplane)]),
    ("nftables.masqueradeAll", &[Mode::Nftables], &[Live(Part::Rules)]),
    ("nftables.masqueradeBit", &[Mode::Nftables], &[Restart(Part::Dataplane)]),
    ("nftables.minSyncPeriod", &[Mode::Nftables], &[Live(Part::Pacing)]),
    ("nftables.syncPeriod", &[Mode::Nftables], &[Live(Part::Pacing), Live(Part::HealthServer)]),
    ("nodePortAddresses", ALL_MODES, &[Live(Part::Rules)]),
    ("oomScoreAdj", ALL_MODES, &[Live(Part::Process)]),
    ("portRange", &[], &[]),
    ("showHiddenMetricsForVersion", ALL_MODES, &[Live(Part::MetricsServer)]),
    ("windowsRunAsService", &[], &[]),
    ("winkernel", &[], &[]),
];

const ALL_MODES: &[Mode] = &[Mode::Iptables, Mode::Ipvs, Mode::Nftables];

/// Compares two configurations.
pub fn reload_plan(old: &Config, new: &Config) -> Plan {
    let (before, after) = (leaves(&old.document), leaves(&new.document));
    let fields: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let modes = [old.mode, new.mode];
    let mut changes = Vec::new();
    for field in fields {
        let value = |leaves: &std::collections::BTreeMap<String, Value>| {
            leaves.get(field).cloned().unwrap_or(Value::Null)
        };
        let (before, after) = (value(&before), value(&after));
        if before != after && !field.starts_with(GATES) {
            changes.push(Change { field: field.clone(), before, after, effects: effects(field, modes) });
        }
    }
    changes.extend(gate_changes(old, new));
    // The document does not tell a chosen period from one that was filled in.
    if old.fixed_min_sync_period() != new.fixed_min_sync_period()
        && !changes.iter().any(|change| change.effects.contains(&Live(Part::Pacing)))
    {
        changes.push(pacing_change(old, new));
    }
    changes.sort_by(|a, b| a.field.cmp(&b.field));
    Plan { changes }
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.iter().all(|change| change.effects.is_empty())
    }

    /// The parts to stop and build again.
    pub fn restarts(&self) -> BTreeSet<Part> {
        self.effects()
            .filter_map(|effect| if let Restart(part) = effect { Some(part) } else { None })
            .collect()
    }

    /// The parts to tell; a part that is built again needs no telling.
    pub fn live(&self) -> BTreeSet<Part> {
        let restarts = self.restarts();
        let live =
            self.effects().filter_map(|effect| if let Live(part) = effect { Some(part) } else { None });
        live.filter(|part| !restarts.contains(part)).collect()
    }

    fn effects(&self) -> impl Iterator<Item = Effect> {
        self.changes.iter().flat_map(|change| change.effects.iter().copied())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.field, self.before, self.after)
    }
}

const GATES: &str = "featureGates.";

fn effects(field: &str, modes: [Mode; 2]) -> Vec<Effect> {
    let below =
        |path: &str| field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let row = EFFECTS.iter().find(|(path, ..)| below(path));
    match row {
        Some((_, counts_in, effects)) if modes.iter().any(|mode| counts_in.contains(mode)) => {
            effects.to_vec()
        }
        _ => Vec::new(),
    }
}

/// Gates are compared by what is on, not by what was written: a gate set to its default is no change.
fn gate_changes(old: &Config, new: &Config) -> Vec<Change> {
    let changed = |feature: &Feature| old.gates.enabled(*feature) != new.gates.enabled(*feature);
    let change = |feature: Feature| Change {
        field: format!("{GATES}{}", feature.name()),
        before: old.gates.enabled(feature).into(),
        after: new.gates.enabled(feature).into(),
        effects: gate_effects(feature, [old.mode, new.mode]).to_vec(),
    };
    Feature::ALL.into_iter().filter(changed).map(change).collect()
}

fn gate_effects(feature: Feature, modes: [Mode; 2]) -> &'static [Effect] {
    match feature {
        // Only says which modes may be chosen.
        Feature::KubeProxyIpvs => &[],
        Feature::AllowServiceExternalIps => &[Live(Part::Rules)],
        Feature::ComponentFlagz | Feature::ComponentStatusz => &[Live(Part::MetricsServer)],
        Feature::WatchListClient => &[Restart(Part::Source)],
        // Only say which settings may be made.
        Feature::LoggingBetaOptions | Feature::LoggingAlphaOptions => &[],
        Feature::NftablesLocalhostNodePorts if modes.contains(&Mode::Nftables) => &[Restart(Part::Dataplane)],
        Feature::NftablesLocalhostNodePorts => &[],
        // Without effect, whatever they are set to.
        Feature::NftablesNetlink | Feature::NativeHistograms => &[],
    }
}

fn pacing_change(old: &Config, new: &Config) -> Change {
    let shown = |config: &Config| match config.fixed_min_sync_period() {
        Some(_) => Value::from("as given"),
        None => Value::from("adaptive"),
    };
    let field = format!("{}.minSyncPeriod", new.mode.as_str());
    Change { field, before: shown(old), after: shown(new), effects: vec![Live(Part::Pacing)] }
}

#[cfg(test)]
mod tests;
