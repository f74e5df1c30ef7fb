//! All chains with their rules. The rules are the same for every cluster: what varies is in the sets that they look up.
//!
//! ```text
//! filter-prerouting-pre-dnat, filter-output-pre-dnat ── firewall             source_ranges
//! nat-prerouting, nat-output ── services ── route ┬──────────────────┬─ draw-N ── redraw-N    service_addresses, load_balancing
//!                                                 └─ external-local ─┴─ sticky-...           session_affinity
//! filter-input ── input-checks ─┐
//! filter-forward, filter-output ┴─ checks ── unserved                        no_endpoints
//! nat-postrouting ── masquerading                                            masquerading
//! raw-prerouting/pods, if it is asked for; filter-forward is not there then  untracked_pods
//! ```
//!
//! The module on the right adds the rules of each line.

use std::collections::{BTreeMap, BTreeSet};

use portwarden_model::{Family, NodeView};
use portwarden_netlink::nftables::{Chain, ChainKind, Expr, Hook, Name, Rule, TableId};

use crate::expressions::{ExpressionBuilder, jump, new_connection, not_translated, rule};
use crate::session_affinity::{self, StickyClass};
use crate::{
    load_balancing, loopback_node_ports, masquerading, no_endpoints, service_addresses, source_ranges,
    untracked_pods,
};

/// The name of a base chain, with its type, hook and priority.
pub(crate) type BaseChain = (&'static str, ChainKind, Hook, i32);

/// The base chains, with kube-proxy's names, hooks and priorities: the program that starts later takes them over.
const BASE_CHAINS: [BaseChain; 8] = [
    ("filter-prerouting-pre-dnat", ChainKind::Filter, Hook::Prerouting, -110),
    ("filter-output-pre-dnat", ChainKind::Filter, Hook::Output, -110),
    ("filter-input", ChainKind::Filter, Hook::Input, 0),
    ("filter-forward", ChainKind::Filter, Hook::Forward, 0),
    ("filter-output", ChainKind::Filter, Hook::Output, 0),
    ("nat-prerouting", ChainKind::Nat, Hook::Prerouting, -100),
    ("nat-output", ChainKind::Nat, Hook::Output, -100),
    ("nat-postrouting", ChainKind::Nat, Hook::Postrouting, 100),
];

/// The rules of all chains.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Chains {
    rules: BTreeMap<Name, Vec<Vec<Expr>>>,
}

/// What the rules depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleContext<'a> {
    pub(crate) family: Family,
    pub(crate) node: &'a NodeView,
    /// The bit of the packet mark that requests masquerading, as a mask.
    pub(crate) mark: u32,
    /// Whether node ports on loopback addresses are rejected and counted.
    pub(crate) loopback_node_ports: bool,
    /// Whether packets from pod to pod are not tracked.
    pub(crate) untracked_pods: bool,
}

#[cfg(test)]
impl<'a> RuleContext<'a> {
    /// The usual mark, and nothing that has to be asked for.
    pub(crate) fn plain(family: Family, node: &'a NodeView) -> Self {
        RuleContext { family, node, mark: 1 << 14, loopback_node_ports: false, untracked_pods: false }
    }
}

impl RuleContext<'_> {
    pub(crate) fn build(&self) -> ExpressionBuilder {
        ExpressionBuilder::new(self.family)
    }
}

impl Chains {
    /// All rules but those for source ranges, which [`source_ranges::add_hooks`] activates when a Service has some.
    pub(crate) fn render(context: &RuleContext<'_>, sticky: &BTreeSet<StickyClass>) -> Chains {
        let mut chains = Chains::default();
        chains.add_base_rules(context);
        source_ranges::add_rules(context, &mut chains);
        service_addresses::add_rules(context, &mut chains);
        load_balancing::add_rules(context, &mut chains);
        session_affinity::add_rules(context.family, sticky.iter().copied(), &mut chains);
        no_endpoints::add_rules(context, &mut chains);
        masquerading::add_rules(context, &mut chains);
        if context.loopback_node_ports {
            loopback_node_ports::add_rules(context, &mut chains);
        }
        untracked_pods::add_rules(context, &mut chains);
        chains
    }

    fn add_base_rules(&mut self, context: &RuleContext<'_>) {
        // A translated connection has an endpoint.
        let checks = |chain| vec![rule![new_connection(), not_translated(), jump(chain)]];
        self.set("filter-input", checks("input-checks"));
        self.set("filter-output", checks("checks"));
        let mut arriving = vec![rule![jump("services")]];
        if context.untracked_pods {
            arriving.push(untracked_pods::forward_checks());
        } else {
            self.set("filter-forward", checks("checks"));
        }
        self.set("nat-prerouting", arriving);
        self.set("nat-output", vec![rule![jump("services")]]);
        self.set("nat-postrouting", vec![rule![jump("masquerading")]]);
    }

    /// Every chain with its rules.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Name, &Vec<Vec<Expr>>)> {
        self.rules.iter()
    }

    pub(crate) fn rules(&self, chain: &str) -> Option<&Vec<Vec<Expr>>> {
        self.rules.get(chain)
    }

    /// The named counters that rules use.
    pub(crate) fn counters(&self) -> BTreeSet<&Name> {
        fn counter(expression: &Expr) -> Option<&Name> {
            if let Expr::NamedCounter(name) = expression { Some(name) } else { None }
        }
        self.rules.values().flatten().flatten().filter_map(counter).collect()
    }

    /// Adds a chain, or replaces its rules.
    pub(crate) fn set(&mut self, name: &str, rules: Vec<Vec<Expr>>) {
        self.rules.insert(Name::from(name), rules);
    }

    /// The rules of a chain in nft's syntax, one a line.
    #[cfg(test)]
    pub(crate) fn text(&self, family: Family, name: &str) -> String {
        let table = TableId::new(crate::kernel::kernel_family(family), crate::dataplane::TABLE);
        let (name, rules) = self.rules.get_key_value(name).expect("the chain exists");
        to_rules(&table, name, rules).map(|rule| format!("{rule}\n")).collect()
    }
}

/// The definition of a chain: a base chain if it has the name of one.
pub(crate) fn define(table: &TableId, name: &str) -> Chain {
    match BASE_CHAINS.iter().chain([&untracked_pods::CHAIN]).find(|(base, ..)| *base == name) {
        Some((_, kind, hook, priority)) => Chain::base(table, name, kind.clone(), *hook, *priority),
        None => Chain::new(table, name),
    }
}

/// The rules of a chain as objects of the kernel.
pub(crate) fn to_rules<'a>(
    table: &'a TableId,
    name: &'a Name,
    rules: &'a [Vec<Expr>],
) -> impl Iterator<Item = Rule> + 'a {
    rules.iter().map(move |expressions| Rule::new(table, name.clone(), expressions.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_netlink::nftables::Verdict;

    fn rendered(loopback_node_ports: bool) -> Chains {
        let cluster = samples::cluster(samples::settings(), Vec::new());
        let node = &cluster.desired(Family::V4).node;
        let context = RuleContext { loopback_node_ports, ..RuleContext::plain(Family::V4, node) };
        let mut chains = Chains::render(&context, &BTreeSet::new());
        source_ranges::add_hooks(&mut chains);
        chains
    }

    /// The kernel refuses a jump to a chain that does not exist, and an unreachable chain does nothing.
    #[test]
    fn every_jump_leads_to_a_chain_and_every_chain_is_reachable() {
        let chains = rendered(true);
        let mut targets = BTreeSet::new();
        for (name, rules) in chains.iter() {
            for expression in rules.iter().flatten() {
                if let Expr::Verdict(Verdict::Jump(target) | Verdict::Goto(target)) = expression {
                    assert!(chains.rules(target).is_some(), "{name} leads to {target}");
                    targets.insert(target.to_string());
                }
            }
        }
        let by_map = |name: &str| name.starts_with("draw-") || name.starts_with("redraw-");
        let is_base = |name: &str| BASE_CHAINS.iter().any(|(base, ..)| *base == name);
        for (name, _) in chains.iter() {
            assert!(targets.contains(name.as_ref()) || is_base(name) || by_map(name), "{name}");
        }
        assert!(BASE_CHAINS.iter().all(|(name, ..)| chains.rules(name).is_some()));
        assert!(chains.rules(untracked_pods::CHAIN.0).is_none());
    }

    #[test]
    fn only_loopback_node_ports_use_counters() {
        assert!(rendered(false).counters().is_empty());
        assert_eq!(rendered(true).counters().len(), 3);
    }

    #[test]
    fn base_chains_are_defined_with_their_hook() {
        let table = TableId::new(portwarden_netlink::nftables::Family::Ip, "kube-proxy");
        assert!(define(&table, "nat-output").base.is_some());
        assert!(define(&table, "services").base.is_none());
    }
}
