//! The configuration the program runs on: parsed, checked, complete.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use portwarden_model::{DetectLocal, NodePortRange, Settings, Timestamp};

use super::document::{Document, VModule};
use super::gates::{Feature, FeatureGates};
use crate::modes::Mode;

/// A configuration in which nothing is left to check.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The dataplane.
    pub mode: Mode,
    /// When rules are written.
    pub pacing: Pacing,
    /// Masquerading in the mode in effect.
    pub masquerade: Masquerade,
    /// Whether node ports answer on 127.0.0.1 in mode iptables.
    pub localhost_node_ports: bool,
    /// What only mode ipvs needs; absent in every other mode.
    pub ipvs: Option<Ipvs>,
    /// Which virtual servers a clean-up must leave alone, in whatever mode.
    pub ipvs_excluded: ExcludedRanges,
    /// How pod traffic is told from other traffic.
    pub detect_local: DetectLocal,
    /// The pods' ranges, whether or not they tell pod traffic.
    pub cluster_cidrs: Vec<IpNet>,
    /// Node addresses on which node ports answer; empty means all.
    pub node_port_addresses: Vec<NodePortRange>,
    /// The node's address if it was given; the wildcard address says nothing.
    pub bind_address: Option<IpAddr>,
    /// The Node's name if it was given, in lower case.
    pub hostname_override: Option<String>,
    /// Where objects come from.
    pub source: Source,
    /// How often every known object is looked at again.
    pub config_sync_period: Duration,
    /// The HTTP servers.
    pub servers: Servers,
    /// Logs.
    pub logging: Logging,
    /// Kernel connection tracking.
    pub conntrack: Conntrack,
    /// Whether a kernel setting that cannot be written ends the process.
    pub sysctl_hard_fail: bool,
    /// The process's out-of-memory score adjustment.
    pub oom_score_adj: i32,
    /// Which features are on.
    pub gates: FeatureGates,
    /// What nobody asked for and was filled in.
    pub defaulted: Defaulted,
    /// The same as a file: what `--write-config-to` writes and `/configz` shows.
    pub document: Document,
}

/// When rules are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pacing {
    /// How often everything is checked; a health check fails after twice this time.
    pub sync_period: Duration,
    /// The shortest time between two writes, as kube-proxy would keep it.
    pub min_sync_period: Duration,
}

/// Masquerading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masquerade {
    /// Whether all traffic to cluster addresses is masqueraded.
    pub all: bool,
    /// The bit of the packet mark that asks for it, 0 to 31.
    pub bit: u8,
}

impl Masquerade {
    /// The packet mark with only that bit.
    pub fn mark(self) -> u32 {
        1u32.wrapping_shl(self.bit.into())
    }
}

/// What only mode ipvs needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipvs {
    /// The scheduler.
    pub scheduler: String,
    /// Ranges whose virtual servers are left alone.
    pub exclude_cidrs: Vec<IpNet>,
    /// Whether the host stops answering ARP for service addresses.
    pub strict_arp: bool,
    /// Idle TCP sessions; zero leaves the kernel's value.
    pub tcp_timeout: Duration,
    /// TCP sessions after a FIN; zero leaves the kernel's value.
    pub tcp_fin_timeout: Duration,
    /// UDP sessions; zero leaves the kernel's value.
    pub udp_timeout: Duration,
}

/// `ipvs.excludeCIDRs`, which kube-proxy validates in mode ipvs only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExcludedRanges {
    /// The valid entries.
    pub cidrs: Vec<IpNet>,
    /// Entries that are not CIDRs. What they were to protect is unknown, so no virtual server may be removed.
    pub invalid: Vec<String>,
}

/// Where objects come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// A file or folder of manifests.
    Manifests(String),
    /// An API server.
    Api(ApiClient),
}

/// How to reach the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiClient {
    /// The kubeconfig file; without it and `master`, the pod's service account counts.
    pub kubeconfig: Option<String>,
    /// The server's URL, instead of the one in the kubeconfig file.
    pub master: Option<String>,
    /// The media type of requests.
    pub content_type: String,
    /// The value of the header `Accept`.
    pub accept: String,
    /// How many requests may be sent; absent means any number.
    pub limit: Option<RateLimit>,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    /// Tokens per second.
    pub qps: f32,
    /// The size of the bucket.
    pub burst: u32,
}

/// The HTTP servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers {
    /// Where the health server listens; absent means it is off.
    pub healthz: Option<SocketAddr>,
    /// Where the metrics server listens.
    pub metrics: SocketAddr,
    /// Whether a server that cannot listen ends the process.
    pub hard_fail: bool,
    /// Whether the metrics server offers profiles.
    pub profiling: bool,
    /// Whether metrics that this release hides are shown.
    pub hidden_metrics: bool,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logging {
    /// How a line looks.
    pub format: LogFormat,
    /// How much is logged.
    pub verbosity: u32,
    /// How much single source files log; the first match counts.
    pub vmodule: Vec<VModule>,
    /// The longest time a line may wait.
    pub flush_frequency: Duration,
    /// Whether info lines go to standard output and the rest to standard error; otherwise all go to standard error.
    pub split_stream: bool,
    /// How many bytes of info lines may be held back.
    pub info_buffer_size: usize,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Kernel connection tracking; a zero leaves the kernel's value alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries per CPU; zero leaves the limit alone, whatever `min` says.
    pub max_per_core: u32,
    /// The least number of entries.
    pub min: u32,
    /// Idle established TCP connections.
    pub tcp_established_timeout: Duration,
    /// TCP connections in CLOSE_WAIT.
    pub tcp_close_wait_timeout: Duration,
    /// Whether packets outside the TCP window are accepted.
    pub tcp_be_liberal: bool,
    /// UDP flows without an answer.
    pub udp_timeout: Duration,
    /// UDP flows with answers.
    pub udp_stream_timeout: Duration,
}

/// What nobody asked for and was filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaulted {
    /// The mode, which deserves a warning because the default will change.
    pub mode: bool,
    /// The shortest time between two writes, which we then adapt to the load.
    pub min_sync_period: bool,
}

impl Config {
    /// The shortest time between two writes that the operator insists on; without one, it adapts to the load.
    pub fn fixed_min_sync_period(&self) -> Option<Duration> {
        let given = self.pacing.min_sync_period;
        (!self.defaulted.min_sync_period && !given.is_zero()).then_some(given)
    }

    /// What the model needs to know, for the Node of this name.
    pub fn model_settings(&self, node_name: &str, started: Timestamp) -> Settings {
        Settings {
            detect_local: self.detect_local.clone(),
            masquerade_all: self.masquerade.all,
            node_port_addresses: self.node_port_addresses.clone(),
            allow_external_ips: self.gates.enabled(Feature::AllowServiceExternalIps),
            bind_address: self.bind_address,
            started,
            ..Settings::new(node_name)
        }
    }
}
