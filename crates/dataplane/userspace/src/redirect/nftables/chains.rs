//! The rules, which are the same whatever the cluster: they only read the sets.
//!
//! ```text
//! nat-prerouting ─┬─ from-node ──────┬─ firewall            source ranges
//! nat-output ─────┴─ from-elsewhere ─┴─ (dnat to our socket)
//! filter-input ── input-checks ─┐
//! filter-forward, filter-output ┴─ checks ── refuse         what was not redirected
//! ```

use std::collections::BTreeMap;

use portwarden_model::{Family, NodePortAddresses, NodeView, PodTraffic};
use portwarden_netlink::nftables::{Chain, ChainKind, Expr, Hook, Rule, TableId};

use super::expressions::{
    arrives_on, back, destination, destination_in, drop, goto, in_set, jump, marked, new_connection,
    not_redirected, not_to_loopback, place, place_and_source, port, redirect, reject, reset, source_in,
    to_this_host,
};
use super::sets::SetId;
use crate::redirect::{Origin, Settings};

/// Priorities: that of address translation, and that of filters.
const BASE_CHAINS: [(&str, ChainKind, Hook, i32); 5] = [
    ("nat-prerouting", ChainKind::Nat, Hook::Prerouting, -100),
    ("nat-output", ChainKind::Nat, Hook::Output, -100),
    ("filter-input", ChainKind::Filter, Hook::Input, 0),
    ("filter-forward", ChainKind::Filter, Hook::Forward, 0),
    ("filter-output", ChainKind::Filter, Hook::Output, 0),
];

/// The rules of all chains.
pub(crate) type Chains = BTreeMap<&'static str, Vec<Vec<Expr>>>;

/// The rules for a node.
pub(crate) fn render(family: Family, node: &NodeView, settings: Settings) -> Chains {
    let mark = settings.mark;
    let rule = |parts: &[Vec<Expr>]| parts.concat();
    let mut from_outside: Vec<Vec<Expr>> =
        pod_traffic(family, node).map(|pods| rule(&[pods, goto("from-node")])).into_iter().collect();
    from_outside.push(goto("from-elsewhere"));
    let unserved = |chain| rule(&[new_connection(), not_redirected(), jump(chain)]);
    let mut checks = vec![
        rule(&[place(family), in_set(SetId::Dropped), drop()]),
        rule(&[place(family), in_set(SetId::Rejected), goto("refuse")]),
    ];
    let mut passing = checks.clone();
    passing.push(rule(&[destination(family), in_set(SetId::ClusterAddresses), goto("refuse")]));
    passing.extend(node.service_cidrs.iter().map(|net| rule(&[destination_in(family, net), drop()])));
    // The input hook has only packets for this host.
    let here = || node_port_address(family, node, settings, false);
    checks.splice(
        0..0,
        [
            rule(&[place(family), in_set(SetId::Sockets), goto("refuse")]),
            rule(&[here(), port(), in_set(SetId::DroppedNodePorts), drop()]),
            rule(&[here(), port(), in_set(SetId::RejectedNodePorts), goto("refuse")]),
        ],
    );
    let redirections = |origin| {
        let by_address = SetId::redirections(origin, false);
        let node_port = SetId::redirections(origin, true);
        vec![
            jump("firewall"),
            rule(&[place(family), redirect(family, by_address)]),
            rule(&[node_port_address(family, node, settings, true), port(), redirect(family, node_port)]),
        ]
    };
    [
        ("nat-prerouting", from_outside),
        ("nat-output", vec![rule(&[marked(mark), back()]), goto("from-node")]),
        ("from-node", redirections(Origin::Node)),
        ("from-elsewhere", redirections(Origin::Elsewhere)),
        ("firewall", vec![rule(&[place(family), in_set(SetId::Restricted), goto("restricted")])]),
        (
            "restricted",
            vec![rule(&[place_and_source(family), in_set(SetId::AllowedSources), back()]), drop()],
        ),
        ("filter-input", vec![unserved("input-checks")]),
        ("filter-forward", vec![unserved("checks")]),
        ("filter-output", vec![rule(&[marked(mark), back()]), unserved("checks")]),
        ("input-checks", checks),
        ("checks", passing),
        ("refuse", vec![reset(), reject(family)]),
    ]
    .into()
}

/// The chain of this name, as a base chain if it is one.
pub(crate) fn define(table: &TableId, name: &'static str) -> Chain {
    match BASE_CHAINS.iter().find(|(base, ..)| *base == name) {
        Some((_, kind, hook, priority)) => Chain::base(table, name, kind.clone(), *hook, *priority),
        None => Chain::new(table, name),
    }
}

/// The rules of a chain as objects of the kernel.
pub(crate) fn to_rules<'a>(
    table: &'a TableId,
    name: &'static str,
    rules: &'a [Vec<Expr>],
) -> impl Iterator<Item = Rule> + 'a {
    rules.iter().map(move |expressions| Rule::new(table, name, expressions.clone()))
}

fn node_port_address(family: Family, node: &NodeView, settings: Settings, before_routing: bool) -> Vec<Expr> {
    let mut address = match &node.node_ports {
        NodePortAddresses::All if before_routing => to_this_host(),
        NodePortAddresses::All => Vec::new(),
        NodePortAddresses::Only(_) => [destination(family), in_set(SetId::NodeAddresses)].concat(),
    };
    if !settings.loopback_node_ports {
        address.extend(not_to_loopback(family));
    }
    address
}

/// Packets that come from pods; `None` if nothing identifies them.
fn pod_traffic(family: Family, node: &NodeView) -> Option<Vec<Expr>> {
    match &node.pod_traffic {
        PodTraffic::Unknown => None,
        PodTraffic::From(net) => Some(source_in(family, net)),
        PodTraffic::Interface(name) => Some(arrives_on(name.as_str(), false)),
        PodTraffic::InterfacePrefix(prefix) => Some(arrives_on(prefix.as_str(), true)),
    }
}
