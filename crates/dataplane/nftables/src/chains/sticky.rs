//! The rules of session affinity.

use std::time::Duration;

use portwarden_netlink::nftables::Expr;

use super::{Chains, Part, moduli};
use crate::phrase::{
    Phrases, delete, draw, flip_priority, jump, load_priority, map, mask_priority, set_priority, update,
};
use crate::route::{Draw, SIBLING, STICKY_LIST_MASK};
use crate::sets::SetId;

/// A way to draw with session affinity.
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
    /// The name of its chain.
    pub(crate) fn chain(self) -> String {
        format!("{}{}", self.stem(), if self.linked { "-linked" } else { "" })
    }

    fn stem(self) -> String {
        format!("sticky-{}s-{}", self.timeout, self.draw.modulus())
    }
}

/// Adds the chains of a class.
///
/// A client is given an entry unless it has one, which renews the one it has; then it goes where its entry points. If that endpoint is
/// gone, the entry is deleted and the client starts over, with the same packet.
pub(super) fn add(phrases: Phrases, class: StickyClass, chains: &mut Chains) {
    let rules = Rules { phrases, class };
    let attempt = format!("{}-try", class.stem());
    let draws: Vec<Vec<Expr>> = moduli(class.draw)
        .into_iter()
        .map(|modulus| {
            let (name, rule) = sticky_draw(modulus);
            chains.chain(&name, vec![rule]);
            rule![jump(&name)]
        })
        .collect();
    chains.chain("sticky-go", vec![rules.go()]);
    let go = || rule![jump("sticky-go")];
    let mut once = draws.clone();
    once.extend([rules.remember(), list(), rules.recall(), go()]);
    chains.chain(&attempt, once);

    let attempt = || rule![jump(&attempt)];
    let mut all = vec![list()];
    if class.linked {
        chains.chain("sticky-adopt", rules.adopt());
        let adopt = || rule![jump("sticky-adopt")];
        all.extend([adopt(), attempt(), list()]);
        all.extend(rules.hand_on());
        all.extend([list(), rules.forget(), adopt()]);
    }
    all.extend([attempt(), list(), rules.forget(), attempt(), list()]);
    // No room for another client: it is served all the same, without being remembered.
    all.extend(draws);
    all.push(go());
    chains.chain(&class.chain(), all);
}

/// From an entry, or a route, back to its list.
fn list() -> Vec<Expr> {
    mask_priority(STICKY_LIST_MASK)
}

/// The chain that draws an entry below a modulus. An entry is no list, so a second draw after a hit finds nothing and changes nothing.
fn sticky_draw(modulus: u32) -> (String, Vec<Expr>) {
    let rule = rule![load_priority(0), draw(modulus, 1), map(SetId::StickySlots.name()), set_priority()];
    (format!("sticky-draw-{modulus}"), rule)
}

struct Rules {
    phrases: Phrases,
    class: StickyClass,
}

impl Rules {
    /// From an entry: remembers it for the client in its list, or renews what is remembered there.
    fn remember(&self) -> Vec<Expr> {
        let value = self.phrases.client_value();
        rule![
            self.phrases.client_key(Some(STICKY_LIST_MASK)),
            load_priority(value),
            update(SetId::Affinity.name(), value, Duration::from_secs(self.class.timeout.into())),
        ]
    }

    /// From a list to the client's entry, if there is one.
    fn recall(&self) -> Vec<Expr> {
        rule![self.phrases.client_key(None), map(SetId::Affinity.name()), set_priority()]
    }

    /// From a list: forgets the client's entry.
    fn forget(&self) -> Vec<Expr> {
        let value = self.phrases.client_value();
        rule![self.phrases.client_key(None), load_priority(value), delete(SetId::Affinity.name(), value)]
    }

    /// From an entry to its endpoint.
    fn go(&self) -> Vec<Expr> {
        rule![load_priority(0), map(SetId::StickyEndpoints.name()), self.phrases.translate()]
    }

    /// From a list to the entry that the client has in its sibling, if there is one: who is new here may be known there.
    fn adopt(&self) -> Vec<Vec<Expr>> {
        vec![flip_priority(SIBLING), self.recall(), flip_priority(SIBLING)]
    }

    /// From a list whose entry for the client leads nowhere any more: if the client is unknown in the sibling, it is remembered there,
    /// where the endpoint may still be.
    fn hand_on(&self) -> Vec<Vec<Expr>> {
        vec![self.recall(), flip_priority(SIBLING), self.remember(), flip_priority(SIBLING)]
    }
}

#[cfg(test)]
mod tests {
    use portwarden_model::Family;
    use portwarden_netlink::nftables::{self, TableId};

    use super::super::to_rules;
    use super::*;

    /// The rules of a chain but those that draw, of which there are always as many.
    fn text(linked: bool, chain: &str) -> String {
        let mut chains = Chains::default();
        let class = StickyClass { timeout: 600, draw: Draw::UpTo(2), linked };
        chains.add_sticky(Family::V4, [class].into_iter());
        let table = TableId::new(nftables::Family::Ip, "kube-proxy");
        let (name, rules) = chains.iter().find(|(name, _)| name.as_ref() == chain).unwrap();
        let lines: Vec<String> = to_rules(&table, name, rules).map(|rule| rule.to_string()).collect();
        let (draws, others): (Vec<&String>, Vec<&String>) =
            lines.iter().partition(|line| line.contains("sticky-draw-"));
        assert!(draws.len() == 14 || draws.is_empty());
        others.into_iter().map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn one_list_is_looked_at_alone() {
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
    fn of_two_lists_the_other_is_asked_for_clients() {
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
