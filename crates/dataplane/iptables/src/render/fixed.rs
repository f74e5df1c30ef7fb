//! Rules that no Service adds to: masquerading, forwarding, loopback protection, and the way to the node ports.

use std::fmt;

use portwarden_model::{Family, NodePortAddresses};
use portwarden_xtables::Table;

use super::rule;
use crate::names::{FIREWALL, FORWARD, INVALID_COUNTER, MARK_MASQ, NODE_PORTS, POSTROUTING, SERVICES};

/// The bit of the packet mark that asks for masquerading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(pub u32);

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// What happens to forwarded packets that conntrack cannot make sense of. Let through, they can reset good connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InvalidPackets {
    /// They pass: with `nf_conntrack_tcp_be_liberal` conntrack calls none of the harmless ones invalid.
    Pass,
    /// They are dropped.
    Drop,
    /// They are dropped and counted.
    DropAndCount,
}

/// The rules that no Service adds to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FixedRules {
    forward: String,
    firewall: Option<String>,
    postrouting: String,
    mark_masq: String,
    node_ports: String,
}

impl FixedRules {
    /// Renders them. With `loopback` node ports answer on IPv4 loopback addresses too.
    pub(crate) fn render(
        family: Family,
        mark: Mark,
        invalid: InvalidPackets,
        loopback: bool,
        node_ports: &NodePortAddresses,
    ) -> FixedRules {
        FixedRules {
            forward: forward(mark, invalid),
            firewall: (family == Family::V4 && loopback).then(firewall),
            postrouting: postrouting(mark),
            mark_masq: format!("-A {MARK_MASQ} -j MARK --or-mark {mark}\n"),
            node_ports: to_node_ports(family, loopback, node_ports),
        }
    }

    /// The chains without any line of a Service, with their rules.
    pub(crate) fn chains(&self) -> impl Iterator<Item = (Table, &'static str, &str)> {
        let firewall = self.firewall.as_deref().map(|rules| (Table::Filter, FIREWALL, rules));
        [
            (Table::Filter, FORWARD, self.forward.as_str()),
            (Table::Nat, POSTROUTING, self.postrouting.as_str()),
            (Table::Nat, MARK_MASQ, self.mark_masq.as_str()),
        ]
        .into_iter()
        .chain(firewall)
    }

    /// The last rules of the nat table's KUBE-SERVICES, after those of all Services.
    pub(crate) fn to_node_ports(&self) -> &str {
        &self.node_ports
    }

    /// How many rules there are in a table.
    pub(crate) fn count(&self, table: Table) -> usize {
        let chains = self.chains().filter(|(of, _, _)| *of == table);
        let tail = if table == Table::Nat { self.node_ports.lines().count() } else { 0 };
        chains.map(|(_, _, rules)| rules.lines().count()).sum::<usize>() + tail
    }
}

fn forward(mark: Mark, invalid: InvalidPackets) -> String {
    let mut rules = String::new();
    match invalid {
        InvalidPackets::Pass => {}
        InvalidPackets::Drop => rule!(rules, "-A {FORWARD} -m conntrack --ctstate INVALID -j DROP"),
        InvalidPackets::DropAndCount => rule!(
            rules,
            "-A {FORWARD} -m conntrack --ctstate INVALID -m nfacct --nfacct-name {INVALID_COUNTER} -j DROP"
        ),
    }
    rule!(
        rules,
        "-A {FORWARD} -m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark}/{mark} -j ACCEPT"
    );
    rule!(
        rules,
        "-A {FORWARD} -m comment --comment \"kubernetes forwarding conntrack rule\" \
         -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    );
    rules
}

/// Node ports on loopback need `route_localnet`, which lets neighbours send packets to loopback addresses; this stops them.
/// The kubelet keeps the very same rule in the very same chain.
fn firewall() -> String {
    format!(
        "-A {FIREWALL} -m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 \
         -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n"
    )
}

fn postrouting(mark: Mark) -> String {
    let mut rules = String::new();
    rule!(rules, "-A {POSTROUTING} -m mark ! --mark {mark}/{mark} -j RETURN");
    // Cleared, so that a packet which passes here again (in a tunnel) is not masqueraded again.
    rule!(rules, "-A {POSTROUTING} -j MARK --xor-mark {mark}");
    rule!(
        rules,
        "-A {POSTROUTING} -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully"
    );
    rules
}

const TO_NODE_PORTS: &str = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";

fn to_node_ports(family: Family, loopback: bool, node_ports: &NodePortAddresses) -> String {
    let mut rules = String::new();
    let loopback_works = family == Family::V4 && loopback;
    match node_ports {
        NodePortAddresses::All => {
            let except = match family {
                Family::V6 => " ! -d ::1/128",
                Family::V4 if !loopback => " ! -d 127.0.0.0/8",
                Family::V4 => "",
            };
            rule!(
                rules,
                "-A {SERVICES} -m comment --comment \"{TO_NODE_PORTS}\" -m addrtype --dst-type LOCAL{except} -j {NODE_PORTS}"
            );
        }
        NodePortAddresses::Only(ips) => {
            for ip in ips.iter().filter(|ip| loopback_works || !ip.is_loopback()) {
                rule!(
                    rules,
                    "-A {SERVICES} -m comment --comment \"{TO_NODE_PORTS}\" -d {ip} -j {NODE_PORTS}"
                );
            }
        }
    }
    rules
}
