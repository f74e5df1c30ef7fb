//! The static iptables rules, in the form that `iptables-save` prints. Pure.
//!
//! They are kube-proxy's, line by line. A rule that looks into a set exists only while the set has entries, unless a comment says otherwise.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use portwarden_model::{Family, Masquerade, PodTraffic, Protocol};
use portwarden_xtables::Table;

use crate::names::SetId;

/// What the rules depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleInput {
    /// The sets that have entries.
    pub filled: BTreeSet<SetId>,
    /// Whose connections to cluster addresses are masqueraded.
    pub cluster_ip_masquerade: Masquerade,
    /// How pod traffic is identified.
    pub pod_traffic: PodTraffic,
    /// Load-balancer addresses that processes of the node may not use.
    pub source_drops: BTreeSet<SourceDrop>,
}

/// A load-balancer address that processes of the node may not use. Their packets carry it as their source, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SourceDrop {
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

/// A chain with its rules: whole lines with `-A`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Chain {
    pub table: Table,
    pub name: &'static str,
    pub rules: String,
}

/// A rule in a built-in chain that leads to one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Jump {
    pub table: Table,
    pub from: &'static str,
    pub to: &'static str,
    pub comment: &'static str,
}

/// All jumps, in the order in which they are inserted: each goes to the front of its chain, so the last one stands first.
pub const JUMPS: [Jump; 9] = [
    jump(Table::Nat, "OUTPUT", SERVICES, "kubernetes service portals"),
    jump(Table::Nat, "PREROUTING", SERVICES, "kubernetes service portals"),
    jump(Table::Nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
    jump(Table::Filter, "FORWARD", FORWARD, "kubernetes forwarding rules"),
    jump(Table::Filter, "INPUT", NODE_PORT, "kubernetes health check rules"),
    jump(Table::Filter, "INPUT", PROXY_FIREWALL, "kube-proxy firewall rules"),
    jump(Table::Filter, "FORWARD", PROXY_FIREWALL, "kube-proxy firewall rules"),
    jump(Table::Filter, "INPUT", IPVS_FILTER, "kubernetes ipvs access filter"),
    jump(Table::Filter, "OUTPUT", IPVS_OUT_FILTER, "kubernetes ipvs access filter"),
];

pub(crate) const SERVICES: &str = "KUBE-SERVICES";
pub(crate) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(crate) const NODE_PORT: &str = "KUBE-NODE-PORT";
pub(crate) const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
pub(crate) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(crate) const FORWARD: &str = "KUBE-FORWARD";
pub(crate) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
pub(crate) const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
pub(crate) const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";
pub(crate) const IPVS_OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";

const fn jump(table: Table, from: &'static str, to: &'static str, comment: &'static str) -> Jump {
    Jump { table, from, to, comment }
}

impl Jump {
    /// The rule as arguments of `iptables`, after the chain.
    pub fn arguments(&self) -> [&'static str; 6] {
        ["-m", "comment", "--comment", self.comment, "-j", self.to]
    }

    /// The line that `iptables-save` prints.
    pub fn saved_line(&self) -> String {
        format!("-A {}", self.rule())
    }

    /// The line of `iptables-restore` that puts the rule at the front of its chain.
    pub fn insert_line(&self) -> String {
        format!("-I {}\n", self.rule())
    }

    fn rule(&self) -> String {
        format!("{} -m comment --comment \"{}\" -j {}", self.from, self.comment, self.to)
    }
}

/// All chains of a family, in the order in which kube-proxy names them.
pub fn render(family: Family, mark: u32, input: &RuleInput) -> Vec<Chain> {
    let renderer = Renderer { family, mark, input };
    vec![
        renderer.chain(Table::Nat, SERVICES, Renderer::services),
        renderer.chain(Table::Nat, POSTROUTING, Renderer::postrouting),
        renderer.chain(Table::Nat, NODE_PORT, Renderer::node_ports),
        renderer.chain(Table::Nat, LOAD_BALANCER, Renderer::load_balancer),
        renderer.chain(Table::Nat, MARK_MASQ, Renderer::mark_masquerade),
        renderer.chain(Table::Filter, FORWARD, Renderer::forward),
        renderer.chain(Table::Filter, NODE_PORT, Renderer::health_checks),
        renderer.chain(Table::Filter, PROXY_FIREWALL, Renderer::proxy_firewall),
        renderer.chain(Table::Filter, SOURCE_RANGES, Renderer::source_ranges),
        renderer.chain(Table::Filter, IPVS_FILTER, Renderer::ipvs_filter),
        renderer.chain(Table::Filter, IPVS_OUT_FILTER, Renderer::ipvs_out_filter),
    ]
}

/// Which directions of a packet a rule looks up in a set.
const DESTINATION: &str = "dst";
const DESTINATION_PORT: &str = "dst,dst";
const SOURCE_AND_DESTINATION_PORT: &str = "src,dst";
const DESTINATION_PORT_SOURCE: &str = "dst,dst,src";

struct Renderer<'a> {
    family: Family,
    mark: u32,
    input: &'a RuleInput,
}

impl Renderer<'_> {
    fn chain(&self, table: Table, name: &'static str, fill: fn(&Self, &mut Lines)) -> Chain {
        let mut lines = Lines { chain: name, text: String::new() };
        fill(self, &mut lines);
        Chain { table, name, rules: lines.text }
    }

    fn services(&self, lines: &mut Lines) {
        let loopback = match self.family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1/128",
        };
        lines.push(format_args!("-s {loopback} -j RETURN"));
        self.if_filled(SetId::LoadBalancer, |set| {
            lines.push(format_args!("{} -j {LOAD_BALANCER}", self.commented(set, DESTINATION_PORT)));
        });
        self.if_filled(SetId::ClusterIp, |set| lines.push(format_args!("{}", self.cluster_ip(set))));
        self.if_filled(SetId::ExternalIp, |set| {
            lines.push(format_args!("{} -j {MARK_MASQ}", self.commented(set, DESTINATION_PORT)));
        });
        for set in [SetId::ExternalIp, SetId::ExternalIpLocal] {
            self.if_filled(set, |set| {
                let look_up = self.commented(set, DESTINATION_PORT);
                lines.push(format_args!(
                    "{look_up} -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT"
                ));
                lines.push(format_args!("{look_up} -m addrtype --dst-type LOCAL -j ACCEPT"));
            });
        }
        lines.push(format_args!("-m addrtype --dst-type LOCAL -j {NODE_PORT}"));
        for set in [SetId::ClusterIp, SetId::LoadBalancer] {
            self.if_filled(set, |set| {
                lines.push(format_args!("{} -j ACCEPT", self.look_up(set, DESTINATION_PORT)));
            });
        }
    }

    /// Who is masqueraded on the way to a cluster address.
    fn cluster_ip(&self, set: SetId) -> String {
        let others = match &self.input.pod_traffic {
            PodTraffic::Unknown => None,
            PodTraffic::From(net) => Some(format!("! -s {}", net.trunc())),
            PodTraffic::Interface(name) => Some(format!("! -i {name}")),
            PodTraffic::InterfacePrefix(prefix) => Some(format!("! -i {prefix}+")),
        };
        let (condition, directions) = match (self.input.cluster_ip_masquerade, others) {
            (Masquerade::Always, _) => (String::new(), DESTINATION_PORT),
            (_, Some(others)) => (format!("{others} "), DESTINATION_PORT),
            // A process of the node has the Service's address as its source, because that address is local.
            (_, None) => (String::new(), SOURCE_AND_DESTINATION_PORT),
        };
        format!("{condition}{} -j {MARK_MASQ}", self.commented(set, directions))
    }

    fn postrouting(&self, lines: &mut Lines) {
        let mark = self.mark;
        self.if_filled(SetId::LoopBack, |set| {
            lines.push(format_args!("{} -j MASQUERADE", self.commented(set, DESTINATION_PORT_SOURCE)));
        });
        lines.push(format_args!("-m mark ! --mark {mark:#x}/{mark:#x} -j RETURN"));
        lines.push(format_args!("-j MARK --set-xmark {mark:#x}/0x0"));
        lines.push(format_args!(
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully"
        ));
    }

    fn node_ports(&self, lines: &mut Lines) {
        for (protocol, local, all, directions) in [
            ("tcp", SetId::NodePortLocalTcp, SetId::NodePortTcp, DESTINATION),
            ("udp", SetId::NodePortLocalUdp, SetId::NodePortUdp, DESTINATION),
            ("sctp", SetId::NodePortLocalSctp, SetId::NodePortSctp, DESTINATION_PORT),
        ] {
            self.if_filled(local, |set| {
                lines.push(format_args!("-p {protocol} {} -j RETURN", self.commented(set, directions)));
            });
            self.if_filled(all, |set| {
                lines.push(format_args!("-p {protocol} {} -j {MARK_MASQ}", self.commented(set, directions)));
            });
        }
    }

    fn load_balancer(&self, lines: &mut Lines) {
        self.if_filled(SetId::LoadBalancerLocal, |set| {
            lines.push(format_args!("{} -j RETURN", self.commented(set, DESTINATION_PORT)));
        });
        lines.push(format_args!("-j {MARK_MASQ}"));
    }

    fn mark_masquerade(&self, lines: &mut Lines) {
        let mark = self.mark;
        lines.push(format_args!("-j MARK --set-xmark {mark:#x}/{mark:#x}"));
    }

    fn forward(&self, lines: &mut Lines) {
        let mark = self.mark;
        lines.push(format_args!(
            "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark:#x}/{mark:#x} -j ACCEPT"
        ));
        lines.push(format_args!(
            "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        ));
    }

    /// Always there, whether the set has entries or not.
    fn health_checks(&self, lines: &mut Lines) {
        let look_up = self.commented(SetId::HealthCheckNodePort, DESTINATION);
        lines.push(format_args!("{look_up} -j ACCEPT"));
    }

    fn proxy_firewall(&self, lines: &mut Lines) {
        self.if_filled(SetId::LoadBalancerFw, |set| {
            lines.push(format_args!("{} -j {SOURCE_RANGES}", self.commented(set, DESTINATION_PORT)));
        });
    }

    fn source_ranges(&self, lines: &mut Lines) {
        for set in [SetId::LoadBalancerSourceCidr, SetId::LoadBalancerSourceIp] {
            self.if_filled(set, |set| {
                lines.push(format_args!("{} -j RETURN", self.commented(set, DESTINATION_PORT_SOURCE)));
            });
        }
        lines.push(format_args!("-j DROP"));
    }

    /// Ports of the host are not to be reached through Service addresses. All of these are always there.
    fn ipvs_filter(&self, lines: &mut Lines) {
        for set in [SetId::LoadBalancer, SetId::ClusterIp, SetId::ExternalIp, SetId::ExternalIpLocal] {
            lines.push(format_args!("{} -j RETURN", self.look_up(set, DESTINATION_PORT)));
        }
        let health_checks = self.look_up(SetId::HealthCheckNodePort, DESTINATION);
        lines.push(format_args!("{health_checks} -j RETURN"));
        let reject = match self.family {
            Family::V4 => "icmp-port-unreachable",
            Family::V6 => "icmp6-port-unreachable",
        };
        let addresses = self.look_up(SetId::IpvsIps, DESTINATION);
        lines.push(format_args!("-m conntrack --ctstate NEW {addresses} -j REJECT --reject-with {reject}"));
    }

    fn ipvs_out_filter(&self, lines: &mut Lines) {
        for SourceDrop { ip, protocol, port } in &self.input.source_drops {
            let length = if ip.is_ipv4() { 32 } else { 128 };
            let number = protocol.number();
            lines.push(format_args!(
                "-s {ip}/{length} -m ipvs --vproto {number} --vaddr {ip} --vport {port} -j DROP"
            ));
        }
    }

    fn if_filled(&self, set: SetId, push: impl FnOnce(SetId)) {
        if self.input.filled.contains(&set) {
            push(set);
        }
    }

    fn look_up(&self, set: SetId, directions: &str) -> String {
        format!("-m set --match-set {} {directions}", set.name(self.family))
    }

    fn commented(&self, set: SetId, directions: &str) -> String {
        // As the tools print quotes inside of quotes, and read them.
        let comment = set.comment().replace('\'', "\\'");
        format!("-m comment --comment \"{comment}\" {}", self.look_up(set, directions))
    }
}

/// The rules of one chain.
struct Lines {
    chain: &'static str,
    text: String,
}

impl Lines {
    fn push(&mut self, rule: std::fmt::Arguments<'_>) {
        writeln!(self.text, "-A {} {rule}", self.chain).expect("writing to a string does not fail");
    }
}
