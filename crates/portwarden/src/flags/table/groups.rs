//! The flags themselves, grouped as help shows them.

use super::{Flag, Group};
use crate::flags::value::Slot::{
    Choice, Duration, Float32, Gates, Int32, Ip, IpPort, Level, Path, Quantity, Strings, Switch, Text,
    VModule, Version,
};

pub(in crate::flags) const GROUPS: &[Group] = &[
    Group { title: "What to do", flags: ACTIONS },
    Group { title: "Where the configuration and the objects come from", flags: SOURCES },
    Group { title: "The dataplane", flags: DATAPLANE },
    Group { title: "Pod traffic", flags: POD_TRAFFIC },
    Group { title: "Mode iptables (and, where said, others)", flags: IPTABLES },
    Group { title: "Mode ipvs", flags: IPVS },
    Group { title: "The node's kernel", flags: KERNEL },
    Group { title: "Health, metrics and profiles", flags: SERVERS },
    Group { title: "Logs", flags: LOGS },
];

const ACTIONS: &[Flag] = &[
    Flag::new("help", Switch(|f| &mut f.help), "false", "Print this text and end.").short('h').beside_file(),
    Flag::new(
        "version",
        Version(|f| &mut f.version),
        "false",
        "Print the version and end; raw prints all that is known about the build; vX.Y.Z with a suffix changes the \
         version that is reported elsewhere.",
    )
    .beside_file(),
    Flag::new(
        "write-config-to",
        Path(|f| &mut f.write_config_to),
        "",
        "Write the effective configuration to this file and end.",
    )
    .beside_file(),
    Flag::new(
        "cleanup",
        Switch(|f| &mut f.cleanup),
        "false",
        "Remove the rules of every mode, for both IP families, and end.",
    )
    .beside_file(),
    Flag::new(
        "init-only",
        Switch(|f| &mut f.init_only),
        "false",
        "Do what needs full root privileges and end; after that, CAP_NET_ADMIN is enough to run.",
    )
    .beside_file(),
];

const SOURCES: &[Flag] = &[
    Flag::new("config", Path(|f| &mut f.config), "", "The configuration file (KubeProxyConfiguration, YAML or JSON).")
        .beside_file(),
    Flag::new(
        "manifests",
        Path(|f| &mut f.manifests),
        "",
        "Read Services, EndpointSlices and Nodes from this file or folder of manifests, and follow changes, instead of \
         asking an API server.",
    )
    .own(),
    Flag::new(
        "kubeconfig",
        Path(|f| &mut f.kubeconfig),
        "",
        "The kubeconfig file with the API server's address and credentials. Without it and --master, the pod's \
         service account is used.",
    ),
    Flag::new("master", Text(|f| &mut f.master), "", "The API server's URL, instead of the one in the kubeconfig file.")
        .beside_file(),
    Flag::new(
        "hostname-override",
        Text(|f| &mut f.hostname_override),
        "",
        "The name of this Node, if it is not the host's name. Wins over the configuration file.",
    )
    .beside_file(),
    Flag::new(
        "kube-api-content-type",
        Text(|f| &mut f.kube_api_content_type),
        "application/vnd.kubernetes.protobuf",
        "The media type to talk to the API server in.",
    ),
    Flag::new(
        "kube-api-qps",
        Float32(|f| &mut f.kube_api_qps),
        "5",
        "Requests per second to the API server; negative means no limit.",
    ),
    Flag::new("kube-api-burst", Int32(|f| &mut f.kube_api_burst), "10", "Requests that may be sent at once."),
    Flag::new(
        "config-sync-period",
        Duration(|f| &mut f.config_sync_period),
        "15m0s",
        "How often every known object is looked at again.",
    ),
    Flag::new(
        "feature-gates",
        Gates(|f| &mut f.feature_gates),
        "",
        "Feature gates to turn on or off. With an effect: AllowServiceExternalIPs, ComponentFlagz, ComponentStatusz, \
         KubeProxyIPVS, LoggingAlphaOptions, LoggingBetaOptions, and AllAlpha and AllBeta for whole stages. Every other \
         gate of Kubernetes is accepted.",
    ),
];

const DATAPLANE: &[Flag] = &[
    Flag::new(
        "proxy-mode",
        Choice(|f| &mut f.proxy_mode),
        "",
        "The dataplane: iptables, ipvs or nftables. Empty means iptables.",
    ),
    Flag::new(
        "masquerade-all",
        Switch(|f| &mut f.masquerade_all),
        "false",
        "Replace the source address of all traffic to cluster IPs, which some network plugins need.",
    ),
    Flag::new(
        "nodeport-addresses",
        Strings(|f| &mut f.nodeport_addresses),
        "[]",
        "Node addresses on which node ports answer: CIDRs, primary (the Node's addresses), localhost, all. Empty means \
         primary in mode nftables and all in the others.",
    ),
    Flag::new(
        "bind-address",
        Ip(|f| &mut f.bind_address),
        "0.0.0.0",
        "The Node's primary address, if the Node object does not tell it. In spite of the name, nothing is bound to it.",
    ),
];

const POD_TRAFFIC: &[Flag] = &[
    Flag::new(
        "detect-local-mode",
        Choice(|f| &mut f.detect_local_mode),
        "",
        "How to tell traffic from pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix. Empty means \
         ClusterCIDR.",
    ),
    Flag::new(
        "cluster-cidr",
        Text(|f| &mut f.cluster_cidr),
        "",
        "The pods' addresses in the whole cluster, one range per IP family, separated by a comma. For ClusterCIDR.",
    ),
    Flag::new(
        "pod-bridge-interface",
        Text(|f| &mut f.pod_bridge_interface),
        "",
        "The bridge that pods are attached to. For BridgeInterface.",
    ),
    Flag::new(
        "pod-interface-name-prefix",
        Text(|f| &mut f.pod_interface_name_prefix),
        "",
        "What the names of pods' interfaces start with. For InterfaceNamePrefix.",
    ),
];

const IPTABLES: &[Flag] = &[
    Flag::new(
        "iptables-masquerade-bit",
        Int32(|f| &mut f.iptables_masquerade_bit),
        "14",
        "The bit (0 to 31) of the packet mark that asks for masquerading. Also for mode ipvs.",
    ),
    Flag::new(
        "iptables-localhost-nodeports",
        Switch(|f| &mut f.iptables_localhost_nodeports),
        "true",
        "Whether node ports answer on 127.0.0.1.",
    ),
    Flag::new(
        "iptables-sync-period",
        Duration(|f| &mut f.iptables_sync_period),
        "30s",
        "How often everything is checked and written again. For every mode but ipvs.",
    ),
    Flag::new(
        "iptables-min-sync-period",
        Duration(|f| &mut f.iptables_min_sync_period),
        "1s",
        "The shortest time between two writes of rules. Given, it is kept to the letter; without it, or with 0, it \
         adapts to the load. For every mode but ipvs.",
    ),
];

const IPVS: &[Flag] = &[
    Flag::new("ipvs-scheduler", Text(|f| &mut f.ipvs_scheduler), "", "The scheduler; empty means rr."),
    Flag::new(
        "ipvs-sync-period",
        Duration(|f| &mut f.ipvs_sync_period),
        "30s",
        "How often everything is checked and written again.",
    ),
    Flag::new(
        "ipvs-min-sync-period",
        Duration(|f| &mut f.ipvs_min_sync_period),
        "1s",
        "The shortest time between two writes. Given, it is kept to the letter; without it, or with 0, it adapts to \
         the load.",
    ),
    Flag::new(
        "ipvs-exclude-cidrs",
        Strings(|f| &mut f.ipvs_exclude_cidrs),
        "[]",
        "Ranges whose virtual servers are left alone.",
    ),
    Flag::new(
        "ipvs-strict-arp",
        Switch(|f| &mut f.ipvs_strict_arp),
        "false",
        "Stop answering ARP for service addresses (sets arp_ignore to 1 and arp_announce to 2).",
    ),
    Flag::new(
        "ipvs-tcp-timeout",
        Duration(|f| &mut f.ipvs_tcp_timeout),
        "0s",
        "When idle TCP sessions are dropped; 0 leaves the kernel's value.",
    ),
    Flag::new(
        "ipvs-tcpfin-timeout",
        Duration(|f| &mut f.ipvs_tcpfin_timeout),
        "0s",
        "When TCP sessions are dropped after a FIN; 0 leaves the kernel's value.",
    ),
    Flag::new(
        "ipvs-udp-timeout",
        Duration(|f| &mut f.ipvs_udp_timeout),
        "0s",
        "When idle UDP sessions are dropped; 0 leaves the kernel's value.",
    ),
];

const KERNEL: &[Flag] = &[
    Flag::new(
        "conntrack-max-per-core",
        Int32(|f| &mut f.conntrack_max_per_core),
        "32768",
        "Tracked connections to allow per CPU; 0 leaves the limit alone.",
    ),
    Flag::new(
        "conntrack-min",
        Int32(|f| &mut f.conntrack_min),
        "131072",
        "Tracked connections to allow at least, however few CPUs there are.",
    ),
    Flag::new(
        "conntrack-tcp-timeout-established",
        Duration(|f| &mut f.conntrack_tcp_timeout_established),
        "24h0m0s",
        "When idle TCP connections are forgotten; 0 leaves the kernel's value.",
    ),
    Flag::new(
        "conntrack-tcp-timeout-close-wait",
        Duration(|f| &mut f.conntrack_tcp_timeout_close_wait),
        "1h0m0s",
        "When TCP connections in CLOSE_WAIT are forgotten; 0 leaves the kernel's value.",
    ),
    Flag::new(
        "conntrack-tcp-be-liberal",
        Switch(|f| &mut f.conntrack_tcp_be_liberal),
        "false",
        "Accept TCP packets outside the window instead of calling them invalid.",
    ),
    Flag::new(
        "conntrack-udp-timeout",
        Duration(|f| &mut f.conntrack_udp_timeout),
        "0s",
        "When UDP flows without an answer are forgotten; 0 leaves the kernel's value.",
    ),
    Flag::new(
        "conntrack-udp-timeout-stream",
        Duration(|f| &mut f.conntrack_udp_timeout_stream),
        "0s",
        "When UDP flows with answers are forgotten; 0 leaves the kernel's value.",
    ),
    Flag::new(
        "sysctl-hard-fail",
        Switch(|f| &mut f.sysctl_hard_fail),
        "false",
        "End the process if a kernel setting cannot be written, as kube-proxy does, instead of reporting it and going on.",
    )
    .own(),
    Flag::new(
        "oom-score-adj",
        Int32(|f| &mut f.oom_score_adj),
        "-999",
        "The process's out-of-memory score adjustment (-1000 to 1000).",
    ),
];

const SERVERS: &[Flag] = &[
    Flag::new(
        "healthz-bind-address",
        IpPort(|f| &mut f.healthz_bind_address),
        "0.0.0.0:10256",
        "Where the health server listens.",
    ),
    Flag::new(
        "healthz-port",
        Int32(|f| &mut f.healthz_port),
        "10256",
        "The health server's port; 0 turns it off.",
    )
    .deprecated("use --healthz-bind-address; it will be removed in a future release"),
    Flag::new(
        "metrics-bind-address",
        IpPort(|f| &mut f.metrics_bind_address),
        "127.0.0.1:10249",
        "Where the metrics server listens.",
    ),
    Flag::new("metrics-port", Int32(|f| &mut f.metrics_port), "10249", "The metrics server's port.")
        .deprecated("use --metrics-bind-address; it will be removed in a future release"),
    Flag::new(
        "bind-address-hard-fail",
        Switch(|f| &mut f.bind_address_hard_fail),
        "false",
        "End the process if one of these servers cannot listen, instead of trying again.",
    ),
    Flag::new("profiling", Switch(|f| &mut f.profiling), "false", "Offer profiles on the metrics server."),
    Flag::new(
        "show-hidden-metrics-for-version",
        Text(|f| &mut f.show_hidden_metrics_for_version),
        "",
        "Show metrics that were hidden in this release; only the previous minor version (1.36) is allowed.",
    ),
];

const LOGS: &[Flag] = &[
    Flag::new("v", Level(|f| &mut f.v), "0", "How much to log; higher numbers log more.").short('v').beside_file(),
    Flag::new(
        "vmodule",
        VModule(|f| &mut f.vmodule),
        "",
        "How much to log from single source files, by patterns of their names. Only for the text format.",
    )
    .beside_file(),
    Flag::new("logging-format", Text(|f| &mut f.logging_format), "text", "The log format: text or json.").beside_file(),
    Flag::new(
        "log-flush-frequency",
        Duration(|f| &mut f.log_flush_frequency),
        "5s",
        "The longest time a log line may wait in a buffer.",
    )
    .beside_file(),
    Flag::new(
        "log-text-split-stream",
        Switch(|f| &mut f.log_text_split_stream),
        "false",
        "Text format: info lines to standard output, the rest to standard error. Needs gate LoggingAlphaOptions.",
    )
    .beside_file(),
    Flag::new(
        "log-text-info-buffer-size",
        Quantity(|f| &mut f.log_text_info_buffer_size),
        "0",
        "Text format with split streams: bytes of info lines that may be held back. Needs gate LoggingAlphaOptions.",
    )
    .beside_file(),
    Flag::new(
        "log-json-split-stream",
        Switch(|f| &mut f.log_json_split_stream),
        "false",
        "JSON format: info lines to standard output, the rest to standard error. Needs gate LoggingAlphaOptions.",
    )
    .beside_file(),
    Flag::new(
        "log-json-info-buffer-size",
        Quantity(|f| &mut f.log_json_info_buffer_size),
        "0",
        "JSON format with split streams: bytes of info lines that may be held back. Needs gate LoggingAlphaOptions.",
    )
    .beside_file(),
];
