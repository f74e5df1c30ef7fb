//! The rules in built-in chains that lead to ours.

use portwarden_xtables::Table;

use crate::names::{EXTERNAL_SERVICES, FIREWALL, FORWARD, NODE_PORTS, POSTROUTING, PROXY_FIREWALL, SERVICES};

/// A rule in a built-in chain that leads to one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Jump {
    /// The table of both chains.
    pub(crate) table: Table,
    /// The built-in chain.
    pub(crate) from: &'static str,
    /// Our chain.
    pub(crate) to: &'static str,
    /// Whether only first packets of connections jump.
    new_connections: bool,
    comment: Option<&'static str>,
}

/// All jumps, in the order in which they are inserted: each goes to the front of its chain, so the last one stands first.
pub(crate) const JUMPS: [Jump; 14] = [
    jump(Table::Filter, "INPUT", EXTERNAL_SERVICES, true, EXTERNAL),
    jump(Table::Filter, "FORWARD", EXTERNAL_SERVICES, true, EXTERNAL),
    jump(Table::Filter, "INPUT", NODE_PORTS, false, "kubernetes health check service ports"),
    jump(Table::Filter, "FORWARD", SERVICES, true, PORTALS),
    jump(Table::Filter, "OUTPUT", SERVICES, true, PORTALS),
    jump(Table::Filter, "FORWARD", FORWARD, false, "kubernetes forwarding rules"),
    jump(Table::Filter, "INPUT", PROXY_FIREWALL, true, LOAD_BALANCER),
    jump(Table::Filter, "OUTPUT", PROXY_FIREWALL, true, LOAD_BALANCER),
    jump(Table::Filter, "FORWARD", PROXY_FIREWALL, true, LOAD_BALANCER),
    jump(Table::Nat, "OUTPUT", SERVICES, false, PORTALS),
    jump(Table::Nat, "PREROUTING", SERVICES, false, PORTALS),
    jump(Table::Nat, "POSTROUTING", POSTROUTING, false, "kubernetes postrouting rules"),
    bare_jump("INPUT"),
    bare_jump("OUTPUT"),
];

const EXTERNAL: &str = "kubernetes externally-visible service portals";
const PORTALS: &str = "kubernetes service portals";
const LOAD_BALANCER: &str = "kubernetes load balancer firewall";

const fn jump(
    table: Table,
    from: &'static str,
    to: &'static str,
    new_connections: bool,
    comment: &'static str,
) -> Jump {
    Jump { table, from, to, new_connections, comment: Some(comment) }
}

/// To the chain shared with the kubelet, exactly as the kubelet writes it.
const fn bare_jump(from: &'static str) -> Jump {
    Jump { table: Table::Filter, from, to: FIREWALL, new_connections: false, comment: None }
}

impl Jump {
    /// Whether the kubelet needs it too: then it stays when we clean up.
    pub(crate) fn is_shared(&self) -> bool {
        self.to == FIREWALL
    }

    /// The rule as arguments of `iptables`, after the chain.
    pub(crate) fn arguments(&self) -> Vec<&'static str> {
        let mut arguments = Vec::new();
        if self.new_connections {
            arguments.extend(["-m", "conntrack", "--ctstate", "NEW"]);
        }
        if let Some(comment) = self.comment {
            arguments.extend(["-m", "comment", "--comment", comment]);
        }
        arguments.extend(["-j", self.to]);
        arguments
    }

    /// The line of `iptables-restore` that puts the rule at the front of its chain.
    pub(crate) fn insert_line(&self) -> String {
        format!("-I {}\n", self.rule())
    }

    /// The line of `iptables-restore` that would append the rule.
    pub(crate) fn append_line(&self) -> String {
        format!("-A {}", self.rule())
    }

    fn rule(&self) -> String {
        let state = if self.new_connections { " -m conntrack --ctstate NEW" } else { "" };
        let comment =
            self.comment.map(|comment| format!(" -m comment --comment \"{comment}\"")).unwrap_or_default();
        format!("{}{state}{comment} -j {}", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conntrack_stands_before_the_comment() {
        assert_eq!(
            JUMPS[0].insert_line(),
            "-I INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" \
             -j KUBE-EXTERNAL-SERVICES\n"
        );
        assert_eq!(JUMPS[13].insert_line(), "-I OUTPUT -j KUBE-FIREWALL\n");
    }

    #[test]
    fn arguments_say_the_same_as_the_line() {
        for jump in JUMPS {
            let words = jump.arguments().into_iter().map(|word| match word.contains(' ') {
                true => format!("\"{word}\""),
                false => word.to_owned(),
            });
            let line = format!("-A {} {}", jump.from, words.collect::<Vec<_>>().join(" "));
            assert_eq!(line, jump.append_line());
        }
    }

    #[test]
    fn only_the_kubelets_chain_is_shared() {
        assert_eq!(JUMPS.iter().filter(|jump| jump.is_shared()).count(), 2);
    }
}
