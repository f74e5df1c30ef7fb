//! Which conntrack entries are stale: they lead to an endpoint that must no longer be used.
//!
//! conntrack remembers the endpoint of every UDP flow. As long as packets arrive, the rules are not consulted again, so a client that
//! keeps its socket open would send to a deleted pod for ever. TCP and SCTP detect a dead peer themselves and are left alone, with
//! one exception: see [below](#connections-that-never-began).
//!
//! | UDP flow to | is stale if its endpoint |
//! |---|---|
//! | a frontend | is not a serving endpoint in [`ProxiedPort::endpoints`] (readiness, termination and hints do not matter) |
//! | a frontend whose policy is Local for this client | is not serving, or runs on another node |
//! | a deleted frontend ([`Changes::gone`]) | is any endpoint, that is, the flow was redirected |
//! | anything else | never |
//!
//! A flow to a frontend that was never redirected is stale, too: it began before the frontend's rules existed. Node ports match on
//! this host's own addresses only, so a flow to the same port of another host is left alone; this also makes it safe to clean up
//! after a node port without endpoints. A flow from a pod is identified by its source address. Where pod traffic is identified by
//! interface instead, a flow to an external frontend may keep an endpoint on another node.
//!
//! # Connections that never began
//! While rules are missing, because another process flushed them, conntrack records the first packet of a TCP connection as not
//! redirected. It keeps the entry for two minutes, and neither retransmissions nor a new connection from the same client port are
//! redirected meanwhile, whatever the rules say. After a repair such flows are stale, too, unless they were answered.
//!
//! Unlike kube-proxy's clean-up, this also covers deleted Services, removed addresses and node ports, node ports without endpoints and
//! policies that became Local. Any change to a Service with UDP ports triggers it, not only a changed slice.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::changes::Changes;
use crate::desired::{Desired, Frontend, NodeView, PodTraffic, PoolKind, ProxiedPort, Verdict};
use crate::name::Protocol;
use crate::node_port_addresses::LoopbackNodePorts;

/// One conntrack entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Transport protocol; entries of other protocols are not listed.
    pub protocol: Protocol,
    /// The client's address, before any rewriting.
    pub source: IpAddr,
    /// Where the client sends to, before any rewriting.
    pub destination: SocketAddr,
    /// Where replies come from: the endpoint if the flow was redirected, otherwise the destination itself.
    pub reply_source: SocketAddr,
    /// Whether a reply was ever seen.
    pub answered: bool,
}

impl Flow {
    fn is_redirected(&self) -> bool {
        self.reply_source != self.destination
    }
}

/// Decides which flows of one family are stale. Building it takes time in proportion to the UDP endpoints; each lookup is constant.
#[derive(Debug)]
pub struct StaleFlows<'a> {
    node: &'a NodeView,
    host_addresses: HashSet<IpAddr>,
    frontends: HashMap<FrontendKey, Rule>,
    gone: HashSet<FrontendKey>,
    /// The serving endpoints of each UDP port, by the port's number, and whether they run on this node.
    serving: HashMap<(u32, SocketAddr), bool>,
    /// Frontends whose connections must be redirected; filled when rules may have been missing.
    must_redirect: HashSet<(Protocol, FrontendKey)>,
}

/// Address (none for node ports) and port of a frontend.
type FrontendKey = (Option<IpAddr>, u16);

/// Which endpoints the flows to one frontend may keep.
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
    /// What is stale after these changes. `None` if they cannot have made any flow stale, which saves listing all flows. A failed sync is repeated
    /// with the same changes, so no flow is missed.
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
            must_redirect: HashSet::new(),
        };
        for (number, port) in (0u32..).zip(desired.ports().filter(|port| port.protocol() == Protocol::Udp)) {
            stale.add(number, port);
        }
        let gone = changes.gone.iter().filter(|gone| gone.protocol == Protocol::Udp);
        stale.gone = gone.map(|gone| (gone.ip, gone.port)).collect();
        if changes.full {
            for port in desired.ports().filter(|port| port.protocol() != Protocol::Udp) {
                stale.must_redirect.extend(frontend_keys(port).map(|(key, _)| (port.protocol(), key)));
            }
        }
        Some(stale)
    }

    /// Whether the kernel should forget this flow.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let (ip, port) = (flow.destination.ip(), flow.destination.port());
        let node_port = self.is_node_port_address(ip).then_some((None, port));
        let mut keys = [Some((Some(ip), port)), node_port].into_iter().flatten();
        if flow.protocol != Protocol::Udp {
            let never_began = !flow.answered && !flow.is_redirected();
            return never_began && keys.any(|key| self.must_redirect.contains(&(flow.protocol, key)));
        }
        for key in keys {
            // A frontend that exists again is not gone, even if a failed sync still lists it as gone.
            if let Some(rule) = self.frontends.get(&key) {
                return !self.is_current(rule, flow);
            }
        }
        let was_node_port = || self.host_addresses.contains(&ip) && self.gone.contains(&(None, port));
        flow.is_redirected() && (self.gone.contains(&(Some(ip), port)) || was_node_port())
    }

    fn add(&mut self, number: u32, port: &ProxiedPort) {
        for backend in port.endpoints.iter().filter(|backend| backend.conditions.serving) {
            self.serving.insert((number, backend.address()), backend.local);
        }
        for (key, frontend) in frontend_keys(port) {
            self.frontends.insert(key, Rule::of(number, frontend));
        }
    }

    fn is_current(&self, rule: &Rule, flow: &Flow) -> bool {
        let Some(local) = self.serving.get(&(rule.port, flow.reply_source)) else { return false };
        let must_be_local =
            if self.is_from_node(flow.source) { rule.local_from_node } else { rule.local_from_elsewhere };
        *local || !must_be_local
    }

    /// Whether the source may be a process of this host or a pod of the node, judging by its address.
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

fn frontend_keys(port: &ProxiedPort) -> impl Iterator<Item = (FrontendKey, &Frontend)> {
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
