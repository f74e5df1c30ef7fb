//! What is right in general and may be wrong on this very node: addresses of the wrong family.

use std::net::IpAddr;

use ipnet::IpNet;
use portwarden_model::{DetectLocal, Family, NodePortRange, PerFamily, parse_ip};

use super::options::WINKERNEL_SOURCE_VIP;
use super::typed::Config;

/// What is known about the node once its object was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// The family of the node's first address.
    pub primary: Family,
    /// Whether both families work on this host.
    pub dual_stack: bool,
    /// The node's addresses; a loopback address stands for an unknown one.
    pub ips: PerFamily<IpAddr>,
    /// The node's `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
}

/// The verdict on a configuration for one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// What is probably not meant: one error-level log line each.
    pub warnings: Vec<String>,
    /// What cannot work: the process must not go on.
    pub fatal: Option<String>,
}

/// Compares a configuration with the node it is used on.
pub fn check(config: &Config, node: &NodeFacts) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.warnings.extend(node_port_addresses(config, node));
    families(config, node, &mut verdict);
    verdict
}

fn node_port_addresses(config: &Config, node: &NodeFacts) -> Option<String> {
    let (primary, other) = (node.primary, node.primary.other());
    let ranges: Vec<Family> =
        config.node_port_addresses.iter().flat_map(|range| families_of(range, node)).collect();
    if ranges.is_empty() {
        let cause = if config.node_port_addresses.is_empty() {
            "nodePortAddresses is empty: node ports answer on every address of this node; consider \
             `--nodeport-addresses primary`"
        } else {
            "nodePortAddresses is `primary`, but the Node's address is not known: node ports answer on every address of \
             this node; set --hostname-override to the name of its Node, or --bind-address to its address"
        };
        return Some(cause.to_owned());
    }
    let excluded = &config.ipvs_excluded.cidrs[..];
    let both = |families: &mut dyn Iterator<Item = Family>| {
        let families: Vec<Family> = families.collect();
        Family::BOTH.iter().all(|family| families.contains(family))
    };
    let dual_stack_meant = [&config.cluster_cidrs[..], excluded, &node.pod_cidrs]
        .iter()
        .any(|nets| both(&mut nets.iter().map(Family::of_net)))
        || both(&mut ranges.iter().copied());
    if dual_stack_meant && ranges.iter().all(|family| *family == primary) {
        return Some(format!(
            "the configuration is dual-stack but nodePortAddresses has only {primary} addresses: node ports answer on \
             every {other} address of this node"
        ));
    }
    (!ranges.contains(&primary)).then(|| {
        format!(
            "the node is {primary} first but nodePortAddresses has only {other} addresses: node ports answer on every \
             {primary} address of this node"
        )
    })
}

/// Which families an entry has addresses of once its keyword is expanded.
fn families_of(range: &NodePortRange, node: &NodeFacts) -> Vec<Family> {
    match range {
        NodePortRange::Cidr(net) => vec![Family::of_net(net)],
        NodePortRange::Primary => {
            Family::BOTH.into_iter().filter(|family| !node.ips[*family].is_loopback()).collect()
        }
        NodePortRange::Localhost | NodePortRange::All => Family::BOTH.to_vec(),
    }
}

fn families(config: &Config, node: &NodeFacts, verdict: &mut Verdict) {
    let wrong = node.primary.other();
    let kind = if node.dual_stack { "first" } else { "only" };
    let only_wrong = |nets: &[IpNet]| !nets.is_empty() && nets.iter().all(|net| Family::of_net(net) == wrong);
    let wrong_ip = |ip: IpAddr| Family::of(ip) == wrong && !ip.is_unspecified();
    let says = |what: &str| format!("the cluster is {} {kind} but {what} {wrong}", node.primary);
    let mut note = |fatal: bool, what: &str| {
        if fatal && verdict.fatal.is_none() {
            verdict.fatal = Some(format!("kube-proxy configuration is incorrect: {}", says(what)));
        } else {
            verdict.warnings.push(says(what));
        }
    };
    if only_wrong(&config.cluster_cidrs) {
        let needed = matches!(config.detect_local, DetectLocal::ClusterCidr(_)) && !node.dual_stack;
        note(needed, "clusterCIDR is only");
    }
    if only_wrong(&node.pod_cidrs) {
        note(matches!(config.detect_local, DetectLocal::NodeCidr), "the Node's spec.podCIDRs are only");
    }
    let source_vip = parse_ip(config.document.text(WINKERNEL_SOURCE_VIP));
    if source_vip.is_some_and(|ip| Family::of(ip) == wrong) {
        note(false, "winkernel.sourceVip is");
    }
    if node.dual_stack {
        return;
    }
    if only_wrong(&config.ipvs_excluded.cidrs) {
        note(false, "ipvs.excludeCIDRs are only");
    }
    if config.servers.healthz.is_some_and(|address| wrong_ip(address.ip())) {
        note(false, "healthzBindAddress is");
    }
    if wrong_ip(config.servers.metrics.ip()) {
        note(false, "metricsBindAddress is");
    }
}

#[cfg(test)]
mod tests;
