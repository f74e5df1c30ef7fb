//! Which flows the kernel should forget, because they lead to where they should no longer go.
//!
//! The kernel remembers for every UDP flow the endpoint it was sent to, and as long as packets come it never asks again. A client that
//! keeps one socket open would thus talk to a pod that is gone for ever. TCP and SCTP notice by themselves and are left alone, but for
//! one case: see [below](#connections-that-never-began).
//!
//! | UDP flow to | is stale if its endpoint |
//! |---|---|
//! | a frontend | does not answer any more: it is not in [`ProxiedPort::serving`] (readiness, termination and hints do not matter) |
//! | a frontend whose policy is Local for this client | does not answer any more, or runs on another node |
//! | a frontend that is gone ([`Changes::gone`]) | is an endpoint at all, that is, if the flow was redirected |
//! | anything else | never |
//!
//! A flow to a frontend that was never redirected is stale too: it began before the frontend's rules were there. Node ports count on
//! this host's own addresses only, so that a flow to the same port of another host is left alone; that also makes it safe to clean up
//! after a node port without endpoints. A flow from a pod is told from others by its source address; where pods are told by their
//! interface instead, an endpoint on another node is never held against a flow to an external frontend.
//!
//! # Connections that never began
//! While rules are missing, because somebody flushed them, the first packet of a TCP connection is remembered as one that is not
//! redirected. The kernel keeps that for two minutes: neither the repeated packets of that connection nor a later one from the same
//! port of the client would be redirected, whatever the rules say. So once rules were put back, such flows are stale too, as long as
//! nobody answered.
//!
//! Compared with the reference, this also covers deleted Services, removed addresses and node ports, node ports without endpoints and
//! policies that became Local; and it is asked for by any change to a Service with UDP ports, not only by changed slices.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::changes::Changes;
use crate::desired::{
    Desired, Frontend, LoopbackNodePorts, NodeView, PodTraffic, PoolKind, ProxiedPort, Verdict,
};
use crate::name::Protocol;

/// One connection as the kernel's tracking knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Its protocol.
    pub protocol: Protocol,
    /// Who sends, before any rewriting.
    pub source: IpAddr,
    /// Where the sender sends to, before any rewriting.
    pub destination: SocketAddr,
    /// Who answers: the endpoint, if the flow was redirected, and else the destination itself.
    pub reply_source: SocketAddr,
    /// Whether anything ever came back.
    pub answered: bool,
}

impl Flow {
    fn is_redirected(&self) -> bool {
        self.reply_source != self.destination
    }
}

/// Knows which flows of one family are stale. Building it costs time in proportion to the UDP endpoints, each question next to none.
#[derive(Debug)]
pub struct StaleFlows<'a> {
    node: &'a NodeView,
    host_addresses: HashSet<IpAddr>,
    frontends: HashMap<Place, Rule>,
    gone: HashSet<Place>,
    /// For each UDP port by its number: who answers there, and whether on this node.
    serving: HashMap<(u32, SocketAddr), bool>,
    /// Where connections begin that must be redirected, if rules may have been missing.
    beginnings: HashSet<(Protocol, Place)>,
}

/// Where a frontend is: its address (none for node ports) and port.
type Place = (Option<IpAddr>, u16);

/// What holds for flows to one frontend.
#[derive(Debug, Clone, Copy)]
struct Rule {
    /// The UDP port, as numbered in [`StaleFlows::serving`].
    port: u32,
    /// Flows from this node must end here.
    local_from_node: bool,
    /// Flows from elsewhere must end here.
    local_from_elsewhere: bool,
}

impl<'a> StaleFlows<'a> {
    /// What is stale after these changes. `None` if they cannot have made any flow stale, which saves listing all flows. After a failed sync the
    /// same changes come again, so nothing is forgotten.
    pub fn after(changes: &Changes, desired: &'a Desired, host_addresses: &[IpAddr]) -> Option<Self> {
        if !changes.udp && !changes.full && changes.gone.is_empty() {
            return None;
        }
        let mut stale = StaleFlows {
            node: &desired.node,
            host_addresses: host_addresses.iter().copied().collect(),
            frontends: HashMap::new(),
            gone: HashSet::new(),
            serving: HashMap::new(),
            beginnings: HashSet::new(),
        };
        for (number, port) in (0u32..).zip(desired.ports().filter(|port| port.protocol() == Protocol::Udp)) {
            stale.add(number, port);
        }
        let gone = changes.gone.iter().filter(|gone| gone.protocol == Protocol::Udp);
        stale.gone = gone.map(|gone| (gone.ip, gone.port)).collect();
        if changes.full {
            for port in desired.ports().filter(|port| port.protocol() != Protocol::Udp) {
                stale.beginnings.extend(places_of(port).map(|(place, _)| (port.protocol(), place)));
            }
        }
        Some(stale)
    }

    /// Whether the kernel should forget this flow.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let (ip, port) = (flow.destination.ip(), flow.destination.port());
        let node_port = self.is_node_port_address(ip).then_some((None, port));
        let mut places = [Some((Some(ip), port)), node_port].into_iter().flatten();
        if flow.protocol != Protocol::Udp {
            let never_began = !flow.answered && !flow.is_redirected();
            return never_began && places.any(|place| self.beginnings.contains(&(flow.protocol, place)));
        }
        for place in places {
            // What exists again is not gone, whatever an earlier sync left to do.
            if let Some(rule) = self.frontends.get(&place) {
                return !self.may_stay(rule, flow);
            }
        }
        let was_node_port = || self.host_addresses.contains(&ip) && self.gone.contains(&(None, port));
        flow.is_redirected() && (self.gone.contains(&(Some(ip), port)) || was_node_port())
    }

    fn add(&mut self, number: u32, port: &ProxiedPort) {
        for backend in port.endpoints.iter().filter(|backend| backend.conditions.serving) {
            self.serving.insert((number, backend.address()), backend.local);
        }
        for (place, frontend) in places_of(port) {
            self.frontends.insert(place, Rule::of(number, frontend));
        }
    }

    fn may_stay(&self, rule: &Rule, flow: &Flow) -> bool {
        let Some(local) = self.serving.get(&(rule.port, flow.reply_source)) else { return false };
        let must_be_local =
            if self.is_from_node(flow.source) { rule.local_from_node } else { rule.local_from_elsewhere };
        *local || !must_be_local
    }

    /// Whether this may be a process of the host or, as far as addresses tell, a pod.
    fn is_from_node(&self, source: IpAddr) -> bool {
        let maybe_pod = match &self.node.pod_traffic {
            PodTraffic::Unknown => false,
            PodTraffic::From(range) => range.contains(&source),
            PodTraffic::Interface(_) | PodTraffic::InterfacePrefix(_) => true,
        };
        maybe_pod || self.host_addresses.contains(&source)
    }

    fn is_node_port_address(&self, ip: IpAddr) -> bool {
        self.host_addresses.contains(&ip)
            && self.node.node_ports.contains(ip)
            && (!ip.is_loopback() || self.node.loopback_node_ports != LoopbackNodePorts::Excluded)
    }
}

fn places_of(port: &ProxiedPort) -> impl Iterator<Item = (Place, &Frontend)> {
    port.active_frontends().map(|frontend| ((frontend.ip, frontend.port), frontend))
}

impl Rule {
    fn of(port: u32, frontend: &Frontend) -> Self {
        let is_local = |verdict| matches!(verdict, Verdict::Drop | Verdict::Forward(PoolKind::Local));
        Rule {
            port,
            local_from_node: is_local(frontend.from_node),
            local_from_elsewhere: is_local(frontend.from_elsewhere),
        }
    }
}
