//! What the introspection server answers, as types that its clients can use, too.
//!
//! Field names are in camel case, as in Kubernetes. Times are RFC 3339 in UTC, durations are seconds. A client must ignore fields that it
//! does not know.

use serde::{Deserialize, Serialize};

/// `/api/status`: the process at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When this was true.
    pub now: String,
    /// The Node that the process works for.
    pub node: String,
    /// As kube-proxy reports it.
    pub version: String,
    /// Portwarden's own version.
    pub portwarden: String,
    /// The mode in force.
    pub mode: String,
    /// The mode that is being installed, during a change of mode.
    pub next_mode: Option<String>,
    /// When the process started.
    pub started: String,
    /// Seconds since the start.
    pub uptime: f64,
    /// Whether all is well, and if not, why.
    pub verdict: Verdict,
    /// The families that are served.
    pub families: Vec<FamilyStatus>,
    /// How many seconds the oldest change that is not yet in the kernel has waited; absent if there is none.
    pub oldest_pending: Option<f64>,
    /// Progress of the thread that writes to the kernel.
    pub engine: EngineStatus,
    /// The last syncs, newest first.
    pub syncs: Vec<Sync>,
    /// Sums since the start.
    pub totals: Totals,
    /// Services that the kernel refuses.
    pub refused: Refused,
    /// The parts of the source of objects.
    pub sources: Vec<SourcePart>,
    /// The kernel's table of connections; absent if the kernel does not show it.
    pub conntrack: Option<Conntrack>,
    /// Memory that the process uses, in bytes.
    pub memory: u64,
    /// Changes whenever the time line does.
    pub timeline_version: u64,
}

/// Whether the process does its work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Everything that is known is in the kernel, or not late, and nothing fails.
    pub healthy: bool,
    /// What `/livez` answers: no change has waited too long.
    pub live: bool,
    /// What `/healthz` answers: live, and the Node takes traffic.
    pub takes_traffic: bool,
    /// Why it is not healthy; empty if it is.
    pub reasons: Vec<String>,
}

/// One family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyStatus {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Whether the kernel has had everything once.
    pub installed: bool,
    /// Services in force.
    pub services: usize,
    /// Endpoints of all service ports in force, in any state.
    pub endpoints: usize,
    /// When a sync last succeeded.
    pub last_sync: Option<String>,
    /// How many seconds the oldest waiting change has waited.
    pub oldest_pending: Option<f64>,
    /// Syncs that failed since the last one that succeeded.
    pub failures: u32,
}

/// Progress of the engine's thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineStatus {
    /// Busy for longer than a change may wait.
    pub stuck: bool,
    /// How many seconds it has been busy without a pause; absent while it waits for work.
    pub busy: Option<f64>,
    /// What it is doing, while it is busy.
    pub stage: Option<String>,
}

/// One attempt to bring the kernel to the desired state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sync {
    /// When it ended.
    pub at: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The mode that wrote.
    pub mode: String,
    /// Whether everything was written or compared, not only changes.
    pub full: bool,
    /// How many seconds it took.
    pub duration: f64,
    /// Seconds from the arrival of the oldest change to the kernel's acknowledgement; absent if nothing waited.
    pub change_to_kernel: Option<f64>,
    /// Objects or rules written or removed.
    pub written: usize,
    /// Services that changed.
    pub services: usize,
    /// Why it failed; absent if it succeeded.
    pub error: Option<String>,
}

/// Sums since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Changes of objects that arrived.
    pub changes: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Syncs that failed.
    pub failed_syncs: u64,
    /// Objects or rules written or removed.
    pub written: u64,
    /// Changes by other processes that were undone.
    pub repairs: u64,
    /// Parts of objects that could not be used.
    pub problems: u64,
}

/// Services that the kernel refuses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// How many there are.
    pub count: usize,
    /// The first of them.
    pub services: Vec<RefusedService>,
}

/// A Service that the kernel refuses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedService {
    /// `namespace/name`.
    pub service: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The refused object and the kernel's error.
    pub reason: String,
    /// Since when.
    pub since: String,
}

/// A part of the source of objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourcePart {
    /// A kind of object, or a path.
    pub part: String,
    /// Whether changes are followed.
    pub following: bool,
    /// Since when it is so.
    pub since: String,
    /// Why they are not followed.
    pub error: Option<String>,
}

/// The kernel's table of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conntrack {
    /// Entries in use.
    pub entries: u64,
    /// The limit; further connections are dropped.
    pub limit: u64,
}

/// `/api/series`: the recent past, for plots. All lists have the same length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Series {
    /// Seconds since the epoch.
    pub time: Vec<f64>,
    /// The longest sync of each interval in milliseconds; null if there was none.
    pub sync: Vec<Option<f32>>,
    /// The longest time from a change to the kernel, in milliseconds; null if there was none.
    pub change_to_kernel: Vec<Option<f32>>,
    /// Changes of objects per second.
    pub changes: Vec<f32>,
    /// Memory of the process, in bytes.
    pub memory: Vec<u64>,
}

/// `/api/timeline`: what happened, newest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Changes whenever the entries do.
    pub version: u64,
    /// The last few hundred.
    pub entries: Vec<TimelineEntry>,
}

/// Something that happened, once or several times in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineEntry {
    /// When it happened first.
    pub at: String,
    /// When it happened last.
    pub last: String,
    /// How often it happened.
    pub count: u32,
    /// What it was.
    pub kind: TimelineKind,
    /// How bad it is.
    pub level: Level,
    /// `IPv4` or `IPv6`, if it concerns only one family.
    pub family: Option<String>,
    /// A sentence about it.
    pub text: String,
}

/// What can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "TimelineKind::level and the entry's text say what each is")]
pub enum TimelineKind {
    Started,
    Installed,
    Tampered,
    Repaired,
    SyncFailed,
    SyncRecovered,
    ServiceRefused,
    ServiceAccepted,
    ObjectProblem,
    ConfigurationApplied,
    ConfigurationRejected,
    ModeChanged,
    SourceFailing,
    SourceFollowing,
    EngineStuck,
    EngineRecovered,
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// As it should be.
    Info,
    /// Worth a look.
    Warning,
    /// Something does not work.
    Error,
}

impl TimelineKind {
    /// How bad it is.
    pub fn level(self) -> Level {
        use TimelineKind as Kind;
        match self {
            Kind::Tampered | Kind::ObjectProblem => Level::Warning,
            Kind::SyncFailed
            | Kind::ServiceRefused
            | Kind::ConfigurationRejected
            | Kind::SourceFailing
            | Kind::EngineStuck => Level::Error,
            Kind::Started
            | Kind::Installed
            | Kind::Repaired
            | Kind::SyncRecovered
            | Kind::ServiceAccepted
            | Kind::ConfigurationApplied
            | Kind::ModeChanged
            | Kind::SourceFollowing
            | Kind::EngineRecovered => Level::Info,
        }
    }
}

/// `/api/services`: one page of the Services that match a query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePage {
    /// The number of this page, from 0.
    pub page: usize,
    /// How many pages there are.
    pub pages: usize,
    /// How many Services match.
    pub matching: usize,
    /// How many Services there are.
    pub total: usize,
    /// How many of all Services are not in the state `serving`.
    pub troubled: usize,
    /// The Services of this page, by name.
    pub services: Vec<ServiceRow>,
}

/// One Service in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRow {
    /// `namespace/name`.
    pub service: String,
    /// The worst state of its frontends.
    pub state: ServiceState,
    /// `IPv4`, `IPv6` or both.
    pub families: Vec<String>,
    /// Its cluster addresses.
    pub cluster_ips: Vec<String>,
    /// Its ports, such as `http 80/TCP`.
    pub ports: Vec<String>,
    /// How it is reached apart from its cluster addresses: `node port 30080`, `load balancer 192.0.2.1`.
    pub exposures: Vec<String>,
    /// Endpoints that get traffic, over all ports and families.
    pub used_endpoints: usize,
    /// All known endpoints.
    pub endpoints: usize,
}

/// The worst state of a Service's frontends, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServiceState {
    /// Every frontend leads to an endpoint.
    Serving,
    /// The policy of a frontend is Local, and its endpoints are on other nodes: traffic is dropped.
    NoLocalEndpoints,
    /// A frontend is not served: another one has its address, or the settings forbid it.
    PartlyServed,
    /// A frontend has no usable endpoint in the cluster: traffic is rejected.
    NoEndpoints,
    /// The kernel refuses the Service.
    Refused,
}

/// A request that cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiError {
    /// What is wrong, and what to do.
    pub error: String,
    /// Names that may have been meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub did_you_mean: Vec<String>,
}
