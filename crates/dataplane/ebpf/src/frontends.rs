//! Which frontends of a service port get a record, and with which verdict.

use std::net::{IpAddr, SocketAddr};

use portwarden_model::{
    Exposure, Family, Frontend, LoopbackNodePorts, Masquerade, NodePortAddresses, NodeView, PodTraffic,
    PoolKind, Protocol, ProxiedPort, TrafficPolicy, Verdict,
};

use crate::layout::Key;

/// A record that should be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    pub(crate) exposure: Exposure,
    /// `None` refuses connections.
    pub(crate) pool: Option<PoolKind>,
}

/// The records of a port. `node_addresses` are those of the node, which matter if node ports answer on all of them.
pub(crate) fn wanted(node: &NodeView, node_addresses: &[IpAddr], port: &ProxiedPort) -> Vec<Wanted> {
    // The kernel has no hook for SCTP.
    if port.protocol() == Protocol::Sctp {
        return Vec::new();
    }
    let split = port.affinity.is_some() && is_affinity_split(node, port);
    let mut all = Vec::new();
    for frontend in port.active_frontends() {
        let pool = match frontend.from_node {
            Verdict::Forward(kind) => Some(kind),
            Verdict::Reject => None,
            Verdict::Drop => continue,
        };
        let mut addresses = match frontend.ip {
            Some(ip) => vec![ip],
            None => node_port_addresses(node, node_addresses),
        };
        if split || is_left_to_nftables(node, port, frontend) {
            // nftables cannot serve loopback addresses, and only processes of the node reach them.
            addresses.retain(IpAddr::is_loopback);
        }
        all.extend(addresses.into_iter().map(|ip| Wanted {
            key: Key::new(SocketAddr::new(ip, frontend.port), port.protocol()),
            exposure: frontend.exposure,
            pool,
        }));
    }
    all
}

/// Whether a client would be remembered in several places. With session affinity, all frontends of a port lead it to the same endpoint.
///
/// Only what the Service says counts, not which endpoints there are or which other Service wants the same address: a port that
/// moves from the programs to nftables or back forgets its clients.
fn is_affinity_split(node: &NodeView, port: &ProxiedPort) -> bool {
    let is_local = |frontend: &Frontend| {
        frontend.exposure == Exposure::ClusterIp && frontend.policy == TrafficPolicy::Local
    };
    let pools_differ = port.frontends.iter().any(is_local) && !port.frontends.iter().all(is_local);
    pools_differ || port.frontends.iter().any(|frontend| is_left_to_nftables(node, port, frontend))
}

fn is_left_to_nftables(node: &NodeView, port: &ProxiedPort, frontend: &Frontend) -> bool {
    // A program does not see the source address that a packet will have.
    let filtered = frontend.exposure == Exposure::LoadBalancerIp && port.source_ranges.is_some();
    // Sockets of pods must not be distinguished from those of the host where the operator said that pods are unknown.
    let by_origin = frontend.from_node != frontend.from_elsewhere && node.pod_traffic == PodTraffic::Unknown;
    // `masqueradeAll`: endpoints must see the node's address.
    let masqueraded = frontend.exposure == Exposure::ClusterIp && frontend.masquerade == Masquerade::Always;
    filtered || by_origin || masqueraded
}

fn node_port_addresses(node: &NodeView, node_addresses: &[IpAddr]) -> Vec<IpAddr> {
    let family = Family::of(node.ip);
    let loopback = node.loopback_node_ports != LoopbackNodePorts::Excluded;
    let (given, all): (&[IpAddr], bool) = match &node.node_ports {
        NodePortAddresses::All => (node_addresses, true),
        NodePortAddresses::Only(ips) => (ips, false),
    };
    let own = given.iter().copied().filter(|ip| Family::of(*ip) == family);
    // The programs read any address of 127.0.0.0/8 as 127.0.0.1.
    let has_loopback = loopback && (all || own.clone().any(|ip| ip.is_loopback()));
    own.filter(|ip| !ip.is_loopback()).chain(has_loopback.then(|| family.loopback())).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use portwarden_model::build::{ServiceBuilder, ToEvent, endpoint, node, port, service, slice};
    use portwarden_model::{Cluster, DetectLocal, Event, Kind, NodePortRange, Settings};

    use super::*;

    const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const OWN: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), NODE];
    const CLUSTER: Option<PoolKind> = Some(PoolKind::Cluster);

    fn settings() -> Settings {
        let pods = "10.244.0.0/16".parse().unwrap();
        Settings {
            detect_local: DetectLocal::ClusterCidr(vec![pods]),
            node_port_addresses: vec![NodePortRange::Primary],
            ..Settings::new("node-a")
        }
    }

    fn records(
        settings: Settings,
        service: ServiceBuilder,
        endpoints: bool,
    ) -> Vec<(String, Option<PoolKind>)> {
        let mut cluster = Cluster::new(settings);
        cluster.apply(Event::HostAddresses(OWN.into()));
        cluster.apply(node("node-a").ip(NODE).build().event());
        cluster.apply(service.build().event());
        let elsewhere = slice("web", "web-1").port(port(8080));
        let elsewhere =
            if endpoints { elsewhere.endpoint(endpoint("10.244.1.1").on("node-b")) } else { elsewhere };
        cluster.apply(elsewhere.build().event());
        for kind in Kind::ALL {
            cluster.apply(Event::ListDone(kind));
        }
        cluster.resolve();
        let desired = cluster.desired(Family::V4);
        let text = |wanted: &Wanted| (wanted.key.address().to_string(), wanted.pool);
        desired.ports().flat_map(|port| wanted(&desired.node, &OWN, port)).map(|w| text(&w)).collect()
    }

    fn web() -> ServiceBuilder {
        service("web").of_type("LoadBalancer").cluster_ip("10.96.0.1").port(port(80).node_port(30080))
    }

    fn list(records: &[(&str, Option<PoolKind>)]) -> Vec<(String, Option<PoolKind>)> {
        records.iter().map(|(text, pool)| ((*text).to_owned(), *pool)).collect()
    }

    #[test]
    fn every_kind_of_frontend_has_a_record() {
        let service = web().external_ip("198.51.100.1").vip("203.0.113.1");
        let all = [
            ("10.96.0.1:80", CLUSTER),
            ("198.51.100.1:80", CLUSTER),
            ("203.0.113.1:80", CLUSTER),
            ("192.0.2.1:30080", CLUSTER),
        ];
        assert_eq!(records(settings(), service.clone(), true), list(&all));
        assert_eq!(records(settings(), service, false), list(&all.map(|(text, _)| (text, None))), "refused");
    }

    #[test]
    fn loopback_addresses_have_node_ports_where_the_operator_wants_them() {
        let with = |ranges: &[NodePortRange]| {
            let settings = Settings { node_port_addresses: ranges.into(), ..settings() };
            records(settings, web(), true).into_iter().skip(1).map(|(text, _)| text).collect::<Vec<_>>()
        };
        assert_eq!(with(&[]), ["192.0.2.1:30080", "127.0.0.1:30080"]);
        assert_eq!(with(&[NodePortRange::Localhost]), ["127.0.0.1:30080"]);
        assert_eq!(
            with(&[NodePortRange::Primary, NodePortRange::Localhost]),
            ["192.0.2.1:30080", "127.0.0.1:30080"]
        );
    }

    #[test]
    fn source_ranges_and_masquerading_are_left_to_nftables() {
        let filtered = web().vip("203.0.113.1").source_range("198.51.100.0/24");
        assert_eq!(
            records(settings(), filtered, true),
            list(&[("10.96.0.1:80", CLUSTER), ("192.0.2.1:30080", CLUSTER)])
        );
        let all = Settings { masquerade_all: true, ..settings() };
        assert_eq!(records(all, web(), true), list(&[("192.0.2.1:30080", CLUSTER)]));
    }

    #[test]
    fn clients_with_affinity_are_remembered_in_one_place() {
        let filtered = web().affinity(600).vip("203.0.113.1").source_range("198.51.100.0/24");
        assert_eq!(records(settings(), filtered, true), []);
        assert_eq!(records(settings(), web().affinity(600), true).len(), 2);
        // No endpoint is on this node: only the node port has one to offer, and still nftables serves it.
        assert_eq!(records(settings(), web().affinity(600).internal_policy_local(), true), []);
    }

    #[test]
    fn traffic_that_is_dropped_is_left_to_nftables() {
        assert_eq!(
            records(settings(), web().internal_policy_local(), true),
            list(&[("192.0.2.1:30080", CLUSTER)])
        );
    }

    #[test]
    fn where_pods_are_unknown_policy_local_is_left_to_nftables() {
        let local = web().external_policy_local();
        assert_eq!(
            records(settings(), local.clone(), true).len(),
            2,
            "traffic from this node uses all endpoints"
        );
        let unknown = Settings { detect_local: DetectLocal::Off, ..settings() };
        assert_eq!(records(unknown, local, true), list(&[("10.96.0.1:80", CLUSTER)]));
    }
}
