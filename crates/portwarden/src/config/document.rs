//! The configuration as written: `KubeProxyConfiguration` v1alpha1 with every field optional.
//!
//! Nothing here is checked beyond its type. The order of fields is the order in which `/configz` shows them.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::duration::GoDuration;
use super::quantity::Quantity;

/// The group of the configuration, and the key under which `/configz` shows it.
pub const GROUP: &str = "kubeproxy.config.k8s.io";
/// The only version of the configuration.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The kind of the configuration.
pub const KIND: &str = "KubeProxyConfiguration";

/// A whole configuration file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// Feature gates to change.
    #[serde(skip_serializing_if = "absent_or_empty")]
    pub feature_gates: Option<BTreeMap<String, bool>>,
    /// How to reach the API server.
    pub client_connection: ClientConnection,
    /// Log format, verbosity and buffering.
    pub logging: Logging,
    /// The node's name if it is not the host's.
    pub hostname_override: Option<String>,
    /// The node's primary address if the Node object does not tell it; nothing is bound to it.
    pub bind_address: Option<String>,
    /// Where the health server listens.
    pub healthz_bind_address: Option<String>,
    /// Where the metrics server listens.
    pub metrics_bind_address: Option<String>,
    /// Whether a server that cannot listen ends the process.
    pub bind_address_hard_fail: Option<bool>,
    /// Whether the metrics server offers profiles.
    pub enable_profiling: Option<bool>,
    /// The previous minor version, to see the metrics it still showed.
    pub show_hidden_metrics_for_version: Option<String>,
    /// The dataplane.
    pub mode: Option<String>,
    /// Settings of the iptables mode, some of which the ipvs mode shares.
    pub iptables: Iptables,
    /// Settings of the ipvs mode.
    pub ipvs: Ipvs,
    /// Settings of the nftables mode.
    pub nftables: Nftables,
    /// Settings for Windows: accepted and shown, without effect.
    pub winkernel: Winkernel,
    /// How pod traffic is told from other traffic.
    pub detect_local_mode: Option<String>,
    /// Names that two of those ways need.
    pub detect_local: DetectLocal,
    /// The pods' range, or one per family, separated by a comma.
    #[serde(rename = "clusterCIDR", serialize_with = "empty_if_absent")]
    pub cluster_cidr: Option<String>,
    /// Node addresses that serve node ports.
    pub node_port_addresses: Option<Vec<String>>,
    /// The process's out-of-memory score adjustment.
    pub oom_score_adj: Option<i32>,
    /// Kernel connection tracking.
    pub conntrack: Conntrack,
    /// How often every object is looked at again.
    pub config_sync_period: Option<GoDuration>,
    /// Unused since the userspace mode of old; shown empty.
    pub port_range: Option<String>,
    /// Windows only.
    #[serde(skip_serializing_if = "absent_or_false")]
    pub windows_run_as_service: Option<bool>,
}

/// How to reach the API server.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientConnection {
    /// Path of a kubeconfig file; empty means the service account of the pod.
    pub kubeconfig: Option<String>,
    /// The `Accept` header, if not derived from the content type.
    pub accept_content_types: Option<String>,
    /// The media type of requests.
    pub content_type: Option<String>,
    /// Requests per second; negative means no limit.
    #[serde(serialize_with = "shortest")]
    pub qps: Option<f32>,
    /// Requests that may be sent at once.
    pub burst: Option<i32>,
}

/// Log format, verbosity and buffering.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Logging {
    /// `text` or `json`.
    pub format: Option<String>,
    /// The longest time a line may wait in a buffer.
    pub flush_frequency: Option<FlushFrequency>,
    /// How much is logged.
    pub verbosity: Option<u32>,
    /// How much is logged by single source files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<VModule>,
    /// Settings of each format.
    pub options: LoggingOptions,
}

/// A flush frequency remembers whether it was written as text or as a number of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushFrequency {
    /// The longest time a line may wait.
    pub duration: GoDuration,
    /// Whether it was written as a bare number.
    pub as_number: bool,
}

/// One `pattern=N` of `vmodule`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VModule {
    /// A source file's name without its ending, with `*` and `?`.
    pub file_pattern: String,
    /// How much it logs.
    pub verbosity: u32,
}

/// Settings of each log format.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LoggingOptions {
    /// For `text`.
    pub text: OutputRouting,
    /// For `json`.
    pub json: OutputRouting,
}

/// Where log lines go.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputRouting {
    /// Whether info lines go to standard output and the rest to standard error.
    #[serde(skip_serializing_if = "absent_or_false")]
    pub split_stream: Option<bool>,
    /// How many bytes of info lines may be held back.
    pub info_buffer_size: Option<Quantity>,
}

/// Settings of the iptables mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Iptables {
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_bit: Option<i32>,
    /// Whether all traffic to cluster addresses is masqueraded.
    pub masquerade_all: Option<bool>,
    /// Whether node ports answer on 127.0.0.1.
    pub localhost_node_ports: Option<bool>,
    /// How often everything is written again.
    pub sync_period: Option<GoDuration>,
    /// The shortest time between two writes.
    pub min_sync_period: Option<GoDuration>,
}

/// Settings of the ipvs mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ipvs {
    /// How often everything is written again.
    pub sync_period: Option<GoDuration>,
    /// The shortest time between two writes.
    pub min_sync_period: Option<GoDuration>,
    /// The scheduler; empty means `rr`.
    pub scheduler: Option<String>,
    /// Virtual servers in these ranges are left alone.
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Option<Vec<String>>,
    /// Whether the host stops answering ARP for service addresses.
    #[serde(rename = "strictARP")]
    pub strict_arp: Option<bool>,
    /// Idle TCP sessions.
    pub tcp_timeout: Option<GoDuration>,
    /// TCP sessions after a FIN.
    pub tcp_fin_timeout: Option<GoDuration>,
    /// UDP sessions.
    pub udp_timeout: Option<GoDuration>,
}

/// Settings of the nftables mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Nftables {
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_bit: Option<i32>,
    /// Whether all traffic to cluster addresses is masqueraded.
    pub masquerade_all: Option<bool>,
    /// How often everything is checked again.
    pub sync_period: Option<GoDuration>,
    /// The shortest time between two writes.
    pub min_sync_period: Option<GoDuration>,
}

/// Settings for Windows.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Winkernel {
    /// The network's name.
    pub network_name: Option<String>,
    /// The source address for NAT.
    pub source_vip: Option<String>,
    /// Direct server return.
    #[serde(rename = "enableDSR")]
    pub enable_dsr: Option<bool>,
    /// The endpoint of the root namespace.
    pub root_hns_endpoint_name: Option<String>,
    /// Whether health check ports are forwarded.
    pub forward_health_check_vip: Option<bool>,
}

/// Names that two of the ways to tell pod traffic need.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DetectLocal {
    /// For `BridgeInterface`.
    pub bridge_interface: Option<String>,
    /// For `InterfaceNamePrefix`.
    pub interface_name_prefix: Option<String>,
}

/// Kernel connection tracking.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Conntrack {
    /// Entries per CPU; zero leaves the limit alone.
    pub max_per_core: Option<i32>,
    /// The least number of entries.
    pub min: Option<i32>,
    /// Idle established TCP connections.
    pub tcp_established_timeout: Option<GoDuration>,
    /// TCP connections in CLOSE_WAIT.
    pub tcp_close_wait_timeout: Option<GoDuration>,
    /// Whether packets outside the TCP window are accepted.
    pub tcp_be_liberal: Option<bool>,
    /// UDP flows without an answer.
    pub udp_timeout: Option<GoDuration>,
    /// UDP flows with answers.
    pub udp_stream_timeout: Option<GoDuration>,
}

impl Serialize for FlushFrequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.as_number {
            serializer.serialize_i64(self.duration.as_nanos())
        } else {
            self.duration.serialize(serializer)
        }
    }
}

fn absent_or_empty(map: &Option<BTreeMap<String, bool>>) -> bool {
    map.as_ref().is_none_or(BTreeMap::is_empty)
}

fn absent_or_false(switch: &Option<bool>) -> bool {
    *switch != Some(true)
}

fn empty_if_absent<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text.as_deref().unwrap_or(""))
}

/// Whole numbers without a decimal point, others with as few digits as tell them apart, both as Go prints them.
fn shortest<S: Serializer>(number: &Option<f32>, serializer: S) -> Result<S::Ok, S::Error> {
    // The largest whole number below which every f32 prints alike in both languages.
    const PLAIN: f32 = 1e15;
    match number {
        #[expect(clippy::cast_possible_truncation, reason = "whole and small, by the guard")]
        Some(number) if number.fract() == 0.0 && number.abs() < PLAIN => {
            serializer.serialize_i64(*number as i64)
        }
        // Widening 0.1f32 directly would print 0.10000000149011612.
        Some(number) => serializer.serialize_f64(number.to_string().parse().unwrap_or(f64::from(*number))),
        None => serializer.serialize_none(),
    }
}
