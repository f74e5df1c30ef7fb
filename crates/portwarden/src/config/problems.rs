//! Everything that is wrong with a configuration, each with the field it is about.

use std::fmt;

/// Why a configuration cannot be used: all reasons at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problems(Vec<Problem>);

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    step: Step,
    /// The field, such as `KubeProxyConfiguration.SyncPeriod`; empty if it is about no single field.
    path: String,
    kind: ProblemKind,
    /// The value in the message; empty if it would not help.
    value: String,
    message: String,
}

/// The steps of reading a configuration, in kube-proxy's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Putting flags, file and gates together.
    Complete,
    /// Logging, which is needed to report anything else.
    Logging,
    /// Checks of values and of their combinations.
    Validate,
}

/// What is wrong with a value, in kube-proxy's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    Invalid,
    Unsupported,
    Duplicate,
    Required,
    Forbidden,
    /// The message says it all.
    Plain,
}

const ROOT: &str = "KubeProxyConfiguration";

/// Starts of paths in the order in which kube-proxy validates; what is not listed comes last.
const ORDER: &[&str] = &[
    "KubeProxyIPTables",
    "KubeProxyNFTables",
    "KubeProxyIPVSConfiguration.TCP",
    "KubeProxyIPVSConfiguration.UDP",
    "KubeProxyIPVS",
    "KubeProxyLinuxConfiguration.KubeProxyConntrack",
    "KubeProxyLinux",
    "Mode",
    "ClientConnection",
    "ConfigSyncPeriod",
    "SyncPeriod",
    "MinSyncPeriod",
    "BindAddress",
    "HealthzBindAddress",
    "MetricsBindAddress",
    "NodePortAddresses",
    "ShowHiddenMetrics",
    "DetectLocal",
];

impl Problems {
    /// Each of them, in the order they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same, in the order in which kube-proxy validates.
    pub(super) fn in_order_of_kube_proxy(mut self) -> Self {
        let place = |problem: &Problem| {
            let path = problem.path.strip_prefix(ROOT).map_or("", |path| &path[1..]);
            ORDER.iter().position(|start| path.starts_with(start)).unwrap_or(ORDER.len())
        };
        self.0.sort_by_key(|problem| (problem.step, place(problem)));
        self
    }

    /// Notes a message that is about the whole.
    pub(super) fn complete(&mut self, message: String) {
        self.0.push(Problem {
            step: Step::Complete,
            path: String::new(),
            kind: ProblemKind::Plain,
            value: String::new(),
            message,
        });
    }

    /// Notes a problem with a field, whose path is given below the root.
    pub(super) fn field(&mut self, path: &str, kind: ProblemKind, value: String, message: impl Into<String>) {
        let (step, path) = match path.strip_prefix("logging.") {
            Some(_) => (Step::Logging, path.to_owned()),
            None => (Step::Validate, format!("{ROOT}.{path}")),
        };
        self.0.push(Problem { step, path, kind, value, message: message.into() });
    }

    /// Notes that a number or duration is wrong.
    pub(super) fn invalid(&mut self, path: &str, value: impl fmt::Display, message: impl Into<String>) {
        self.field(path, ProblemKind::Invalid, value.to_string(), message);
    }

    /// Notes that a text is wrong.
    pub(super) fn invalid_text(&mut self, path: &str, value: &str, message: impl Into<String>) {
        self.field(path, ProblemKind::Invalid, format!("{value:?}"), message);
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // kube-proxy stops after the first step that finds something; we show everything under that step's name.
        f.write_str(match self.0.iter().map(|problem| problem.step).min() {
            None => return Ok(()),
            Some(Step::Complete) => "failed complete: ",
            Some(Step::Logging) => "initialize logging: ",
            Some(Step::Validate) => "failed validate: ",
        })?;
        if let [only] = self.0.as_slice() {
            return write!(f, "{only}");
        }
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", all.join(", "))
    }
}

impl std::error::Error for Problems {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ProblemKind::Plain => return f.write_str(&self.message),
            ProblemKind::Invalid => "Invalid value",
            ProblemKind::Unsupported => "Unsupported value",
            ProblemKind::Duplicate => "Duplicate value",
            ProblemKind::Required => "Required value",
            ProblemKind::Forbidden => "Forbidden",
        };
        write!(f, "{}: {kind}", self.path)?;
        for part in [&self.value, &self.message] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        Ok(())
    }
}
