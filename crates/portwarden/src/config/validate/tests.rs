//! Every rule of the configuration, each with an input that breaks it; and which source wins.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use portwarden_model::{DetectLocal, NodePortRange};

use super::*;
use crate::config::decode::decode;
use crate::config::gates::Feature;
use crate::config::typed::{Ebpf, LogFormat, Source};
use crate::config::{to_configz, to_yaml};
use crate::flags::{Invocation, parse};
use crate::modes::Mode;

fn flags(arguments: &[&str]) -> Flags {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    match parse(Program::Portwarden, &arguments).unwrap().invocation {
        Invocation::Run(flags) => *flags,
        Invocation::Print(text) => panic!("printed {text}"),
    }
}

fn file(fields: &str) -> Decoded {
    decode(
        format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}")
            .as_bytes(),
    )
    .unwrap()
}

fn from_flags(arguments: &[&str]) -> Result<LoadedConfig, Problems> {
    validate(Program::Portwarden, &flags(arguments), None)
}

fn from_file(fields: &str) -> Result<LoadedConfig, Problems> {
    validate(Program::Portwarden, &Flags::default(), Some(&file(fields)))
}

fn with_flags(arguments: &[&str]) -> Config {
    from_flags(arguments).unwrap().config
}

fn with_file(fields: &str) -> Config {
    from_file(fields).unwrap().config
}

/// A file that breaks a rule, and the one problem it must give.
const RULES: &[(&str, &str)] = &[
    (
        "iptables: {masqueradeBit: 32}",
        "KubeProxyConfiguration.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]",
    ),
    (
        "mode: nftables\niptables: {masqueradeBit: -1}",
        "KubeProxyConfiguration.KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: -1: must be within the range [0, 31]",
    ),
    (
        "mode: nftables\nnftables: {masqueradeBit: 40}",
        "KubeProxyConfiguration.KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: 40: must be within the range [0, 31]",
    ),
    (
        "mode: nftables\nnftables: {masqueradeBit: -1}",
        "KubeProxyConfiguration.KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: -1: must be within the range [0, 31]",
    ),
    (
        "mode: ipvs\nipvs: {tcpTimeout: -1s}",
        "KubeProxyConfiguration.KubeProxyIPVSConfiguration.TCPTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: ipvs\nipvs: {tcpFinTimeout: -1s}",
        "KubeProxyConfiguration.KubeProxyIPVSConfiguration.TCPFinTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: ipvs\nipvs: {udpTimeout: -1s}",
        "KubeProxyConfiguration.KubeProxyIPVSConfiguration.UDPTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, 10.0.0.1]}",
        "KubeProxyConfiguration.KubeProxyIPVSConfiguration.ExcludeCidrs[1]: Invalid value: \"10.0.0.1\": must be a valid CIDR",
    ),
    (
        "conntrack: {maxPerCore: -1}",
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.MaxPerCore: Invalid value: -1: must be greater than or equal to 0",
    ),
    (
        "conntrack: {min: -1}",
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.Min: Invalid value: -1: must be greater than or equal to 0",
    ),
    (
        "conntrack: {tcpEstablishedTimeout: -1s}",
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPEstablishedTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "conntrack: {tcpCloseWaitTimeout: -1s}",
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPCloseWaitTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "conntrack: {udpTimeout: -1s}",
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "conntrack: {udpStreamTimeout: -1s}",
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPStreamTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "oomScoreAdj: 1001",
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 1001: must be within the range [-1000, 1000]",
    ),
    (
        "oomScoreAdj: -1001",
        "KubeProxyConfiguration.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: -1001: must be within the range [-1000, 1000]",
    ),
    (
        "mode: kernelspace",
        "KubeProxyConfiguration.Mode.ProxyMode: Invalid value: \"kernelspace\": must be iptables, ipvs, nftables or blank (blank means iptables)",
    ),
    (
        "mode: IPTables",
        "KubeProxyConfiguration.Mode.ProxyMode: Invalid value: \"IPTables\": must be iptables, ipvs, nftables or blank (blank means iptables)",
    ),
    (
        "mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}",
        "KubeProxyConfiguration.Mode.ProxyMode: Invalid value: \"ipvs\": must be iptables, nftables or blank (blank means iptables)",
    ),
    (
        "mode: userspace\nudpIdleTimeout: -1s",
        "KubeProxyConfiguration.UDPIdleTimeout: Invalid value: \"-1s\": must be greater than 0",
    ),
    (
        "mode: userspace\nportRange: 20-10",
        "KubeProxyConfiguration.PortRange: Invalid value: \"20-10\": must be a valid port range (e.g. 300-2000)",
    ),
    (
        "mode: userspace\nportRange: '65536'",
        "KubeProxyConfiguration.PortRange: Invalid value: \"65536\": must be a valid port range (e.g. 300-2000)",
    ),
    (
        "mode: userspace\nportRange: 65000+600",
        "KubeProxyConfiguration.PortRange: Invalid value: \"65000+600\": must be a valid port range (e.g. 300-2000)",
    ),
    (
        "clientConnection: {burst: -1}",
        "KubeProxyConfiguration.ClientConnection.Burst: Invalid value: -1: must be greater than or equal to 0",
    ),
    (
        "clientConnection: {qps: .inf}",
        "KubeProxyConfiguration.ClientConnection.QPS: Invalid value: inf: must be a finite number",
    ),
    (
        "configSyncPeriod: -1s",
        "KubeProxyConfiguration.ConfigSyncPeriod: Invalid value: \"-1s\": must be greater than 0",
    ),
    (
        "iptables: {minSyncPeriod: -1s}",
        "KubeProxyConfiguration.MinSyncPeriod: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: nftables\nnftables: {minSyncPeriod: -1s}",
        "KubeProxyConfiguration.MinSyncPeriod: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: ipvs\nipvs: {minSyncPeriod: -1s}",
        "KubeProxyConfiguration.MinSyncPeriod: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: ipvs\nipvs: {syncPeriod: 10s, minSyncPeriod: 20s}",
        "KubeProxyConfiguration.SyncPeriod: Invalid value: \"20s\": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
    ),
    (
        "iptables: {syncPeriod: 10s, minSyncPeriod: 20s}",
        "KubeProxyConfiguration.SyncPeriod: Invalid value: \"20s\": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
    ),
    (
        "mode: nftables\nnftables: {syncPeriod: 10s, minSyncPeriod: 20s}",
        "KubeProxyConfiguration.SyncPeriod: Invalid value: \"20s\": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
    ),
    (
        "bindAddress: 1.2.3",
        "KubeProxyConfiguration.BindAddress: Invalid value: \"1.2.3\": not a valid textual representation of an IP address",
    ),
    (
        "bindAddress: '[::]'",
        "KubeProxyConfiguration.BindAddress: Invalid value: \"[::]\": not a valid textual representation of an IP address",
    ),
    (
        "bindAddress: 1.2.3.4:80",
        "KubeProxyConfiguration.BindAddress: Invalid value: \"1.2.3.4:80\": not a valid textual representation of an IP address",
    ),
    (
        "healthzBindAddress: '[::1]'",
        "KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"[::1]\": must be IP:port",
    ),
    (
        "healthzBindAddress: host:80",
        "KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"host\": must be a valid IP",
    ),
    (
        "healthzBindAddress: 1.2.3.4:0",
        "KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"0\": must be a valid port",
    ),
    (
        "healthzBindAddress: 1.2.3.4:65536",
        "KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"65536\": must be a valid port",
    ),
    (
        "healthzBindAddress: 1.2.3.4:http",
        "KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"http\": must be a valid port",
    ),
    (
        "metricsBindAddress: local",
        "KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"local\": must be IP:port",
    ),
    (
        "metricsBindAddress: host:80",
        "KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"host\": must be a valid IP",
    ),
    (
        "metricsBindAddress: 1.2.3.4:0",
        "KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"0\": must be a valid port",
    ),
    (
        "metricsBindAddress: 1.2.3.4:65536",
        "KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"65536\": must be a valid port",
    ),
    (
        "nodePortAddresses: [10.0.0.0/8, Primary]",
        "KubeProxyConfiguration.NodePortAddresses[1]: Invalid value: \"Primary\": must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'",
    ),
    (
        "nodePortAddresses: [10.0.0.1]",
        "KubeProxyConfiguration.NodePortAddresses[0]: Invalid value: \"10.0.0.1\": must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'",
    ),
    (
        "nodePortAddresses: [all, 10.0.0.0/8, 10.0.0.0/8, all]",
        "KubeProxyConfiguration.NodePortAddresses[3]: Duplicate value: \"all\"",
    ),
    (
        "showHiddenMetricsForVersion: '1.37'",
        "KubeProxyConfiguration.ShowHiddenMetricsForVersion: Invalid value: \"1.37\": only the previous minor version, 1.36, is allowed",
    ),
    (
        "showHiddenMetricsForVersion: '1.35'",
        "KubeProxyConfiguration.ShowHiddenMetricsForVersion: Invalid value: \"1.35\": only the previous minor version, 1.36, is allowed",
    ),
    (
        "detectLocalMode: Nowhere",
        "KubeProxyConfiguration.DetectLocalMode: Unsupported value: \"Nowhere\": supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"",
    ),
    (
        "detectLocalMode: BridgeInterface",
        "KubeProxyConfiguration.DetectLocalConfiguration.InterfaceName: Invalid value: \"\": must not be empty",
    ),
    (
        "detectLocalMode: InterfaceNamePrefix",
        "KubeProxyConfiguration.DetectLocalConfiguration.InterfacePrefix: Invalid value: \"\": must not be empty",
    ),
    (
        "clusterCIDR: 10.0.0.0/8,fd00::/8,fd01::/8",
        "KubeProxyConfiguration.DetectLocalConfiguration.ClusterCIDRs: Invalid value: [\"10.0.0.0/8\", \"fd00::/8\", \"fd01::/8\"]: must be either a single CIDR or a dual-stack pair of CIDRs (such as 10.100.0.0/16,fde4:8dba:82e1::/48)",
    ),
    (
        "clusterCIDR: 10.0.0.0/8,11.0.0.0/8",
        "KubeProxyConfiguration.DetectLocalConfiguration.ClusterCIDRs: Invalid value: [\"10.0.0.0/8\", \"11.0.0.0/8\"]: must be either a single CIDR or a dual-stack pair of CIDRs (such as 10.100.0.0/16,fde4:8dba:82e1::/48)",
    ),
    (
        "clusterCIDR: '10.0.0.0/8, fd00::/8'",
        "KubeProxyConfiguration.DetectLocalConfiguration.ClusterCIDRs[1]: Invalid value: \" fd00::/8\": must be a valid CIDR block (such as 10.100.0.0/16 or fde4:8dba:82e1::/48)",
    ),
    (
        "hostnameOverride: ' '",
        "KubeProxyConfiguration.HostnameOverride: Invalid value: \" \": must not be blank",
    ),
    (
        "logging: {flushFrequency: -1s}",
        "logging.flushFrequency: Invalid value: \"-1s\": must be greater than zero",
    ),
    (
        "logging: {format: xml}",
        "logging.format: Invalid value: \"xml\": unsupported log format (text and json are known)",
    ),
    (
        "logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}",
        "logging.format: Forbidden: log format json is disabled, see feature gate LoggingBetaOptions",
    ),
    (
        "logging: {verbosity: 2147483648}",
        "logging.verbosity: Invalid value: 2147483648: must be less than or equal to 2147483647",
    ),
    (
        "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
        "logging.vmodule: Forbidden: only supported for the text log format",
    ),
    (
        "logging: {vmodule: [{verbosity: 1}]}",
        "logging.vmodule[0]: Required value: the file pattern must not be empty",
    ),
    (
        "logging: {vmodule: [{filePattern: 'a=b', verbosity: 1}]}",
        "logging.vmodule[0]: Invalid value: \"a=b\": the file pattern must not contain an equals sign or a comma",
    ),
    (
        "logging: {vmodule: [{filePattern: a}, {filePattern: 'a,b', verbosity: 1}]}",
        "logging.vmodule[1]: Invalid value: \"a,b\": the file pattern must not contain an equals sign or a comma",
    ),
    (
        "logging: {vmodule: [{filePattern: a, verbosity: 2147483648}]}",
        "logging.vmodule[0]: Invalid value: 2147483648: must be less than or equal to 2147483647",
    ),
    (
        "logging: {options: {text: {infoBufferSize: 1}}}",
        "logging.options.text.infoBufferSize: Forbidden: feature gate LoggingAlphaOptions is disabled",
    ),
    (
        "logging: {options: {json: {infoBufferSize: 64Ki}}}",
        "logging.options.json.infoBufferSize: Forbidden: feature gate LoggingAlphaOptions is disabled",
    ),
    ("featureGates: {Nonsense: true}", "unrecognized feature gate: Nonsense"),
    ("featureGates: {WinDSR: false}", "cannot set feature gate WinDSR to false, feature is locked to true"),
    (
        "featureGates: {WorkloadWithJob: true}",
        "WorkloadWithJob is enabled, but depends on features that are disabled: [GenericWorkload]",
    ),
];

/// The same for rules that only flags can break.
const FLAG_RULES: &[(&[&str], &str)] = &[
    (
        &["--metrics-port=0"],
        "failed validate: KubeProxyConfiguration.MetricsBindAddress: Invalid value: \"\": must be IP:port",
    ),
    (
        &["--iptables-sync-period=0", "--iptables-min-sync-period=0"],
        "failed validate: KubeProxyConfiguration.SyncPeriod: Invalid value: \"0s\": must be greater than 0",
    ),
    (
        &["--config-sync-period=0"],
        "failed validate: KubeProxyConfiguration.ConfigSyncPeriod: Invalid value: \"0s\": must be greater than 0",
    ),
    (
        &["--cluster-cidr="],
        "failed validate: KubeProxyConfiguration.DetectLocalConfiguration.ClusterCIDRs[0]: Invalid value: \"\": must be a valid CIDR block (such as 10.100.0.0/16 or fde4:8dba:82e1::/48)",
    ),
    (
        &["--kube-api-burst=0"],
        "failed validate: KubeProxyConfiguration.ClientConnection.Burst: Invalid value: 0: must be greater than 0 while ClientConnection.QPS is",
    ),
    (&["--hostname-override= "], "failed complete: empty hostname-override is invalid"),
    (&["--feature-gates=Nonsense=true"], "failed complete: unrecognized feature gate: Nonsense"),
    (
        &["--log-flush-frequency=0"],
        "initialize logging: logging.flushFrequency: Invalid value: \"0s\": must be greater than zero",
    ),
    (
        &["--logging-format="],
        "initialize logging: logging.format: Invalid value: \"\": unsupported log format (text and json are known)",
    ),
    (
        &["--healthz-bind-address=1.2.3.4:0"],
        "failed validate: KubeProxyConfiguration.HealthzBindAddress: Invalid value: \"0\": must be a valid port",
    ),
];

#[test]
fn each_rule_names_the_field_it_is_about() {
    for (fields, expected) in RULES {
        let problems = from_file(fields).expect_err(fields);
        let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(found, [*expected], "{fields}");
    }
}

#[test]
fn each_rule_for_flags_names_the_field_it_is_about() {
    for (arguments, expected) in FLAG_RULES {
        assert_eq!(from_flags(arguments).unwrap_err().to_string(), *expected, "{arguments:?}");
    }
}

#[test]
fn all_problems_are_shown_at_once_under_the_first_step_that_fails() {
    let fields = "bindAddress: x\nmode: other\niptables: {masqueradeBit: 99}\n";
    let text = from_file(fields).unwrap_err().to_string();
    assert!(text.starts_with("failed validate: [KubeProxyConfiguration.KubeProxyIPTables"), "{text}");
    assert!(
        text.contains(", KubeProxyConfiguration.Mode.ProxyMode: ") && text.ends_with(" an IP address]"),
        "{text}"
    );
    let text = from_file(&format!("{fields}logging: {{format: x}}")).unwrap_err().to_string();
    assert!(
        text.starts_with("initialize logging: [logging.format: ") && text.contains("BindAddress"),
        "{text}"
    );
    let text = from_file(&format!("{fields}featureGates: {{X: true}}")).unwrap_err().to_string();
    assert!(text.starts_with("failed complete: [unrecognized feature gate: X, "), "{text}");
}

#[test]
fn what_a_mode_does_not_use_is_not_checked() {
    for fields in [
        "nftables: {masqueradeBit: 99, syncPeriod: -1s}",
        "ipvs: {tcpTimeout: -1s, excludeCIDRs: [x], syncPeriod: -5s}",
        "mode: nftables\niptables: {syncPeriod: -1s, minSyncPeriod: 1h}",
        "detectLocalMode: NodeCIDR\nclusterCIDR: nonsense",
        "winkernel: {sourceVip: nonsense}\nportRange: nonsense",
    ] {
        assert!(from_file(fields).is_ok(), "{fields}");
    }
}

#[test]
fn nothing_written_gives_the_defaults() {
    let LoadedConfig { config, notices } = from_flags(&[]).unwrap();
    assert_eq!(config.mode, Mode::Iptables);
    assert_eq!((config.masquerade.bit, config.masquerade.mark(), config.masquerade.all), (14, 0x4000, false));
    assert_eq!(config.pacing.sync_period, Duration::from_secs(30));
    assert_eq!(config.pacing.min_sync_period, Duration::from_secs(1));
    assert_eq!(config.fixed_min_sync_period(), None, "not given");
    assert_eq!(config.servers.healthz, Some("0.0.0.0:10256".parse().unwrap()));
    assert_eq!(config.servers.metrics, "127.0.0.1:10249".parse().unwrap());
    assert_eq!(config.detect_local, DetectLocal::ClusterCidr(Vec::new()));
    assert_eq!((config.bind_address, &config.hostname_override, &config.ipvs), (None, &None, &None));
    assert_eq!(notices, [Notice::ModeDefaulted]);
    let Source::Api(client) = config.source else { panic!("not the API") };
    assert_eq!(client.accept, "application/vnd.kubernetes.protobuf, */*");
    assert_eq!(client.limit.map(|limit| (limit.qps, limit.burst)), Some((5.0, 10)));
}

#[test]
fn a_file_replaces_every_flag_but_a_few() {
    let file = file(
        "mode: nftables\nhostnameOverride: from-file\nlogging: {verbosity: 1, vmodule: [{filePattern: f, verbosity: 9}]}",
    );
    let given = flags(&[
        "--config=f",
        "--proxy-mode=ipvs",
        "--kubeconfig=/k",
        "--feature-gates=NFTablesNetlink=false",
        "--healthz-port=0",
        "--metrics-port=0",
        "--cluster-cidr=nonsense",
        "--master=https://m",
        "--hostname-override= Flag-Name ",
        "-v=7",
        "--vmodule=a=1",
        "--logging-format=text",
    ]);
    let LoadedConfig { config, notices } = validate(Program::KubeProxy, &given, Some(&file)).unwrap();
    assert_eq!(config.mode, Mode::Nftables);
    assert!(config.gates.enabled(Feature::NftablesNetlink));
    assert!(config.servers.healthz.is_some());
    assert_eq!(config.hostname_override.as_deref(), Some("flag-name"));
    assert_eq!((config.logging.verbosity, config.logging.format), (7, LogFormat::Text));
    let patterns: Vec<_> = config.logging.vmodule.iter().map(|item| item.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["a", "f"], "flags first");
    let Source::Api(client) = &config.source else { panic!("not the API") };
    assert_eq!((client.kubeconfig.as_deref(), client.master.as_deref()), (None, Some("https://m")));
    let ignored =
        vec!["feature-gates", "kubeconfig", "healthz-port", "metrics-port", "proxy-mode", "cluster-cidr"];
    assert_eq!(notices, [Notice::FlagsIgnored(ignored)]);
}

#[test]
fn an_ipv6_bind_address_moves_the_servers_only_from_a_file() {
    let servers =
        |config: &Config| (config.servers.healthz.unwrap().to_string(), config.servers.metrics.to_string());
    let v6 = with_file("bindAddress: '::'");
    assert_eq!(servers(&v6), ("[::]:10256".to_owned(), "[::1]:10249".to_owned()));
    let v4 = with_flags(&["--bind-address=::"]);
    assert_eq!(servers(&v4), ("0.0.0.0:10256".to_owned(), "127.0.0.1:10249".to_owned()));
    assert_eq!((v6.bind_address, v4.bind_address), (None, None), "the wildcard says nothing");
    assert_eq!(with_flags(&["--bind-address=010.0.0.1"]).bind_address, Some([10, 0, 0, 1].into()));
    assert_eq!(with_file("bindAddress: ::ffff:10.0.0.1").bind_address, Some([10, 0, 0, 1].into()));
}

#[test]
fn the_old_port_flags_only_fill_in_a_missing_port() {
    let healthz = |arguments: &[&str]| with_flags(arguments).servers.healthz;
    let address = |text: &str| Some(text.parse::<SocketAddr>().unwrap());
    assert_eq!(healthz(&["--healthz-port=1"]), address("0.0.0.0:10256"), "the default has a port already");
    assert_eq!(healthz(&["--healthz-port=1", "--healthz-bind-address=1.2.3.4"]), address("1.2.3.4:1"));
    assert_eq!(healthz(&["--healthz-port=1", "--healthz-bind-address=::1"]), address("[::1]:1"));
    assert_eq!(healthz(&["--healthz-bind-address=1.2.3.4"]), address("1.2.3.4:10256"));
    assert_eq!(healthz(&["--healthz-port=0"]), None);
    assert_eq!(
        healthz(&["--healthz-port=0", "--write-config-to=f"]),
        address("0.0.0.0:10256"),
        "not when writing"
    );
    assert_eq!(with_flags(&["--metrics-port=0", "--write-config-to=f"]).servers.metrics.port(), 10249);
    assert_eq!(
        with_file("healthzBindAddress: ''").servers.healthz,
        address("0.0.0.0:10256"),
        "no way to turn it off"
    );
    assert_eq!(with_file("healthzBindAddress: 1.2.3.4").servers.healthz, address("1.2.3.4:10256"));
    assert_eq!(with_file("metricsBindAddress: fd00::1").servers.metrics.to_string(), "[fd00::1]:10249");
}

#[test]
fn periods_come_from_the_mode_in_effect() {
    let periods = |config: &Config| {
        let Config { pacing, .. } = config;
        (
            pacing.sync_period.as_secs(),
            pacing.min_sync_period.as_secs(),
            config.fixed_min_sync_period().is_some(),
        )
    };
    let file = "iptables: {syncPeriod: 10s, minSyncPeriod: 2s}\nipvs: {syncPeriod: 20s, minSyncPeriod: 3s}\n\
                nftables: {syncPeriod: 40s, minSyncPeriod: 4s}\n";
    assert_eq!(periods(&with_file(file)), (10, 2, true));
    assert_eq!(periods(&with_file(&format!("{file}mode: iptables"))), (10, 2, true));
    assert_eq!(periods(&with_file(&format!("{file}mode: ipvs"))), (20, 3, true));
    assert_eq!(periods(&with_file(&format!("{file}mode: nftables"))), (40, 4, true));
    assert_eq!(periods(&with_file("mode: ipvs")), (30, 0, false));
    assert_eq!(
        periods(&with_file("iptables: {minSyncPeriod: 0s}")),
        (30, 1, false),
        "zero in a file is the default"
    );
    assert_eq!(
        periods(&with_flags(&["--iptables-min-sync-period=0"])),
        (30, 0, false),
        "zero in a flag is zero"
    );
    assert_eq!(periods(&with_flags(&["--iptables-min-sync-period=1s"])), (30, 1, true));
    assert_eq!(periods(&with_flags(&["--proxy-mode=ipvs"])), (30, 1, false), "not the file's default");
    let flags = [
        "--iptables-sync-period=5s",
        "--iptables-min-sync-period=2s",
        "--ipvs-sync-period=6s",
        "--ipvs-min-sync-period=3s",
    ];
    let with_mode = |mode| with_flags(&[&flags[..], &[mode]].concat());
    assert_eq!(periods(&with_mode("--proxy-mode=")), (5, 2, true));
    assert_eq!(periods(&with_mode("--proxy-mode=nftables")), (5, 2, true));
    assert_eq!(periods(&with_mode("--proxy-mode=ipvs")), (6, 3, true));
}

#[test]
fn masquerading_comes_from_the_mode_in_effect() {
    let file = "iptables: {masqueradeAll: true, masqueradeBit: 1}\nnftables: {masqueradeBit: 2}\n";
    let masquerade = |config: Config| (config.masquerade.all, config.masquerade.bit);
    assert_eq!(masquerade(with_file(file)), (true, 1));
    assert_eq!(masquerade(with_file(&format!("{file}mode: ipvs"))), (true, 1));
    assert_eq!(masquerade(with_file(&format!("{file}mode: nftables"))), (false, 2));
    assert_eq!(masquerade(with_file("mode: nftables\nnftables: {masqueradeAll: true}")), (true, 14));
    let flags = ["--masquerade-all", "--iptables-masquerade-bit=3"];
    assert_eq!(masquerade(with_flags(&flags)), (true, 3));
    assert_eq!(
        masquerade(with_flags(&[&flags[..], &["--proxy-mode=nftables"]].concat())),
        (true, 14),
        "no flag for that bit"
    );
}

#[test]
fn node_port_addresses_default_to_primary_in_nftables_only() {
    assert_eq!(with_file("mode: nftables").node_port_addresses, [NodePortRange::Primary]);
    assert_eq!(
        with_file("mode: nftables\nnodePortAddresses: []").node_port_addresses,
        [NodePortRange::Primary]
    );
    assert_eq!(
        with_file("mode: nftables\nnodePortAddresses: [all]").node_port_addresses,
        [NodePortRange::All]
    );
    assert_eq!(with_file("mode: ipvs").node_port_addresses, []);
    assert_eq!(with_flags(&["--proxy-mode=nftables"]).node_port_addresses, [NodePortRange::Primary]);
    let ranges = with_flags(&["--nodeport-addresses=localhost,010.1.2.3/8"]).node_port_addresses;
    assert_eq!(ranges, [NodePortRange::Localhost, NodePortRange::Cidr("10.0.0.0/8".parse().unwrap())]);
}

#[test]
fn zeros_that_mean_something_are_kept() {
    let config = with_file(
        "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\noomScoreAdj: 0\n\
         iptables: {masqueradeBit: 0, localhostNodePorts: false}",
    );
    assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (0, 0));
    assert_eq!(
        (config.conntrack.tcp_established_timeout, config.conntrack.tcp_close_wait_timeout),
        (Duration::ZERO, Duration::ZERO)
    );
    assert_eq!((config.oom_score_adj, config.masquerade.bit, config.localhost_node_ports), (0, 0, false));
}

#[test]
fn rates_below_zero_mean_no_limit_and_zero_the_usual_one() {
    let limit = |config: Config| match config.source {
        Source::Api(client) => client.limit.map(|limit| (limit.qps, limit.burst)),
        Source::Manifests(_) => panic!("not the API"),
    };
    assert_eq!(limit(with_file("clientConnection: {qps: 0, burst: 0}")), Some((5.0, 10)));
    assert_eq!(limit(with_file("clientConnection: {qps: -1}")), None);
    assert_eq!(limit(with_flags(&["--kube-api-qps=0", "--kube-api-burst=3"])), Some((5.0, 3)));
    assert_eq!(limit(with_flags(&["--kube-api-qps=-1", "--kube-api-burst=0"])), None);
}

#[test]
fn ways_to_identify_pod_traffic() {
    let config = with_file("clusterCIDR: fd00::/8,10.0.0.0/8");
    let nets: Vec<ipnet::IpNet> = vec!["fd00::/8".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
    assert_eq!(
        (&config.detect_local, &config.cluster_cidrs),
        (&DetectLocal::ClusterCidr(nets.clone()), &nets)
    );
    let config = with_file("detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8");
    assert_eq!((config.detect_local, config.cluster_cidrs.len()), (DetectLocal::NodeCidr, 1));
    let config = with_flags(&["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=br0"]);
    assert_eq!(config.detect_local, DetectLocal::BridgeInterface("br0".into()));
    let config = with_flags(&["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"]);
    assert_eq!(config.detect_local, DetectLocal::InterfaceNamePrefix("veth".into()));
    assert_eq!(with_flags(&["--cluster-cidr=10.0.0.0/8"]).cluster_cidrs.len(), 1);
}

#[test]
fn logging_options_of_the_chosen_format_count() {
    let gate = "featureGates: {LoggingAlphaOptions: true}\n";
    let options = "options: {text: {splitStream: true, infoBufferSize: 64Ki}, json: {infoBufferSize: 512}}";
    let logging = with_file(&format!("{gate}logging: {{{options}}}")).logging;
    assert_eq!((logging.split_stream, logging.info_buffer_size), (true, 65536));
    let logging = with_file(&format!("{gate}logging: {{format: json, {options}}}")).logging;
    assert_eq!(
        (logging.format, logging.split_stream, logging.info_buffer_size),
        (LogFormat::Json, false, 512)
    );
    let logging = with_file("logging: {flushFrequency: 1000000000}").logging;
    assert_eq!(logging.flush_frequency, Duration::from_secs(1), "bare numbers are nanoseconds");
}

#[test]
fn split_streams_in_a_file_have_no_effect_without_their_gate() {
    for format in ["text", "json"] {
        let text = format!(
            "mode: nftables\nlogging: {{format: {format}, options: {{{format}: {{splitStream: true}}}}}}"
        );
        let LoadedConfig { config, notices } =
            validate(Program::KubeProxy, &flags(&["--config=f"]), Some(&file(&text))).unwrap();
        assert!(!config.logging.split_stream, "{format}");
        assert!(!to_yaml(&config.document).contains("splitStream"), "it is not written back");
        let notices: Vec<String> = notices.iter().map(ToString::to_string).collect();
        let notice = format!(
            "logging.options.{format}.splitStream has no effect: feature gate LoggingAlphaOptions is disabled"
        );
        assert_eq!(notices, [notice]);
        let flag = format!("--log-{format}-split-stream");
        let refused = validate(Program::KubeProxy, &flags(&["--config=f", &flag]), Some(&file(&text)));
        assert!(refused.unwrap_err().to_string().contains("LoggingAlphaOptions is disabled"), "{format}");
    }
}

#[test]
fn our_own_flags_count_beside_a_file() {
    let given = flags(&["--manifests=/m", "--sysctl-hard-fail"]);
    let config = validate(Program::Portwarden, &given, Some(&file("mode: nftables"))).unwrap().config;
    assert_eq!((config.source, config.sysctl_hard_fail), (Source::Manifests("/m".to_owned()), true));
}

#[test]
fn ipvs_settings_exist_only_in_its_mode_which_is_deprecated() {
    let fields = "mode: ipvs\nipvs: {strictARP: true, tcpTimeout: 1m, excludeCIDRs: [10.0.0.0/8]}";
    let LoadedConfig { config, notices } = from_file(fields).unwrap();
    let ipvs = config.ipvs.unwrap();
    assert_eq!((ipvs.scheduler.as_str(), ipvs.strict_arp, ipvs.tcp_timeout.as_secs()), ("rr", true, 60));
    assert_eq!(config.ipvs_excluded.cidrs.len(), 1);
    assert!(matches!(notices[..], [Notice::ModeDeprecated(_)]), "{notices:?}");
    assert!(notices[0].to_string().contains("nftables"), "{}", notices[0]);
}

#[test]
fn settings_of_mode_userspace_count_in_its_mode_only() {
    let range = |text: &str| {
        let config = with_file(&format!("mode: userspace\nportRange: '{text}'"));
        config.userspace.expect("its mode").port_range.map(RangeInclusive::into_inner)
    };
    assert_eq!([range(""), range("0"), range("0-0")], [None, None, None], "any port");
    assert_eq!(range("300"), Some((300, 300)));
    assert_eq!(range("300-2000"), Some((300, 2000)));
    assert_eq!(range("300+50"), Some((300, 350)));
    let given = [
        "--proxy-mode=userspace",
        "--udp-timeout=1s",
        "--proxy-port-range=5-6",
        "--iptables-sync-period=40s",
    ];
    let config = with_flags(&given);
    let userspace = config.userspace.clone().expect("its mode");
    assert_eq!((userspace.udp_idle_timeout.as_secs(), userspace.port_range), (1, Some(5..=6)));
    assert_eq!(config.pacing.sync_period.as_secs(), 40, "it shares the periods of mode iptables");
    let default = with_file("mode: userspace").userspace.expect("its mode");
    assert_eq!(default.udp_idle_timeout, Duration::from_millis(250));

    let config = with_flags(&[&given[1..], &["--proxy-mode=nftables"]].concat());
    assert_eq!(config.userspace, None);
    let shown = to_configz(&config.document);
    assert!(shown.contains("\"portRange\":\"\"") && !shown.contains("udpIdleTimeout"), "{shown}");
    let LoadedConfig { notices, .. } = from_file("mode: nftables\nudpIdleTimeout: -1s").unwrap();
    assert!(notices[0].to_string().contains("unknown field \"udpIdleTimeout\""), "{notices:?}");
}

#[test]
fn mode_ebpf_shares_the_settings_of_mode_nftables() {
    let config = with_file("mode: ebpf\nnftables: {syncPeriod: 40s, masqueradeBit: 3, masqueradeAll: true}");
    assert_eq!(
        (config.pacing.sync_period.as_secs(), config.masquerade.bit, config.masquerade.all),
        (40, 3, true)
    );
    assert_eq!(config.node_port_addresses, [NodePortRange::Primary]);
}

#[test]
fn settings_of_mode_ebpf_come_from_the_file_and_flags_win() {
    let text = "mode: ebpf\nclusterCIDR: 10.0.0.0/8\nebpf: {cgroupRoot: /c, pinDirectory: /p, maxEndpoints: 7, notrack: enabled}";
    let config = with_file(text);
    let expected = Ebpf {
        cgroup_root: Some("/c".into()),
        pin_directory: "/p".into(),
        max_endpoints: 7,
        notrack: Notrack::Enabled,
    };
    assert_eq!(config.ebpf, expected);
    assert_eq!(
        config.model_settings("node-a", portwarden_model::Timestamp::from_nanos(0)).pod_ranges.len(),
        1
    );
    let shown = to_configz(&config.document);
    assert!(shown.contains("\"maxEndpoints\":7"), "{shown}");
    let plain = with_flags(&["--proxy-mode=ebpf"]);
    assert!(!to_configz(&plain.document).contains("ebpf\":{"), "kube-proxy does not know the section");
    let flags = flags(&["--ebpf-pin-directory=/flag", "--ebpf-notrack=force"]);
    let config = validate(Program::Portwarden, &flags, Some(&file(text))).unwrap().config;
    assert_eq!(config.ebpf.pin_directory.to_str(), Some("/flag"));
    assert_eq!((config.ebpf.max_endpoints, config.ebpf.notrack), (7, Notrack::Force));
}

#[test]
fn notrack_needs_the_range_of_the_pods_and_mode_ebpf() {
    let problems = from_file("mode: ebpf\nebpf: {notrack: force}").unwrap_err().to_string();
    assert!(problems.contains("--cluster-cidr"), "{problems}");
    let problems = from_file("mode: ebpf\nebpf: {notrack: sometimes}").unwrap_err().to_string();
    assert!(problems.contains("must be disabled, enabled or force"), "{problems}");
    let problems = from_file("mode: ebpf\nebpf: {maxEndpoints: -1}").unwrap_err().to_string();
    assert!(problems.contains("[1, 4194304]"), "{problems}");
    let LoadedConfig { notices, .. } = from_file("mode: nftables\nebpf: {notrack: force}").unwrap();
    assert!(matches!(&notices[..], [Notice::NoEffect { .. }]), "{notices:?}");
    assert_eq!(notices[0].to_string(), "ebpf.notrack has no effect in mode nftables");
}

#[test]
fn exclusions_that_mode_ipvs_would_reject_are_reported_in_other_modes() {
    let LoadedConfig { config, notices } =
        from_file("mode: nftables\nipvs: {excludeCIDRs: [10.0.0.0/8, 10.0.0.0/33]}").unwrap();
    assert_eq!(
        (config.ipvs_excluded.cidrs.len(), &config.ipvs_excluded.invalid[..]),
        (1, &["10.0.0.0/33".to_owned()][..])
    );
    assert!(matches!(&notices[..], [notice] if notice.to_string().contains("10.0.0.0/33")), "{notices:?}");
}

#[test]
fn notices_say_what_to_do() {
    let LoadedConfig { notices, .. } =
        from_file("modus: x\nmode: iptables\nmode: nftables\nfeatureGates: {KubeProxyIPVS: true}").unwrap();
    let texts: Vec<String> = notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "Using lenient decoding as strict decoding failed: unknown field \"modus\" on line 3; \
             field \"mode\" is set more than once, line 5 counts",
            "feature gate KubeProxyIPVS is set to true, but it is deprecated and a future release will not know it",
        ]
    );
    let LoadedConfig { notices, .. } =
        from_file("mode: nftables\nfeatureGates: {NFTablesNetlink: false}").unwrap();
    assert!(matches!(notices.as_slice(), [Notice::Gate(_)]), "{notices:?}");
    assert!(notices[0].to_string().contains("which has no effect"), "{}", notices[0]);
    assert!(Notice::ModeDefaulted.to_string().contains("--proxy-mode=iptables"));
    assert_eq!(
        Notice::FlagsIgnored(vec!["proxy-mode", "kubeconfig"]).to_string(),
        "flags without effect because --config is given: --proxy-mode, --kubeconfig"
    );
}

#[test]
fn the_model_gets_what_it_needs() {
    let config = with_flags(&[
        "--proxy-mode=nftables",
        "--masquerade-all",
        "--bind-address=10.0.0.1",
        "--feature-gates=AllowServiceExternalIPs=false",
    ]);
    let settings = config.model_settings("node-a", portwarden_model::Timestamp::from_nanos(7));
    assert_eq!(settings.node_name.as_str(), "node-a");
    assert!(settings.masquerade_all && !settings.allow_external_ips);
    assert_eq!(settings.node_port_addresses, [NodePortRange::Primary]);
    assert_eq!(settings.bind_address, Some([10, 0, 0, 1].into()));
    assert_eq!(settings.reserved_ports, [10256, 10249, 10266], "health, metrics and the live page");
    let off =
        with_flags(&["--healthz-port=0", "--metrics-bind-address=127.0.0.1:9999", "--page-bind-address="]);
    let settings = off.model_settings("node-a", portwarden_model::Timestamp::from_nanos(7));
    assert_eq!(settings.reserved_ports, [9999], "the health server and the page are off");
}

#[test]
fn the_page_has_a_default_and_can_be_off() {
    let page = |config: &Config| config.servers.page.map(|address| address.to_string());
    assert_eq!(page(&with_flags(&[])).as_deref(), Some("127.0.0.1:10266"));
    assert_eq!(page(&with_flags(&["--page-bind-address=[::1]:7"])).as_deref(), Some("[::1]:7"));
    assert_eq!(page(&with_flags(&["--page-bind-address="])), None);
    let written = |text: &str| from_file(text).expect("valid").config;
    assert_eq!(page(&written("pageBindAddress: 192.0.2.1")).as_deref(), Some("192.0.2.1:10266"));
    assert_eq!(page(&written("pageBindAddress: ''")), None);
    assert_eq!(page(&written("mode: nftables")).as_deref(), Some("127.0.0.1:10266"));
    assert!(from_file("pageBindAddress: node-a:80").is_err());
    let shown = |config: &Config| to_configz(&config.document);
    assert!(!shown(&with_flags(&[])).contains("pageBindAddress"), "kube-proxy does not know the field");
    assert!(shown(&with_flags(&["--page-bind-address="])).contains("\"pageBindAddress\":\"\""));
}
