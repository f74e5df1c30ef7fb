//! The options. Their order is that of `/configz`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portwarden_model::NodePortRange;

use super::rules::{ClusterCidrs, HiddenMetrics, NodeName, PortRange, Positive, Within};
use super::{Group, Key, Kind, OutOfScope, Row, Scope, VModule, rules_of};
use crate::config::reload::Effect::{self, Live, Restart};
use crate::config::reload::Part;
use crate::config::typed::{ExcludedRanges, LogFormat, Notrack};
use crate::config::validate;
use crate::flags::VersionRequest;
use crate::modes::{Mode, Section};

const RESTART_SOURCE: &[Effect] = &[Restart(Part::Source)];
const RESTART_DATAPLANE: &[Effect] = &[Restart(Part::Dataplane)];
const RESTART_LOGS: &[Effect] = &[Restart(Part::Logs)];
const LIVE_LOGS: &[Effect] = &[Live(Part::Logs)];
const LIVE_RULES: &[Effect] = &[Live(Part::Rules)];
const LIVE_KERNEL: &[Effect] = &[Live(Part::Kernel)];
const LIVE_METRICS: &[Effect] = &[Live(Part::MetricsServer)];
const LIVE_PERIOD: &[Effect] = &[Live(Part::Pacing), Live(Part::HealthServer)];
const LIVE_MIN_PERIOD: &[Effect] = &[Live(Part::Pacing)];

/// Makes a key of every row and puts the rows into `TABLE`.
macro_rules! options {
    ($($name:ident: $type:ty = { $($part:ident: $value:expr),* $(,)? },)*) => {
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "named like the keys")]
        #[derive(Clone, Copy)]
        pub(crate) enum Index { $($name),* }
        $(
            #[expect(missing_docs, reason = "the row says what it is")]
            pub const $name: Key<$type> = Key::new(Index::$name as usize);
        )*
        pub(crate) static TABLE: &[Row] =
            &[$(Row { $($part: $value,)* rules: rules_of::<$type>, ..Row::PLAIN }),*];
    };
}

options! {
    HELP: bool = { kind: Kind::Switch, flag: "help", letter: Some('h'), group: Group::Actions, beside_file: true,
        help: "Print this text and end." },
    VERSION: VersionRequest = { kind: Kind::Version, flag: "version", group: Group::Actions, beside_file: true,
        help: "Print the version and end; raw prints all that is known about the build; vX.Y.Z with a suffix changes the \
               version that is reported elsewhere." },
    WRITE_CONFIG_TO: String = { kind: Kind::Path, flag: "write-config-to", group: Group::Actions, beside_file: true,
        help: "Write the effective configuration to this file and end." },
    CLEANUP: bool = { kind: Kind::Switch, flag: "cleanup", group: Group::Actions, beside_file: true,
        help: "Remove the rules of every mode, for both IP families, and end." },
    INIT_ONLY: bool = { kind: Kind::Switch, flag: "init-only", group: Group::Actions, beside_file: true,
        help: "Do what needs full root privileges and end; after that, CAP_NET_ADMIN is enough to run." },

    CONFIG: String = { kind: Kind::Path, flag: "config", group: Group::Sources, beside_file: true,
        help: "The configuration file (KubeProxyConfiguration, YAML or JSON)." },
    MANIFESTS: String = { kind: Kind::Path, flag: "manifests", group: Group::Sources, beside_file: true, own: true,
        help: "Read Services, EndpointSlices and Nodes from this file or folder of manifests, and follow changes, instead \
               of asking an API server." },
    REMOVE_STARTUP_TAINT: String = { kind: Kind::Text, flag: "remove-startup-taint", group: Group::Sources, beside_file: true,
        own: true,
        help: "Remove the taint with this key from the Node once all Services are in force; the form of the kubelet's \
               --register-with-taints, KEY=VALUE:EFFECT, is accepted, too. Needs the verbs get and patch on nodes." },
    MASTER: String = { kind: Kind::Text, flag: "master", group: Group::Sources, beside_file: true,
        help: "The API server's URL, instead of the one in the kubeconfig file." },

    FEATURE_GATES: BTreeMap<String, bool> = { kind: Kind::Gates, field: "featureGates", hidden_if_zero: true,
        flag: "feature-gates", group: Group::Sources,
        help: "Feature gates to turn on or off. With an effect: AllowServiceExternalIPs, ComponentFlagz, \
               ComponentStatusz, KubeProxyIPVS, LoggingAlphaOptions, LoggingBetaOptions, and AllAlpha and AllBeta for \
               whole stages. Every other gate of Kubernetes is accepted." },

    KUBECONFIG: String = { kind: Kind::Path, field: "clientConnection.kubeconfig", reload: RESTART_SOURCE,
        flag: "kubeconfig", group: Group::Sources,
        help: "The kubeconfig file with the API server's address and credentials. Without it and --master, the pod's \
               service account is used." },
    ACCEPT_CONTENT_TYPES: String = { kind: Kind::Text, field: "clientConnection.acceptContentTypes", reload: RESTART_SOURCE },
    CONTENT_TYPE: String = { kind: Kind::Text, field: "clientConnection.contentType",
        default: "application/vnd.kubernetes.protobuf", reload: RESTART_SOURCE,
        flag: "kube-api-content-type", group: Group::Sources, help: "The media type to talk to the API server in." },
    QPS: f32 = { kind: Kind::Number, field: "clientConnection.qps", default: "5", path: "ClientConnection.QPS",
        reload: RESTART_SOURCE,
        flag: "kube-api-qps", group: Group::Sources,
        help: "Requests per second to the API server; negative means no limit." },
    BURST: u32 = { kind: Kind::Int, field: "clientConnection.burst", default: "10", check: Some(validate::burst),
        reload: RESTART_SOURCE,
        flag: "kube-api-burst", group: Group::Sources, help: "Requests that may be sent at once." },

    LOG_FORMAT: LogFormat = { kind: Kind::Text, field: "logging.format", default: "text", check: Some(validate::log_format),
        reload: RESTART_LOGS,
        flag: "logging-format", group: Group::Logs, beside_file: true, help: "The log format: text or json." },
    LOG_FLUSH_FREQUENCY: Positive = { kind: Kind::Flush, field: "logging.flushFrequency", default: "5s", reload: RESTART_LOGS,
        flag: "log-flush-frequency", group: Group::Logs, beside_file: true,
        help: "The longest time a log line may wait in a buffer." },
    VERBOSITY: u32 = { kind: Kind::Level, field: "logging.verbosity", reload: LIVE_LOGS,
        flag: "v", letter: Some('v'), group: Group::Logs, beside_file: true,
        help: "How much to log; higher numbers log more." },
    VMODULE: Vec<VModule> = { kind: Kind::VModule, field: "logging.vmodule", hidden_if_zero: true, reload: LIVE_LOGS,
        flag: "vmodule", group: Group::Logs, beside_file: true,
        help: "How much to log from single source files, by patterns of their names. Only for the text format." },
    TEXT_SPLIT_STREAM: bool = { kind: Kind::Switch, field: "logging.options.text.splitStream", hidden_if_zero: true,
        check: Some(validate::alpha_logging), reload: RESTART_LOGS,
        flag: "log-text-split-stream", group: Group::Logs, beside_file: true,
        help: "Text format: info lines to standard output, the rest to standard error. Needs gate LoggingAlphaOptions." },
    TEXT_INFO_BUFFER_SIZE: usize = { kind: Kind::Quantity, field: "logging.options.text.infoBufferSize",
        check: Some(validate::alpha_logging), reload: RESTART_LOGS,
        flag: "log-text-info-buffer-size", group: Group::Logs, beside_file: true,
        help: "Text format with split streams: bytes of info lines that may be held back. Needs gate LoggingAlphaOptions." },
    JSON_SPLIT_STREAM: bool = { kind: Kind::Switch, field: "logging.options.json.splitStream", hidden_if_zero: true,
        check: Some(validate::alpha_logging), reload: RESTART_LOGS,
        flag: "log-json-split-stream", group: Group::Logs, beside_file: true,
        help: "JSON format: info lines to standard output, the rest to standard error. Needs gate LoggingAlphaOptions." },
    JSON_INFO_BUFFER_SIZE: usize = { kind: Kind::Quantity, field: "logging.options.json.infoBufferSize",
        check: Some(validate::alpha_logging), reload: RESTART_LOGS,
        flag: "log-json-info-buffer-size", group: Group::Logs, beside_file: true,
        help: "JSON format with split streams: bytes of info lines that may be held back. Needs gate LoggingAlphaOptions." },

    HOSTNAME_OVERRIDE: NodeName = { kind: Kind::Text, field: "hostnameOverride",
        reload: &[Restart(Part::Source), Live(Part::Rules)],
        flag: "hostname-override", group: Group::Sources, beside_file: true,
        help: "The name of this Node, if it is not the host's name. Wins over the configuration file." },
    BIND_ADDRESS: IpAddr = { kind: Kind::Ip, field: "bindAddress", default: "0.0.0.0", reload: LIVE_RULES,
        flag: "bind-address", group: Group::Dataplane,
        help: "The Node's primary address, if the Node object does not have it. Despite the name, nothing is bound to it." },
    HEALTHZ_BIND_ADDRESS: Option<SocketAddr> = { kind: Kind::IpPort, field: "healthzBindAddress", default: "0.0.0.0:10256",
        reload: &[Restart(Part::HealthServer)],
        flag: "healthz-bind-address", group: Group::Servers, help: "Where the health server listens." },
    HEALTHZ_PORT: u32 = { kind: Kind::Int, default: "10256", flag: "healthz-port", group: Group::Servers,
        deprecated: Some("use --healthz-bind-address; it will be removed in a future release"),
        help: "The health server's port; 0 turns it off." },
    METRICS_BIND_ADDRESS: SocketAddr = { kind: Kind::IpPort, field: "metricsBindAddress", default: "127.0.0.1:10249",
        reload: &[Restart(Part::MetricsServer)],
        flag: "metrics-bind-address", group: Group::Servers, help: "Where the metrics server listens." },
    METRICS_PORT: u32 = { kind: Kind::Int, default: "10249", flag: "metrics-port", group: Group::Servers,
        deprecated: Some("use --metrics-bind-address; it will be removed in a future release"),
        help: "The metrics server's port." },
    PAGE_BIND_ADDRESS: Option<SocketAddr> = { kind: Kind::IpPortOrOff, field: "pageBindAddress", default: "127.0.0.1:10266",
        zero_counts: true, hidden_if_default: true, reload: &[Restart(Part::PageServer)],
        flag: "page-bind-address", group: Group::Servers, own: true,
        help: "Where the live page and the answers for the commands status and explain are served, to everyone who can \
               connect; empty turns them off. On an address that is not a loopback address, others see what the node serves." },
    BIND_ADDRESS_HARD_FAIL: bool = { kind: Kind::Switch, field: "bindAddressHardFail",
        reload: &[Live(Part::HealthServer), Live(Part::MetricsServer)],
        flag: "bind-address-hard-fail", group: Group::Servers,
        help: "End the process if the health or the metrics server cannot listen, instead of trying again." },
    ENABLE_PROFILING: bool = { kind: Kind::Switch, field: "enableProfiling", reload: LIVE_METRICS,
        flag: "profiling", group: Group::Servers, help: "Offer profiles on the metrics server." },
    HIDDEN_METRICS: HiddenMetrics = { kind: Kind::Text, field: "showHiddenMetricsForVersion", reload: LIVE_METRICS,
        flag: "show-hidden-metrics-for-version", group: Group::Servers,
        help: "Show metrics that were hidden in this release; only the previous minor version (1.36) is allowed." },

    MODE: String = { kind: Kind::Name, field: "mode", path: "Mode.ProxyMode", check: Some(validate::mode),
        reload: RESTART_DATAPLANE,
        flag: "proxy-mode", group: Group::Dataplane,
        help: "The dataplane: iptables, ipvs or nftables. Empty means iptables." },

    IPTABLES_MASQUERADE_BIT: Within<0, 31> = { kind: Kind::Int, field: "iptables.masqueradeBit", default: "14",
        zero_counts: true, scope: Scope::Masquerade(Section::Iptables), path: "KubeProxyIPTablesConfiguration.MasqueradeBit",
        always_checked: true, reload: RESTART_DATAPLANE,
        flag: "iptables-masquerade-bit", group: Group::Iptables,
        help: "The bit (0 to 31) of the packet mark that asks for masquerading. Also for mode ipvs." },
    IPTABLES_MASQUERADE_ALL: bool = { kind: Kind::Switch, field: "iptables.masqueradeAll",
        scope: Scope::Masquerade(Section::Iptables), out_of_scope: OutOfScope::Zero, reload: LIVE_RULES,
        flag: "masquerade-all", group: Group::Dataplane,
        help: "Replace the source address of all traffic to cluster IPs, which some network plugins need." },
    IPTABLES_LOCALHOST_NODE_PORTS: bool = { kind: Kind::Switch, field: "iptables.localhostNodePorts", default: "true",
        zero_counts: true, scope: Scope::Only(Mode::Iptables), reload: RESTART_DATAPLANE,
        flag: "iptables-localhost-nodeports", group: Group::Iptables, help: "Whether node ports answer on 127.0.0.1." },
    IPTABLES_SYNC_PERIOD: Positive = { kind: Kind::Duration, field: "iptables.syncPeriod", default: "30s",
        scope: Scope::Periods(Section::Iptables), out_of_scope: OutOfScope::Zero, path: "SyncPeriod",
        check: Some(validate::periods), reload: LIVE_PERIOD,
        flag: "iptables-sync-period", group: Group::Iptables,
        help: "How often everything is checked and written again. For every mode but ipvs." },
    IPTABLES_MIN_SYNC_PERIOD: Duration = { kind: Kind::Duration, field: "iptables.minSyncPeriod", default: "1s",
        scope: Scope::Periods(Section::Iptables), out_of_scope: OutOfScope::Zero, path: "MinSyncPeriod",
        reload: LIVE_MIN_PERIOD,
        flag: "iptables-min-sync-period", group: Group::Iptables,
        help: "The shortest time between two writes of rules. Given, it is kept to the letter; without it, or with 0, it \
               adapts to the load. For every mode but ipvs." },

    IPVS_SYNC_PERIOD: Positive = { kind: Kind::Duration, field: "ipvs.syncPeriod", default: "30s",
        scope: Scope::Periods(Section::Ipvs), out_of_scope: OutOfScope::Zero, path: "SyncPeriod",
        check: Some(validate::periods),
        reload: &[Live(Part::Pacing), Live(Part::HealthServer), Restart(Part::Dataplane)],
        flag: "ipvs-sync-period", group: Group::Ipvs, help: "How often everything is checked and written again." },
    IPVS_MIN_SYNC_PERIOD: Duration = { kind: Kind::Duration, field: "ipvs.minSyncPeriod",
        scope: Scope::Periods(Section::Ipvs), out_of_scope: OutOfScope::Zero, path: "MinSyncPeriod", reload: LIVE_MIN_PERIOD,
        flag: "ipvs-min-sync-period", flag_default: "1s", group: Group::Ipvs,
        help: "The shortest time between two writes. Given, it is kept to the letter; without it, or with 0, it adapts to \
               the load." },
    IPVS_SCHEDULER: String = { kind: Kind::Text, field: "ipvs.scheduler", scope: Scope::Only(Mode::Ipvs),
        reload: RESTART_DATAPLANE,
        flag: "ipvs-scheduler", group: Group::Ipvs, help: "The scheduler; empty means rr." },
    IPVS_EXCLUDE_CIDRS: ExcludedRanges = { kind: Kind::Texts, field: "ipvs.excludeCIDRs", scope: Scope::Only(Mode::Ipvs),
        path: "KubeProxyIPVSConfiguration.ExcludeCidrs", reload: RESTART_DATAPLANE,
        flag: "ipvs-exclude-cidrs", group: Group::Ipvs, help: "Ranges whose virtual servers are left alone." },
    IPVS_STRICT_ARP: bool = { kind: Kind::Switch, field: "ipvs.strictARP", scope: Scope::Only(Mode::Ipvs),
        reload: RESTART_DATAPLANE,
        flag: "ipvs-strict-arp", group: Group::Ipvs,
        help: "Stop answering ARP for service addresses (sets arp_ignore to 1 and arp_announce to 2)." },
    IPVS_TCP_TIMEOUT: Duration = { kind: Kind::Duration, field: "ipvs.tcpTimeout", scope: Scope::Only(Mode::Ipvs),
        path: "KubeProxyIPVSConfiguration.TCPTimeout", reload: RESTART_DATAPLANE,
        flag: "ipvs-tcp-timeout", group: Group::Ipvs,
        help: "When idle TCP sessions are dropped; 0 leaves the kernel's value." },
    IPVS_TCP_FIN_TIMEOUT: Duration = { kind: Kind::Duration, field: "ipvs.tcpFinTimeout", scope: Scope::Only(Mode::Ipvs),
        path: "KubeProxyIPVSConfiguration.TCPFinTimeout", reload: RESTART_DATAPLANE,
        flag: "ipvs-tcpfin-timeout", group: Group::Ipvs,
        help: "When TCP sessions are dropped after a FIN; 0 leaves the kernel's value." },
    IPVS_UDP_TIMEOUT: Duration = { kind: Kind::Duration, field: "ipvs.udpTimeout", scope: Scope::Only(Mode::Ipvs),
        path: "KubeProxyIPVSConfiguration.UDPTimeout", reload: RESTART_DATAPLANE,
        flag: "ipvs-udp-timeout", group: Group::Ipvs,
        help: "When idle UDP sessions are dropped; 0 leaves the kernel's value." },
    IPVS_DRAIN_LIMIT: Duration = { kind: Kind::Duration, field: "ipvs.drainLimit", scope: Scope::Only(Mode::Ipvs),
        hidden_if_zero: true, reload: RESTART_DATAPLANE,
        flag: "ipvs-drain-limit", group: Group::Ipvs, own: true,
        help: "When an endpoint that left is cut off although it still has TCP connections; 0 waits for them, as \
               kube-proxy does." },

    NFTABLES_MASQUERADE_BIT: Within<0, 31> = { kind: Kind::Int, field: "nftables.masqueradeBit", default: "14",
        zero_counts: true, scope: Scope::Masquerade(Section::Nftables), path: "KubeProxyNFTablesConfiguration.MasqueradeBit",
        reload: RESTART_DATAPLANE },
    NFTABLES_MASQUERADE_ALL: bool = { kind: Kind::Switch, field: "nftables.masqueradeAll",
        scope: Scope::Masquerade(Section::Nftables), out_of_scope: OutOfScope::Zero, reload: LIVE_RULES,
        follows: Some(Index::IPTABLES_MASQUERADE_ALL) },
    NFTABLES_SYNC_PERIOD: Positive = { kind: Kind::Duration, field: "nftables.syncPeriod", default: "30s",
        scope: Scope::Periods(Section::Nftables), out_of_scope: OutOfScope::Zero, path: "SyncPeriod",
        check: Some(validate::periods), reload: LIVE_PERIOD, follows: Some(Index::IPTABLES_SYNC_PERIOD) },
    NFTABLES_MIN_SYNC_PERIOD: Duration = { kind: Kind::Duration, field: "nftables.minSyncPeriod", default: "1s",
        scope: Scope::Periods(Section::Nftables), out_of_scope: OutOfScope::Zero, path: "MinSyncPeriod",
        reload: LIVE_MIN_PERIOD, follows: Some(Index::IPTABLES_MIN_SYNC_PERIOD) },

    WINKERNEL_NETWORK_NAME: String = { kind: Kind::Text, field: "winkernel.networkName", scope: Scope::Never },
    WINKERNEL_SOURCE_VIP: String = { kind: Kind::Text, field: "winkernel.sourceVip", scope: Scope::Never },
    WINKERNEL_ENABLE_DSR: bool = { kind: Kind::Switch, field: "winkernel.enableDSR", scope: Scope::Never },
    WINKERNEL_ROOT_HNS_ENDPOINT_NAME: String = { kind: Kind::Text, field: "winkernel.rootHnsEndpointName",
        scope: Scope::Never },
    WINKERNEL_FORWARD_HEALTH_CHECK_VIP: bool = { kind: Kind::Switch, field: "winkernel.forwardHealthCheckVip",
        scope: Scope::Never },

    DETECT_LOCAL_MODE: String = { kind: Kind::Name, field: "detectLocalMode", check: Some(validate::detect_local),
        reload: LIVE_RULES,
        flag: "detect-local-mode", group: Group::PodTraffic,
        help: "How to identify traffic from pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix. Empty \
               means ClusterCIDR." },
    BRIDGE_INTERFACE: String = { kind: Kind::Text, field: "detectLocal.bridgeInterface", reload: LIVE_RULES,
        flag: "pod-bridge-interface", group: Group::PodTraffic,
        help: "The bridge that pods are attached to. For BridgeInterface." },
    INTERFACE_NAME_PREFIX: String = { kind: Kind::Text, field: "detectLocal.interfaceNamePrefix", reload: LIVE_RULES,
        flag: "pod-interface-name-prefix", group: Group::PodTraffic,
        help: "What the names of pods' interfaces start with. For InterfaceNamePrefix." },
    CLUSTER_CIDR: ClusterCidrs = { kind: Kind::Text, field: "clusterCIDR", reload: LIVE_RULES,
        flag: "cluster-cidr", group: Group::PodTraffic,
        help: "The pods' addresses in the whole cluster, one range per IP family, separated by a comma. For ClusterCIDR." },

    NODE_PORT_ADDRESSES: Vec<NodePortRange> = { kind: Kind::Texts, field: "nodePortAddresses", reload: LIVE_RULES,
        flag: "nodeport-addresses", group: Group::Dataplane,
        help: "Node addresses on which node ports answer: CIDRs, primary (the Node's addresses), localhost, all. Empty \
               means primary in mode nftables and all in the others." },
    OOM_SCORE_ADJ: Within<-1000, 1000> = { kind: Kind::Int, field: "oomScoreAdj", default: "-999", zero_counts: true,
        path: "KubeProxyLinuxConfiguration.OOMScoreAdj", reload: &[Live(Part::Process)],
        flag: "oom-score-adj", group: Group::Kernel, help: "The process's out-of-memory score adjustment (-1000 to 1000)." },

    CONNTRACK_MAX_PER_CORE: u32 = { kind: Kind::Int, field: "conntrack.maxPerCore", default: "32768", zero_counts: true,
        path: "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.MaxPerCore", reload: LIVE_KERNEL,
        flag: "conntrack-max-per-core", group: Group::Kernel,
        help: "Tracked connections to allow per CPU; 0 leaves the limit alone." },
    CONNTRACK_MIN: u32 = { kind: Kind::Int, field: "conntrack.min", default: "131072", zero_counts: true,
        path: "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.Min", reload: LIVE_KERNEL,
        flag: "conntrack-min", group: Group::Kernel,
        help: "Tracked connections to allow at least, however few CPUs there are." },
    CONNTRACK_TCP_ESTABLISHED_TIMEOUT: Duration = { kind: Kind::Duration, field: "conntrack.tcpEstablishedTimeout",
        default: "24h0m0s", zero_counts: true,
        path: "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPEstablishedTimeout", reload: LIVE_KERNEL,
        flag: "conntrack-tcp-timeout-established", group: Group::Kernel,
        help: "When idle TCP connections are forgotten; 0 leaves the kernel's value." },
    CONNTRACK_TCP_CLOSE_WAIT_TIMEOUT: Duration = { kind: Kind::Duration, field: "conntrack.tcpCloseWaitTimeout",
        default: "1h0m0s", zero_counts: true,
        path: "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPCloseWaitTimeout", reload: LIVE_KERNEL,
        flag: "conntrack-tcp-timeout-close-wait", group: Group::Kernel,
        help: "When TCP connections in CLOSE_WAIT are forgotten; 0 leaves the kernel's value." },
    CONNTRACK_TCP_BE_LIBERAL: bool = { kind: Kind::Switch, field: "conntrack.tcpBeLiberal", reload: LIVE_KERNEL,
        flag: "conntrack-tcp-be-liberal", group: Group::Kernel,
        help: "Accept TCP packets outside the window instead of calling them invalid." },
    CONNTRACK_UDP_TIMEOUT: Duration = { kind: Kind::Duration, field: "conntrack.udpTimeout",
        path: "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPTimeout", reload: LIVE_KERNEL,
        flag: "conntrack-udp-timeout", group: Group::Kernel,
        help: "When UDP flows without an answer are forgotten; 0 leaves the kernel's value." },
    CONNTRACK_UDP_STREAM_TIMEOUT: Duration = { kind: Kind::Duration, field: "conntrack.udpStreamTimeout",
        path: "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPStreamTimeout", reload: LIVE_KERNEL,
        flag: "conntrack-udp-timeout-stream", group: Group::Kernel,
        help: "When UDP flows with answers are forgotten; 0 leaves the kernel's value." },
    SYSCTL_HARD_FAIL: bool = { kind: Kind::Switch, flag: "sysctl-hard-fail", group: Group::Kernel, beside_file: true,
        own: true,
        help: "End the process if a kernel setting cannot be written, as kube-proxy does, instead of reporting it and \
               going on." },

    CONFIG_SYNC_PERIOD: Positive = { kind: Kind::Duration, field: "configSyncPeriod", default: "15m0s",
        reload: &[Live(Part::Source)],
        flag: "config-sync-period", group: Group::Sources, help: "How often every known object is looked at again." },
    PORT_RANGE: PortRange = { kind: Kind::Text, field: "portRange", scope: Scope::Only(Mode::Userspace),
        out_of_scope: OutOfScope::Zero, reload: RESTART_DATAPLANE,
        flag: "proxy-port-range", group: Group::Userspace, own: true,
        help: "The node's ports to listen on: one port, first-last or first+more. Empty or 0 means any." },
    UDP_IDLE_TIMEOUT: Positive = { kind: Kind::Duration, field: "udpIdleTimeout", default: "250ms",
        scope: Scope::Only(Mode::Userspace), out_of_scope: OutOfScope::Unknown, path: "UDPIdleTimeout",
        reload: RESTART_DATAPLANE,
        flag: "udp-timeout", group: Group::Userspace, own: true, help: "When idle UDP sessions are closed." },
    USERSPACE_DRAIN_TIMEOUT: Duration = { kind: Kind::Duration, default: "30s", flag: "userspace-drain-timeout",
        group: Group::Userspace, beside_file: true, own: true,
        help: "How long established connections may go on after the process was asked to end." },
    EBPF_CGROUP_ROOT: String = { kind: Kind::Path, field: "ebpf.cgroupRoot", scope: Scope::Only(Mode::Ebpf),
        hidden_if_default: true, reload: RESTART_DATAPLANE,
        flag: "ebpf-cgroup-root", group: Group::Ebpf, beside_file: true, own: true,
        help: "The cgroup (version 2) whose processes are served. Empty means the root, as mounted on this host." },
    EBPF_PIN_DIRECTORY: String = { kind: Kind::Path, field: "ebpf.pinDirectory", default: "/sys/fs/bpf/portwarden",
        hidden_if_default: true, reload: RESTART_DATAPLANE,
        flag: "ebpf-pin-directory", group: Group::Ebpf, beside_file: true, own: true,
        help: "The directory on a BPF file system that keeps maps and programs over a restart." },
    EBPF_MAX_ENDPOINTS: Within<1, 4_194_304> = { kind: Kind::Int, field: "ebpf.maxEndpoints", default: "262144",
        scope: Scope::Only(Mode::Ebpf), hidden_if_default: true, reload: RESTART_DATAPLANE,
        flag: "ebpf-max-endpoints", group: Group::Ebpf, beside_file: true, own: true,
        help: "How many endpoints the maps hold; nftables serves Services that do not fit." },
    EBPF_NOTRACK: Notrack = { kind: Kind::Name, field: "ebpf.notrack", default: "disabled", scope: Scope::Only(Mode::Ebpf),
        hidden_if_default: true, check: Some(validate::notrack), reload: RESTART_DATAPLANE,
        flag: "ebpf-notrack", group: Group::Ebpf, beside_file: true, own: true,
        help: "Whether packets from pod to pod leave connection tracking, which makes connections cheaper: disabled, \
               enabled or force. Needs --cluster-cidr. With enabled, the process refuses to start while rules of others use connection \
               tracking for such packets." },
    WINDOWS_RUN_AS_SERVICE: bool = { kind: Kind::Switch, field: "windowsRunAsService", scope: Scope::Never,
        hidden_if_zero: true },
}
