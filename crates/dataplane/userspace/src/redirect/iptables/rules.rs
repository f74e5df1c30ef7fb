//! Rules as `iptables-save` prints them: what a Service needs, and the frame around it. Pure.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portwarden_model::{Family, NodePortAddresses, NodeView, PodTraffic, Protocol};
use portwarden_xtables::Table;

use crate::redirect::{Action, Origin, Place, Portal, ServiceRules, Settings};

/// Our chains. The first five have the names of kube-proxy's userspace mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Chain {
    /// Redirects connections from elsewhere to Service addresses.
    PortalsContainer,
    /// Redirects connections that start on this node to Service addresses.
    PortalsHost,
    NodePortContainer,
    NodePortHost,
    /// Accepts what was redirected to our sockets, refuses what was not.
    NonLocal,
    /// Refuses or drops connections to node ports that were not redirected.
    NodePortFilter,
    /// The same for Service addresses.
    PortalsFilter,
    /// Drops what source ranges do not allow.
    Firewall,
    /// Refuses what does not belong to any Service at cluster addresses.
    Unknown,
}

impl Chain {
    pub(crate) const ALL: [Chain; 9] = [
        Chain::PortalsContainer,
        Chain::PortalsHost,
        Chain::NodePortContainer,
        Chain::NodePortHost,
        Chain::NonLocal,
        Chain::NodePortFilter,
        Chain::PortalsFilter,
        Chain::Firewall,
        Chain::Unknown,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Chain::PortalsContainer => "KUBE-PORTALS-CONTAINER",
            Chain::PortalsHost => "KUBE-PORTALS-HOST",
            Chain::NodePortContainer => "KUBE-NODEPORT-CONTAINER",
            Chain::NodePortHost => "KUBE-NODEPORT-HOST",
            Chain::NonLocal => "KUBE-NODEPORT-NON-LOCAL",
            Chain::NodePortFilter => "KUBE-NODEPORT-FILTER",
            Chain::PortalsFilter => "KUBE-PORTALS-FILTER",
            Chain::Firewall => "KUBE-PORTALS-FIREWALL",
            Chain::Unknown => "KUBE-PORTALS-UNKNOWN",
        }
    }

    pub(crate) fn table(self) -> Table {
        match self {
            Chain::PortalsContainer | Chain::PortalsHost | Chain::NodePortContainer | Chain::NodePortHost => {
                Table::Nat
            }
            _ => Table::Filter,
        }
    }

    /// The chain that redirects connections of an origin.
    pub(crate) fn redirections(origin: Origin, node_port: bool) -> Chain {
        match (origin, node_port) {
            (Origin::Node, false) => Chain::PortalsHost,
            (Origin::Node, true) => Chain::NodePortHost,
            (Origin::Elsewhere, false) => Chain::PortalsContainer,
            (Origin::Elsewhere, true) => Chain::NodePortContainer,
        }
    }
}

/// One rule. Rules of Services may stand in any order: no packet matches two of a chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    pub(crate) chain: Chain,
    /// Without `-A` and the chain.
    pub(crate) text: String,
}

/// What the rules of Services stand in: it depends on the node alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Frame {
    /// Rules before and after those of Services.
    chains: Vec<(Chain, Vec<String>, Vec<String>)>,
    pub(crate) jumps: Vec<Jump>,
}

/// A rule of a built-in chain that leads to one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Jump {
    pub(crate) table: Table,
    /// Without `-A` and with the built-in chain.
    pub(crate) text: String,
    /// It goes to the end of the chain instead of its beginning.
    pub(crate) last: bool,
}

impl Frame {
    pub(crate) fn render(family: Family, node: &NodeView, settings: Settings) -> Frame {
        let redirected = || "-m conntrack --ctstate DNAT -j RETURN".to_owned();
        let loopback = match family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1/128",
        };
        let no_loopback =
            (!settings.loopback_node_ports).then(|| format!("-d {loopback} -j RETURN")).into_iter();
        let pods = |host: Chain| pod_traffic(node).map(|pods| format!("{pods} -g {}", host.name()));
        let to = |chain: Chain| format!("-j {}", chain.name());
        let drop_unknown = node.service_cidrs.iter().map(|net| format!("-d {net} -j DROP"));
        let node_port_container = no_loopback.clone().chain(pods(Chain::NodePortHost));
        let chains = vec![
            (Chain::PortalsContainer, pods(Chain::PortalsHost).into_iter().collect(), vec![]),
            (Chain::PortalsHost, vec![], vec![]),
            (Chain::NodePortContainer, node_port_container.collect(), vec![]),
            (Chain::NodePortHost, no_loopback.clone().collect(), vec![]),
            (Chain::NonLocal, vec![], vec![]),
            (Chain::NodePortFilter, [redirected()].into_iter().chain(no_loopback).collect(), vec![]),
            (Chain::PortalsFilter, vec![redirected()], vec![to(Chain::Firewall)]),
            (Chain::Firewall, vec![], vec![]),
            (Chain::Unknown, vec![redirected(), to(Chain::PortalsFilter)], drop_unknown.collect()),
        ];
        Frame { chains, jumps: jumps(node, settings.mark) }
    }

    /// The rules before and after those of Services.
    pub(crate) fn around(&self, chain: Chain) -> (&[String], &[String]) {
        let found = self.chains.iter().find(|(known, ..)| *known == chain);
        found.map_or((&[], &[]), |(_, head, tail)| (head, tail))
    }
}

/// Our own connections to endpoints, which carry the mark, pass.
fn jumps(node: &NodeView, mark: u32) -> Vec<Jump> {
    let own = format!("-m mark ! --mark {mark:#x}/{mark:#x}");
    let new = "-m conntrack --ctstate NEW";
    let clusters = "-m comment --comment \"handle ClusterIPs; NOTE: this must be before the NodePort rules\"";
    let node_ports =
        "-m comment --comment \"handle service NodePorts; NOTE: this must be the last rule in the chain\"";
    let refuse = "-m comment --comment \"refuse connections to Services without endpoints\"";
    let accept = "-m comment --comment \"Ensure that non-local NodePort traffic can flow\"";
    let jump = |table, base: &str, parts: &[&str], chain: Chain, last| Jump {
        table,
        text: format!("{base} {} -j {}", parts.join(" "), chain.name()),
        last,
    };
    let (nat, filter) = (Table::Nat, Table::Filter);
    let mut all = vec![
        jump(nat, "PREROUTING", &[clusters], Chain::PortalsContainer, false),
        jump(nat, "OUTPUT", &[&own, clusters], Chain::PortalsHost, false),
        jump(filter, "INPUT", &[new, refuse], Chain::PortalsFilter, false),
        jump(filter, "FORWARD", &[new, refuse], Chain::Unknown, false),
        jump(filter, "OUTPUT", &[&own, new, refuse], Chain::Unknown, false),
        jump(filter, "INPUT", &[accept], Chain::NonLocal, false),
    ];
    let addresses = match &node.node_ports {
        NodePortAddresses::All => vec!["-m addrtype --dst-type LOCAL".to_owned()],
        NodePortAddresses::Only(ips) => ips.iter().map(|ip| format!("-d {}", IpNet::from(*ip))).collect(),
    };
    for address in &addresses {
        all.push(jump(nat, "PREROUTING", &[address, node_ports], Chain::NodePortContainer, true));
        all.push(jump(nat, "OUTPUT", &[address, &own, node_ports], Chain::NodePortHost, true));
        all.push(jump(filter, "INPUT", &[address, new, refuse], Chain::NodePortFilter, false));
    }
    all
}

/// What matches packets that come from pods; `None` if nothing identifies them.
fn pod_traffic(node: &NodeView) -> Option<String> {
    match &node.pod_traffic {
        PodTraffic::Unknown => None,
        PodTraffic::From(net) if net.prefix_len() == 0 => Some(String::new()),
        PodTraffic::From(net) => Some(format!("-s {net}")),
        PodTraffic::Interface(name) => Some(format!("-i {name}")),
        PodTraffic::InterfacePrefix(prefix) => Some(format!("-i {prefix}+")),
    }
}

/// The rules of a Service, sorted, each once.
pub(crate) fn rules(family: Family, service: &ServiceRules) -> Vec<Rule> {
    let mut all = Vec::new();
    for portal in &service.portals {
        portal_rules(family, portal, &mut all);
    }
    for ip in &service.cluster_ips {
        let to = format!("-d {}", IpNet::from(*ip));
        let (reset, unreachable) = (reject(family, Protocol::Tcp), reject(family, Protocol::Udp));
        all.push(Rule { chain: Chain::Unknown, text: format!("{to} -p tcp -j {reset}") });
        all.push(Rule { chain: Chain::Unknown, text: format!("{to} ! -p tcp -j {unreachable}") });
    }
    for (protocol, socket) in &service.sockets {
        let to = matches(None, Some(socket.ip()), *protocol, "", socket.port());
        let refuse = reject(family, *protocol);
        let text = format!("{to} -m conntrack --ctstate DNAT -j ACCEPT");
        all.push(Rule { chain: Chain::NonLocal, text });
        let text = format!("{to} -m conntrack ! --ctstate DNAT -j {refuse}");
        all.push(Rule { chain: Chain::NonLocal, text });
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn portal_rules(family: Family, portal: &Portal, all: &mut Vec<Rule>) {
    let Place { ip, port, protocol } = portal.place;
    let name = portal.name.to_string();
    let to_place = |source: Option<IpNet>| matches(source, ip, protocol, &name, port);
    let sources: Vec<Option<IpNet>> = match &portal.sources {
        None => vec![None],
        Some(ranges) => ranges.iter().copied().map(Some).collect(),
    };
    for origin in Origin::BOTH {
        if let Action::Redirect(to) = portal.action(origin) {
            let chain = Chain::redirections(origin, ip.is_none());
            all.extend(sources.iter().map(|source| Rule {
                chain,
                text: format!("{} -j DNAT --to-destination {to}", to_place(*source)),
            }));
        }
    }
    let actions = Origin::BOTH.map(|origin| portal.action(origin));
    let target = if actions.contains(&Action::Drop) {
        Some("DROP".to_owned())
    } else {
        actions.contains(&Action::Reject).then(|| reject(family, protocol))
    };
    let chain = if ip.is_none() { Chain::NodePortFilter } else { Chain::PortalsFilter };
    if let Some(target) = target {
        let text = |source: &Option<IpNet>| format!("{} -j {target}", to_place(*source));
        all.extend(sources.iter().map(|source| Rule { chain, text: text(source) }));
    }
    if portal.sources.is_some() {
        // The nat table may not drop: what source ranges do not allow is not redirected, and dropped here.
        all.push(Rule { chain: Chain::Firewall, text: format!("{} -j DROP", to_place(None)) });
    }
}

/// What matches packets to a place, in the order in which `iptables-save` prints it.
fn matches(source: Option<IpNet>, ip: Option<IpAddr>, protocol: Protocol, name: &str, port: u16) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    if let Some(source) = source.filter(|source| source.prefix_len() > 0) {
        let _ = write!(text, "-s {source} ");
    }
    if let Some(ip) = ip {
        let _ = write!(text, "-d {} ", IpNet::from(ip));
    }
    let protocol = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    let _ = write!(text, "-p {protocol} ");
    if !name.is_empty() {
        let _ = write!(text, "-m comment --comment \"{name}\" ");
    }
    let _ = write!(text, "-m {protocol} --dport {port}");
    text
}

fn reject(family: Family, protocol: Protocol) -> String {
    let with = match (protocol, family) {
        (Protocol::Tcp, _) => "tcp-reset",
        (_, Family::V4) => "icmp-port-unreachable",
        (_, Family::V6) => "icmp6-port-unreachable",
    };
    format!("REJECT --reject-with {with}")
}

/// The place and socket of a rule that redirects, as printed by `iptables-save`.
pub(crate) fn parse_redirection(rule: &str) -> Option<(Place, SocketAddr)> {
    let words: Vec<&str> = rule.split(' ').collect();
    let after = |option: &str| {
        let at = words.iter().position(|word| *word == option)?;
        words.get(at + 1).copied()
    };
    let protocol = match after("-p")? {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return None,
    };
    let ip = match after("-d") {
        Some(net) => Some(net.parse::<IpNet>().ok()?.addr()),
        None => None,
    };
    let place = Place { ip, port: after("--dport")?.parse().ok()?, protocol };
    Some((place, after("--to-destination")?.parse().ok()?))
}
