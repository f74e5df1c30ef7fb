//! Configurations on nodes they suit, half suit or do not suit.

use super::*;
use crate::config::{decode, validate};
use crate::flags::{Flags, Program};

fn config(fields: &str) -> Config {
    let text =
        format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}");
    let file = decode(text.as_bytes()).unwrap();
    validate(Program::KubeProxy, &Flags::default(), Some(&file)).unwrap().config
}

fn node(dual_stack: bool) -> NodeFacts {
    let ips = PerFamily { v4: [10, 0, 0, 1].into(), v6: Family::V6.loopback() };
    NodeFacts { primary: Family::V4, dual_stack, ips, pod_cidrs: Vec::new() }
}

fn warnings(fields: &str, node: &NodeFacts) -> Vec<String> {
    let verdict = check(&config(fields), node);
    assert_eq!(verdict.fatal, None, "{fields}");
    verdict.warnings
}

fn one(fields: &str, node: &NodeFacts, expected: &str) {
    let found = warnings(fields, node);
    assert!(matches!(found.as_slice(), [only] if only.contains(expected)), "{fields}: {found:?}");
}

#[test]
fn node_ports_that_answer_where_nobody_expects_it() {
    one("", &node(true), "nodePortAddresses is empty");
    one(
        "nodePortAddresses: [fd00::/8]",
        &node(true),
        "the node is IPv4 first but nodePortAddresses has only IPv6",
    );
    let dual = "nodePortAddresses: [10.0.0.0/8]\nclusterCIDR: 10.0.0.0/8,fd00::/8";
    one(dual, &node(true), "the configuration is dual-stack but nodePortAddresses has only IPv4");
    let unknown = NodeFacts { ips: PerFamily::from_fn(Family::loopback), ..node(true) };
    one("mode: nftables", &unknown, "nodePortAddresses is `primary`, but the Node's address is not known");
    for fine in [
        "mode: nftables",
        "nodePortAddresses: [localhost]",
        "nodePortAddresses: [10.0.0.0/8]",
        "nodePortAddresses: [all]",
    ] {
        assert_eq!(warnings(fine, &node(true)), Vec::<String>::new(), "{fine}");
    }
    let mut pods = node(true);
    pods.pod_cidrs = vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
    one("mode: nftables", &pods, "dual-stack");
    one(
        "mode: ipvs\nnodePortAddresses: [primary]\nipvs: {excludeCIDRs: [10.0.0.0/8, fd00::/8]}",
        &node(true),
        "dual-stack",
    );
}

#[test]
fn cluster_ranges_of_the_wrong_family_stop_a_single_stack_node() {
    let fields = "nodePortAddresses: [primary]\nclusterCIDR: fd00::/8";
    one(fields, &node(true), "the cluster is IPv4 first but clusterCIDR is only IPv6");
    let verdict = check(&config(fields), &node(false));
    assert_eq!(
        verdict.fatal.as_deref(),
        Some("kube-proxy configuration is incorrect: the cluster is IPv4 only but clusterCIDR is only IPv6")
    );
    one(&format!("{fields}\ndetectLocalMode: NodeCIDR"), &node(false), "clusterCIDR is only IPv6");
}

#[test]
fn pod_ranges_of_the_wrong_family_stop_the_mode_that_uses_them() {
    let mut pods = node(true);
    pods.pod_cidrs = vec!["fd00::/64".parse().unwrap()];
    one("nodePortAddresses: [primary]", &pods, "spec.podCIDRs are only IPv6");
    let verdict = check(&config("nodePortAddresses: [primary]\ndetectLocalMode: NodeCIDR"), &pods);
    assert!(verdict.fatal.is_some_and(|fatal| fatal.contains("spec.podCIDRs")));
}

#[test]
fn other_addresses_of_the_wrong_family_are_only_remarked() {
    let base = "nodePortAddresses: [primary]\n";
    one(&format!("{base}healthzBindAddress: '[fd00::1]:1'"), &node(false), "healthzBindAddress is IPv6");
    one(&format!("{base}metricsBindAddress: '[::1]:1'"), &node(false), "metricsBindAddress is IPv6");
    for mode in ["ipvs", "iptables", "nftables"] {
        one(
            &format!("{base}mode: {mode}\nipvs: {{excludeCIDRs: [fd00::/8]}}"),
            &node(false),
            "ipvs.excludeCIDRs are only IPv6",
        );
    }
    one(&format!("{base}winkernel: {{sourceVip: fd00::1}}"), &node(true), "winkernel.sourceVip is IPv6");
    for fine in ["healthzBindAddress: '[::]:1'", "metricsBindAddress: '[::]:1'"] {
        assert_eq!(
            warnings(&format!("{base}{fine}"), &node(false)),
            Vec::<String>::new(),
            "the wildcard suits both"
        );
    }
    assert_eq!(warnings(&format!("{base}metricsBindAddress: '[::1]:1'"), &node(true)), Vec::<String>::new());
}
