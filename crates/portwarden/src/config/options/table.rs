//! The options. Their order is that of `/configz`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portwarden_model::NodePortRange;

use super::rules::{ClusterCidrs, HiddenMetrics, NodeName, PortRange, Positive, Within};
use super::{Group, Key, Kind, OutOfScope, Row, Scope, VModule};
use crate::config::reload::Effect::{self, Live, Restart};
use crate::config::reload::Part;
use crate::config::typed::{ExcludedRanges, LogFormat};
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
    ($($name:ident: $type:ty = $row:expr;)*) => {
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "named like the keys")]
        enum Place { $($name),* }
        $(
            #[expect(missing_docs, reason = "the row says what it is")]
            pub const $name: Key<$type> = Key::new(Place::$name as usize);
        )*
        pub(crate) static TABLE: &[Row] = &[$($row.typed::<$type>()),*];
    };
}

options! {
    HELP: bool = Row::flag_only(Kind::Switch, "help", Group::Actions, "Print this text and end.").letter('h').beside_file();
    VERSION: VersionRequest = Row::flag_only(Kind::Version, "version", Group::Actions,
        "Print the version and end; raw prints all that is known about the build; vX.Y.Z with a suffix changes the version that is \
         reported elsewhere.").beside_file();
    WRITE_CONFIG_TO: String = Row::flag_only(Kind::Path, "write-config-to", Group::Actions,
        "Write the effective configuration to this file and end.").beside_file();
    CLEANUP: bool = Row::flag_only(Kind::Switch, "cleanup", Group::Actions,
        "Remove the rules of every mode, for both IP families, and end.").beside_file();
    INIT_ONLY: bool = Row::flag_only(Kind::Switch, "init-only", Group::Actions,
        "Do what needs full root privileges and end; after that, CAP_NET_ADMIN is enough to run.").beside_file();

    CONFIG: String = Row::flag_only(Kind::Path, "config", Group::Sources,
        "The configuration file (KubeProxyConfiguration, YAML or JSON).").beside_file();
    MANIFESTS: String = Row::flag_only(Kind::Path, "manifests", Group::Sources,
        "Read Services, EndpointSlices and Nodes from this file or folder of manifests, and follow changes, instead of asking an API \
         server.").own().beside_file();
    MASTER: String = Row::flag_only(Kind::Text, "master", Group::Sources,
        "The API server's URL, instead of the one in the kubeconfig file.").beside_file();

    FEATURE_GATES: BTreeMap<String, bool> = Row::field(Kind::Gates, "featureGates").hidden_if_zero()
        .flag("feature-gates", Group::Sources,
            "Feature gates to turn on or off. With an effect: AllowServiceExternalIPs, ComponentFlagz, ComponentStatusz, KubeProxyIPVS, \
             LoggingAlphaOptions, LoggingBetaOptions, and AllAlpha and AllBeta for whole stages. Every other gate of Kubernetes is \
             accepted.");

    KUBECONFIG: String = Row::field(Kind::Path, "clientConnection.kubeconfig").reload(RESTART_SOURCE)
        .flag("kubeconfig", Group::Sources,
            "The kubeconfig file with the API server's address and credentials. Without it and --master, the pod's service account is \
             used.");
    ACCEPT_CONTENT_TYPES: String = Row::field(Kind::Text, "clientConnection.acceptContentTypes").reload(RESTART_SOURCE);
    CONTENT_TYPE: String = Row::field(Kind::Text, "clientConnection.contentType").reload(RESTART_SOURCE)
        .default("application/vnd.kubernetes.protobuf")
        .flag("kube-api-content-type", Group::Sources, "The media type to talk to the API server in.");
    QPS: f32 = Row::field(Kind::Number, "clientConnection.qps").default("5").reload(RESTART_SOURCE)
        .path_in_messages("ClientConnection.QPS")
        .flag("kube-api-qps", Group::Sources, "Requests per second to the API server; negative means no limit.");
    BURST: u32 = Row::field(Kind::Int, "clientConnection.burst").default("10").reload(RESTART_SOURCE).check(validate::burst)
        .flag("kube-api-burst", Group::Sources, "Requests that may be sent at once.");

    LOG_FORMAT: LogFormat = Row::field(Kind::Text, "logging.format").default("text").reload(RESTART_LOGS).check(validate::log_format)
        .flag("logging-format", Group::Logs, "The log format: text or json.").beside_file();
    LOG_FLUSH_FREQUENCY: Positive = Row::field(Kind::Flush, "logging.flushFrequency").default("5s").reload(RESTART_LOGS)
        .flag("log-flush-frequency", Group::Logs, "The longest time a log line may wait in a buffer.").beside_file();
    VERBOSITY: u32 = Row::field(Kind::Level, "logging.verbosity").reload(LIVE_LOGS)
        .flag("v", Group::Logs, "How much to log; higher numbers log more.").letter('v').beside_file();
    VMODULE: Vec<VModule> = Row::field(Kind::VModule, "logging.vmodule").hidden_if_zero().reload(LIVE_LOGS).check(validate::vmodule)
        .flag("vmodule", Group::Logs,
            "How much to log from single source files, by patterns of their names. Only for the text format.").beside_file();
    TEXT_SPLIT_STREAM: bool = Row::field(Kind::Switch, "logging.options.text.splitStream").hidden_if_zero()
        .reload(RESTART_LOGS).check(validate::alpha_logging)
        .flag("log-text-split-stream", Group::Logs,
            "Text format: info lines to standard output, the rest to standard error. Needs gate LoggingAlphaOptions.").beside_file();
    TEXT_INFO_BUFFER_SIZE: usize = Row::field(Kind::Quantity, "logging.options.text.infoBufferSize")
        .reload(RESTART_LOGS).check(validate::alpha_logging)
        .flag("log-text-info-buffer-size", Group::Logs,
            "Text format with split streams: bytes of info lines that may be held back. Needs gate LoggingAlphaOptions.").beside_file();
    JSON_SPLIT_STREAM: bool = Row::field(Kind::Switch, "logging.options.json.splitStream").hidden_if_zero()
        .reload(RESTART_LOGS).check(validate::alpha_logging)
        .flag("log-json-split-stream", Group::Logs,
            "JSON format: info lines to standard output, the rest to standard error. Needs gate LoggingAlphaOptions.").beside_file();
    JSON_INFO_BUFFER_SIZE: usize = Row::field(Kind::Quantity, "logging.options.json.infoBufferSize")
        .reload(RESTART_LOGS).check(validate::alpha_logging)
        .flag("log-json-info-buffer-size", Group::Logs,
            "JSON format with split streams: bytes of info lines that may be held back. Needs gate LoggingAlphaOptions.").beside_file();

    HOSTNAME_OVERRIDE: NodeName = Row::field(Kind::Text, "hostnameOverride").reload(&[Restart(Part::Source), Live(Part::Rules)])
        .flag("hostname-override", Group::Sources,
            "The name of this Node, if it is not the host's name. Wins over the configuration file.").beside_file();
    BIND_ADDRESS: IpAddr = Row::field(Kind::Ip, "bindAddress").default("0.0.0.0").reload(LIVE_RULES)
        .flag("bind-address", Group::Dataplane,
            "The Node's primary address, if the Node object does not have it. Despite the name, nothing is bound to it.");
    HEALTHZ_BIND_ADDRESS: Option<SocketAddr> = Row::field(Kind::IpPort, "healthzBindAddress").default("0.0.0.0:10256")
        .reload(&[Restart(Part::HealthServer)])
        .flag("healthz-bind-address", Group::Servers, "Where the health server listens.");
    HEALTHZ_PORT: u32 = Row::flag_only(Kind::Int, "healthz-port", Group::Servers, "The health server's port; 0 turns it off.")
        .default("10256").deprecated("use --healthz-bind-address; it will be removed in a future release");
    METRICS_BIND_ADDRESS: SocketAddr = Row::field(Kind::IpPort, "metricsBindAddress").default("127.0.0.1:10249")
        .reload(&[Restart(Part::MetricsServer)])
        .flag("metrics-bind-address", Group::Servers, "Where the metrics server listens.");
    METRICS_PORT: u32 = Row::flag_only(Kind::Int, "metrics-port", Group::Servers, "The metrics server's port.")
        .default("10249").deprecated("use --metrics-bind-address; it will be removed in a future release");
    BIND_ADDRESS_HARD_FAIL: bool = Row::field(Kind::Switch, "bindAddressHardFail")
        .reload(&[Live(Part::HealthServer), Live(Part::MetricsServer)])
        .flag("bind-address-hard-fail", Group::Servers,
            "End the process if one of these servers cannot listen, instead of trying again.");
    ENABLE_PROFILING: bool = Row::field(Kind::Switch, "enableProfiling").reload(LIVE_METRICS)
        .flag("profiling", Group::Servers, "Offer profiles on the metrics server.");
    HIDDEN_METRICS: HiddenMetrics = Row::field(Kind::Text, "showHiddenMetricsForVersion").reload(LIVE_METRICS)
        .flag("show-hidden-metrics-for-version", Group::Servers,
            "Show metrics that were hidden in this release; only the previous minor version (1.36) is allowed.");

    MODE: String = Row::field(Kind::Name, "mode").reload(RESTART_DATAPLANE).path_in_messages("Mode.ProxyMode").check(validate::mode)
        .flag("proxy-mode", Group::Dataplane,
            "The dataplane: iptables, ipvs or nftables. Empty means iptables.");

    IPTABLES_MASQUERADE_BIT: Within<0, 31> = Row::field(Kind::Int, "iptables.masqueradeBit").default("14").zero_counts()
        .scope(Scope::Masquerade(Section::Iptables)).always_checked().reload(RESTART_DATAPLANE)
        .path_in_messages("KubeProxyIPTablesConfiguration.MasqueradeBit")
        .flag("iptables-masquerade-bit", Group::Iptables,
            "The bit (0 to 31) of the packet mark that asks for masquerading. Also for mode ipvs.");
    IPTABLES_MASQUERADE_ALL: bool = Row::field(Kind::Switch, "iptables.masqueradeAll")
        .scope(Scope::Masquerade(Section::Iptables)).out_of_scope(OutOfScope::Zero).reload(LIVE_RULES)
        .flag("masquerade-all", Group::Dataplane,
            "Replace the source address of all traffic to cluster IPs, which some network plugins need.");
    IPTABLES_LOCALHOST_NODE_PORTS: bool = Row::field(Kind::Switch, "iptables.localhostNodePorts").default("true").zero_counts()
        .scope(Scope::Only(Mode::Iptables)).reload(RESTART_DATAPLANE)
        .flag("iptables-localhost-nodeports", Group::Iptables, "Whether node ports answer on 127.0.0.1.");
    IPTABLES_SYNC_PERIOD: Positive = Row::field(Kind::Duration, "iptables.syncPeriod").default("30s")
        .scope(Scope::Periods(Section::Iptables)).out_of_scope(OutOfScope::Zero).reload(LIVE_PERIOD)
        .path_in_messages("SyncPeriod").check(validate::periods)
        .flag("iptables-sync-period", Group::Iptables,
            "How often everything is checked and written again. For every mode but ipvs.");
    IPTABLES_MIN_SYNC_PERIOD: Duration = Row::field(Kind::Duration, "iptables.minSyncPeriod").default("1s")
        .scope(Scope::Periods(Section::Iptables)).out_of_scope(OutOfScope::Zero).reload(LIVE_MIN_PERIOD)
        .path_in_messages("MinSyncPeriod")
        .flag("iptables-min-sync-period", Group::Iptables,
            "The shortest time between two writes of rules. Given, it is kept to the letter; without it, or with 0, it adapts to the \
             load. For every mode but ipvs.");

    IPVS_SYNC_PERIOD: Positive = Row::field(Kind::Duration, "ipvs.syncPeriod").default("30s")
        .scope(Scope::Periods(Section::Ipvs)).out_of_scope(OutOfScope::Zero).reload(LIVE_PERIOD)
        .path_in_messages("SyncPeriod").check(validate::periods)
        .flag("ipvs-sync-period", Group::Ipvs, "How often everything is checked and written again.");
    IPVS_MIN_SYNC_PERIOD: Duration = Row::field(Kind::Duration, "ipvs.minSyncPeriod").flag_default("1s")
        .scope(Scope::Periods(Section::Ipvs)).out_of_scope(OutOfScope::Zero).reload(LIVE_MIN_PERIOD)
        .path_in_messages("MinSyncPeriod")
        .flag("ipvs-min-sync-period", Group::Ipvs,
            "The shortest time between two writes. Given, it is kept to the letter; without it, or with 0, it adapts to the load.");
    IPVS_SCHEDULER: String = Row::field(Kind::Text, "ipvs.scheduler").scope(Scope::Only(Mode::Ipvs)).reload(RESTART_DATAPLANE)
        .flag("ipvs-scheduler", Group::Ipvs, "The scheduler; empty means rr.");
    IPVS_EXCLUDE_CIDRS: ExcludedRanges = Row::field(Kind::Texts, "ipvs.excludeCIDRs").scope(Scope::Only(Mode::Ipvs))
        .reload(RESTART_DATAPLANE).path_in_messages("KubeProxyIPVSConfiguration.ExcludeCidrs")
        .flag("ipvs-exclude-cidrs", Group::Ipvs, "Ranges whose virtual servers are left alone.");
    IPVS_STRICT_ARP: bool = Row::field(Kind::Switch, "ipvs.strictARP").scope(Scope::Only(Mode::Ipvs)).reload(RESTART_DATAPLANE)
        .flag("ipvs-strict-arp", Group::Ipvs,
            "Stop answering ARP for service addresses (sets arp_ignore to 1 and arp_announce to 2).");
    IPVS_TCP_TIMEOUT: Duration = Row::field(Kind::Duration, "ipvs.tcpTimeout").scope(Scope::Only(Mode::Ipvs))
        .reload(RESTART_DATAPLANE).path_in_messages("KubeProxyIPVSConfiguration.TCPTimeout")
        .flag("ipvs-tcp-timeout", Group::Ipvs, "When idle TCP sessions are dropped; 0 leaves the kernel's value.");
    IPVS_TCP_FIN_TIMEOUT: Duration = Row::field(Kind::Duration, "ipvs.tcpFinTimeout").scope(Scope::Only(Mode::Ipvs))
        .reload(RESTART_DATAPLANE).path_in_messages("KubeProxyIPVSConfiguration.TCPFinTimeout")
        .flag("ipvs-tcpfin-timeout", Group::Ipvs, "When TCP sessions are dropped after a FIN; 0 leaves the kernel's value.");
    IPVS_UDP_TIMEOUT: Duration = Row::field(Kind::Duration, "ipvs.udpTimeout").scope(Scope::Only(Mode::Ipvs))
        .reload(RESTART_DATAPLANE).path_in_messages("KubeProxyIPVSConfiguration.UDPTimeout")
        .flag("ipvs-udp-timeout", Group::Ipvs, "When idle UDP sessions are dropped; 0 leaves the kernel's value.");

    NFTABLES_MASQUERADE_BIT: Within<0, 31> = Row::field(Kind::Int, "nftables.masqueradeBit").default("14").zero_counts()
        .scope(Scope::Masquerade(Section::Nftables)).reload(RESTART_DATAPLANE)
        .path_in_messages("KubeProxyNFTablesConfiguration.MasqueradeBit");
    NFTABLES_MASQUERADE_ALL: bool = Row::field(Kind::Switch, "nftables.masqueradeAll").follows(&IPTABLES_MASQUERADE_ALL)
        .scope(Scope::Masquerade(Section::Nftables)).out_of_scope(OutOfScope::Zero).reload(LIVE_RULES);
    NFTABLES_SYNC_PERIOD: Positive = Row::field(Kind::Duration, "nftables.syncPeriod").default("30s").follows(&IPTABLES_SYNC_PERIOD)
        .scope(Scope::Periods(Section::Nftables)).out_of_scope(OutOfScope::Zero).reload(LIVE_PERIOD)
        .path_in_messages("SyncPeriod").check(validate::periods);
    NFTABLES_MIN_SYNC_PERIOD: Duration = Row::field(Kind::Duration, "nftables.minSyncPeriod").default("1s")
        .follows(&IPTABLES_MIN_SYNC_PERIOD).scope(Scope::Periods(Section::Nftables)).out_of_scope(OutOfScope::Zero)
        .reload(LIVE_MIN_PERIOD).path_in_messages("MinSyncPeriod");

    WINKERNEL_NETWORK_NAME: String = Row::field(Kind::Text, "winkernel.networkName").scope(Scope::Never);
    WINKERNEL_SOURCE_VIP: String = Row::field(Kind::Text, "winkernel.sourceVip").scope(Scope::Never);
    WINKERNEL_ENABLE_DSR: bool = Row::field(Kind::Switch, "winkernel.enableDSR").scope(Scope::Never);
    WINKERNEL_ROOT_HNS_ENDPOINT_NAME: String = Row::field(Kind::Text, "winkernel.rootHnsEndpointName").scope(Scope::Never);
    WINKERNEL_FORWARD_HEALTH_CHECK_VIP: bool = Row::field(Kind::Switch, "winkernel.forwardHealthCheckVip").scope(Scope::Never);

    DETECT_LOCAL_MODE: String = Row::field(Kind::Name, "detectLocalMode").reload(LIVE_RULES).check(validate::detect_local)
        .flag("detect-local-mode", Group::PodTraffic,
            "How to identify traffic from pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix. Empty means ClusterCIDR.");
    BRIDGE_INTERFACE: String = Row::field(Kind::Text, "detectLocal.bridgeInterface").reload(LIVE_RULES)
        .flag("pod-bridge-interface", Group::PodTraffic, "The bridge that pods are attached to. For BridgeInterface.");
    INTERFACE_NAME_PREFIX: String = Row::field(Kind::Text, "detectLocal.interfaceNamePrefix").reload(LIVE_RULES)
        .flag("pod-interface-name-prefix", Group::PodTraffic, "What the names of pods' interfaces start with. For InterfaceNamePrefix.");
    CLUSTER_CIDR: ClusterCidrs = Row::field(Kind::Text, "clusterCIDR").reload(LIVE_RULES)
        .flag("cluster-cidr", Group::PodTraffic,
            "The pods' addresses in the whole cluster, one range per IP family, separated by a comma. For ClusterCIDR.");

    NODE_PORT_ADDRESSES: Vec<NodePortRange> = Row::field(Kind::Texts, "nodePortAddresses").reload(LIVE_RULES)
        .flag("nodeport-addresses", Group::Dataplane,
            "Node addresses on which node ports answer: CIDRs, primary (the Node's addresses), localhost, all. Empty means primary in \
             mode nftables and all in the others.");
    OOM_SCORE_ADJ: Within<-1000, 1000> = Row::field(Kind::Int, "oomScoreAdj").default("-999").zero_counts()
        .reload(&[Live(Part::Process)]).path_in_messages("KubeProxyLinuxConfiguration.OOMScoreAdj")
        .flag("oom-score-adj", Group::Kernel, "The process's out-of-memory score adjustment (-1000 to 1000).");

    CONNTRACK_MAX_PER_CORE: u32 = Row::field(Kind::Int, "conntrack.maxPerCore").default("32768").zero_counts().reload(LIVE_KERNEL)
        .path_in_messages("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.MaxPerCore")
        .flag("conntrack-max-per-core", Group::Kernel, "Tracked connections to allow per CPU; 0 leaves the limit alone.");
    CONNTRACK_MIN: u32 = Row::field(Kind::Int, "conntrack.min").default("131072").zero_counts().reload(LIVE_KERNEL)
        .path_in_messages("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.Min")
        .flag("conntrack-min", Group::Kernel, "Tracked connections to allow at least, however few CPUs there are.");
    CONNTRACK_TCP_ESTABLISHED_TIMEOUT: Duration = Row::field(Kind::Duration, "conntrack.tcpEstablishedTimeout")
        .default("24h0m0s").zero_counts().reload(LIVE_KERNEL)
        .path_in_messages("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPEstablishedTimeout")
        .flag("conntrack-tcp-timeout-established", Group::Kernel,
            "When idle TCP connections are forgotten; 0 leaves the kernel's value.");
    CONNTRACK_TCP_CLOSE_WAIT_TIMEOUT: Duration = Row::field(Kind::Duration, "conntrack.tcpCloseWaitTimeout")
        .default("1h0m0s").zero_counts().reload(LIVE_KERNEL)
        .path_in_messages("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPCloseWaitTimeout")
        .flag("conntrack-tcp-timeout-close-wait", Group::Kernel,
            "When TCP connections in CLOSE_WAIT are forgotten; 0 leaves the kernel's value.");
    CONNTRACK_TCP_BE_LIBERAL: bool = Row::field(Kind::Switch, "conntrack.tcpBeLiberal").reload(LIVE_KERNEL)
        .flag("conntrack-tcp-be-liberal", Group::Kernel, "Accept TCP packets outside the window instead of calling them invalid.");
    CONNTRACK_UDP_TIMEOUT: Duration = Row::field(Kind::Duration, "conntrack.udpTimeout").reload(LIVE_KERNEL)
        .path_in_messages("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPTimeout")
        .flag("conntrack-udp-timeout", Group::Kernel, "When UDP flows without an answer are forgotten; 0 leaves the kernel's value.");
    CONNTRACK_UDP_STREAM_TIMEOUT: Duration = Row::field(Kind::Duration, "conntrack.udpStreamTimeout").reload(LIVE_KERNEL)
        .path_in_messages("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPStreamTimeout")
        .flag("conntrack-udp-timeout-stream", Group::Kernel, "When UDP flows with answers are forgotten; 0 leaves the kernel's value.");
    SYSCTL_HARD_FAIL: bool = Row::flag_only(Kind::Switch, "sysctl-hard-fail", Group::Kernel,
        "End the process if a kernel setting cannot be written, as kube-proxy does, instead of reporting it and going on.")
        .own().beside_file();

    CONFIG_SYNC_PERIOD: Positive = Row::field(Kind::Duration, "configSyncPeriod").default("15m0s").reload(&[Live(Part::Source)])
        .flag("config-sync-period", Group::Sources, "How often every known object is looked at again.");
    PORT_RANGE: PortRange = Row::field(Kind::Text, "portRange").scope(Scope::Only(Mode::Userspace)).out_of_scope(OutOfScope::Zero)
        .reload(RESTART_DATAPLANE)
        .flag("proxy-port-range", Group::Userspace,
            "The node's ports to listen on: one port, first-last or first+more. Empty or 0 means any.").own();
    UDP_IDLE_TIMEOUT: Positive = Row::field(Kind::Duration, "udpIdleTimeout").default("250ms").scope(Scope::Only(Mode::Userspace))
        .out_of_scope(OutOfScope::Unknown).reload(RESTART_DATAPLANE).path_in_messages("UDPIdleTimeout")
        .flag("udp-timeout", Group::Userspace, "When idle UDP sessions are closed.").own();
    WINDOWS_RUN_AS_SERVICE: bool = Row::field(Kind::Switch, "windowsRunAsService").hidden_if_zero().scope(Scope::Never);
}
