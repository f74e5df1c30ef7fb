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
