//! Packets from pod to pod that leave connection tracking, where the operator asks for it.
//!
//! A connection that is translated must be tracked in both directions, and the replies to a pod's connection are packets from pod to pod. So
//! everything that is translated for pods is masqueraded here: its replies go to an address of the node, and those are always tracked.
//!
//! An untracked packet still passes every hook that has a chain, so there is none in the forward hook.

use std::net::IpAddr;

use ipnet::IpNet;
use portwarden_netlink::nftables::{ChainKind, Expr, Hook};

use crate::chains::{BaseChain, Chains, RuleContext};
use crate::expressions::{
    jump, masquerade, new_connection, not_in_set, not_to_this_host, not_translated, rule, translated,
};
use crate::sets::SetId;

/// Before the kernel looks for the connection of a packet. kube-proxy, when it takes over the table, empties and later removes chains that it
/// does not know if their names have a slash: without our masquerading, this rule must not stay.
pub(crate) const CHAIN: BaseChain = ("raw-prerouting/pods", ChainKind::Filter, Hook::Prerouting, -300);

/// So many addresses are compared one by one.
const MOST_COMPARED: usize = 4;

pub(crate) fn add_rules(context: &RuleContext<'_>, chains: &mut Chains) {
    if context.untracked_pods {
        let rule = pod_to_pod(context)
            .map(|pods| rule![pods, not_to_a_service(context), not_to_the_node(context), Expr::Notrack]);
        chains.set(CHAIN.0, rule.into_iter().collect());
    }
}

/// What the forward hook does otherwise: checks connections that were not translated. Chains of type nat see only the first packet of a connection, and no
/// packet that is not tracked.
pub(crate) fn forward_checks() -> Vec<Expr> {
    rule![new_connection(), not_translated(), not_to_this_host(), jump("checks")]
}

/// Costs something for each packet, so it is left out where cluster addresses cannot be in the range of the pods.
fn not_to_a_service(context: &RuleContext<'_>) -> Vec<Expr> {
    let (pods, services) = (context.node.pod_range, &context.node.service_cidrs);
    let overlaps = |net: &IpNet| pods.is_none_or(|pods| pods.contains(net) || net.contains(&pods));
    if !services.is_empty() && !services.iter().any(overlaps) {
        return Vec::new();
    }
    vec![context.build().destination(0), not_in_set(SetId::ClusterAddresses.name())]
}

/// The address of a bridge is often in the range of the pods, and what is sent to the node stays tracked. A comparison costs a fraction of a look at
/// the routes, which is for hosts with many such addresses, and until they are known.
fn not_to_the_node(context: &RuleContext<'_>) -> Vec<Expr> {
    match context.node.own_in_pod_range.as_deref() {
        Some(own) if own.len() <= MOST_COMPARED => {
            let host = |ip: &IpAddr| context.build().destination_in(&IpNet::from(*ip), false);
            own.iter().flat_map(host).collect()
        }
        _ => not_to_this_host(),
    }
}

/// Masquerades what is translated from pod to pod.
pub(crate) fn masquerading(context: &RuleContext<'_>) -> Option<Vec<Expr>> {
    Some(rule![translated(), pod_to_pod(context)?, masquerade()])
}

/// Matches packets from pod to pod, if they are not to be tracked and the range of the pods is known.
fn pod_to_pod(context: &RuleContext<'_>) -> Option<Vec<Expr>> {
    let pods = context.node.pod_range.filter(|_| context.untracked_pods)?;
    Some(rule![context.build().source_in(&pods, true), context.build().destination_in(&pods, true)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::{Event, Family, Settings};

    fn rule(range: &str, untracked_pods: bool) -> Option<String> {
        rule_on(&[], range, untracked_pods)
    }

    /// The rule on a host with these addresses.
    fn rule_on(host: &[&str], range: &str, untracked_pods: bool) -> Option<String> {
        let pod_ranges = vec![range.parse().unwrap()];
        let mut cluster = samples::cluster(Settings { pod_ranges, ..samples::settings() }, Vec::new());
        cluster.apply(Event::HostAddresses(host.iter().map(|ip| ip.parse().unwrap()).collect()));
        cluster.resolve();
        let node = &cluster.desired(Family::V4).node;
        let mut chains = Chains::default();
        add_rules(&RuleContext { untracked_pods, ..RuleContext::plain(Family::V4, node) }, &mut chains);
        chains.rules(CHAIN.0)?;
        Some(chains.text(Family::V4, CHAIN.0).trim_end().to_owned())
    }

    #[test]
    fn cluster_addresses_in_the_range_of_the_pods_stay_tracked() {
        let plain = "ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 fib daddr type != local notrack";
        assert_eq!(rule("10.244.0.0/16", true).as_deref(), Some(plain));
        let wide = "ip saddr 10.0.0.0/8 ip daddr 10.0.0.0/8 ip daddr != @cluster-addresses fib daddr type != local notrack";
        assert_eq!(rule("10.0.0.0/8", true).as_deref(), Some(wide));
        assert_eq!(rule("fd00::/8", true).as_deref(), Some(""), "the range of another family");
        assert_eq!(rule("10.0.0.0/8", false), None);
    }

    #[test]
    fn packets_to_the_node_stay_tracked_by_its_addresses_or_by_the_routes() {
        let pods = "ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16";
        let on = |host: &[&str]| rule_on(host, "10.244.0.0/16", true).unwrap();
        assert_eq!(on(&["127.0.0.1", "192.0.2.1"]), format!("{pods} notrack"));
        assert_eq!(on(&["127.0.0.1", "10.244.0.1"]), format!("{pods} ip daddr != 10.244.0.1 notrack"));
        let many: Vec<String> = (1..=5).map(|number| format!("10.244.0.{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(on(&many), format!("{pods} fib daddr type != local notrack"));
    }
}
