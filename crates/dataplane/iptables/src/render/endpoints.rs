//! How an endpoint is chosen, and what happens on the way to it. These rules are nearly all of a large rule set.

use std::net::SocketAddr;
use std::sync::LazyLock;

use portwarden_model::Pool;

use super::address::AddressText;
use super::own::OwnChains;
use super::{Port, push};
use crate::names::{MARK_MASQ, ServiceChain};

/// One endpoint as it appears in rules.
pub(super) struct Target {
    address: SocketAddr,
    text: AddressText,
    chain: ServiceChain,
}

impl Port<'_> {
    /// All endpoints that some policy can reach, in the order of pools.
    pub(super) fn targets(&self) -> Vec<Target> {
        let reachable = self.port.reachable().into_iter();
        let target = |address: SocketAddr| {
            let text = AddressText::new(address);
            Target { address, chain: self.chains.endpoint(text.as_str()), text }
        };
        reachable.map(|backend| target(backend.address())).collect()
    }

    /// The names of the chains of [`Port::targets`].
    pub(super) fn endpoint_names(&self) -> impl Iterator<Item = ServiceChain> {
        let reachable = self.port.reachable().into_iter();
        reachable.map(|backend| self.chains.endpoint(AddressText::new(backend.address()).as_str()))
    }

    /// The rules of `chain` that choose one endpoint of a pool. `targets` holds at least the pool's.
    pub(super) fn dispatch_rules(
        &self,
        chain: ServiceChain,
        pool: &Pool,
        targets: &[Target],
        rules: &mut String,
    ) {
        let chain = chain.as_str();
        // A client that was here before goes back to its endpoint.
        if let Some(seconds) = self.port.affinity {
            let seconds = seconds.to_string();
            for target in in_pool(pool, targets) {
                let endpoint = target.chain.as_str();
                self.start_dispatch(chain, target, rules);
                push(rules, &[" -m recent --name ", endpoint, " --rcheck --seconds ", &seconds, " --reap"]);
                push(rules, &[" -j ", endpoint, "\n"]);
            }
        }
        for (target, left) in in_pool(pool, targets).zip((1..=pool.len()).rev()) {
            self.start_dispatch(chain, target, rules);
            if left > 1 {
                rules.push_str(" -m statistic --mode random --probability ");
                push_probability(left, rules);
            }
            push(rules, &[" -j ", target.chain.as_str(), "\n"]);
        }
    }

    fn start_dispatch(&self, chain: &str, target: &Target, rules: &mut String) {
        push(rules, &["-A ", chain]);
        if !self.context.large {
            push(rules, &[" -m comment --comment \"", &self.name, " -> ", target.text.as_str(), "\""]);
        }
    }

    /// One chain for each endpoint.
    pub(super) fn endpoint_chains(&self, targets: &[Target], own: &mut OwnChains) {
        let p = self.protocol;
        for target in targets {
            let chain = target.chain.as_str();
            own.add(target.chain, |rules| {
                // A connection from an endpoint to itself must come back through this node.
                self.start_endpoint(chain, rules);
                push(rules, &[" -s ", target.text.ip(), " -j ", MARK_MASQ, "\n"]);
                self.start_endpoint(chain, rules);
                if self.port.affinity.is_some() {
                    push(rules, &[" -m recent --name ", chain, " --set"]);
                }
                push(
                    rules,
                    &[" -m ", p, " -p ", p, " -j DNAT --to-destination ", target.text.as_str(), "\n"],
                );
            });
        }
    }

    fn start_endpoint(&self, chain: &str, rules: &mut String) {
        push(rules, &["-A ", chain]);
        if !self.context.large {
            push(rules, &[" -m comment --comment ", &self.name]);
        }
    }
}

/// The targets that are in a pool. Both are in the same order.
fn in_pool<'a>(pool: &Pool, targets: &'a [Target]) -> impl Iterator<Item = &'a Target> {
    let mut targets = targets.iter();
    pool.iter().filter_map(move |backend| targets.find(|target| target.address == backend.address()))
}

/// Those of the usual pools: formatting them takes longer than the rest of their rules.
static PROBABILITIES: LazyLock<Vec<String>> = LazyLock::new(|| (0..100).map(probability).collect());

fn push_probability(one_in: usize, rules: &mut String) {
    match PROBABILITIES.get(one_in) {
        Some(known) => rules.push_str(known),
        None => rules.push_str(&probability(one_in)),
    }
}

/// One in so many, with ten decimals: the kernel stores another number if it is given more.
#[expect(clippy::cast_precision_loss, reason = "no pool has 2^53 endpoints")]
fn probability(one_in: usize) -> String {
    format!("{:.10}", 1.0 / one_in as f64)
}

#[cfg(test)]
mod tests {
    use super::{probability, push_probability};

    #[test]
    fn probabilities_have_ten_decimals() {
        for (one_in, text) in [
            (2, "0.5000000000"),
            (3, "0.3333333333"),
            (6, "0.1666666667"),
            (44, "0.0227272727"),
            // Exactly between two: rounds to even.
            (2048, "0.0004882812"),
            (100_001, "0.0000099999"),
        ] {
            assert_eq!(probability(one_in), text);
            let mut pushed = String::new();
            push_probability(one_in, &mut pushed);
            assert_eq!(pushed, text);
        }
    }
}
