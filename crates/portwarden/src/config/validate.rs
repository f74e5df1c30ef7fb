//! The one way from what was written to what the program runs on.
//!
//! Every rule has one place: the function that turns a written value into its final type also says what is wrong with it.
//! Nothing stops at the first problem; a value that cannot be used is replaced by a harmless one so that the rest can be
//! looked at too, and the whole is refused at the end.

mod fields;
mod sections;

use std::fmt;

use super::decode::{Decoded, Remark};
use super::effective::effective;
use super::gates::{FeatureGates, GateNotice, GateWithoutEffect};
use super::problems::Problems;
use super::typed::Config;
use crate::flags::{Flags, Program};
use crate::modes::Deprecation;

/// A validated configuration and what the operator should know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Remarks for the log, in order.
    pub notices: Vec<Notice>,
}

/// Something the operator should know, none of which stops the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The file has fields that nobody reads, or reads twice (info).
    LenientDecoding(Vec<Remark>),
    /// Flags that the file makes void (warning).
    FlagsIgnored(Vec<&'static str>),
    /// A feature gate that will go (warning).
    Gate(GateNotice),
    /// A feature gate that was changed without effect (warning).
    GateWithoutEffect(GateWithoutEffect),
    /// Entries of `ipvs.excludeCIDRs` that are not CIDRs, in a mode that does not validate them (warning).
    InvalidExcludedRanges(Vec<String>),
    /// The mode was not chosen, and the default will change (error, and an Event).
    ModeDefaulted,
    /// The mode will be removed (error, and an Event).
    ModeDeprecated(&'static Deprecation),
}

/// Validates what was written on the command line and, if there is one, in the file.
pub fn validate(program: Program, flags: &Flags, file: Option<&Decoded>) -> Result<LoadedConfig, Problems> {
    let mut problems = Problems::default();
    let effective = effective(flags, file.map(|file| &file.document), &mut problems);
    let mut notices = Vec::new();
    if let Some(file) = file {
        let ignored = flags.void_because_of_file(program);
        notices.extend((!file.remarks.is_empty()).then(|| Notice::LenientDecoding(file.remarks.clone())));
        notices.extend((!ignored.is_empty()).then_some(Notice::FlagsIgnored(ignored)));
    }
    let settings = effective.document.feature_gates.clone().unwrap_or_default();
    let gates = match FeatureGates::with(&settings) {
        Ok((gates, gate_notices)) => {
            notices.extend(gate_notices.into_iter().map(Notice::Gate));
            notices.extend(gates.changed_without_effect().map(Notice::GateWithoutEffect));
            gates
        }
        Err(gate_problems) => {
            gate_problems.iter().for_each(|problem| problems.complete(problem.to_string()));
            FeatureGates::default()
        }
    };
    let config = sections::config(effective, flags, gates, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    let invalid = &config.ipvs_excluded.invalid;
    notices.extend((!invalid.is_empty()).then(|| Notice::InvalidExcludedRanges(invalid.clone())));
    notices.extend(config.defaulted.mode.then_some(Notice::ModeDefaulted));
    notices.extend(config.mode.entry().deprecation.as_ref().map(Notice::ModeDeprecated));
    Ok(LoadedConfig { config, notices })
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
            Notice::Gate(notice) => notice.fmt(f),
            Notice::GateWithoutEffect(gate) => gate.fmt(f),
            Notice::InvalidExcludedRanges(entries) => write!(
                f,
                "ipvs.excludeCIDRs has entries that are not CIDRs: {}; virtual servers that mode ipvs left behind are not \
                 removed until they are corrected",
                entries.join(", ")
            ),
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
