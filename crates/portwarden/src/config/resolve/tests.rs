//! Every flag of the configuration reaches its field, and nothing but its field.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::*;
use crate::config::validate;
use crate::flags::{Invocation, Program, parse};

/// A mode, a flag with a value that is not its default, the field, and what the field then is.
fn reached() -> Vec<(&'static str, &'static str, &'static str, Value)> {
    vec![
        ("iptables", "bind-address=10.0.0.1", "bindAddress", json!("10.0.0.1")),
        ("iptables", "bind-address-hard-fail=true", "bindAddressHardFail", json!(true)),
        ("iptables", "cluster-cidr=10.0.0.0/8", "clusterCIDR", json!("10.0.0.0/8")),
        ("iptables", "config-sync-period=1m", "configSyncPeriod", json!("1m0s")),
        ("iptables", "conntrack-max-per-core=1", "conntrack.maxPerCore", json!(1)),
        ("iptables", "conntrack-min=2", "conntrack.min", json!(2)),
        ("iptables", "conntrack-tcp-be-liberal=true", "conntrack.tcpBeLiberal", json!(true)),
        ("iptables", "conntrack-tcp-timeout-close-wait=2s", "conntrack.tcpCloseWaitTimeout", json!("2s")),
        ("iptables", "conntrack-tcp-timeout-established=3s", "conntrack.tcpEstablishedTimeout", json!("3s")),
        ("iptables", "conntrack-udp-timeout=4s", "conntrack.udpTimeout", json!("4s")),
        ("iptables", "conntrack-udp-timeout-stream=5s", "conntrack.udpStreamTimeout", json!("5s")),
        ("iptables", "detect-local-mode=NodeCIDR", "detectLocalMode", json!("NodeCIDR")),
        ("iptables", "feature-gates=KubeProxyIPVS=false", "featureGates", json!({"KubeProxyIPVS": false})),
        ("iptables", "healthz-bind-address=10.0.0.1:1", "healthzBindAddress", json!("10.0.0.1:1")),
        ("iptables", "healthz-port=0", "healthzBindAddress", json!("")),
        ("iptables", "hostname-override=a", "hostnameOverride", json!("a")),
        ("iptables", "iptables-localhost-nodeports=false", "iptables.localhostNodePorts", json!(false)),
        ("iptables", "iptables-masquerade-bit=3", "iptables.masqueradeBit", json!(3)),
        ("iptables", "iptables-min-sync-period=2s", "iptables.minSyncPeriod", json!("2s")),
        ("nftables", "iptables-min-sync-period=2s", "nftables.minSyncPeriod", json!("2s")),
        ("iptables", "iptables-sync-period=40s", "iptables.syncPeriod", json!("40s")),
        ("nftables", "iptables-sync-period=40s", "nftables.syncPeriod", json!("40s")),
        ("ipvs", "ipvs-exclude-cidrs=10.0.0.0/8", "ipvs.excludeCIDRs", json!(["10.0.0.0/8"])),
        ("ipvs", "ipvs-min-sync-period=2s", "ipvs.minSyncPeriod", json!("2s")),
        ("ipvs", "ipvs-scheduler=lc", "ipvs.scheduler", json!("lc")),
        ("ipvs", "ipvs-strict-arp=true", "ipvs.strictARP", json!(true)),
        ("ipvs", "ipvs-sync-period=40s", "ipvs.syncPeriod", json!("40s")),
        ("ipvs", "ipvs-tcp-timeout=1s", "ipvs.tcpTimeout", json!("1s")),
        ("ipvs", "ipvs-tcpfin-timeout=2s", "ipvs.tcpFinTimeout", json!("2s")),
        ("ipvs", "ipvs-udp-timeout=3s", "ipvs.udpTimeout", json!("3s")),
        ("iptables", "kube-api-burst=20", "clientConnection.burst", json!(20)),
        ("iptables", "kube-api-content-type=a/b", "clientConnection.contentType", json!("a/b")),
        ("iptables", "kube-api-qps=7.5", "clientConnection.qps", json!(7.5)),
        ("iptables", "kubeconfig=/k", "clientConnection.kubeconfig", json!("/k")),
        ("iptables", "log-flush-frequency=1s", "logging.flushFrequency", json!("1s")),
        ("alpha", "log-json-info-buffer-size=64Ki", "logging.options.json.infoBufferSize", json!("64Ki")),
        ("alpha", "log-json-split-stream=true", "logging.options.json.splitStream", json!(true)),
        ("alpha", "log-text-info-buffer-size=64Ki", "logging.options.text.infoBufferSize", json!("64Ki")),
        ("alpha", "log-text-split-stream=true", "logging.options.text.splitStream", json!(true)),
        ("iptables", "logging-format=json", "logging.format", json!("json")),
        ("iptables", "masquerade-all=true", "iptables.masqueradeAll", json!(true)),
        ("ipvs", "masquerade-all=true", "iptables.masqueradeAll", json!(true)),
        ("nftables", "masquerade-all=true", "nftables.masqueradeAll", json!(true)),
        ("iptables", "metrics-bind-address=10.0.0.1:1", "metricsBindAddress", json!("10.0.0.1:1")),
        ("iptables", "nodeport-addresses=all", "nodePortAddresses", json!(["all"])),
        ("iptables", "oom-score-adj=1", "oomScoreAdj", json!(1)),
        ("iptables", "pod-bridge-interface=br0", "detectLocal.bridgeInterface", json!("br0")),
        ("iptables", "pod-interface-name-prefix=v", "detectLocal.interfaceNamePrefix", json!("v")),
        ("iptables", "profiling=true", "enableProfiling", json!(true)),
        ("iptables", "show-hidden-metrics-for-version=1.36", "showHiddenMetricsForVersion", json!("1.36")),
        ("iptables", "v=3", "logging.verbosity", json!(3)),
        ("iptables", "vmodule=a=1", "logging.vmodule", json!([{"filePattern": "a", "verbosity": 1}])),
    ]
}

/// Flags that are no part of the configuration, or have a test of their own: `metrics-port` never changes a field that can be used,
/// `proxy-mode` changes more than one.
const WITHOUT_FIELD: [&str; 9] = [
    "cleanup",
    "config",
    "help",
    "init-only",
    "master",
    "metrics-port",
    "proxy-mode",
    "version",
    "write-config-to",
];

fn document(arguments: &[String]) -> Values {
    let Invocation::Run(flags) = parse(Program::KubeProxy, arguments).expect("flags").invocation else {
        panic!("{arguments:?} only print something");
    };
    validate(Program::KubeProxy, &flags, None).expect("can be used").config.document
}

fn leaves(document: &Values) -> BTreeMap<&'static str, Value> {
    fields().filter_map(|(index, row)| Some((row.field, document.shown(index, row)?))).collect()
}

#[test]
fn each_flag_changes_its_field_and_no_other() {
    for (mode, flag, field, value) in reached() {
        let base = match mode {
            "alpha" => "--feature-gates=LoggingAlphaOptions=true".to_owned(),
            mode => format!("--proxy-mode={mode}"),
        };
        let before = leaves(&document(std::slice::from_ref(&base)));
        let mut wanted = before.clone();
        wanted.insert(field, value);
        assert_ne!(wanted, before, "--{flag} has the default's value");
        assert_eq!(leaves(&document(&[base, format!("--{flag}")])), wanted, "--{flag} in mode {mode}");
    }
}

#[test]
fn no_flag_is_forgotten() {
    let name = |flag: &'static str| flag.split_once('=').map_or(flag, |(name, _)| name);
    let named: BTreeSet<&str> =
        reached().into_iter().map(|(_, flag, ..)| name(flag)).chain(WITHOUT_FIELD).collect();
    let known: BTreeSet<&str> =
        Flags::default().listing(Program::KubeProxy).into_iter().map(|(name, _)| name).collect();
    assert_eq!(named, known);
}
