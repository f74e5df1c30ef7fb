//! Modes that decide at the socket of the client instead of in packets.

use std::collections::BTreeSet;

use portwarden_model::{Exposure, Frontend, Masquerade, PodTraffic, ProxiedPort, TrafficPolicy, Verdict};

use super::{Expected, Oracle, Packet};
use crate::probe::Transport;

impl Oracle<'_> {
    /// Whether a program at the socket decides, and not a rule.
    pub(super) fn is_served_at_socket(
        &self,
        packet: &Packet<'_>,
        port: &ProxiedPort,
        frontend: &Frontend,
    ) -> bool {
        let left = |frontend: &Frontend| {
            let filtered = frontend.exposure == Exposure::LoadBalancerIp && port.source_ranges.is_some();
            let masquerade_all =
                frontend.exposure == Exposure::ClusterIp && frontend.masquerade == Masquerade::Always;
            let by_origin = frontend.from_node != frontend.from_elsewhere
                && self.desired(packet).node.pod_traffic == PodTraffic::Unknown;
            filtered || masquerade_all || by_origin
        };
        // A client with session affinity has one endpoint at all frontends of the port, as long as the Service stays as it is.
        let pools: BTreeSet<bool> = port
            .frontends
            .iter()
            .map(|frontend| {
                frontend.exposure == Exposure::ClusterIp && frontend.policy == TrafficPolicy::Local
            })
            .collect();
        let split = port.affinity.is_some() && (port.frontends.iter().any(left) || pools.len() > 1);
        self.mode.at_sockets
            && self.starts_here(packet)
            && packet.transport != Transport::Sctp
            && frontend.from_node != Verdict::Drop
            && (packet.to.ip().is_loopback() || !(split || left(frontend)))
    }

    /// The socket is connected to an endpoint, as if the process had asked for that.
    pub(super) fn at_socket(&self, packet: &Packet<'_>, port: &ProxiedPort, frontend: &Frontend) -> Expected {
        let Verdict::Forward(kind) = frontend.from_node else { return Expected::refused() };
        let mut expected =
            Expected { sticky: port.affinity.map(|_| port.name.clone()), ..Expected::default() };
        let chosen = |to| Packet::new(self.topology, packet.from, packet.transport, to).source;
        let bound = packet.source != chosen(packet.to);
        for backend in port.pool(kind).iter() {
            let source = if bound { packet.source } else { chosen(backend.address()) };
            self.at_server(packet.transport, source, backend.address(), &mut expected);
            // A socket of the node that is not bound to its primary address gets that of the device which leads to the endpoint.
            if packet.from.name() == self.topology.node().name() && !bound && !self.is_node(backend.ip) {
                let device = self.masquerade_address(backend.ip);
                self.at_server(packet.transport, device, backend.address(), &mut expected);
            }
        }
        expected
    }
}
