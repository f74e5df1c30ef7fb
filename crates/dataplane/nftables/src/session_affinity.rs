//! Session affinity: the rules that remember which client uses which endpoint.

use std::time::Duration;

use portwarden_model::Family;
use portwarden_netlink::nftables::Expr;

use crate::chains::Chains;
use crate::expressions::{
    ExpressionBuilder, delete, draw, flip_priority, jump, load_priority, map, mask_priority, rule,
    set_priority, update,
};
use crate::load_balancing::moduli;
use crate::route::{Draw, SIBLING, STICKY_LIST_MASK};
use crate::sets::SetId;

/// A way to draw with session affinity. Each has chains of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StickyClass {
    /// How many seconds a client is remembered.
    pub(crate) timeout: u32,
    /// How to draw for a new client.
    pub(crate) draw: Draw,
    /// Whether clients may be remembered in the sibling of the list.
    pub(crate) linked: bool,
}

impl StickyClass {
    pub(crate) fn chain(self) -> String {
        format!("{}{}", self.stem(), if self.linked { "-linked" } else { "" })
    }

    fn stem(self) -> String {
        format!("sticky-{}s-{}", self.timeout, self.draw.modulus())
    }
}

/// Adds the chains of these classes.
pub(crate) fn add_rules(family: Family, classes: impl Iterator<Item = StickyClass>, chains: &mut Chains) {
    let build = ExpressionBuilder::new(family);
    classes.for_each(|class| add_class(build, class, chains));
}

/// A client gets an entry unless it has one; the timeout of an existing entry is renewed. Then the client goes where its entry points.
/// If that endpoint is gone, the entry is deleted and the client starts over, with the same packet.
fn add_class(build: ExpressionBuilder, class: StickyClass, chains: &mut Chains) {
    let rules = Rules { build, class };
    let attempt = format!("{}-try", class.stem());
    let draws: Vec<Vec<Expr>> = moduli(class.draw)
        .into_iter()
        .map(|modulus| {
            let (name, rule) = sticky_draw(modulus);
            chains.set(&name, vec![rule]);
            rule![jump(&name)]
        })
        .collect();
    chains.set("sticky-go", vec![rules.go()]);
    let go = || rule![jump("sticky-go")];
    let mut once = draws.clone();
    once.extend([rules.remember(), list(), rules.recall(), go()]);
    chains.set(&attempt, once);

    let attempt = || rule![jump(&attempt)];
    let mut all = vec![list()];
    if class.linked {
        chains.set("sticky-adopt", rules.adopt());
        let adopt = || rule![jump("sticky-adopt")];
        all.extend([adopt(), attempt(), list()]);
        all.extend(rules.move_to_sibling());
        all.extend([list(), rules.forget(), adopt()]);
    }
    all.extend([attempt(), list(), rules.forget(), attempt(), list()]);
    // The map of clients is full: serve the client without remembering it.
    all.extend(draws);
    all.push(go());
    chains.set(&class.chain(), all);
}

/// From an entry, or a route, back to its list.
fn list() -> Vec<Expr> {
    mask_priority(STICKY_LIST_MASK)
}

/// The chain that draws an entry. After a hit `meta priority` holds an entry, not a list: a second draw misses and changes nothing.
fn sticky_draw(modulus: u32) -> (String, Vec<Expr>) {
    let rule = rule![load_priority(0), draw(modulus, 1), map(SetId::StickySlots.name()), set_priority()];
    (format!("sticky-draw-{modulus}"), rule)
}

struct Rules {
    build: ExpressionBuilder,
    class: StickyClass,
}

impl Rules {
    /// From an entry: stores it for the client in its list, or renews the timeout of the one that is stored.
    fn remember(&self) -> Vec<Expr> {
        let value = self.build.client_value();
        rule![
            self.build.client_key(Some(STICKY_LIST_MASK)),
            load_priority(value),
            update(SetId::Affinity.name(), value, Duration::from_secs(self.class.timeout.into())),
        ]
    }

    /// From a list to the client's entry, if there is one.
    fn recall(&self) -> Vec<Expr> {
        rule![self.build.client_key(None), map(SetId::Affinity.name()), set_priority()]
    }

    /// From a list: deletes the client's entry.
    fn forget(&self) -> Vec<Expr> {
        let value = self.build.client_value();
        rule![self.build.client_key(None), load_priority(value), delete(SetId::Affinity.name(), value)]
    }

    /// From an entry to its endpoint.
    fn go(&self) -> Vec<Expr> {
        rule![load_priority(0), map(SetId::StickyEndpoints.name()), self.build.translate()]
    }

    /// From a list to the client's entry in the sibling list, if it has one there.
    fn adopt(&self) -> Vec<Vec<Expr>> {
        vec![flip_priority(SIBLING), self.recall(), flip_priority(SIBLING)]
    }

    /// From a list whose entry for the client has no endpoint any more: stores the entry in the sibling list, where the endpoint may
    /// still be, unless the client has one there.
    fn move_to_sibling(&self) -> Vec<Vec<Expr>> {
        vec![self.recall(), flip_priority(SIBLING), self.remember(), flip_priority(SIBLING)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of a chain without those that draw, of which there are always as many.
    fn text(linked: bool, chain: &str) -> String {
        let mut chains = Chains::default();
        let class = StickyClass { timeout: 600, draw: Draw::UpTo(2), linked };
        add_rules(Family::V4, [class].into_iter(), &mut chains);
        let text = chains.text(Family::V4, chain);
        let (draws, others): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.contains("sticky-draw-"));
        assert!(draws.len() == 14 || draws.is_empty());
        others.into_iter().map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_port_with_one_list_uses_that_list_only() {
        insta::assert_snapshot!(text(false, "sticky-600s-2"), @r"
        meta priority set meta priority & ffff:c000
        jump sticky-600s-2-try
        meta priority set meta priority & ffff:c000
        delete @client-affinity { ip saddr . meta priority : meta priority }
        jump sticky-600s-2-try
        meta priority set meta priority & ffff:c000
        jump sticky-go
        ");
        assert_eq!(text(false, "sticky-600s-2-try"), text(true, "sticky-600s-2-try"));
        insta::assert_snapshot!(text(false, "sticky-600s-2-try"), @r"
        update @client-affinity { ip saddr . meta priority & ffff:c000 timeout 10m : meta priority }
        meta priority set meta priority & ffff:c000
        meta priority set ip saddr . meta priority map @client-affinity
        jump sticky-go
        ");
    }

    #[test]
    fn a_port_with_two_lists_looks_up_clients_in_both() {
        insta::assert_snapshot!(text(true, "sticky-600s-2-linked"), @r"
        meta priority set meta priority & ffff:c000
        jump sticky-adopt
        jump sticky-600s-2-try
        meta priority set meta priority & ffff:c000
        meta priority set ip saddr . meta priority map @client-affinity
        meta priority set meta priority ^ 2000:0000
        update @client-affinity { ip saddr . meta priority & ffff:c000 timeout 10m : meta priority }
        meta priority set meta priority ^ 2000:0000
        meta priority set meta priority & ffff:c000
        delete @client-affinity { ip saddr . meta priority : meta priority }
        jump sticky-adopt
        jump sticky-600s-2-try
        meta priority set meta priority & ffff:c000
        delete @client-affinity { ip saddr . meta priority : meta priority }
        jump sticky-600s-2-try
        meta priority set meta priority & ffff:c000
        jump sticky-go
        ");
        insta::assert_snapshot!(text(true, "sticky-adopt"), @r"
        meta priority set meta priority ^ 2000:0000
        meta priority set ip saddr . meta priority map @client-affinity
        meta priority set meta priority ^ 2000:0000
        ");
    }
}
