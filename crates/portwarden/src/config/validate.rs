//! From what was written to what the program runs on: rules, and what the operator should know.
//!
//! The rules of a single value belong to the type that its row in the table of options names; those that involve several options
//! are here. Nothing stops at the first problem: everything is checked, and the whole is rejected at the end.

use std::fmt;

use portwarden_model::{Family, parse_cidr};

use super::decode::{Decoded, Remark};
use super::duration::GoDuration;
use super::gates::{Feature, FeatureGates};
use super::options::{
    BRIDGE_INTERFACE, CLUSTER_CIDR, DETECT_LOCAL_MODE, EBPF_NOTRACK, FEATURE_GATES, INTERFACE_NAME_PREFIX,
    JSON_SPLIT_STREAM, Key, LOG_FORMAT, MODE, Notes, QPS, TEXT_SPLIT_STREAM, VMODULE, Value, Values, fields,
};
use super::problems::{ProblemKind, Problems};
use super::resolve::{Resolved, resolve};
use super::typed::{self, Config, LogFormat, Notrack};
use crate::flags::{Flags, Program};
use crate::modes::{Deprecation, Mode};

/// A validated configuration and what the operator should know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    /// What the process runs on.
    pub config: Config,
    /// Remarks for the log, in order.
    pub notices: Vec<Notice>,
}

/// Something the operator should know, none of which stops the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The file has unknown or repeated fields (info).
    LenientDecoding(Vec<Remark>),
    /// Flags without effect because of the file (warning).
    FlagsIgnored(Vec<&'static str>),
    /// A feature gate that will be removed, or was changed without effect (warning).
    Gate(String),
    /// Entries of `ipvs.excludeCIDRs` that are not CIDRs, in a mode that does not validate them (warning).
    InvalidExcludedRanges(Vec<String>),
    /// A field that is set, but has no effect in this mode (warning).
    NoEffect {
        /// The field.
        field: &'static str,
        /// The mode in force.
        mode: Mode,
    },
    /// The mode was not chosen, and the default will change (error, and an Event).
    ModeDefaulted,
    /// The mode will be removed (error, and an Event).
    ModeDeprecated(&'static Deprecation),
}

/// Validates what was written on the command line and, if there is one, in the file.
pub fn validate(program: Program, flags: &Flags, file: Option<&Decoded>) -> Result<LoadedConfig, Problems> {
    let mut problems = Problems::default();
    let Resolved { mut document, defaulted } = resolve(flags, file.map(|file| &file.document), &mut problems);
    let mut notices = Vec::new();
    if let Some(file) = file {
        let ignored = flags.void_because_of_file(program);
        notices.extend((!file.remarks.is_empty()).then(|| Notice::LenientDecoding(file.remarks.clone())));
        notices.extend((!ignored.is_empty()).then_some(Notice::FlagsIgnored(ignored)));
    }
    let gates = match FeatureGates::with(&document.get(FEATURE_GATES)) {
        Ok((gates, gate_notices)) => {
            notices.extend(gate_notices.into_iter().map(Notice::Gate));
            gates
        }
        Err(gate_problems) => {
            gate_problems.iter().for_each(|problem| problems.complete(problem.to_string()));
            FeatureGates::default()
        }
    };
    notices.extend(drop_split_streams(&mut document, flags, &gates));
    check_options(&document, &gates, &mut problems);
    if !problems.is_empty() {
        return Err(problems.in_order_of_kube_proxy());
    }
    let config = Config::new(document, flags, gates, defaulted);
    let invalid = &config.ipvs_excluded.invalid;
    notices.extend((!invalid.is_empty()).then(|| Notice::InvalidExcludedRanges(invalid.clone())));
    let notrack = EBPF_NOTRACK.row();
    let without_effect = config.ebpf.notrack != Notrack::Disabled && !notrack.scope.includes(config.mode);
    notices.extend(without_effect.then_some(Notice::NoEffect { field: notrack.field, mode: config.mode }));
    notices.extend(config.defaulted.mode.then_some(Notice::ModeDefaulted));
    notices.extend(config.mode.entry().deprecation.as_ref().map(Notice::ModeDeprecated));
    Ok(LoadedConfig { config, notices })
}

/// Split streams in a file have no effect without their gate, as in kube-proxy. As flags they are refused.
fn drop_split_streams(document: &mut Values, flags: &Flags, gates: &FeatureGates) -> Vec<Notice> {
    let mut notices = Vec::new();
    for key in [TEXT_SPLIT_STREAM, JSON_SPLIT_STREAM] {
        let by_flag = flags.values.value(key).is_some();
        if document.get(key) && !by_flag && !gates.enabled(Feature::LoggingAlphaOptions) {
            document.set(key, key.row().kind.zero());
            let field = key.row().field;
            notices.push(Notice::Gate(format!(
                "{field} has no effect: feature gate LoggingAlphaOptions is disabled"
            )));
        }
    }
    notices
}

/// Applies the rules of every option that has an effect.
fn check_options(document: &Values, gates: &FeatureGates, problems: &mut Problems) {
    let mode = document.mode();
    for (index, row) in fields().filter(|(_, row)| row.always_checked || row.scope.includes(mode)) {
        let (path, value) = (row.path(), document.at(index));
        let mut notes = Notes::default();
        (row.rules)(value, &mut notes);
        for note in notes.0 {
            let path = note.index.map_or_else(|| path.clone(), |index| format!("{path}[{index}]"));
            problems.field(&path, note.kind, note.value, note.message);
        }
        if let Some(check) = row.check {
            check(&mut Check { document, mode, gates, path: &path, value, problems });
        }
    }
}

/// What a rule that involves several options needs to know.
pub(super) struct Check<'a> {
    document: &'a Values,
    mode: Mode,
    gates: &'a FeatureGates,
    /// The name in messages and the value of the option that the rule belongs to.
    path: &'a str,
    value: Option<&'a Value>,
    problems: &'a mut Problems,
}

impl Check<'_> {
    fn forbidden(&mut self, message: &str) {
        self.problems.field(self.path, ProblemKind::Forbidden, String::new(), message);
    }
}

pub(super) fn mode(check: &mut Check<'_>) {
    let allowed = |mode: &Mode| mode.entry().gate.is_none_or(|gate| check.gates.enabled(gate));
    let name = check.document.text(MODE);
    if Mode::from_name(name).filter(allowed).is_none() {
        let known = Mode::ALL.into_iter().filter(|mode| mode.entry().known_to_kube_proxy && allowed(mode));
        let known: Vec<&str> = known.map(Mode::as_str).collect();
        let message = format!("must be {} or blank (blank means {})", known.join(", "), Mode::DEFAULT);
        check.problems.invalid_text(check.path, name, message);
    }
}

pub(super) fn burst(check: &mut Check<'_>) {
    if check.document.get(QPS) >= 0.0 && check.value == Some(&Value::Int(0)) {
        check.problems.invalid(check.path, 0, "must be greater than 0 while ClientConnection.QPS is");
    }
}

pub(super) fn periods(check: &mut Check<'_>) {
    let (sync_period, min_sync_period) = typed::periods(check.mode);
    let written = |value: Option<&Value>| match value {
        Some(Value::Duration(duration)) => *duration,
        _ => GoDuration::ZERO,
    };
    let minimum = written(check.document.value(min_sync_period));
    if minimum > written(check.document.value(sync_period)) {
        let message = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
        check.problems.invalid_text(check.path, &minimum.to_string(), message);
    }
}

pub(super) fn log_format(check: &mut Check<'_>) {
    let json = check.document.get(LOG_FORMAT) == LogFormat::Json;
    if json && !check.gates.enabled(Feature::LoggingBetaOptions) {
        check.forbidden("log format json is disabled, see feature gate LoggingBetaOptions");
    }
    if check.document.text(LOG_FORMAT) != "text" && !check.document.get(VMODULE).is_empty() {
        check.path = "logging.vmodule";
        check.forbidden("only supported for the text log format");
    }
}

pub(super) fn alpha_logging(check: &mut Check<'_>) {
    let used = check.value.is_some_and(|value| !value.is_zero());
    if used && !check.gates.enabled(Feature::LoggingAlphaOptions) {
        check.forbidden("feature gate LoggingAlphaOptions is disabled");
    }
}

/// Each way to identify pod traffic needs an option of its own; what the others need may be anything.
pub(super) fn detect_local(check: &mut Check<'_>) {
    let mut not_empty = |key: Key<String>, path: &str| {
        if check.document.text(key).is_empty() {
            check.problems.invalid_text(path, "", "must not be empty");
        }
    };
    match check.document.text(DETECT_LOCAL_MODE) {
        "ClusterCIDR" => {
            let cidrs = check.document.get(CLUSTER_CIDR);
            cluster_cidrs(&cidrs.0, "DetectLocalConfiguration.ClusterCIDRs", check.problems);
        }
        "NodeCIDR" => {}
        "BridgeInterface" => not_empty(BRIDGE_INTERFACE, "DetectLocalConfiguration.InterfaceName"),
        "InterfaceNamePrefix" => not_empty(INTERFACE_NAME_PREFIX, "DetectLocalConfiguration.InterfacePrefix"),
        other => {
            let known = "supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"";
            check.problems.field(check.path, ProblemKind::Unsupported, format!("{other:?}"), known);
        }
    }
}

/// Packets from pod to pod are known by the range of the pods.
pub(super) fn notrack(check: &mut Check<'_>) {
    let wanted = check.document.get(EBPF_NOTRACK) != Notrack::Disabled;
    if wanted && check.document.get(CLUSTER_CIDR).all_or_none().is_empty() {
        let message = "needs the range of the pods' addresses: set clusterCIDR (--cluster-cidr)";
        check.problems.invalid_text(check.path, check.document.text(EBPF_NOTRACK), message);
    }
}

/// One range, or one of each family.
fn cluster_cidrs(texts: &[String], path: &str, problems: &mut Problems) {
    const ONE_OR_PAIR: &str = "must be either a single CIDR or a dual-stack pair of CIDRs (such as 10.100.0.0/16,fde4:8dba:82e1::/48)";
    let mut families = Vec::new();
    for (index, text) in texts.iter().enumerate().filter(|_| texts.len() <= 2) {
        match parse_cidr(text) {
            Some(net) => families.push(Family::of_net(&net)),
            None => {
                let message = "must be a valid CIDR block (such as 10.100.0.0/16 or fde4:8dba:82e1::/48)";
                problems.invalid_text(&format!("{path}[{index}]"), text, message);
            }
        }
    }
    if texts.len() > 2 || matches!(families[..], [first, second] if first == second) {
        problems.field(path, ProblemKind::Invalid, format!("{texts:?}"), ONE_OR_PAIR);
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::LenientDecoding(remarks) => {
                let remarks: Vec<String> = remarks.iter().map(ToString::to_string).collect();
                write!(f, "Using lenient decoding as strict decoding failed: {}", remarks.join("; "))
            }
            Notice::FlagsIgnored(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
                write!(f, "flags without effect because --config is given: {}", names.join(", "))
            }
            Notice::Gate(message) => f.write_str(message),
            Notice::InvalidExcludedRanges(entries) => write!(
                f,
                "ipvs.excludeCIDRs has entries that are not CIDRs: {}; virtual servers that mode ipvs left behind are not \
                 removed until they are corrected",
                entries.join(", ")
            ),
            Notice::NoEffect { field, mode } => write!(f, "{field} has no effect in mode {mode}"),
            Notice::ModeDefaulted => f.write_str(
                "no proxy mode was chosen, so iptables is used; from Kubernetes 1.40 the default is nftables, and \
                 `mode: iptables` (or --proxy-mode=iptables) keeps today's",
            ),
            Notice::ModeDeprecated(deprecation) => f.write_str(deprecation.message),
        }
    }
}

#[cfg(test)]
mod tests;
