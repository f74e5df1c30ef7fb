//! How an endpoint is chosen, and what happens on the way to it.

use portwarden_model::{Backend, Pool};

use super::own::OwnChains;
use super::{Port, rule};
use crate::names::{MARK_MASQ, ServiceChain};

impl Port<'_> {
    /// The rules of `chain` that choose one endpoint of a pool.
    pub(super) fn dispatch_rules(&self, chain: ServiceChain, pool: &Pool, rules: &mut String) {
        // A client that was here before goes back to its endpoint.
        if let Some(seconds) = self.port.affinity {
            for backend in pool.iter() {
                let endpoint = self.chains.endpoint(backend.address());
                self.start_dispatch(chain, backend, rules);
                rule!(
                    rules,
                    " -m recent --name {endpoint} --rcheck --seconds {seconds} --reap -j {endpoint}"
                );
            }
        }
        let last = pool.len().saturating_sub(1);
        for (index, backend) in pool.iter().enumerate() {
            let endpoint = self.chains.endpoint(backend.address());
            self.start_dispatch(chain, backend, rules);
            if index < last {
                let probability = Probability(pool.len() - index);
                rule!(rules, " -m statistic --mode random --probability {probability} -j {endpoint}");
            } else {
                rule!(rules, " -j {endpoint}");
            }
        }
    }

    fn start_dispatch(&self, chain: ServiceChain, backend: Backend, rules: &mut String) {
        use std::fmt::Write;
        let written = if self.context.large {
            write!(rules, "-A {chain}")
        } else {
            write!(rules, "-A {chain} -m comment --comment \"{} -> {}\"", self.name, backend.address())
        };
        written.expect("writing to a string cannot fail");
    }

    /// One chain for each endpoint that some policy can reach.
    pub(super) fn endpoint_chains(&self, own: &mut OwnChains) {
        let p = self.protocol;
        for backend in self.port.reachable() {
            let chain = self.chains.endpoint(backend.address());
            own.add(chain, |rules| {
                // A connection from an endpoint to itself must come back through this node.
                self.start_endpoint(chain, rules);
                rule!(rules, " -s {} -j {MARK_MASQ}", backend.ip);
                self.start_endpoint(chain, rules);
                let address = backend.address();
                if self.port.affinity.is_some() {
                    rule!(
                        rules,
                        " -m recent --name {chain} --set -m {p} -p {p} -j DNAT --to-destination {address}"
                    );
                } else {
                    rule!(rules, " -m {p} -p {p} -j DNAT --to-destination {address}");
                }
            });
        }
    }

    fn start_endpoint(&self, chain: ServiceChain, rules: &mut String) {
        use std::fmt::Write;
        let written = if self.context.large {
            write!(rules, "-A {chain}")
        } else {
            write!(rules, "-A {chain} -m comment --comment {}", self.name)
        };
        written.expect("writing to a string cannot fail");
    }
}

/// One in so many, with ten decimals: the kernel stores another number if it is given more.
struct Probability(usize);

impl std::fmt::Display for Probability {
    #[expect(clippy::cast_precision_loss, reason = "no pool has 2^53 endpoints")]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.10}", 1.0 / self.0 as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Probability;

    #[test]
    fn probabilities_have_ten_decimals() {
        for (one_in, text) in [
            (2, "0.5000000000"),
            (3, "0.3333333333"),
            (6, "0.1666666667"),
            (44, "0.0227272727"),
            (100_001, "0.0000099999"),
        ] {
            assert_eq!(Probability(one_in).to_string(), text);
        }
    }
}
