//! From the bytes of a configuration file to a [`Document`].
//!
//! Unknown and repeated fields are remarks, as they are for kube-proxy (it decodes strictly first, leniently after that);
//! a value of the wrong type is an error, and all of them are reported at once.

mod fields;

use std::cell::RefCell;
use std::fmt;

use fields::{Fields, Report};

use super::document::{
    API_VERSION, ClientConnection, Conntrack, DetectLocal, Document, Iptables, Ipvs, KIND, Logging,
    LoggingOptions, Nftables, OutputRouting, VModule, Winkernel,
};
use super::tree::{self, Value};

/// A decoded file and what is odd about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// What the file says.
    pub document: Document,
    /// What strict decoding would have refused; empty for a clean file.
    pub remarks: Vec<Remark>,
}

/// Something that does not stop the program but is probably a mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// Nobody reads this field.
    Unknown {
        /// Its path, such as `iptables.maskerade`.
        path: String,
        /// Its line, counted from 1.
        line: u64,
    },
    /// An earlier value of this field is ignored.
    Repeated {
        /// Its path.
        path: String,
        /// The line of the value that counts.
        line: u64,
    },
}

/// Why a file is not a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not text.
    #[error("failed to decode: the file is not UTF-8 text (first bad byte at offset {0})")]
    Encoding(usize),
    /// Neither YAML nor JSON.
    #[error("failed to decode: the file is neither YAML nor JSON: {0}")]
    Syntax(String),
    /// YAML, but nothing with fields.
    #[error(
        "failed to decode: expected a mapping with `apiVersion: {API_VERSION}` and `kind: {KIND}`, found {0}"
    )]
    NotAMapping(String),
    /// `kind` or `apiVersion` is missing.
    #[error(
        "failed to decode: the file has no `{0}` (a configuration needs `apiVersion: {API_VERSION}` and `kind: {KIND}`)"
    )]
    NoIdentity(&'static str),
    /// Another kind of object.
    #[error(
        "failed to decode: no kind {kind:?} is registered for version {version:?} (expected `apiVersion: {API_VERSION}` and `kind: {KIND}`)"
    )]
    OtherObject {
        /// The `kind` found.
        kind: String,
        /// The `apiVersion` found.
        version: String,
    },
    /// Values of the wrong type.
    #[error("failed to decode: {}", join(.0))]
    Types(Vec<TypeProblem>),
}

/// A value of the wrong type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeProblem {
    /// The field.
    pub path: String,
    /// Its line, counted from 1.
    pub line: u64,
    /// What is wrong.
    pub message: String,
}

/// Decodes the first YAML document, or the JSON object, in a file.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|error| DecodeError::Encoding(error.valid_up_to()))?;
    if text.trim().is_empty() {
        return Err(DecodeError::NotAMapping("an empty file".to_owned()));
    }
    let root = tree::parse(text).map_err(DecodeError::Syntax)?;
    if !matches!(root.value, Value::Map(_)) {
        return Err(DecodeError::NotAMapping(root.value.describe()));
    }
    let report = RefCell::new(Report::default());
    let mut fields = Fields::open(String::new(), root, &report);
    identity(&mut fields)?;
    let document = document(&mut fields);
    fields.close();
    let Report { mut remarks, mut problems } = report.into_inner();
    remarks.sort_by_key(Remark::line);
    problems.sort_by_key(|problem| problem.line);
    if problems.is_empty() { Ok(Decoded { document, remarks }) } else { Err(DecodeError::Types(problems)) }
}

impl Remark {
    /// The line it is about, counted from 1.
    pub fn line(&self) -> u64 {
        match self {
            Remark::Unknown { line, .. } | Remark::Repeated { line, .. } => *line,
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::Unknown { path, line } => write!(f, "unknown field {path:?} on line {line}"),
            Remark::Repeated { path, line } => {
                write!(f, "field {path:?} is set more than once, line {line} counts")
            }
        }
    }
}

impl fmt::Display for TypeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.path, self.message)
    }
}

fn join(problems: &[TypeProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn identity(fields: &mut Fields<'_>) -> Result<(), DecodeError> {
    let kind = fields.text("kind").filter(|kind| !kind.is_empty());
    let version = fields.text("apiVersion").filter(|version| !version.is_empty());
    let kind = kind.ok_or(DecodeError::NoIdentity("kind"))?;
    let version = version.ok_or(DecodeError::NoIdentity("apiVersion"))?;
    if kind == KIND && version == API_VERSION {
        return Ok(());
    }
    Err(DecodeError::OtherObject { kind, version })
}

fn document(fields: &mut Fields<'_>) -> Document {
    Document {
        feature_gates: fields.switches("featureGates"),
        client_connection: fields.section("clientConnection", client_connection),
        logging: fields.section("logging", logging),
        hostname_override: fields.text("hostnameOverride"),
        bind_address: fields.text("bindAddress"),
        healthz_bind_address: fields.text("healthzBindAddress"),
        metrics_bind_address: fields.text("metricsBindAddress"),
        bind_address_hard_fail: fields.switch("bindAddressHardFail"),
        enable_profiling: fields.switch("enableProfiling"),
        show_hidden_metrics_for_version: fields.text("showHiddenMetricsForVersion"),
        mode: fields.text("mode"),
        iptables: fields.section("iptables", iptables),
        ipvs: fields.section("ipvs", ipvs),
        nftables: fields.section("nftables", nftables),
        winkernel: fields.section("winkernel", winkernel),
        detect_local_mode: fields.text("detectLocalMode"),
        detect_local: fields.section("detectLocal", detect_local),
        cluster_cidr: fields.text("clusterCIDR"),
        node_port_addresses: fields.texts("nodePortAddresses"),
        oom_score_adj: fields.number("oomScoreAdj"),
        conntrack: fields.section("conntrack", conntrack),
        config_sync_period: fields.duration("configSyncPeriod"),
        port_range: fields.text("portRange"),
        windows_run_as_service: fields.switch("windowsRunAsService"),
    }
}

fn client_connection(fields: &mut Fields<'_>) -> ClientConnection {
    ClientConnection {
        kubeconfig: fields.text("kubeconfig"),
        accept_content_types: fields.text("acceptContentTypes"),
        content_type: fields.text("contentType"),
        qps: fields.fraction("qps"),
        burst: fields.number("burst"),
    }
}

fn logging(fields: &mut Fields<'_>) -> Logging {
    Logging {
        format: fields.text("format"),
        flush_frequency: fields.flush_frequency("flushFrequency"),
        verbosity: fields.number("verbosity"),
        vmodule: fields.list("vmodule", |fields| VModule {
            file_pattern: fields.text("filePattern").unwrap_or_default(),
            verbosity: fields.number("verbosity").unwrap_or_default(),
        }),
        options: fields.section("options", |fields| LoggingOptions {
            text: fields.section("text", output_routing),
            json: fields.section("json", output_routing),
        }),
    }
}

fn output_routing(fields: &mut Fields<'_>) -> OutputRouting {
    OutputRouting {
        split_stream: fields.switch("splitStream"),
        info_buffer_size: fields.quantity("infoBufferSize"),
    }
}

fn iptables(fields: &mut Fields<'_>) -> Iptables {
    Iptables {
        masquerade_bit: fields.number("masqueradeBit"),
        masquerade_all: fields.switch("masqueradeAll"),
        localhost_node_ports: fields.switch("localhostNodePorts"),
        sync_period: fields.duration("syncPeriod"),
        min_sync_period: fields.duration("minSyncPeriod"),
    }
}

fn ipvs(fields: &mut Fields<'_>) -> Ipvs {
    Ipvs {
        sync_period: fields.duration("syncPeriod"),
        min_sync_period: fields.duration("minSyncPeriod"),
        scheduler: fields.text("scheduler"),
        exclude_cidrs: fields.texts("excludeCIDRs"),
        strict_arp: fields.switch("strictARP"),
        tcp_timeout: fields.duration("tcpTimeout"),
        tcp_fin_timeout: fields.duration("tcpFinTimeout"),
        udp_timeout: fields.duration("udpTimeout"),
    }
}

fn nftables(fields: &mut Fields<'_>) -> Nftables {
    Nftables {
        masquerade_bit: fields.number("masqueradeBit"),
        masquerade_all: fields.switch("masqueradeAll"),
        sync_period: fields.duration("syncPeriod"),
        min_sync_period: fields.duration("minSyncPeriod"),
    }
}

fn winkernel(fields: &mut Fields<'_>) -> Winkernel {
    Winkernel {
        network_name: fields.text("networkName"),
        source_vip: fields.text("sourceVip"),
        enable_dsr: fields.switch("enableDSR"),
        root_hns_endpoint_name: fields.text("rootHnsEndpointName"),
        forward_health_check_vip: fields.switch("forwardHealthCheckVip"),
    }
}

fn detect_local(fields: &mut Fields<'_>) -> DetectLocal {
    DetectLocal {
        bridge_interface: fields.text("bridgeInterface"),
        interface_name_prefix: fields.text("interfaceNamePrefix"),
    }
}

fn conntrack(fields: &mut Fields<'_>) -> Conntrack {
    Conntrack {
        max_per_core: fields.number("maxPerCore"),
        min: fields.number("min"),
        tcp_established_timeout: fields.duration("tcpEstablishedTimeout"),
        tcp_close_wait_timeout: fields.duration("tcpCloseWaitTimeout"),
        tcp_be_liberal: fields.switch("tcpBeLiberal"),
        udp_timeout: fields.duration("udpTimeout"),
        udp_stream_timeout: fields.duration("udpStreamTimeout"),
    }
}

#[cfg(test)]
mod tests;
