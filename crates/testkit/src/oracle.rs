//! What must become of a packet, read straight from the desired state.
//!
//! A second, slow and simple interpretation of [`Desired`], to hold every dataplane against: it walks over all frontends, knows
//! who is where in the [`Topology`], and has no idea of rules, chains or maps. What modes do differently, and say so in their
//! documentation, is in [`Mode`]; everything else must be the same everywhere.

mod sockets;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};
use portwarden_model::{
    Desired, Exposure, Family, Frontend, LoopbackNodePorts, Masquerade, PerFamily, PodTraffic, Pool,
    PoolKind, PortName, Protocol, ProxiedPort, TrafficPolicy, Verdict,
};

use crate::probe::{Answer, Outcome, Transport};
use crate::topology::addresses::{NODE, POD_BRIDGE};
use crate::topology::{Host, PodNetwork, Topology};

/// Where modes differ, as documented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// Ports that no Service has are refused at cluster addresses, and addresses that no Service has are dropped; else such packets
    /// pass as if there were no proxy.
    pub guards_cluster_ips: bool,
    /// Connections of an endpoint to itself are masqueraded also for endpoints on other nodes.
    pub remote_hairpin: bool,
    /// Source ranges hold also for a Service that has no endpoints; else every client is refused.
    pub ranges_without_endpoints: bool,
    /// External addresses without endpoints are refused to processes of the node too; else their packets pass.
    pub refuses_own_host: bool,
    /// Node ports answer on IPv4 loopback addresses.
    pub localhost_node_ports: bool,
    /// Of several frontends with the same address and port, any may get a packet: the first rule that forwards it decides. Else only
    /// that which the model has chosen.
    pub contested_frontends: bool,
    /// A node port without a server is refused or dropped on all local addresses; else only on those where node ports answer.
    pub dead_node_ports_everywhere: bool,
    /// Connections end on the node, and others go from there to endpoints: endpoints see the node's address, one that does not answer is skipped, and
    /// an ICMP error for a datagram does not reach the client.
    pub proxies: bool,
    /// Service addresses are addresses of the node, with one virtual server for each port: a process of the node has the Service address as
    /// its source, other ports are refused, and all clients share the endpoints that clients from elsewhere get. A virtual server cannot drop:
    /// with policy Local and endpoints only elsewhere, it uses those. Who is masqueraded depends on the policy alone, except at cluster addresses.
    pub virtual_servers: bool,
    /// Sockets of the node and of its pods are pointed at endpoints before there is a packet. Endpoints see who connects, also an endpoint that connects to
    /// itself. Source ranges, `masqueradeAll`, SCTP, dropped traffic, policy Local where pods are unknown, and ports with session affinity and one of these
    /// are as without this.
    pub at_sockets: bool,
    /// Packets from pod to pod are not tracked, so what is translated for pods is masqueraded, if it goes to pods.
    pub untracked_pods: bool,
}

/// Something that a host sends: the first packet of a connection.
#[derive(Debug, Clone)]
pub struct Packet<'a> {
    /// Who sends it.
    pub from: &'a Host,
    /// The address it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// TCP or UDP.
    pub transport: Transport,
}

/// What may become of a packet: any of these, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// The endpoints that may answer.
    pub answers: BTreeSet<Seen>,
    /// It may be turned away at once.
    pub refused: bool,
    /// It may get no answer.
    pub dropped: bool,
    /// Several frontends want the packet, and not all of this can be true at once.
    pub contested: bool,
    /// The service port that remembers the client.
    pub sticky: Option<PortName>,
}

/// An endpoint that may answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// Address and port of the endpoint that answers.
    pub endpoint: SocketAddr,
    /// The host it runs on.
    pub host: String,
    /// The source address it sees.
    pub source: IpAddr,
}

/// Who listens where: host, transport, port.
pub type Served = BTreeSet<(String, Transport, u16)>;

/// Knows everything that a packet's fate depends on.
#[derive(Debug, Clone, Copy)]
pub struct Oracle<'a> {
    topology: &'a Topology,
    served: &'a Served,
    desired: PerFamily<&'a Desired>,
    mode: Mode,
}

/// Where a packet counts as coming from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Pod,
    Host,
    Elsewhere,
}

impl<'a> Packet<'a> {
    /// A packet from the address that the host would choose.
    pub fn new(topology: &Topology, from: &'a Host, transport: Transport, to: SocketAddr) -> Packet<'a> {
        let to_itself = from.owns(to.ip()) || (to.ip().is_loopback());
        let own_bridge =
            from.name() == topology.node().name() && topology.node_addresses().contains(&to.ip());
        let source = if to_itself || own_bridge { to.ip() } else { from.ip().like(to.ip()) };
        Packet { from, source, to, transport }
    }
}

impl<'a> Oracle<'a> {
    /// Whether a mode decides what endpoints see as the source of a packet, whatever others do: a proxy that connects itself, sockets that connect directly.
    pub(crate) fn decides_source(&self, packet: &Packet<'_>) -> bool {
        let masqueraded = self.mode.untracked_pods && self.is_pod(packet.source);
        self.mode.proxies || masqueraded || (self.mode.at_sockets && self.starts_here(packet))
    }

    /// For a state of the node, with these servers running.
    pub fn new(
        topology: &'a Topology,
        served: &'a Served,
        desired: PerFamily<&'a Desired>,
        mode: Mode,
    ) -> Oracle<'a> {
        Oracle { topology, served, desired, mode }
    }

    /// What must become of a packet that passes the node under test.
    pub fn expect(&self, packet: &Packet<'_>) -> Expected {
        let mut packet = packet.clone();
        if self.comes_from_service_address(&packet) {
            packet.source = packet.to.ip();
        }
        let packet = &packet;
        let frontends = self.frontends(packet);
        let mut all = frontends.iter().map(|(port, frontend)| self.at_frontend(packet, port, frontend));
        match all.next() {
            None => self.untranslated(packet),
            Some(first) => all.fold(first, Expected::or),
        }
    }

    fn desired(&self, packet: &Packet<'_>) -> &'a Desired {
        self.desired[Family::of(packet.to.ip())]
    }

    /// The frontend that a packet is for, or several if it is contested. An address of a Service goes before a node port.
    fn frontends(&self, packet: &Packet<'_>) -> Vec<(&'a ProxiedPort, &'a Frontend)> {
        let ports = self.desired(packet).ports().filter(|port| port.protocol() == protocol(packet));
        let all = ports.flat_map(|port| port.frontends.iter().map(move |frontend| (port, frontend)));
        let right_port = all.filter(|(_, frontend)| frontend.port == packet.to.port());
        let (node_ports, mut by_address): (Vec<_>, Vec<_>) = right_port
            .filter(|(_, frontend)| match self.mode.contested_frontends {
                true => frontend.is_allowed(),
                false => frontend.is_active(),
            })
            .partition(|(_, frontend)| frontend.ip.is_none());
        by_address.retain(|(_, frontend)| frontend.ip == Some(packet.to.ip()));
        if by_address.is_empty() {
            let here = node_ports.into_iter().filter(|(_, frontend)| self.has_node_port(packet, frontend));
            here.collect()
        } else {
            by_address
        }
    }

    fn has_node_port(&self, packet: &Packet<'_>, frontend: &Frontend) -> bool {
        let dead = !matches!(frontend.from_elsewhere, Verdict::Forward(_));
        self.is_node(packet.to.ip())
            && (self.node_ports_answer(packet) || (dead && self.mode.dead_node_ports_everywhere))
    }

    /// Whether node ports answer on the address that a packet is for.
    fn node_ports_answer(&self, packet: &Packet<'_>) -> bool {
        let (node, ip) = (&self.desired(packet).node, packet.to.ip());
        // Only sockets can answer on ::1: the kernel does not route it.
        let loopback = (ip.is_ipv4() || self.mode.proxies || self.mode.at_sockets)
            && self.mode.localhost_node_ports
            && node.loopback_node_ports != LoopbackNodePorts::Excluded;
        node.node_ports.contains(ip) && (loopback || !ip.is_loopback())
    }

    fn at_frontend(&self, packet: &Packet<'_>, port: &ProxiedPort, frontend: &Frontend) -> Expected {
        if self.is_served_at_socket(packet, port, frontend) {
            return self.at_socket(packet, port, frontend);
        }
        let filtered = port.has_endpoints || self.mode.ranges_without_endpoints;
        if frontend.exposure == Exposure::LoadBalancerIp && filtered && !may_use(packet.source, port) {
            return Expected::dropped();
        }
        let from_here = packet.from.name() == self.topology.node().name();
        let external = matches!(frontend.exposure, Exposure::ExternalIp | Exposure::LoadBalancerIp);
        match self.verdict(packet, port, frontend) {
            Verdict::Reject if from_here && external && !self.mode.refuses_own_host => {
                self.untranslated(packet)
            }
            Verdict::Reject => Expected::refused(),
            Verdict::Drop => Expected::dropped(),
            Verdict::Forward(kind) => {
                let sticky = port.affinity.map(|_| port.name.clone());
                let expected = match self.mode.proxies {
                    true => self.proxied(packet, port.pool(kind)),
                    false => self.through(packet, frontend, port.pool(kind)),
                };
                Expected { sticky, ..expected }
            }
        }
    }

    /// Whether a process of the node or of one of its pods has sent it.
    fn starts_here(&self, packet: &Packet<'_>) -> bool {
        let is_sender = |host: &Host| host.name() == packet.from.name();
        is_sender(self.topology.node()) || self.topology.pods().iter().any(is_sender)
    }

    /// Left to choose, the kernel takes the address that a process of the node connects to.
    fn comes_from_service_address(&self, packet: &Packet<'_>) -> bool {
        let node = self.topology.node();
        packet.from.name() == node.name()
            && packet.source == node.ip().like(packet.to.ip())
            && self.is_bound(packet.to.ip())
    }

    /// Whether the node bears a Service address.
    fn is_bound(&self, ip: IpAddr) -> bool {
        let bound = |frontend: &Frontend| frontend.is_active() && frontend.ip == Some(ip);
        let mut ports = self.desired[Family::of(ip)].ports();
        self.mode.virtual_servers && ports.any(|port| port.frontends.iter().any(bound))
    }

    fn verdict(&self, packet: &Packet<'_>, port: &ProxiedPort, frontend: &Frontend) -> Verdict {
        if self.mode.virtual_servers {
            return match frontend.from_elsewhere {
                Verdict::Drop if port.cluster.is_empty() => Verdict::Reject,
                Verdict::Drop => Verdict::Forward(PoolKind::Cluster),
                verdict => verdict,
            };
        }
        match self.origin(packet) {
            _ if frontend.ip.is_none() && !self.node_ports_answer(packet) => frontend.from_elsewhere,
            Origin::Pod | Origin::Host => frontend.from_node,
            Origin::Elsewhere => frontend.from_elsewhere,
        }
    }

    fn origin(&self, packet: &Packet<'_>) -> Origin {
        let from_pod = match &self.desired(packet).node.pod_traffic {
            PodTraffic::Unknown => false,
            PodTraffic::From(net) => net.contains(&packet.source),
            PodTraffic::Interface(name) => self.arrival(packet).is_some_and(|device| device == name.as_str()),
            PodTraffic::InterfacePrefix(prefix) => {
                self.arrival(packet).is_some_and(|device| device.starts_with(prefix.as_str()))
            }
        };
        match from_pod {
            true => Origin::Pod,
            false if self.is_node(packet.source) => Origin::Host,
            false => Origin::Elsewhere,
        }
    }

    /// The device on which a packet reaches the node; none for what starts there.
    fn arrival(&self, packet: &Packet<'_>) -> Option<String> {
        let is_sender = |host: &Host| host.name() == packet.from.name();
        match self.topology.pods().iter().position(is_sender) {
            _ if is_sender(self.topology.node()) => None,
            Some(_) if self.topology.pod_network() == PodNetwork::Bridge => Some("cni0".to_owned()),
            Some(index) => Some(format!("veth{index}")),
            None => Some("eth0".to_owned()),
        }
    }

    /// An endpoint of the pool gets what the node sends in the client's place.
    fn proxied(&self, packet: &Packet<'_>, pool: &Pool) -> Expected {
        let mut expected = Expected::default();
        for backend in pool.iter() {
            let own = self.is_node(backend.ip);
            let source = if own { backend.ip } else { self.masquerade_address(backend.ip) };
            self.at_endpoint(packet.transport, source, backend.address(), &mut expected);
        }
        match packet.transport {
            Transport::Tcp | Transport::Sctp if expected.answers.is_empty() => Expected::refused(),
            Transport::Tcp | Transport::Sctp => Expected { refused: false, dropped: false, ..expected },
            Transport::Udp => {
                Expected { refused: false, dropped: expected.refused || expected.dropped, ..expected }
            }
        }
    }

    /// Any endpoint of the pool gets the packet.
    fn through(&self, packet: &Packet<'_>, frontend: &Frontend, pool: &Pool) -> Expected {
        let external = frontend.exposure != Exposure::ClusterIp;
        let hidden = match frontend.masquerade {
            _ if self.mode.virtual_servers && external => frontend.policy == TrafficPolicy::Cluster,
            Masquerade::Never => false,
            Masquerade::NotFromPods => self.origin(packet) != Origin::Pod,
            Masquerade::FromHost => self.origin(packet) == Origin::Host,
            Masquerade::Always => true,
        };
        let mut expected = Expected::default();
        for backend in pool.iter() {
            let hairpin = packet.source == backend.ip && (backend.local || self.mode.remote_hairpin);
            // What another host sends to the node itself is delivered before anything could be masqueraded.
            let delivered_here =
                self.is_node(backend.ip) && packet.from.name() != self.topology.node().name();
            let untracked = self.mode.untracked_pods && self.is_pod(packet.source) && self.is_pod(backend.ip);
            let source = match (hidden || hairpin || untracked) && !delivered_here {
                true => self.masquerade_address(backend.ip),
                false => packet.source,
            };
            self.at_endpoint(packet.transport, source, backend.address(), &mut expected);
        }
        expected
    }

    /// Whether an address is in the range of the pods.
    fn is_pod(&self, ip: IpAddr) -> bool {
        self.desired[Family::of(ip)].node.pod_range.is_some_and(|pods| pods.contains(&ip))
    }

    /// The endpoint gets the packet; its answer must come back through the node, or the client will not know it.
    fn at_endpoint(
        &self,
        transport: Transport,
        source: IpAddr,
        endpoint: SocketAddr,
        expected: &mut Expected,
    ) {
        let here = |ip: IpAddr| self.is_node(ip) || self.topology.pods().iter().any(|pod| pod.owns(ip));
        let spoofed = source == endpoint.ip() && !self.is_node(source);
        if spoofed || !(here(source) || here(endpoint.ip())) {
            expected.dropped = true;
        } else {
            self.at_server(transport, source, endpoint, expected);
        }
    }

    /// The packet is not translated: the host with the address gets it.
    fn untranslated(&self, packet: &Packet<'_>) -> Expected {
        let desired = self.desired(packet);
        let to = packet.to.ip();
        let cluster_ip =
            |frontend: &Frontend| frontend.exposure == Exposure::ClusterIp && frontend.ip == Some(to);
        if self.mode.guards_cluster_ips {
            if desired.ports().any(|port| port.frontends.iter().any(cluster_ip)) {
                return Expected::refused();
            }
            if desired.node.service_cidrs.iter().any(|net| net.contains(&to)) {
                return Expected::dropped();
            }
        }
        if self.is_bound(to) && !self.topology.node_addresses().contains(&to) {
            return Expected::refused();
        }
        let mut expected = Expected::default();
        self.at_server(packet.transport, packet.source, packet.to, &mut expected);
        expected
    }

    /// The host with the address answers, refuses, or does not exist.
    fn at_server(&self, transport: Transport, source: IpAddr, to: SocketAddr, expected: &mut Expected) {
        let owner =
            if self.is_node(to.ip()) { Some(self.topology.node()) } else { self.topology.owner(to.ip()) };
        let Some(owner) = owner else {
            expected.dropped = true;
            return;
        };
        let host = owner.name().to_owned();
        if owner.owns(to.ip()) && self.served.contains(&(host.clone(), transport, to.port())) {
            expected.answers.insert(Seen { endpoint: to, host, source });
        } else {
            expected.refused = true;
        }
    }

    fn is_node(&self, ip: IpAddr) -> bool {
        self.topology.node_addresses().contains(&ip) || self.is_bound(ip)
    }

    /// The address behind which others are hidden on the way to `to`.
    fn masquerade_address(&self, to: IpAddr) -> IpAddr {
        let pod_here = self.topology.pods().iter().any(|pod| pod.owns(to));
        let bridge = pod_here && self.topology.pod_network() == PodNetwork::Bridge;
        if bridge { POD_BRIDGE.like(to) } else { NODE.like(to) }
    }
}

impl Expected {
    fn refused() -> Expected {
        Expected { refused: true, ..Expected::default() }
    }

    fn dropped() -> Expected {
        Expected { dropped: true, ..Expected::default() }
    }

    /// Either of both; who remembers clients is then unknown.
    fn or(mut self, other: Expected) -> Expected {
        self.answers.extend(other.answers);
        let (refused, dropped) = (self.refused || other.refused, self.dropped || other.dropped);
        Expected { answers: self.answers, refused, dropped, contested: true, sticky: None }
    }

    /// Whether this endpoint may answer.
    pub fn includes(&self, endpoint: SocketAddr) -> bool {
        self.answers.iter().any(|seen| seen.endpoint == endpoint)
    }

    /// Whether silence is the only thing that may happen.
    pub fn is_silence(&self) -> bool {
        self.dropped && !self.refused && self.answers.is_empty()
    }

    /// The hosts that may answer.
    pub fn hosts(&self) -> BTreeSet<&str> {
        self.answers.iter().map(|seen| seen.host.as_str()).collect()
    }

    /// The source addresses that endpoints may see.
    pub fn sources(&self) -> BTreeSet<IpAddr> {
        self.answers.iter().map(|seen| seen.source).collect()
    }

    /// Whether an outcome is one of those that may be.
    pub fn check(&self, outcome: &Outcome) -> Result<()> {
        let allowed = match outcome {
            Outcome::Answered(Answer { endpoint, source, host, .. }) => {
                let seen = Seen { endpoint: *endpoint, host: host.clone(), source: source.ip() };
                self.answers.contains(&seen)
            }
            Outcome::Refused(_) => self.refused,
            Outcome::Dropped => self.dropped,
            _ => false,
        };
        if !allowed {
            bail!("{outcome}; expected: {self}");
        }
        Ok(())
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = self.answers.iter().map(|Seen { endpoint, host, source }| {
            format!("answered by {host} at {endpoint}, which sees {source}")
        });
        let refused = self.refused.then(|| "refused".to_owned());
        let dropped = self.dropped.then(|| "dropped".to_owned());
        let all: Vec<String> = answers.chain(refused).chain(dropped).collect();
        f.write_str(&all.join(", or "))
    }
}

fn protocol(packet: &Packet<'_>) -> Protocol {
    match packet.transport {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
        Transport::Sctp => Protocol::Sctp,
    }
}

/// Whether a client is within the source ranges of a port.
fn may_use(client: IpAddr, port: &ProxiedPort) -> bool {
    let Some(allowed) = &port.source_ranges else { return true };
    let is_frontend =
        |frontend: &Frontend| frontend.exposure == Exposure::LoadBalancerIp && frontend.ip == Some(client);
    allowed.ranges.iter().any(|range| range.contains(&client))
        || (allowed.frontends_too && port.frontends.iter().any(is_frontend))
}
