//! The configuration from end to end: recorded outputs of kube-proxy, and round trips.

use portwarden::config::duration::GoDuration;
use portwarden::config::options::{self, VModule, Value, Values};
use portwarden::config::{
    Config, Conntrack, Decoded, LoadedConfig, Mode, Notice, decode, to_configz, to_yaml, validate,
};
use portwarden::flags::{Flags, Invocation, Program, parse};
use proptest::prelude::*;

const WRITE_CONFIG_DEFAULT: &str = include_str!("fixtures/write-config-default.yaml");
const CONFIGZ_NFTABLES: &str = include_str!("fixtures/configz-nftables.json");

/// What `kubeadm` puts into the ConfigMap of a new cluster: every field named, hardly any set.
const KUBEADM: &str = r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"#;

fn from_flags(arguments: &[&str]) -> Config {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let parsed = parse(Program::KubeProxy, &arguments).expect("the flags are right");
    let Invocation::Run(flags) = parsed.invocation else {
        panic!("{arguments:?} only print something");
    };
    validate(Program::KubeProxy, &flags, None).expect("the flags can be used").config
}

fn from_file(bytes: &[u8]) -> LoadedConfig {
    let file = decode(bytes).expect("the file is a configuration");
    validate(Program::KubeProxy, &Flags::default(), Some(&file)).expect("the file can be used")
}

#[test]
fn the_default_configuration_is_written_byte_for_byte() {
    assert_eq!(to_yaml(&from_flags(&["--write-config-to=f"]).document), WRITE_CONFIG_DEFAULT);
}

#[test]
fn configz_is_shown_byte_for_byte() {
    let config = from_flags(&[
        "--proxy-mode=nftables",
        "--kubeconfig=/etc/kubernetes/kubeconfig",
        "--hostname-override=go1",
        "--cluster-cidr=10.244.0.0/16",
        "--conntrack-max-per-core=0",
        "-v=2",
    ]);
    assert_eq!(to_configz(&config.document), CONFIGZ_NFTABLES.trim_end());
}

#[test]
fn configz_of_the_same_settings_in_a_file_is_the_same() {
    let file = "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nmode: nftables\n\
                clientConnection: {kubeconfig: /etc/kubernetes/kubeconfig}\nhostnameOverride: go1\n\
                clusterCIDR: 10.244.0.0/16\nconntrack: {maxPerCore: 0}\nlogging: {verbosity: 2}\n";
    assert_eq!(to_configz(&from_file(file.as_bytes()).config.document), CONFIGZ_NFTABLES.trim_end());
}

#[test]
fn what_kube_proxy_wrote_is_read_without_remarks() {
    let LoadedConfig { config, notices } = from_file(WRITE_CONFIG_DEFAULT.as_bytes());
    assert_eq!(notices, []);
    assert_eq!(config.mode, Mode::Iptables);
    assert_eq!(to_yaml(&config.document), WRITE_CONFIG_DEFAULT);
}

#[test]
fn a_new_clusters_file_is_the_default_configuration() {
    let LoadedConfig { config, notices } = from_file(KUBEADM.as_bytes());
    assert_eq!(notices, [Notice::ModeDefaulted]);
    let flags = ["--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf", "--cluster-cidr=10.244.0.0/16"];
    assert_eq!(config, from_flags(&flags));
    assert_eq!(config.fixed_min_sync_period(), None, "zero means adaptive");
}

#[test]
fn lists_gates_and_patterns_are_written_as_kube_proxy_writes_them() {
    let config = from_flags(&[
        "--nodeport-addresses=primary,10.0.0.0/8",
        "--feature-gates=NFTablesNetlink=true,AllAlpha=false",
        "--vmodule=a*=2,b=3",
        "--bind-address=::",
        "--kube-api-qps=0.1",
        "--log-flush-frequency=1m",
    ]);
    let yaml = to_yaml(&config.document);
    for part in [
        "\nbindAddress: '::'\n",
        "\nfeatureGates:\n  AllAlpha: false\n  NFTablesNetlink: true\n",
        "\nnodePortAddresses:\n- primary\n- 10.0.0.0/8\n",
        "\n  verbosity: 0\n  vmodule:\n  - filePattern: a*\n    verbosity: 2\n  - filePattern: b\n    verbosity: 3\n",
        "\n  qps: 0.1\n",
        "\n  flushFrequency: 1m0s\n",
    ] {
        assert!(yaml.contains(part), "{part:?} is not in\n{yaml}");
    }
}

#[test]
fn a_flush_frequency_in_nanoseconds_stays_a_number() {
    let file = "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nlogging: {flushFrequency: 7000000000}\n";
    let yaml = to_yaml(&from_file(file.as_bytes()).config.document);
    assert!(yaml.contains("\n  flushFrequency: 7000000000\n"), "{yaml}");
}

#[test]
fn two_settings_of_flags_cannot_be_said_in_a_file() {
    // As in kube-proxy: a file has no way to turn the health server off, nor to ask for no pause at all.
    let config = from_flags(&["--healthz-port=0", "--iptables-min-sync-period=0"]);
    let again = from_file(to_yaml(&config.document).as_bytes()).config;
    assert_eq!(
        (config.servers.healthz, again.servers.healthz.map(|address| address.port())),
        (None, Some(10256))
    );
    assert_eq!((config.pacing.min_sync_period.as_secs(), again.pacing.min_sync_period.as_secs()), (0, 1));
    assert_eq!(config.fixed_min_sync_period(), again.fixed_min_sync_period(), "adaptive, both");
}

/// Valid documents with about as many fields set as left out.
fn documents() -> impl Strategy<Value = Values> {
    let some = |strategy: BoxedStrategy<String>| proptest::option::of(strategy);
    let duration = || proptest::option::of((0u32..100_000).prop_map(GoDuration::from_secs));
    let mode = some(prop_oneof![Just(String::new()), "iptables|ipvs|nftables|userspace|ebpf"].boxed());
    let addresses = (
        some("(0\\.0\\.0\\.0|::|10\\.0\\.0\\.1|fd00::1|010\\.1\\.1\\.1)?".boxed()),
        some("(0\\.0\\.0\\.0:1|\\[::1\\]:65535|10\\.0\\.0\\.1)?".boxed()),
        some("(0\\.0\\.0\\.0:1|\\[::1\\]:65535|fd00::1)?".boxed()),
        some("(10\\.0\\.0\\.0/8|10\\.1\\.0\\.0/8,fd00::/8|fd00::/8)?".boxed()),
        proptest::option::of(proptest::sample::subsequence(
            ["primary", "localhost", "all", "10.0.0.0/8", "fd00::/8"].map(str::to_owned).to_vec(),
            0..=5,
        )),
    );
    let numbers = (
        proptest::option::of(0i32..32),
        proptest::option::of(0i32..32),
        proptest::option::of(-1000i32..=1000),
        proptest::option::of(0i32..),
        proptest::option::of(prop_oneof![Just(0.0f32), 0.01f32..1e7, Just(-1.0)]),
        proptest::option::of(0i32..1000),
    );
    let periods = (duration(), duration(), duration(), duration(), duration());
    let texts = (
        some("[ -~]{0,12}".boxed()),
        some("[a-z0-9.-]{1,12}".boxed()),
        some("(text|json)?".boxed()),
        proptest::collection::vec(("[a-z*?]{1,5}", 0u32..9), 0..3),
    );
    let switches = proptest::collection::vec(proptest::option::of(any::<bool>()), 10);
    let gates = proptest::option::of(proptest::collection::btree_map(
        "NFTablesNetlink|ComponentFlagz|KubeProxyIPVS|WatchListClient".prop_map(String::from),
        Just(true),
        0..3,
    ));
    let flush = proptest::option::of((1i64..i64::MAX, any::<bool>()));
    (mode, addresses, numbers, periods, texts, switches, gates, flush).prop_map(
        |(mode, addresses, numbers, periods, texts, switches, gates, flush)| {
            let mut document = Values::default();
            document.set(options::MODE, mode.map(Value::Text));
            document.set(options::KUBECONFIG, texts.0.map(Value::Text));
            document.set(options::FEATURE_GATES, gates.map(Value::Gates));
            document.set(options::BIND_ADDRESS, addresses.0.map(Value::Text));
            document.set(options::HEALTHZ_BIND_ADDRESS, addresses.1.map(Value::Text));
            document.set(options::METRICS_BIND_ADDRESS, addresses.2.map(Value::Text));
            document.set(options::CLUSTER_CIDR, addresses.3.map(Value::Text));
            document.set(options::NODE_PORT_ADDRESSES, addresses.4.map(Value::Texts));
            let int = |number: Option<i32>| number.map(|number| Value::Int(number.into()));
            document.set(options::IPTABLES_MASQUERADE_BIT, int(numbers.0));
            document.set(options::NFTABLES_MASQUERADE_BIT, int(numbers.1));
            document.set(options::OOM_SCORE_ADJ, int(numbers.2));
            document.set(options::CONNTRACK_MIN, int(numbers.3));
            document.set(options::QPS, numbers.4.map(Value::Number));
            document.set(options::BURST, int(numbers.5));
            // The shorter period of a pair is the least time between writes.
            let period = periods.0.max(periods.1).map(|period| period.max(GoDuration::from_secs(1)));
            let min_period = periods.0.and(periods.1).map(|_| periods.0.min(periods.1).unwrap_or_default());
            for key in
                [options::IPTABLES_SYNC_PERIOD, options::IPVS_SYNC_PERIOD, options::NFTABLES_SYNC_PERIOD]
            {
                document.set(key, period.map(Value::Duration));
            }
            for key in [
                options::IPTABLES_MIN_SYNC_PERIOD,
                options::IPVS_MIN_SYNC_PERIOD,
                options::NFTABLES_MIN_SYNC_PERIOD,
            ] {
                document.set(key, min_period.map(Value::Duration));
            }
            document.set(options::CONNTRACK_TCP_ESTABLISHED_TIMEOUT, periods.2.map(Value::Duration));
            document.set(options::CONNTRACK_UDP_TIMEOUT, periods.3.map(Value::Duration));
            document.set(options::CONFIG_SYNC_PERIOD, periods.4.map(Value::Duration));
            document.set(options::HOSTNAME_OVERRIDE, texts.1.map(Value::Text));
            if texts.2.as_deref() != Some("json") {
                let item = |(file_pattern, verbosity)| VModule { file_pattern, verbosity };
                document.set(options::VMODULE, Some(Value::VModule(texts.3.into_iter().map(item).collect())));
            }
            document.set(options::LOG_FORMAT, texts.2.map(Value::Text));
            let flush = flush.map(|(nanoseconds, as_number)| Value::Flush {
                duration: GoDuration::from_nanos(nanoseconds),
                as_number,
            });
            document.set(options::LOG_FLUSH_FREQUENCY, flush);
            for (key, switch) in [
                options::IPTABLES_MASQUERADE_ALL,
                options::IPTABLES_LOCALHOST_NODE_PORTS,
                options::NFTABLES_MASQUERADE_ALL,
                options::BIND_ADDRESS_HARD_FAIL,
                options::ENABLE_PROFILING,
                options::CONNTRACK_TCP_BE_LIBERAL,
                options::IPVS_STRICT_ARP,
                options::WINKERNEL_ENABLE_DSR,
                options::WINDOWS_RUN_AS_SERVICE,
            ]
            .into_iter()
            .zip(switches)
            {
                document.set(key, switch.map(Value::Switch));
            }
            document
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_validate_to_the_same(document in documents()) {
        let file = Decoded { document, remarks: Vec::new() };
        let first = validate(Program::KubeProxy, &Flags::default(), Some(&file)).unwrap().config;
        let written = to_yaml(&first.document);
        let decoded = decode(written.as_bytes()).unwrap();
        prop_assert_eq!(&decoded.remarks, &[]);
        let second = validate(Program::KubeProxy, &Flags::default(), Some(&decoded)).unwrap().config;
        // Once written, nothing is left to fill in; everything else is the same.
        let conntrack = Conntrack { may_lower_max: first.conntrack.may_lower_max, ..second.conntrack };
        let second_as_first = Config { defaulted: first.defaulted, conntrack, ..second.clone() };
        prop_assert_eq!(&second_as_first, &first);
        prop_assert!(!second.defaulted.mode);
        prop_assert_eq!(to_yaml(&second.document), written);
    }

    #[test]
    fn configz_is_json_with_the_same_content_as_the_file(document in documents()) {
        let file = Decoded { document, remarks: Vec::new() };
        let config = validate(Program::KubeProxy, &Flags::default(), Some(&file)).unwrap().config;
        let configz: serde_json::Value = serde_json::from_str(&to_configz(&config.document)).unwrap();
        let inner = configz["kubeproxy.config.k8s.io"].to_string();
        let decoded = decode(inner.as_bytes()).unwrap();
        prop_assert_eq!(&decoded.remarks, &[]);
        prop_assert_eq!(decoded, decode(to_yaml(&config.document).as_bytes()).unwrap());
    }
}
