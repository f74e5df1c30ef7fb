//! From the bytes of a configuration file to a [`Document`].
//!
//! Unknown and repeated fields are remarks, as they are for kube-proxy (it decodes strictly first, leniently after that);
//! a value of the wrong type is an error, and all of them are reported at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use super::document::{
    API_VERSION, ClientConnection, Conntrack, DetectLocal, Document, FlushFrequency, GROUP, Iptables, Ipvs, KIND, Logging,
    LoggingOptions, Nftables, OutputRouting, VModule, Winkernel,
};
use super::duration::GoDuration;
use super::quantity::Quantity;
use super::tree::{self, Node, Value};

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
    #[error("failed to decode: expected a mapping with `apiVersion: {API_VERSION}` and `kind: {KIND}`, found {0}")]
    NotAMapping(String),
    /// `kind` or `apiVersion` is missing.
    #[error("failed to decode: the file has no `{0}` (a configuration needs `apiVersion: {API_VERSION}` and `kind: {KIND}`)")]
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
    let Report { remarks, problems } = report.into_inner();
    if problems.is_empty() { Ok(Decoded { document, remarks }) } else { Err(DecodeError::Types(problems)) }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::Unknown { path, line } => write!(f, "unknown field {path:?} on line {line}"),
            Remark::Repeated { path, line } => write!(f, "field {path:?} is set more than once, line {line} counts"),
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
    debug_assert!(API_VERSION.starts_with(GROUP), "the version names the group");
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
    OutputRouting { split_stream: fields.switch("splitStream"), info_buffer_size: fields.quantity("infoBufferSize") }
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

#[derive(Default)]
struct Report {
    remarks: Vec<Remark>,
    problems: Vec<TypeProblem>,
}

/// The fields of one mapping that nobody has read yet. `null` is the same as absent, for every type.
struct Fields<'r> {
    path: String,
    unread: BTreeMap<String, Node>,
    report: &'r RefCell<Report>,
}

impl<'r> Fields<'r> {
    fn open(path: String, node: Node, report: &'r RefCell<Report>) -> Self {
        let mut fields = Fields { path, unread: BTreeMap::new(), report };
        match node.value {
            Value::Map(entries) => {
                for (name, node) in entries {
                    let line = node.line;
                    if fields.unread.insert(name.clone(), node).is_some() {
                        let path = fields.child(&name);
                        report.borrow_mut().remarks.push(Remark::Repeated { path, line });
                    }
                }
            }
            Value::Null => {}
            other => fields.problem(fields.path.clone(), node.line, format!("expected a mapping, found {}", other.describe())),
        }
        fields
    }

    fn close(self) {
        for (name, node) in &self.unread {
            let path = self.child(name);
            self.report.borrow_mut().remarks.push(Remark::Unknown { path, line: node.line });
        }
    }

    fn child(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn problem(&self, path: String, line: u64, message: String) {
        self.report.borrow_mut().problems.push(TypeProblem { path, line, message });
    }

    /// Reads a field with a function that explains itself when the value does not suit it.
    fn read<T>(&mut self, name: &str, read: impl FnOnce(&Value) -> Result<T, String>) -> Option<T> {
        let node = self.unread.remove(name)?;
        if matches!(node.value, Value::Null) {
            return None;
        }
        read(&node.value).map_err(|message| self.problem(self.child(name), node.line, message)).ok()
    }

    fn section<T: Default>(&mut self, name: &str, read: impl FnOnce(&mut Fields<'r>) -> T) -> T {
        let Some(node) = self.unread.remove(name) else { return T::default() };
        let mut fields = Fields::open(self.child(name), node, self.report);
        let section = read(&mut fields);
        fields.close();
        section
    }

    fn list<T>(&mut self, name: &str, read: impl Fn(&mut Fields<'r>) -> T) -> Vec<T> {
        let Some(items) = self.read(name, items) else { return Vec::new() };
        let mut list = Vec::with_capacity(items.len());
        for (index, node) in items.into_iter().enumerate() {
            let mut fields = Fields::open(format!("{}[{index}]", self.child(name)), node, self.report);
            list.push(read(&mut fields));
            fields.close();
        }
        list
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.read(name, text)
    }

    fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        let items = self.read(name, items)?;
        let mut list = Vec::with_capacity(items.len());
        for (index, node) in items.iter().enumerate() {
            match &node.value {
                Value::Null => list.push(String::new()),
                value => match text(value) {
                    Ok(text) => list.push(text),
                    Err(message) => self.problem(format!("{}[{index}]", self.child(name)), node.line, message),
                },
            }
        }
        Some(list)
    }

    fn switch(&mut self, name: &str) -> Option<bool> {
        self.read(name, switch)
    }

    fn switches(&mut self, name: &str) -> Option<BTreeMap<String, bool>> {
        let node = self.unread.remove(name)?;
        if matches!(node.value, Value::Null) {
            return None;
        }
        let mut fields = Fields::open(self.child(name), node, self.report);
        let names: Vec<_> = fields.unread.keys().cloned().collect();
        Some(names.into_iter().map(|name| (name.clone(), fields.switch(&name).unwrap_or_default())).collect())
    }

    fn number<T: TryFrom<i128>>(&mut self, name: &str) -> Option<T> {
        self.read(name, |value| {
            let number = whole(value)?;
            T::try_from(number).map_err(|_| format!("{number} is out of range"))
        })
    }

    fn fraction(&mut self, name: &str) -> Option<f32> {
        self.read(name, |value| match value {
            #[expect(clippy::cast_possible_truncation, reason = "rounding is what a 32-bit field asks for")]
            Value::Float(number) => Ok(*number as f32),
            Value::Integer(number) => Ok(*number as f32),
            other => Err(format!("expected a number, found {}", other.describe())),
        })
    }

    fn duration(&mut self, name: &str) -> Option<GoDuration> {
        self.read(name, |value| match value {
            Value::Text(text) => GoDuration::parse(text).map_err(|error| error.to_string()),
            other => Err(format!("expected a duration such as \"30s\", found {}", other.describe())),
        })
    }

    fn flush_frequency(&mut self, name: &str) -> Option<FlushFrequency> {
        self.read(name, |value| match value {
            Value::Text(text) => {
                let duration = GoDuration::parse(text).map_err(|error| error.to_string())?;
                Ok(FlushFrequency { duration, as_number: false })
            }
            other => {
                let number = whole(other).map_err(|_| {
                    format!("expected a duration such as \"5s\" or a number of nanoseconds, found {}", other.describe())
                })?;
                let nanoseconds = i64::try_from(number).map_err(|_| format!("{number} is out of range"))?;
                Ok(FlushFrequency { duration: GoDuration::from_nanos(nanoseconds), as_number: true })
            }
        })
    }

    fn quantity(&mut self, name: &str) -> Option<Quantity> {
        self.read(name, |value| match value {
            Value::Text(text) => Quantity::parse(text.trim()).map_err(|error| error.to_string()),
            Value::Integer(number) => Quantity::parse(&number.to_string()).map_err(|error| error.to_string()),
            Value::Float(number) => Quantity::parse(&number.to_string()).map_err(|error| error.to_string()),
            other => Err(format!("expected a quantity such as \"64Ki\", found {}", other.describe())),
        })
    }
}

fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        other @ (Value::Bool(_) | Value::Integer(_) | Value::Float(_)) => {
            Err(format!("expected text, found {} (put it in quotes)", other.describe()))
        }
        other => Err(format!("expected text, found {}", other.describe())),
    }
}

fn switch(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(switch) => Ok(*switch),
        other => Err(format!("expected true or false, found {}", other.describe())),
    }
}

fn items(value: &Value) -> Result<Vec<Node>, String> {
    match value {
        Value::List(items) => Ok(items.clone()),
        other => Err(format!("expected a list, found {}", other.describe())),
    }
}

/// A whole number; YAML's `5.0` is one.
fn whole(value: &Value) -> Result<i128, String> {
    match value {
        Value::Integer(number) => Ok(*number),
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 64 bits, by the guard")]
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e18 => Ok(*number as i128),
        other => Err(format!("expected a whole number, found {}", other.describe())),
    }
}
