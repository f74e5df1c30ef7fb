//! Each field's change, and what it needs.

use super::*;
use crate::config::{decode, validate};
use crate::flags::{Flags, Program};

fn config(fields: &str) -> Config {
    let text =
        format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}");
    let file = decode(text.as_bytes()).unwrap();
    validate(Program::KubeProxy, &Flags::default(), Some(&file)).unwrap().config
}

fn plan(old: &str, new: &str) -> Plan {
    reload_plan(&config(old), &config(new))
}

#[test]
fn every_field_with_an_effect_says_what_a_change_needs() {
    for (_, row) in fields().filter(|(index, _)| *index != FEATURE_GATES.index) {
        assert_eq!(row.reload.is_empty(), row.scope == Scope::Never, "{}", row.field);
    }
    let shown = |mode: &str| {
        let config = config(&format!(
            "mode: {mode}\nlogging: {{vmodule: [{{filePattern: a, verbosity: 1}}]}}\nwindowsRunAsService: true"
        ));
        fields().filter(|(index, row)| config.document.shown(*index, row).is_some()).count()
    };
    assert_eq!(shown("iptables"), 57, "all fields of kube-proxy that are shown");
    assert_eq!(shown("userspace"), 58, "and one of ours, in its mode");
}

#[test]
fn no_change_needs_nothing() {
    for fields in ["", "mode: nftables", "mode: ipvs"] {
        let plan = plan(fields, fields);
        assert!(plan.is_empty() && plan.changes.is_empty(), "{plan:?}");
    }
    let plan = plan("", "mode: iptables\nfeatureGates: {NFTablesNetlink: true}\nportRange: x");
    assert!(plan.is_empty() && plan.changes.is_empty(), "saying the default is no change: {plan:?}");
}

#[test]
fn changes_need_what_their_part_needs() {
    let live = |parts: &[Part]| (parts.to_vec(), Vec::new());
    let restart = |parts: &[Part]| (Vec::new(), parts.to_vec());
    for (old, new, expected) in [
        ("", "logging: {verbosity: 4}", live(&[Part::Logs])),
        ("", "logging: {format: json}", restart(&[Part::Logs])),
        ("", "iptables: {syncPeriod: 1m}", live(&[Part::Pacing, Part::HealthServer])),
        ("", "iptables: {minSyncPeriod: 2s}", live(&[Part::Pacing])),
        ("", "iptables: {minSyncPeriod: 1s}", live(&[Part::Pacing])),
        ("", "iptables: {masqueradeAll: true}", live(&[Part::Rules])),
        ("", "iptables: {masqueradeBit: 1}", restart(&[Part::Dataplane])),
        ("", "nodePortAddresses: [primary]", live(&[Part::Rules])),
        ("", "clusterCIDR: 10.0.0.0/8", live(&[Part::Rules])),
        ("", "detectLocalMode: NodeCIDR", live(&[Part::Rules])),
        ("", "bindAddress: 10.0.0.1", live(&[Part::Rules])),
        ("", "healthzBindAddress: 0.0.0.0:1", restart(&[Part::HealthServer])),
        ("", "metricsBindAddress: 0.0.0.0:1", restart(&[Part::MetricsServer])),
        ("", "bindAddressHardFail: true", live(&[Part::HealthServer, Part::MetricsServer])),
        ("", "clientConnection: {qps: 7}", restart(&[Part::Source])),
        ("", "hostnameOverride: other", (vec![Part::Rules], vec![Part::Source])),
        ("", "conntrack: {min: 1}", live(&[Part::Kernel])),
        ("", "oomScoreAdj: 1", live(&[Part::Process])),
        ("", "featureGates: {AllowServiceExternalIPs: false}", live(&[Part::Rules])),
        (
            "",
            "featureGates: {AllBeta: false, LoggingBetaOptions: true}",
            (vec![Part::MetricsServer], vec![Part::Source]),
        ),
        ("", "featureGates: {WatchListClient: false}", restart(&[Part::Source])),
        (
            "mode: nftables",
            "mode: nftables\nnftables: {syncPeriod: 1m}",
            live(&[Part::Pacing, Part::HealthServer]),
        ),
        (
            "mode: nftables",
            "mode: nftables\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}",
            restart(&[Part::Dataplane]),
        ),
        ("mode: ipvs", "mode: ipvs\nipvs: {scheduler: lc}", restart(&[Part::Dataplane])),
        // The parts that depend on the mode are notified too.
        ("", "mode: ipvs", (vec![Part::Pacing, Part::HealthServer], vec![Part::Dataplane])),
    ] {
        let plan = plan(old, new);
        let found =
            (plan.live().into_iter().collect::<Vec<_>>(), plan.restarts().into_iter().collect::<Vec<_>>());
        assert_eq!(found, expected, "{old:?} -> {new:?}: {plan:?}");
    }
}

#[test]
fn what_the_mode_does_not_use_needs_nothing() {
    for (old, new) in [
        ("", "ipvs: {scheduler: lc}"),
        ("", "nftables: {masqueradeBit: 3}"),
        ("", "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}"),
        ("mode: nftables", "mode: nftables\niptables: {masqueradeBit: 3, localhostNodePorts: false}"),
        ("", "winkernel: {sourceVip: x}\nwindowsRunAsService: true"),
        ("", "featureGates: {KubeProxyIPVS: false}"),
        ("mode: nftables", "mode: nftables\nfeatureGates: {NFTablesNetlink: false}"),
    ] {
        let plan = plan(old, new);
        assert!(plan.is_empty() && !plan.changes.is_empty(), "{old:?} -> {new:?}: {plan:?}");
    }
}

#[test]
fn a_change_can_be_read() {
    let plan = plan(
        "",
        "iptables: {masqueradeBit: 3}\nnodePortAddresses: [all]\nfeatureGates: {ComponentFlagz: false}",
    );
    let shown: Vec<String> = plan.changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "featureGates.ComponentFlagz: true -> false",
            "iptables.masqueradeBit: 14 -> 3",
            "nodePortAddresses: null -> [\"all\"]"
        ]
    );
}
