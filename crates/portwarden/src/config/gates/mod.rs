//! Feature gates: which exist (`gates.txt`), which are on, and which ones have an effect here.

use std::collections::BTreeMap;

use super::options::Scope;
use super::reload::Effect::{self, Live, Restart};
use super::reload::Part;
use crate::modes::Mode;

/// How mature a gate's feature is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Off unless asked for.
    Alpha,
    /// Usually on.
    Beta,
    /// Stable; the gate will be removed.
    Ga,
    /// On its way out.
    Deprecated,
}

impl Stage {
    /// The value of the label `stage` of the metric `kubernetes_feature_enabled`.
    pub fn label(self) -> &'static str {
        match self {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "",
            Stage::Deprecated => "DEPRECATED",
        }
    }
}

/// The gates that kube-proxy acts on; every other gate is accepted without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Mode `ipvs` may be chosen.
    KubeProxyIpvs,
    /// nftables over netlink instead of the `nft` program.
    NftablesNetlink,
    /// TCP node ports on loopback addresses in nftables mode.
    NftablesLocalhostNodePorts,
    /// `spec.externalIPs` of Services are served.
    AllowServiceExternalIps,
    /// The page `/flagz`.
    ComponentFlagz,
    /// The page `/statusz`.
    ComponentStatusz,
    /// Native histograms in protobuf scrapes.
    NativeHistograms,
    /// Log format `json`.
    LoggingBetaOptions,
    /// Separate streams and buffers for logs.
    LoggingAlphaOptions,
    /// The first list arrives as a stream of watch events.
    WatchListClient,
}

/// What there is to know about a feature.
pub(super) struct FeatureRow {
    feature: Feature,
    pub(super) name: &'static str,
    /// What a change needs of a running process, and in which modes.
    pub(super) reload: &'static [Effect],
    pub(super) scope: Scope,
    /// What holds whatever the gate is set to, if it has no effect here.
    without_effect: Option<&'static str>,
}

const fn row(feature: Feature, name: &'static str, reload: &'static [Effect]) -> FeatureRow {
    FeatureRow { feature, name, reload, scope: Scope::Always, without_effect: None }
}

/// In the order of the enumeration. Gates that only allow other settings need nothing when they change.
static FEATURES: [FeatureRow; 10] = [
    row(Feature::KubeProxyIpvs, "KubeProxyIPVS", &[]),
    FeatureRow {
        without_effect: Some("mode nftables always speaks netlink"),
        ..row(Feature::NftablesNetlink, "NFTablesNetlink", &[])
    },
    FeatureRow {
        scope: Scope::Only(Mode::Nftables),
        ..row(
            Feature::NftablesLocalhostNodePorts,
            "KubeProxyNFTablesLocalhostNodePorts",
            &[Restart(Part::Dataplane)],
        )
    },
    row(Feature::AllowServiceExternalIps, "AllowServiceExternalIPs", &[Live(Part::Rules)]),
    row(Feature::ComponentFlagz, "ComponentFlagz", &[Live(Part::MetricsServer)]),
    row(Feature::ComponentStatusz, "ComponentStatusz", &[Live(Part::MetricsServer)]),
    FeatureRow {
        without_effect: Some("metrics are shown as text only"),
        ..row(Feature::NativeHistograms, "NativeHistograms", &[])
    },
    row(Feature::LoggingBetaOptions, "LoggingBetaOptions", &[]),
    row(Feature::LoggingAlphaOptions, "LoggingAlphaOptions", &[]),
    row(Feature::WatchListClient, "WatchListClient", &[Restart(Part::Source)]),
];

impl Feature {
    /// Every feature.
    pub fn all() -> impl Iterator<Item = Feature> {
        FEATURES.iter().map(|row| row.feature)
    }

    pub(super) fn row(self) -> &'static FeatureRow {
        &FEATURES[self as usize]
    }
}

/// What is known about one gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// As in `--feature-gates`.
    pub name: &'static str,
    /// Decides whether the gate can be changed.
    pub stage: Stage,
    /// Whether it is on when nothing is said.
    pub default: bool,
    /// Whether it may only be set to its default.
    pub locked: bool,
    /// The names of the gates that it needs.
    needs: &'static str,
}

impl Gate {
    /// Reads a line of the list of gates.
    fn parse(line: &'static str) -> Option<Gate> {
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
            rest = after;
            word
        };
        let name = word();
        let stage = match word() {
            "alpha" => Stage::Alpha,
            "beta" => Stage::Beta,
            "ga" => Stage::Ga,
            "deprecated" => Stage::Deprecated,
            _ => return None,
        };
        let (default, locked) = (word() == "on", word() == "locked");
        Some(Gate { name, stage, default, locked, needs: rest })
    }
}

/// Every gate, by name, and whether it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureGates {
    gates: BTreeMap<&'static str, (Gate, bool)>,
}

/// Something that cannot be asked of the gates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateProblem {
    /// No such gate.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// The gate only has its default; with the value that was asked for.
    #[error("cannot set feature gate {0} to {1}, feature is locked to {not}", not = !.1)]
    Locked(&'static str, bool),
    /// The gate needs others that are off.
    #[error("{0} is enabled, but depends on features that are disabled: [{all}]", all = .1.join(" "))]
    Depends(&'static str, Vec<&'static str>),
}

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

impl Default for FeatureGates {
    fn default() -> Self {
        let lines = include_str!("gates.txt").lines().filter(|line| !line.starts_with('#'));
        let gates = lines.filter_map(Gate::parse).map(|gate| (gate.name, (gate, gate.default)));
        FeatureGates { gates: gates.collect() }
    }
}

impl FeatureGates {
    /// The defaults with these settings on top and what the operator should know, or everything that is wrong.
    pub fn with(settings: &BTreeMap<String, bool>) -> Result<(Self, Vec<String>), Vec<GateProblem>> {
        let mut gates = FeatureGates::default();
        let mut problems = Vec::new();
        let mut notices = Vec::new();
        for (all, stage) in [(ALL_ALPHA, Stage::Alpha), (ALL_BETA, Stage::Beta)] {
            if let Some(value) = settings.get(all) {
                gates.set_stage(stage, *value);
            }
        }
        for (name, value) in settings {
            match gates.set(name, *value) {
                Ok(notice) => notices.extend(notice),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            problems = gates.unmet_dependencies();
        }
        notices.extend(gates.changed_without_effect());
        if problems.is_empty() { Ok((gates, notices)) } else { Err(problems) }
    }

    /// Whether a feature is on.
    pub fn enabled(&self, feature: Feature) -> bool {
        self.is_on(feature.row().name)
    }

    /// Every gate in order of name with whether it is on, as the metric `kubernetes_feature_enabled` shows them.
    pub fn iter(&self) -> impl Iterator<Item = (&Gate, bool)> {
        self.gates.values().map(|(gate, on)| (gate, *on))
    }

    /// Gates that do not have their defaults although that has no effect here.
    fn changed_without_effect(&self) -> impl Iterator<Item = String> {
        FEATURES.iter().filter_map(|FeatureRow { name, without_effect, .. }| {
            let instead = (*without_effect)?;
            let (gate, on) = self.gates.get(name)?;
            let changed = *on != gate.default;
            changed.then(|| format!("feature gate {name} is {on}, which has no effect: {instead}"))
        })
    }

    fn is_on(&self, name: &str) -> bool {
        self.gates.get(name).is_some_and(|(_, on)| *on)
    }

    fn set_stage(&mut self, stage: Stage, value: bool) {
        for (gate, on) in self.gates.values_mut() {
            if gate.stage == stage && gate.name != ALL_ALPHA && gate.name != ALL_BETA {
                *on = value;
            }
        }
    }

    fn set(&mut self, name: &str, value: bool) -> Result<Option<String>, GateProblem> {
        let (gate, on) = self.gates.get_mut(name).ok_or_else(|| GateProblem::Unknown(name.to_owned()))?;
        if gate.locked && gate.default != value {
            return Err(GateProblem::Locked(gate.name, value));
        }
        *on = value;
        let stage = match gate.stage {
            Stage::Alpha | Stage::Beta => return Ok(None),
            Stage::Ga => "GA",
            Stage::Deprecated => "deprecated",
        };
        Ok(Some(format!(
            "feature gate {name} is set to {value}, but it is {stage} and a future release will not know it"
        )))
    }

    fn unmet_dependencies(&self) -> Vec<GateProblem> {
        let unmet = |(gate, on): &(Gate, bool)| {
            let disabled: Vec<_> = gate.needs.split_whitespace().filter(|need| !self.is_on(need)).collect();
            (*on && !disabled.is_empty()).then_some(GateProblem::Depends(gate.name, disabled))
        };
        self.gates.values().filter_map(unmet).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(settings: &[(&str, bool)]) -> Result<(FeatureGates, Vec<String>), Vec<String>> {
        FeatureGates::with(&settings.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
            .map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_list_is_whole_and_consistent() {
        let gates = FeatureGates::default();
        assert_eq!(gates.iter().count(), 254);
        let lines: Vec<&str> =
            include_str!("gates.txt").lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), 254, "every line is a gate, and no gate is there twice");
        assert!(lines.is_sorted(), "sorted by name");
        for (gate, _) in gates.iter() {
            for need in gate.needs.split_whitespace() {
                assert!(gates.gates.contains_key(need), "{need} is not in the list");
            }
        }
        for (index, feature) in Feature::all().enumerate() {
            assert_eq!(feature as usize, index, "the order of the table");
            assert!(gates.gates.contains_key(feature.row().name), "{feature:?} is not in the list");
        }
        assert_eq!(gates.unmet_dependencies(), [], "the defaults fit together");
    }

    #[test]
    fn defaults_of_the_gates_that_matter() {
        let gates = FeatureGates::default();
        let off: Vec<_> = Feature::all().filter(|feature| !gates.enabled(*feature)).collect();
        assert_eq!(off, [Feature::NftablesLocalhostNodePorts, Feature::LoggingAlphaOptions]);
    }

    #[test]
    fn a_gate_that_changes_nothing_is_named() {
        assert_eq!(FeatureGates::default().changed_without_effect().next(), None);
        let (_, named) = with(&[
            ("KubeProxyNFTablesLocalhostNodePorts", true),
            ("WatchListClient", false),
            ("NativeHistograms", false),
            ("NFTablesNetlink", false),
            ("ComponentFlagz", false),
        ])
        .unwrap();
        assert_eq!(named.len(), 2, "{named:?}");
        assert!(
            named[0].starts_with("feature gate NFTablesNetlink is false, which has no effect: mode nftables"),
            "{named:?}"
        );
        assert!(named[1].starts_with("feature gate NativeHistograms is false"), "{named:?}");
    }

    #[test]
    fn unknown_and_locked_gates_are_all_reported() {
        let problems =
            with(&[("Nonsense", true), ("NFTablesProxyMode", false), ("KMSv1", true), ("X", false)]);
        assert_eq!(
            problems.unwrap_err(),
            [
                "cannot set feature gate NFTablesProxyMode to false, feature is locked to true",
                "unrecognized feature gate: Nonsense",
                "unrecognized feature gate: X",
            ]
        );
        let locked_off = with(&[("GitRepoVolumeDriver", true)]).unwrap_err();
        assert_eq!(
            locked_off,
            ["cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false"]
        );
    }

    #[test]
    fn a_locked_gate_may_be_set_to_its_default_and_is_noted() {
        let (gates, notices) =
            with(&[("NFTablesProxyMode", true), ("KubeProxyIPVS", false), ("NFTablesNetlink", false)])
                .unwrap();
        assert!(!gates.enabled(Feature::KubeProxyIpvs) && !gates.enabled(Feature::NftablesNetlink));
        assert!(notices[0].starts_with("feature gate KubeProxyIPVS is set to false, but it is deprecated"));
        assert!(notices[1].starts_with("feature gate NFTablesProxyMode is set to true, but it is GA"));
        assert!(notices[2].starts_with("feature gate NFTablesNetlink is false, which has no effect"));
        assert_eq!(notices.len(), 3, "{notices:?}");
    }

    #[test]
    fn all_alpha_alone_fails_because_alpha_needs_beta() {
        let problems = with(&[("AllAlpha", true)]).unwrap_err();
        assert!(
            problems.contains(
                &"WorkloadWithJob is enabled, but depends on features that are disabled: [GenericWorkload]"
                    .to_owned()
            ),
            "{problems:?}"
        );
    }

    #[test]
    fn whole_stages_are_set_and_single_gates_win() {
        let (gates, _) =
            with(&[("AllAlpha", true), ("AllBeta", true), ("LoggingAlphaOptions", false)]).unwrap();
        assert!(gates.enabled(Feature::NftablesLocalhostNodePorts));
        assert!(!gates.enabled(Feature::LoggingAlphaOptions));
        let (gates, _) = with(&[("AllBeta", false), ("NFTablesNetlink", true)]).unwrap();
        assert!(gates.enabled(Feature::NftablesNetlink));
        assert!(!gates.enabled(Feature::ComponentFlagz));
        assert!(gates.enabled(Feature::AllowServiceExternalIps), "GA gates are no beta gates");
    }

    #[test]
    fn a_gate_is_refused_while_what_it_needs_is_off() {
        let problems = with(&[("PodLevelResources", false)]).unwrap_err();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(
            problems[0].starts_with("InPlacePodLevelResourcesVerticalScaling is enabled"),
            "{problems:?}"
        );
    }
}
