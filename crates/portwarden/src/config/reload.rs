//! What a changed configuration means for the running process.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::gates::Feature;
use super::options::{FEATURE_GATES, Scope, fields};
use super::typed::{Config, periods};
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
    /// The server of the live page.
    PageServer,
    /// Connection tracking settings of the kernel.
    Kernel,
    /// The process itself: its out-of-memory score.
    Process,
}

use Effect::{Live, Restart};

/// Compares two configurations.
pub fn reload_plan(old: &Config, new: &Config) -> Plan {
    let modes = [old.mode, new.mode];
    let mut changes = Vec::new();
    for (index, row) in fields().filter(|(index, _)| *index != FEATURE_GATES.index) {
        let shown = |config: &Config| config.document.shown(index, row).unwrap_or(Value::Null);
        let (before, after) = (shown(old), shown(new));
        if before != after {
            let effects = effects(row.scope, row.reload, modes);
            changes.push(Change { field: row.field.to_owned(), before, after, effects });
        }
    }
    changes.extend(gate_changes(old, new));
    // The document does not distinguish a given period from one that was filled in.
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

    /// The parts to notify; a part that is built again needs no notification.
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

fn effects(scope: Scope, effects: &[Effect], modes: [Mode; 2]) -> Vec<Effect> {
    if modes.into_iter().any(|mode| scope.includes(mode)) { effects.to_vec() } else { Vec::new() }
}

/// Gates are compared by what is on, not by what was written: a gate set to its default is no change.
fn gate_changes(old: &Config, new: &Config) -> impl Iterator<Item = Change> {
    let modes = [old.mode, new.mode];
    Feature::all().filter_map(move |feature| {
        let (before, after) = (old.gates.enabled(feature), new.gates.enabled(feature));
        let row = feature.row();
        (before != after).then(|| Change {
            field: format!("featureGates.{}", row.name),
            before: before.into(),
            after: after.into(),
            effects: effects(row.scope, row.reload, modes),
        })
    })
}

fn pacing_change(old: &Config, new: &Config) -> Change {
    let shown = |config: &Config| match config.fixed_min_sync_period() {
        Some(_) => Value::from("as given"),
        None => Value::from("adaptive"),
    };
    let field = periods(new.mode).1.row().field.to_owned();
    Change { field, before: shown(old), after: shown(new), effects: vec![Live(Part::Pacing)] }
}

#[cfg(test)]
mod tests;
