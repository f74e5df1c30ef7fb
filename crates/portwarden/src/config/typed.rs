//! The configuration the program runs on: parsed, checked, complete.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use portwarden_model::{DetectLocal, Name, NodePortRange, Settings, Timestamp};

use super::gates::{Feature, FeatureGates};
use super::options::{self, FromValue, Key, Positive, VModule, Values, Within};
use crate::flags::Flags;
use crate::modes::{Mode, Section};

/// A configuration in which nothing is left to check.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Decides which dataplanes are built.
    pub mode: Mode,
    /// When rules are written.
    pub pacing: Pacing,
    /// Masquerading in the mode in effect.
    pub masquerade: Masquerade,
    /// Whether node ports answer on 127.0.0.1 in mode iptables.
    pub localhost_node_ports: bool,
    /// What only mode ipvs needs; absent in every other mode.
    pub ipvs: Option<Ipvs>,
    /// Which virtual servers are left alone: by mode ipvs, and by a clean-up in whatever mode.
    pub ipvs_excluded: ExcludedRanges,
    /// What only mode userspace needs; absent in every other mode.
    pub userspace: Option<Userspace>,
    /// What concerns mode ebpf. Every mode needs it to find what that mode has left.
    pub ebpf: Ebpf,
    /// How pod traffic is identified.
    pub detect_local: DetectLocal,
    /// The pods' ranges, whether or not they identify pod traffic.
    pub cluster_cidrs: Vec<IpNet>,
    /// Node addresses on which node ports answer; empty means all.
    pub node_port_addresses: Vec<NodePortRange>,
    /// The node's address if it was given; the wildcard address says nothing.
    pub bind_address: Option<IpAddr>,
    /// The Node's name if it was given, in lower case.
    pub hostname_override: Option<String>,
    /// Where objects come from.
    pub source: Source,
    /// The key of the taint that is removed from the Node after the first sync.
    pub startup_taint: Option<String>,
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
    /// What was not given and has its default.
    pub defaulted: Defaulted,
    /// The same as a file: what `--write-config-to` writes and `/configz` shows.
    pub document: Values,
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

/// What only mode ipvs needs; a timeout of zero leaves the kernel's value alone.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the option of that name")]
pub struct Ipvs {
    pub scheduler: String,
    pub strict_arp: bool,
    pub tcp_timeout: Duration,
    pub tcp_fin_timeout: Duration,
    pub udp_timeout: Duration,
    /// After this time a real server that leaves is removed with its connections; zero waits for them.
    pub drain_limit: Duration,
}

/// What only mode userspace needs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the option of that name")]
pub struct Userspace {
    /// The ports to listen on; absent means any.
    pub port_range: Option<RangeInclusive<u16>>,
    pub udp_idle_timeout: Duration,
    /// How long connections may go on after the process was asked to end.
    pub drain_timeout: Duration,
}

/// What concerns mode ebpf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ebpf {
    /// The cgroup whose processes are served; absent means the root.
    pub cgroup_root: Option<PathBuf>,
    /// Where maps and programs are pinned.
    pub pin_directory: PathBuf,
    /// How many endpoints the maps hold.
    pub max_endpoints: u32,
    /// Whether packets from pod to pod leave connection tracking.
    pub notrack: Notrack,
}

/// Whether packets from pod to pod leave connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notrack {
    /// They are tracked.
    Disabled,
    /// They are not, unless rules of others need it.
    Enabled,
    /// They are not, whatever rules of others need.
    Force,
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
#[expect(missing_docs, reason = "each field is the option of that name")]
pub struct ApiClient {
    /// The kubeconfig file; without it and `master`, the pod's service account counts.
    pub kubeconfig: Option<String>,
    pub master: Option<String>,
    pub content_type: String,
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
#[expect(missing_docs, reason = "each field is the option of that name")]
pub struct Servers {
    /// Where the health server listens; absent means it is off.
    pub healthz: Option<SocketAddr>,
    pub metrics: SocketAddr,
    /// Where the live page is served; absent means it is off.
    pub page: Option<SocketAddr>,
    pub hard_fail: bool,
    pub profiling: bool,
    pub hidden_metrics: bool,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the option of that name")]
pub struct Logging {
    pub format: LogFormat,
    pub verbosity: u32,
    /// How much single source files log; the first match counts.
    pub vmodule: Vec<VModule>,
    pub flush_frequency: Duration,
    pub split_stream: bool,
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
#[expect(missing_docs, reason = "each field is the option of that name")]
pub struct Conntrack {
    /// Entries per CPU; zero leaves the limit alone, whatever `min` says.
    pub max_per_core: u32,
    pub min: u32,
    /// Whether a limit that is already higher is lowered: only if the configuration names a limit.
    pub may_lower_max: bool,
    pub tcp_established_timeout: Duration,
    pub tcp_close_wait_timeout: Duration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Duration,
    pub udp_stream_timeout: Duration,
}

/// What was not given and has its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaulted {
    /// The mode, which deserves a warning because the default will change.
    pub mode: bool,
    /// The shortest time between two writes, which we then adapt to the load.
    pub min_sync_period: bool,
    /// The limit of tracked connections (`conntrack.maxPerCore` and `conntrack.min`), which then only grows.
    pub conntrack_max: bool,
}

/// The value of a flag without a field in the file, which has its default only here.
fn flag<T: FromValue>(flags: &Flags, key: Key<T>) -> T {
    let mut own = Values::default();
    own.set(key, flags.values.value(key).cloned().or_else(|| key.row().default_value()));
    own.get(key)
}

impl Config {
    /// The shortest time between two writes that the operator insists on; without one, it adapts to the load.
    pub fn fixed_min_sync_period(&self) -> Option<Duration> {
        let given = self.pacing.min_sync_period;
        (!self.defaulted.min_sync_period && !given.is_zero()).then_some(given)
    }

    /// The configuration of a document in which validation found no problem.
    pub(super) fn new(document: Values, flags: &Flags, gates: FeatureGates, defaulted: Defaulted) -> Self {
        let mode = document.mode();
        let (sync_period, min_sync_period) = periods(mode);
        let (masquerade_all, masquerade_bit) = masquerade(mode);
        let bind_address: IpAddr = document.get(options::BIND_ADDRESS);
        let manifests = flags.values.get(options::MANIFESTS);
        Config {
            mode,
            pacing: Pacing {
                sync_period: document.get(sync_period).0,
                min_sync_period: document.get(min_sync_period),
            },
            masquerade: Masquerade {
                all: document.get(masquerade_all),
                bit: u8::try_from(document.get(masquerade_bit).0).unwrap_or_default(),
            },
            localhost_node_ports: document.get(options::IPTABLES_LOCALHOST_NODE_PORTS),
            ipvs: options::IPVS_SCHEDULER.row().scope.includes(mode).then(|| ipvs(&document)),
            ipvs_excluded: document.get(options::IPVS_EXCLUDE_CIDRS),
            userspace: options::PORT_RANGE.row().scope.includes(mode).then(|| Userspace {
                port_range: document.get(options::PORT_RANGE).0,
                udp_idle_timeout: document.get(options::UDP_IDLE_TIMEOUT).0,
                drain_timeout: flag(flags, options::USERSPACE_DRAIN_TIMEOUT),
            }),
            ebpf: ebpf(&document),
            detect_local: detect_local(&document),
            cluster_cidrs: document.get(options::CLUSTER_CIDR).all_or_none(),
            node_port_addresses: document.get(options::NODE_PORT_ADDRESSES),
            bind_address: (!bind_address.is_unspecified()).then_some(bind_address),
            hostname_override: document.get(options::HOSTNAME_OVERRIDE).0,
            source: if manifests.is_empty() {
                Source::Api(api_client(&document, flags))
            } else {
                Source::Manifests(manifests)
            },
            config_sync_period: document.get(options::CONFIG_SYNC_PERIOD).0,
            servers: Servers {
                healthz: document.get(options::HEALTHZ_BIND_ADDRESS),
                metrics: document.get(options::METRICS_BIND_ADDRESS),
                page: document.get(options::PAGE_BIND_ADDRESS),
                hard_fail: document.get(options::BIND_ADDRESS_HARD_FAIL),
                profiling: document.get(options::ENABLE_PROFILING),
                hidden_metrics: document.get(options::HIDDEN_METRICS).0,
            },
            logging: logging(&document),
            conntrack: Conntrack {
                max_per_core: document.get(options::CONNTRACK_MAX_PER_CORE),
                min: document.get(options::CONNTRACK_MIN),
                may_lower_max: !defaulted.conntrack_max,
                tcp_established_timeout: document.get(options::CONNTRACK_TCP_ESTABLISHED_TIMEOUT),
                tcp_close_wait_timeout: document.get(options::CONNTRACK_TCP_CLOSE_WAIT_TIMEOUT),
                tcp_be_liberal: document.get(options::CONNTRACK_TCP_BE_LIBERAL),
                udp_timeout: document.get(options::CONNTRACK_UDP_TIMEOUT),
                udp_stream_timeout: document.get(options::CONNTRACK_UDP_STREAM_TIMEOUT),
            },
            startup_taint: taint_key(&flags.values.get(options::REMOVE_STARTUP_TAINT)),
            sysctl_hard_fail: flags.values.get(options::SYSCTL_HARD_FAIL),
            oom_score_adj: document.get(options::OOM_SCORE_ADJ).0,
            gates,
            defaulted,
            document,
        }
    }

    /// The ports on which our own servers listen.
    fn own_ports(&self) -> Vec<u16> {
        let Servers { healthz, metrics, page, .. } = &self.servers;
        healthz.iter().chain([metrics]).chain(page).map(SocketAddr::port).collect()
    }

    /// What the model needs to know, for the Node of this name.
    pub fn model_settings(&self, node_name: &str, started: Timestamp) -> Settings {
        Settings {
            detect_local: self.detect_local.clone(),
            pod_ranges: self.cluster_cidrs.clone(),
            masquerade_all: self.masquerade.all,
            node_port_addresses: self.node_port_addresses.clone(),
            allow_external_ips: self.gates.enabled(Feature::AllowServiceExternalIps),
            reserved_ports: self.own_ports(),
            bind_address: self.bind_address,
            started,
            ..Settings::new(node_name)
        }
    }
}

/// The options of a mode's sync period and of the shortest time between two writes.
pub(super) fn periods(mode: Mode) -> (Key<Positive>, Key<Duration>) {
    match mode.entry().periods {
        Section::Iptables => (options::IPTABLES_SYNC_PERIOD, options::IPTABLES_MIN_SYNC_PERIOD),
        Section::Ipvs => (options::IPVS_SYNC_PERIOD, options::IPVS_MIN_SYNC_PERIOD),
        Section::Nftables => (options::NFTABLES_SYNC_PERIOD, options::NFTABLES_MIN_SYNC_PERIOD),
    }
}

fn masquerade(mode: Mode) -> (Key<bool>, Key<Within<0, 31>>) {
    match mode.entry().masquerade {
        Section::Nftables => (options::NFTABLES_MASQUERADE_ALL, options::NFTABLES_MASQUERADE_BIT),
        Section::Iptables | Section::Ipvs => {
            (options::IPTABLES_MASQUERADE_ALL, options::IPTABLES_MASQUERADE_BIT)
        }
    }
}

fn ipvs(document: &Values) -> Ipvs {
    let scheduler = document.get(options::IPVS_SCHEDULER);
    Ipvs {
        scheduler: if scheduler.is_empty() { "rr".to_owned() } else { scheduler },
        strict_arp: document.get(options::IPVS_STRICT_ARP),
        tcp_timeout: document.get(options::IPVS_TCP_TIMEOUT),
        tcp_fin_timeout: document.get(options::IPVS_TCP_FIN_TIMEOUT),
        udp_timeout: document.get(options::IPVS_UDP_TIMEOUT),
        drain_limit: document.get(options::IPVS_DRAIN_LIMIT),
    }
}

fn ebpf(document: &Values) -> Ebpf {
    let root: String = document.get(options::EBPF_CGROUP_ROOT);
    Ebpf {
        cgroup_root: (!root.is_empty()).then(|| root.into()),
        pin_directory: document.get(options::EBPF_PIN_DIRECTORY).into(),
        max_endpoints: document.get(options::EBPF_MAX_ENDPOINTS).0.max(1).cast_unsigned(),
        notrack: document.get(options::EBPF_NOTRACK),
    }
}

fn detect_local(document: &Values) -> DetectLocal {
    let name = |key: Key<String>| Name::from(document.text(key));
    match document.text(options::DETECT_LOCAL_MODE) {
        "ClusterCIDR" => DetectLocal::ClusterCidr(document.get(options::CLUSTER_CIDR).all_or_none()),
        "NodeCIDR" => DetectLocal::NodeCidr,
        "BridgeInterface" => DetectLocal::BridgeInterface(name(options::BRIDGE_INTERFACE)),
        "InterfaceNamePrefix" => DetectLocal::InterfaceNamePrefix(name(options::INTERFACE_NAME_PREFIX)),
        _ => DetectLocal::Off,
    }
}

fn api_client(document: &Values, flags: &Flags) -> ApiClient {
    let given = |text: String| (!text.is_empty()).then_some(text);
    let content_type = document.get(options::CONTENT_TYPE);
    let accept = given(document.get(options::ACCEPT_CONTENT_TYPES));
    // A negative rate means no limit, zero (which only a flag can give) the usual one.
    let qps = document.get(options::QPS);
    let qps = if qps == 0.0 { 5.0 } else { qps };
    ApiClient {
        kubeconfig: given(document.get(options::KUBECONFIG)),
        master: given(flags.values.get(options::MASTER)),
        accept: accept.unwrap_or_else(|| format!("{content_type}, */*")),
        content_type,
        limit: (qps > 0.0).then_some(RateLimit { qps, burst: document.get(options::BURST) }),
    }
}

/// The key in `KEY=VALUE:EFFECT`, the form of the kubelet's flag; an empty text is none.
fn taint_key(text: &str) -> Option<String> {
    let key = text.split(['=', ':']).next().unwrap_or_default();
    (!key.is_empty()).then(|| key.to_owned())
}

fn logging(document: &Values) -> Logging {
    let format = document.get(options::LOG_FORMAT);
    let (split_stream, info_buffer_size) = match format {
        LogFormat::Text => (options::TEXT_SPLIT_STREAM, options::TEXT_INFO_BUFFER_SIZE),
        LogFormat::Json => (options::JSON_SPLIT_STREAM, options::JSON_INFO_BUFFER_SIZE),
    };
    Logging {
        format,
        verbosity: document.get(options::VERBOSITY),
        vmodule: document.get(options::VMODULE),
        flush_frequency: document.get(options::LOG_FLUSH_FREQUENCY).0,
        split_stream: document.get(split_stream),
        info_buffer_size: document.get(info_buffer_size),
    }
}
