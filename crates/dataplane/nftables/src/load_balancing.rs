//! Drawing a random endpoint from a list.
//!
//! A slot that is not filled is a miss: the rule ends, and the next one draws again. Lists with a class of their own only miss
//! while they change; then their first slot is the last resort.

use portwarden_netlink::nftables::{Expr, Verdict};

use crate::chains::{Chains, RuleContext};
use crate::expressions::{dispatch_priority, draw, jump, map, masked_priority, rule};
use crate::kernel::number_key;
use crate::plan::Plan;
use crate::route::{CLASS_MASK, Draw, LIST_MASK, class_bits};
use crate::sets::SetId;

/// How often a draw is repeated if it hits a slot that is being emptied (or, in large lists, is not filled).
const REDRAWS: usize = 12;

/// Each modulus has one rule, to which others jump: the kernel checks every new element against every rule that uses its map.
pub(crate) fn add_rules(context: &RuleContext<'_>, chains: &mut Chains) {
    for class in Draw::all() {
        let modulus = class.modulus();
        let pick = rule![
            masked_priority(LIST_MASK),
            draw(modulus, 1),
            map(SetId::Endpoints.name()),
            context.build().translate()
        ];
        chains.set(&draw_chain(modulus), vec![pick]);
        let again = moduli(class).into_iter().skip(1).map(|modulus| rule![jump(&draw_chain(modulus))]);
        chains.set(&redraw_chain(class), again.collect());
    }
}

/// The elements that lead from the class of a route to its chain.
pub(crate) fn add_classes(plan: &mut Plan) {
    for class in Draw::all() {
        let bits = class_bits(class.class());
        plan.add_class(bits, &Verdict::Jump(draw_chain(class.modulus()).into()));
        plan.add_verdict(SetId::Redraws, number_key(bits), &Verdict::Goto(redraw_chain(class).into()));
    }
}

/// Draws an endpoint for the route in `meta priority`. The chain of an ordinary class returns if it drew a slot that is not filled.
pub(crate) fn pick_endpoint() -> [Vec<Expr>; 2] {
    [
        dispatch_priority(CLASS_MASK, SetId::Classes.name()),
        dispatch_priority(CLASS_MASK, SetId::Redraws.name()),
    ]
}

/// The moduli to draw from, one attempt after the other.
pub(crate) fn moduli(draw: Draw) -> Vec<u32> {
    match draw {
        Draw::Exactly(1) | Draw::UpTo(1) => vec![1],
        Draw::Exactly(count) => vec![count, count, 1],
        Draw::UpTo(limit) => std::iter::repeat_n(limit, REDRAWS).chain([limit / 2, 1]).collect(),
    }
}

fn draw_chain(modulus: u32) -> String {
    format!("draw-{modulus}")
}

fn redraw_chain(draw: Draw) -> String {
    format!("redraw-{}", draw.modulus())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_ends_with_the_first_slot() {
        assert_eq!(moduli(Draw::Exactly(1)), [1]);
        assert_eq!(moduli(Draw::Exactly(3)), [3, 3, 1]);
        let large = moduli(Draw::UpTo(64));
        assert_eq!(large.len(), REDRAWS + 2);
        assert_eq!(large[REDRAWS..], [32, 1]);
    }

    /// A redraw chain jumps to the chain of its modulus, of half of it, and of 1: all of them must exist.
    #[test]
    fn every_modulus_has_a_chain() {
        let chains: Vec<u32> = Draw::all().map(Draw::modulus).collect();
        for draw in Draw::all() {
            assert!(moduli(draw).iter().all(|modulus| chains.contains(modulus)), "{draw:?}");
        }
    }
}
