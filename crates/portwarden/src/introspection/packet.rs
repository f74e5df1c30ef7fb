//! `/api/explain?to=`: what happens to a new connection to an address, step by step.
//!
//! It states what the model has decided, which holds in every mode, and whose address endpoints see. What else single modes do differently is in
//! docs/differences.md.

use std::net::{IpAddr, SocketAddr};

use portwarden_model::{
    Cluster, Desired, Exposure, Family, Frontend, FrontendAt, Masquerade, NamespacedName, NodePortAddresses,
    PodTraffic, Pool, PoolKind, Protocol, ProxiedPort, TrafficPolicy, Verdict, normalise, parse_ip,
};
use serde::{Deserialize, Serialize};

use super::explanation::{
    Action, ExposureName, PROXY_CONNECTS, ServiceExplanation, address_of, explain_service,
};
use crate::modes::SourceAddress;

/// Endpoints that an answer lists.
const ENDPOINTS: usize = 100;

/// Other frontends at the same address that an answer names.
const NEIGHBOURS: usize = 10;

/// The first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Its destination.
    pub to: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its source, if that matters.
    pub from: Option<IpAddr>,
}

/// A packet that is not written as it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The destination.
    #[error(
        "{0:?} is not an address with a port, such as 10.96.0.10:80/udp or [fd00::10]:80; without a protocol, TCP is meant"
    )]
    To(String),
    /// The source.
    #[error("{0:?} is not an IP address, such as 10.244.0.7")]
    From(String),
    /// Both, of different families.
    #[error("{from} and {to} belong to different IP families; no packet has both addresses")]
    Families {
        /// The source.
        from: IpAddr,
        /// The destination.
        to: IpAddr,
    },
}

impl Packet {
    /// Parses `10.96.0.10:80/udp` and `10.244.0.7`.
    pub fn parse(to: &str, from: Option<&str>) -> Result<Packet, PacketError> {
        let wrong = || PacketError::To(to.to_owned());
        let (address, protocol) = to.split_once('/').unwrap_or((to, "tcp"));
        let protocol = Protocol::parse(&protocol.to_uppercase()).ok_or_else(wrong)?;
        let address: SocketAddr = address.trim().parse().map_err(|_| wrong())?;
        let to = SocketAddr::new(normalise(address.ip()), address.port());
        let from = from.map(str::trim).filter(|from| !from.is_empty());
        let from =
            from.map(|text| parse_ip(text).ok_or_else(|| PacketError::From(text.to_owned()))).transpose()?;
        match from {
            Some(from) if Family::of(from) != Family::of(to.ip()) => {
                Err(PacketError::Families { from, to: to.ip() })
            }
            from => Ok(Packet { to, protocol, from }),
        }
    }
}

/// What happens to a packet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketExplanation {
    /// `10.96.0.10:80/UDP`.
    pub to: String,
    /// The source, if one was given.
    pub from: Option<String>,
    /// Where the source counts as being; absent without a source.
    pub origin: Option<Origin>,
    /// The Service that gets the packet, as `namespace/name`.
    pub service: Option<String>,
    /// The name of the Service's port.
    pub port: Option<String>,
    /// Which part of the Service defines the frontend.
    pub exposure: Option<ExposureName>,
    /// The outcome; without a source, that of a client elsewhere.
    pub action: Action,
    /// The outcome as one sentence.
    pub summary: String,
    /// How it comes about.
    pub steps: Vec<String>,
    /// Whether the endpoint sees the node's address; absent if nothing is forwarded or it depends on the source.
    pub masqueraded: Option<bool>,
    /// The first endpoints that may get the packet.
    pub endpoints: Vec<String>,
    /// How many endpoints may get it.
    pub endpoint_count: usize,
    /// Other frontends with the same address.
    pub neighbours: Vec<String>,
    /// The Service with all its frontends and endpoints.
    pub explanation: Option<ServiceExplanation>,
}

/// Where a client counts as being.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// A pod, as the configuration identifies pod traffic.
    Pod,
    /// A process on this node.
    Host,
    /// Anything else.
    Elsewhere,
}

/// Explains what happens to a packet.
pub fn explain_packet(cluster: &Cluster, packet: Packet, source: SourceAddress) -> PacketExplanation {
    let mut explained = PacketExplanation {
        to: format!("{}/{}", packet.to, packet.protocol),
        from: packet.from.map(|ip| ip.to_string()),
        origin: None,
        service: None,
        port: None,
        exposure: None,
        action: Action::None,
        summary: String::new(),
        steps: Vec::new(),
        masqueraded: None,
        endpoints: Vec::new(),
        endpoint_count: 0,
        neighbours: Vec::new(),
        explanation: None,
    };
    if let Some(from) = packet.from {
        let (origin, step) = origin(cluster, from);
        explained.origin = Some(origin);
        explained.steps.push(step);
    }
    match cluster.frontend_at(packet.to, packet.protocol) {
        Some(found) => explain_found(cluster, packet, found, source, &mut explained),
        None => explain_nothing(cluster, packet, &mut explained),
    }
    explained
}

/// Where a source counts as being, and why.
fn origin(cluster: &Cluster, from: IpAddr) -> (Origin, String) {
    let desired = cluster.desired(Family::of(from));
    if from.is_loopback() || cluster.host_addresses().contains(&from) {
        return (Origin::Host, format!("{from} is an address of this node: the client is a process on it"));
    }
    match &desired.node.pod_traffic {
        PodTraffic::From(net) if net.contains(&from) => {
            (Origin::Pod, format!("{from} is in the pods' range {net}: the client is a pod"))
        }
        PodTraffic::From(net) => {
            (Origin::Elsewhere, format!("{from} is not in the pods' range {net}: the client is elsewhere"))
        }
        PodTraffic::Unknown => (
            Origin::Elsewhere,
            format!("pod traffic is not identified on this node, so {from} counts as a client elsewhere"),
        ),
        PodTraffic::Interface(name) | PodTraffic::InterfacePrefix(name) => {
            let local = desired.ports().any(|port| port.endpoints.iter().any(|b| b.local && b.ip == from));
            let origin = if local { Origin::Pod } else { Origin::Elsewhere };
            let known = if local { "an endpoint on this node" } else { "not an endpoint on this node" };
            let counts = if local { "a pod" } else { "a client elsewhere" };
            (
                origin,
                format!(
                    "pods are identified by the interface ({name}) and not by address; {from} is {known} and taken for {counts}"
                ),
            )
        }
    }
}

fn explain_found(
    cluster: &Cluster,
    packet: Packet,
    found: FrontendAt<'_>,
    source: SourceAddress,
    explained: &mut PacketExplanation,
) {
    let FrontendAt { service, port, frontend } = found;
    let exposure = ExposureName::from(frontend.exposure);
    let port_name = port.name.port.as_str();
    let of_port = if port_name.is_empty() { String::new() } else { format!(", port {port_name}") };
    explained.steps.push(format!(
        "{} is the {} of Service {service}{of_port}",
        address_of(frontend),
        exposure.words()
    ));
    explained.service = Some(service.to_string());
    explained.port = Some(port_name.to_owned());
    explained.exposure = Some(exposure);
    explained.explanation = explain_service(cluster, service, source);
    if let Some(step) = outside_of_ranges(packet, port, frontend) {
        explained.action = Action::Drop;
        explained.summary =
            format!("Dropped: {} is not in the Service's loadBalancerSourceRanges.", text(packet.from));
        explained.steps.push(step);
        return;
    }
    let from_here = matches!(explained.origin, Some(Origin::Pod | Origin::Host));
    let verdict = if from_here { frontend.from_node } else { frontend.from_elsewhere };
    explained.steps.push(policy_step(frontend, explained.origin));
    if packet.from.is_none() && frontend.from_node != frontend.from_elsewhere {
        explained.steps.push(format!(
            "a client on this node has another outcome ({}); give the client's address to see it",
            verdict_words(frontend.from_node)
        ));
    }
    match verdict {
        Verdict::Forward(kind) => {
            forwarded(service, port, kind, explained);
            push_source_address(packet, port.pool(kind), frontend.masquerade, source, explained);
        }
        Verdict::Reject => {
            explained.action = Action::Reject;
            explained.summary = format!("Rejected: Service {service} has no usable endpoint in the cluster.");
        }
        Verdict::Drop => {
            explained.action = Action::Drop;
            explained.summary = format!(
                "Dropped: the policy is Local, and all endpoints of Service {service} are on other nodes."
            );
        }
    }
}

fn forwarded(
    service: &NamespacedName,
    port: &ProxiedPort,
    kind: PoolKind,
    explained: &mut PacketExplanation,
) {
    let pool = port.pool(kind);
    explained.action = Action::Forward;
    explained.endpoint_count = pool.len();
    explained.endpoints = pool.iter().take(ENDPOINTS).map(|backend| backend.address().to_string()).collect();
    let which = match (pool.len(), kind) {
        (1, _) => format!("the endpoint {}", explained.endpoints.concat()),
        (count, PoolKind::Cluster) => format!("one of {count} endpoints"),
        (count, PoolKind::Local) => format!("one of {count} endpoints on this node"),
    };
    let chosen = match port.affinity {
        Some(seconds) => Some(format!(
            "session affinity: the client keeps its endpoint until {seconds} s after its last connection"
        )),
        None => (pool.len() > 1).then(|| "each new connection may go to another endpoint".to_owned()),
    };
    explained.steps.extend(chosen);
    explained.summary = format!("Forwarded to {which} of Service {service}.");
}

/// Says whose address the endpoint sees.
fn push_source_address(
    packet: Packet,
    pool: &Pool,
    masquerade: Masquerade,
    source: SourceAddress,
    explained: &mut PacketExplanation,
) {
    if source == SourceAddress::Node {
        explained.masqueraded = Some(true);
        explained.steps.push(PROXY_CONNECTS.to_owned());
        return;
    }
    let masqueraded = match (masquerade, explained.origin) {
        (Masquerade::Never, _) => Some(false),
        (Masquerade::Always, _) => Some(true),
        (Masquerade::NotFromPods, Some(origin)) => Some(origin != Origin::Pod),
        (Masquerade::FromHost, Some(origin)) => Some(origin == Origin::Host),
        (Masquerade::NotFromPods | Masquerade::FromHost, None) => None,
    };
    explained.masqueraded = masqueraded;
    explained.steps.push(
        match masqueraded {
            Some(true) => "masqueraded: the endpoint sees the node's address",
            Some(false) => "not masqueraded: the endpoint sees the client's address",
            None => "whether the endpoint sees the client's or the node's address depends on the client; give the client's address to see it",
        }
        .to_owned(),
    );
    if packet.from.is_some_and(|from| pool.iter().any(|backend| backend.ip == from)) {
        let step = "if the client itself is chosen, the connection is masqueraded in any case: otherwise its answers would not pass the node";
        explained.steps.push(step.to_owned());
    }
}

/// Why the client may not use a load-balancer address.
fn outside_of_ranges(packet: Packet, port: &ProxiedPort, frontend: &Frontend) -> Option<String> {
    let (from, ranges) = packet.from.zip(port.source_ranges.as_deref())?;
    if frontend.exposure != Exposure::LoadBalancerIp || ranges.ranges.iter().any(|net| net.contains(&from)) {
        return None;
    }
    let own = |f: &&Frontend| f.exposure == Exposure::LoadBalancerIp && f.ip == Some(from);
    if ranges.frontends_too && port.frontends.iter().any(|f| own(&f)) {
        return None;
    }
    let listed: Vec<String> = ranges.ranges.iter().map(ToString::to_string).collect();
    Some(format!("loadBalancerSourceRanges allow {} only", listed.join(", ")))
}

fn policy_step(frontend: &Frontend, origin: Option<Origin>) -> String {
    let kind = if frontend.exposure == Exposure::ClusterIp { "internal" } else { "external" };
    match (frontend.policy, origin) {
        (TrafficPolicy::Cluster, _) => {
            format!("the {kind} traffic policy is Cluster: endpoints on all nodes count")
        }
        (TrafficPolicy::Local, Some(Origin::Pod | Origin::Host)) if kind == "external" => {
            "the external traffic policy is Local, which does not apply to traffic that starts on this node"
                .to_owned()
        }
        (TrafficPolicy::Local, _) => {
            format!("the {kind} traffic policy is Local: only endpoints on this node count")
        }
    }
}

fn verdict_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Forward(PoolKind::Cluster) => "forwarded to any endpoint of the cluster",
        Verdict::Forward(PoolKind::Local) => "forwarded to an endpoint on this node",
        Verdict::Reject => "rejected",
        Verdict::Drop => "dropped",
    }
}

fn explain_nothing(cluster: &Cluster, packet: Packet, explained: &mut PacketExplanation) {
    let desired = cluster.desired(Family::of(packet.to.ip()));
    let at_address = desired.services().flat_map(|(name, service)| {
        let ports = service.ports.iter();
        ports.flat_map(move |port| port.frontends.iter().map(move |frontend| (name, port, frontend)))
    });
    let mut neighbours: Vec<String> = at_address
        .filter(|(_, _, frontend)| frontend.ip == Some(packet.to.ip()))
        .map(|(name, port, frontend)| format!("{name}: {}/{}", address_of(frontend), port.protocol()))
        .collect();
    neighbours.sort_unstable();
    neighbours.dedup();
    neighbours.truncate(NEIGHBOURS);
    let (ip, to) = (packet.to.ip(), &explained.to);
    let range = desired.node.service_cidrs.iter().find(|net| net.contains(&ip));
    explained.summary = match (range, neighbours.is_empty()) {
        (_, false) => format!("Not forwarded: Services have the address {ip}, but none has {to}."),
        (Some(net), true) => {
            format!("Not forwarded: no Service has {ip}, although it is in the Service range {net}.")
        }
        (None, true) => match node_port_elsewhere(desired, packet) {
            Some(elsewhere) => format!("Not touched: {elsewhere}."),
            None => format!("Not touched: no Service has {to}."),
        },
    };
    explained.neighbours = neighbours;
}

/// The port may be a node port that answers on other addresses.
fn node_port_elsewhere(desired: &Desired, packet: Packet) -> Option<String> {
    let (ip, number) = (packet.to.ip(), packet.to.port());
    let is_node_port = |port: &ProxiedPort| {
        let frontends = || port.frontends.iter().filter(|frontend| frontend.ip.is_none());
        port.protocol() == packet.protocol && frontends().any(|frontend| frontend.port == number)
    };
    let (name, _) = desired.services().find(|(_, service)| service.ports.iter().any(is_node_port))?;
    let why = match &desired.node.node_ports {
        NodePortAddresses::All => format!("{ip} is not an address of this node"),
        NodePortAddresses::Only(addresses) => {
            let listed: Vec<String> = addresses.iter().take(NEIGHBOURS).map(ToString::to_string).collect();
            format!("nodePortAddresses does not select {ip}; it selects {}", listed.join(", "))
        }
    };
    Some(format!("{number} is a node port of Service {name}, but {why}"))
}

fn text(from: Option<IpAddr>) -> String {
    from.map(|ip| ip.to_string()).unwrap_or_default()
}
