//! The rules, which are the same whatever the cluster: they only read the sets.
//!
//! ```text
//! filter-prerouting-pre-dnat, filter-output-pre-dnat ── firewall             source ranges
//! nat-prerouting, nat-output ── services ── route ┬──────────────────┬─ draw-N ── redraw-N    draw, translate
//!                                                 └─ external-local ─┴─ sticky-...           remember, translate
//! filter-input ── input-checks ─┐
//! filter-forward, filter-output ┴─ checks ── unserved                        nothing to send to
//! nat-postrouting ── masquerading
//! ```

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use portwarden_model::{Family, NodePortAddresses, NodeView, PodTraffic};
use portwarden_netlink::nftables::{Chain, ChainKind, Expr, Hook, Name, Rule, TableId};

use crate::phrase::{
    Phrases, arrives_on, back, clear_priority, dispatch_priority, drop, flip_mark, from_this_host, goto,
    in_set, jump, load_priority, map, mark_is_set, mask_priority, masked_priority, masquerade,
    new_connection, not_translated, port, priority_is, protocol_is, reset, set_mark, set_priority,
    to_this_host, translated,
};
use crate::route::{CLASS_MASK, Draw, KIND_MASK, Kind, LIST_MASK, MAGIC};
use crate::sets::SetId;

/// How often a draw is repeated if it hits a slot that is being emptied (or, in large lists, is not filled).
const REDRAWS: usize = 12;

/// Joins phrases into a rule.
macro_rules! rule {
    ($($part:expr),+ $(,)?) => {{
        let mut rule: Vec<Expr> = Vec::new();
        $(rule.extend(Part::from($part).0);)+
        rule
    }};
}

mod sticky;

pub(crate) use sticky::StickyClass;

/// The name of the chain that draws once from ordinary lists.
pub(crate) fn draw_chain(modulus: u32) -> String {
    format!("draw-{modulus}")
}

/// The name of the chain that draws again, after a slot that was not there.
pub(crate) fn redraw_chain(draw: Draw) -> String {
    format!("redraw-{}", draw.modulus())
}

/// The eight base chains, with kube-proxy's names, hooks and priorities: whoever comes later takes them over.
pub(crate) const BASE_CHAINS: [(&str, ChainKind, Hook, i32); 8] = [
    ("filter-prerouting-pre-dnat", ChainKind::Filter, Hook::Prerouting, -110),
    ("filter-output-pre-dnat", ChainKind::Filter, Hook::Output, -110),
    ("filter-input", ChainKind::Filter, Hook::Input, 0),
    ("filter-forward", ChainKind::Filter, Hook::Forward, 0),
    ("filter-output", ChainKind::Filter, Hook::Output, 0),
    ("nat-prerouting", ChainKind::Nat, Hook::Prerouting, -100),
    ("nat-output", ChainKind::Nat, Hook::Output, -100),
    ("nat-postrouting", ChainKind::Nat, Hook::Postrouting, 100),
];

/// The base chains that look at source ranges, there only while some Service has any.
const FIREWALL_CHAINS: [&str; 2] = ["filter-prerouting-pre-dnat", "filter-output-pre-dnat"];

/// The rules of all chains.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Chains {
    rules: BTreeMap<Name, Vec<Vec<Expr>>>,
}

impl Chains {
    /// The rules for a node with these properties.
    pub(crate) fn render(
        family: Family,
        node: &NodeView,
        mark: u32,
        sticky: &BTreeSet<StickyClass>,
    ) -> Chains {
        let builder = Builder { family, phrases: Phrases::new(family), node, mark };
        let mut chains = Chains::default();
        builder.base(&mut chains);
        builder.firewall(&mut chains);
        builder.services(&mut chains);
        builder.picks(&mut chains);
        chains.add_sticky(family, sticky.iter().copied());
        builder.checks(&mut chains);
        builder.masquerading(&mut chains);
        chains
    }

    /// Adds chains for more ways to draw with affinity.
    pub(crate) fn add_sticky(&mut self, family: Family, classes: impl Iterator<Item = StickyClass>) {
        for class in classes {
            sticky::add(Phrases::new(family), class, self);
        }
    }

    /// Lets new connections pass the source ranges. As long as no Service has any, all packets are spared the hooks.
    pub(crate) fn add_firewall(&mut self) {
        for name in FIREWALL_CHAINS {
            self.chain(name, vec![rule![new_connection(), jump("firewall")]]);
        }
    }

    /// Whether new connections pass the source ranges.
    pub(crate) fn has_firewall(&self) -> bool {
        FIREWALL_CHAINS.iter().any(|name| self.rules(name).is_some())
    }

    /// Every chain with its rules.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Name, &Vec<Vec<Expr>>)> {
        self.rules.iter()
    }

    /// The rules of one chain.
    pub(crate) fn rules(&self, chain: &str) -> Option<&Vec<Vec<Expr>>> {
        self.rules.get(chain)
    }

    /// The counters that rules use.
    pub(crate) fn counters(&self) -> BTreeSet<&Name> {
        fn counter(expression: &Expr) -> Option<&Name> {
            if let Expr::NamedCounter(name) = expression { Some(name) } else { None }
        }
        self.rules.values().flatten().flatten().filter_map(counter).collect()
    }

    /// Puts rules in place of a chain's.
    pub(crate) fn chain(&mut self, name: &str, rules: Vec<Vec<Expr>>) {
        self.rules.insert(Name::from(name), rules);
    }
}

/// The chain of this name, as a base chain if it is one.
pub(crate) fn define(table: &TableId, name: &str) -> Chain {
    match BASE_CHAINS.iter().find(|(base, ..)| *base == name) {
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

struct Builder<'a> {
    family: Family,
    phrases: Phrases,
    node: &'a NodeView,
    mark: u32,
}

/// One phrase or one expression.
struct Part(Vec<Expr>);

impl From<Expr> for Part {
    fn from(one: Expr) -> Self {
        Part(vec![one])
    }
}

impl From<Vec<Expr>> for Part {
    fn from(several: Vec<Expr>) -> Self {
        Part(several)
    }
}

impl Builder<'_> {
    fn base(&self, chains: &mut Chains) {
        // What was translated has somewhere to go.
        let unserved = |chain| vec![rule![new_connection(), not_translated(), jump(chain)]];
        chains.chain("filter-input", unserved("input-checks"));
        chains.chain("filter-forward", unserved("checks"));
        chains.chain("filter-output", unserved("checks"));
        chains.chain("nat-prerouting", vec![rule![jump("services")]]);
        chains.chain("nat-output", vec![rule![jump("services")]]);
        chains.chain("nat-postrouting", vec![rule![jump("masquerading")]]);
    }

    /// Source ranges count before translation, and also when there is no endpoint.
    fn firewall(&self, chains: &mut Chains) {
        chains.chain(
            "firewall",
            vec![rule![self.phrases.frontend(), in_set(SetId::Restricted.name()), goto("restricted")]],
        );
        chains.chain(
            "restricted",
            vec![
                rule![self.phrases.frontend_and_source(), in_set(SetId::AllowedSources.name()), back()],
                rule![drop()],
            ],
        );
    }

    fn services(&self, chains: &mut Chains) {
        let find = |key: Vec<Expr>, set: SetId| rule![key, map(set.name()), set_priority(), goto("route")];
        let node_ports = rule![self.node_port_match(true), find(port(), SetId::NodePorts)];
        chains.chain("services", vec![find(self.phrases.frontend(), SetId::Frontends), node_ports]);

        let kind = |kind: Kind| priority_is(KIND_MASK, kind as u32);
        let mut route = Vec::new();
        if let Some(others) = self.pod_match(false) {
            route.push(rule![kind(Kind::Internal), others, set_mark(self.mark)]);
        }
        route.push(rule![kind(Kind::External), set_mark(self.mark)]);
        route.push(rule![kind(Kind::ExternalLocal), goto("external-local")]);
        route.extend(balance());
        chains.chain("route", route);

        // Traffic that starts on this node knows no policy Local: it goes to all endpoints. That of host processes is masqueraded.
        let mut local = Vec::new();
        if let Some(pods) = self.pod_match(true) {
            local.push(rule![pods, goto("external-from-node")]);
        }
        local.push(rule![from_this_host(), set_mark(self.mark), goto("external-from-node")]);
        local.extend(balance());
        chains.chain("external-local", local);
        let mut all_endpoints = vec![
            mask_priority(LIST_MASK),
            rule![load_priority(0), map(SetId::NodeRoutes.name()), set_priority()],
        ];
        all_endpoints.extend(balance());
        chains.chain("external-from-node", all_endpoints);
    }

    /// A slot that is not there is a miss: the rule ends, and the next one draws again. Lists with a class of their own only miss
    /// while they change, and then their first slot is the last resort.
    ///
    /// Each modulus has one rule, to which others jump: the kernel checks every new element against every rule that uses its map.
    fn picks(&self, chains: &mut Chains) {
        for draw in Draw::all() {
            let modulus = draw.modulus();
            let pick = rule![
                masked_priority(LIST_MASK),
                crate::phrase::draw(modulus, 1),
                map(SetId::Endpoints.name()),
                self.phrases.translate()
            ];
            chains.chain(&draw_chain(modulus), vec![pick]);
            let again = moduli(draw).into_iter().skip(1).map(|modulus| rule![jump(&draw_chain(modulus))]);
            chains.chain(&redraw_chain(draw), again.collect());
        }
    }

    /// After translation: what still has a service address has nowhere to go.
    fn checks(&self, chains: &mut Chains) {
        let unserved_port =
            rule![self.node_port_match(false), port(), in_set(SetId::UnservedNodePorts.name())];
        let unserved = || rule![self.phrases.frontend(), in_set(SetId::Unserved.name()), goto("unserved")];
        chains.chain("input-checks", vec![rule![unserved_port, goto("unserved-node-port")], unserved()]);
        chains.chain(
            "unserved-node-port",
            vec![rule![port(), in_set(SetId::DroppedNodePorts.name()), drop()], rule![goto("refuse")]],
        );
        chains.chain(
            "unserved",
            vec![
                rule![self.phrases.frontend(), in_set(SetId::Dropped.name()), drop()],
                rule![goto("refuse")],
            ],
        );
        let mut checks = vec![
            unserved(),
            rule![self.phrases.destination(0), in_set(SetId::ClusterAddresses.name()), goto("refuse")],
        ];
        checks.extend(
            self.node.service_cidrs.iter().map(|net| rule![self.phrases.destination_in(net, true), drop()]),
        );
        chains.chain("checks", checks);
        // An ICMP error for TCP would be rate-limited, and a client that misses it waits a second.
        chains.chain("refuse", vec![rule![protocol_is(6), reset()], rule![self.phrases.reject()]]);
    }

    fn masquerading(&self, chains: &mut Chains) {
        chains.chain(
            "masquerading",
            vec![
                rule![priority_is(MAGIC, MAGIC), translated(), clear_priority()],
                rule![mark_is_set(self.mark), flip_mark(self.mark), masquerade()],
                rule![
                    translated(),
                    self.phrases.source_and_frontend(),
                    in_set(SetId::Hairpin.name()),
                    masquerade()
                ],
            ],
        );
    }

    /// Packets for an address with node ports. After translation the input hook has only local ones.
    fn node_port_match(&self, before_routing: bool) -> Vec<Expr> {
        let loopback = match self.family {
            Family::V4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
            Family::V6 => IpNet::from(self.family.loopback()),
        };
        match &self.node.node_ports {
            NodePortAddresses::All => {
                let mut phrase = if before_routing { to_this_host() } else { Vec::new() };
                phrase.extend(self.phrases.destination_in(&loopback, false));
                phrase
            }
            NodePortAddresses::Only(_) => {
                rule![self.phrases.destination(0), in_set(SetId::NodeAddresses.name())]
            }
        }
    }

    /// Packets that come from pods, or those that do not; `None` if that cannot be told.
    fn pod_match(&self, from_pods: bool) -> Option<Vec<Expr>> {
        match &self.node.pod_traffic {
            PodTraffic::Unknown => None,
            PodTraffic::From(net) => Some(self.phrases.source_in(net, from_pods)),
            PodTraffic::Interface(name) => Some(arrives_on(name.as_str(), false, from_pods)),
            PodTraffic::InterfacePrefix(prefix) => Some(arrives_on(prefix.as_str(), true, from_pods)),
        }
    }
}

/// Draws an endpoint. The chain of an ordinary class comes back if it drew a slot that is not there.
fn balance() -> [Vec<Expr>; 2] {
    [
        dispatch_priority(CLASS_MASK, SetId::Classes.name()),
        dispatch_priority(CLASS_MASK, SetId::Redraws.name()),
    ]
}

/// What to draw from, one attempt after the other.
fn moduli(draw: Draw) -> Vec<u32> {
    match draw {
        Draw::Exactly(1) | Draw::UpTo(1) => vec![1],
        Draw::Exactly(count) => vec![count, count, 1],
        Draw::UpTo(limit) => std::iter::repeat_n(limit, REDRAWS).chain([limit / 2, 1]).collect(),
    }
}
