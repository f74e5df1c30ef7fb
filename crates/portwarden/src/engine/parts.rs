//! What an engine is built from, the messages that it gets, and why it fails.

use portwarden_model::{Cluster, Dataplane, PacerConfig, Settings};
use portwarden_source::Update;

use super::{Clock, EngineOutputs, Flows, Heartbeat, NodeWait};
use crate::health::SharedHealth;
use crate::introspection::Activity;
use crate::metrics::Metrics;

/// A message to the engine.
pub enum Message {
    /// Events, problems or the status of the source.
    Update(Update),
    /// The configuration changed.
    Reconfigure(Box<Reconfiguration>),
    /// Runs a function on the cluster, for `explain` and checks.
    Inspect(Box<dyn FnOnce(&Cluster) + Send>),
    /// The process ends; the kernel keeps its rules.
    Stop,
}

/// What a changed configuration means for the engine.
pub struct Reconfiguration {
    /// The model's settings.
    pub settings: Settings,
    /// When syncs may happen.
    pub pacing: PacerConfig,
    /// Other dataplanes, if the mode or its options changed.
    pub dataplanes: Option<Replacement>,
}

/// Dataplanes that replace the current ones.
pub struct Replacement {
    /// The mode that they belong to.
    pub words: ModeWords,
    /// Together they serve all families.
    pub dataplanes: Vec<Box<dyn Dataplane>>,
    /// Removes what the current ones leave behind, once the new ones have installed everything. `None` if the new ones use the same
    /// objects.
    pub remove_leftovers: Option<RemoveLeftovers>,
}

/// How a mode appears in logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeWords {
    /// As in `--proxy-mode`.
    pub name: &'static str,
    /// The log message of a failed sync. Alerts search for it.
    pub sync_failed: &'static str,
    /// The counters that the mode's dataplanes report, with their help texts. They are visible before they count anything.
    pub counters: &'static [(&'static str, &'static str)],
}

/// Removes the leftovers of other proxies and modes. Called once, when our rules are complete; must not block.
pub type RemoveLeftovers = Box<dyn FnOnce() + Send>;

/// Checks whether the configuration fits the node, once that is known.
pub type Check = Box<dyn FnOnce(&Cluster) -> Result<(), String> + Send>;

/// Everything that an engine is built from.
pub struct EngineParts {
    /// The model's settings.
    pub settings: Settings,
    /// The mode that the dataplanes belong to.
    pub words: ModeWords,
    /// Together they serve all families.
    pub dataplanes: Vec<Box<dyn Dataplane>>,
    /// When syncs may happen.
    pub pacing: PacerConfig,
    /// How long the first sync waits for the Node.
    pub node_wait: NodeWait,
    /// Removes leftovers of other programs and modes after the first syncs.
    pub remove_leftovers: Option<RemoveLeftovers>,
    /// Inspects the cluster before the first sync: an error ends the engine.
    pub check: Check,
    /// How flows are removed.
    pub flows: Box<dyn Flows>,
    /// Gets the state of every family.
    pub health: SharedHealth,
    /// Gets counts and durations.
    pub metrics: Metrics,
    /// Channels to the tasks of the runtime.
    pub outputs: EngineOutputs,
    /// Shows progress to the watchdog.
    pub heartbeat: Heartbeat,
    /// Gets what happens, for the introspection server.
    pub activity: Activity,
    /// Tests replace it.
    pub clock: Clock,
}

/// Why the engine failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Pod traffic is identified by the Node's pod ranges, and the Node does not get any.
    #[error(
        "timeout waiting for PodCIDR allocation on node {0:?}; detectLocalMode NodeCIDR needs spec.podCIDRs on the Node: check that the \
         controller manager allocates node CIDRs, or choose another detectLocalMode"
    )]
    NoPodCidrs(String),
    /// Pod traffic is identified by the Node's pod ranges, and there is no Node.
    #[error(
        "timeout waiting for node {0:?} to exist; detectLocalMode NodeCIDR needs its spec.podCIDRs: check that the kubelet runs and \
         registers under this name (see --hostname-override), or choose another detectLocalMode"
    )]
    NoNode(String),
    /// The configuration does not fit the node.
    #[error("{0}")]
    Misconfigured(String),
    /// The thread cannot sleep on its descriptors.
    #[error("cannot wait for events on the engine's descriptors")]
    Wait(#[source] std::io::Error),
}
