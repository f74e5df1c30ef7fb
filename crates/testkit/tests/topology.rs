//! The cluster of namespaces without any rules: who reaches whom, and from which address.

use std::net::{IpAddr, SocketAddr};

use portwarden_testkit::topology::PodNetwork;
use portwarden_testkit::topology::addresses::{NODE, NODE_B, NODE_PODS, NODE_SECONDARY, SERVICE_CIDR, VIPS};
use portwarden_testkit::{Host, Outcome, Topology, Transport};

const PORT: u16 = 8080;

fn cluster(pod_network: PodNetwork) -> Topology {
    Topology::builder().pods(2).remote_pods(2).pod_network(pod_network).build().expect("a cluster")
}

/// Lets `server` answer, asks it from `client` in both families and both transports, and gives the sources it saw.
fn sources(client: &Host, server: &Host) -> [IpAddr; 2] {
    server.ip().both().map(|ip| {
        let seen = [Transport::Tcp, Transport::Udp].map(|transport| {
            let target = SocketAddr::new(ip, PORT);
            let outcome = client.probe().send(transport, target).expect("a probe");
            let answer = outcome.answer().unwrap_or_else(|| {
                panic!("{transport:?} from {} to {} at {target}: {outcome}", client.name(), server.name())
            });
            assert_eq!((answer.host.as_str(), answer.endpoint), (server.name(), target));
            answer.source.ip()
        });
        assert_eq!(seen[0], seen[1], "both transports speak from the same address");
        seen[0]
    })
}

fn everyone_reaches_everyone(pod_network: PodNetwork) {
    let topology = cluster(pod_network);
    for host in topology.hosts() {
        for transport in [Transport::Tcp, Transport::Udp] {
            host.serve(transport, PORT).expect("a server");
        }
    }
    for server in topology.hosts() {
        for client in topology.hosts() {
            let bridge_speaks = pod_network == PodNetwork::Bridge
                && client.name() == "node-a"
                && topology.pods().iter().any(|pod| pod.name() == server.name());
            let expected = if bridge_speaks { NODE_PODS.host(1) } else { client.ip() };
            assert_eq!(sources(client, server), expected.both(), "{} to {}", client.name(), server.name());
        }
    }
}

#[test]
fn everyone_reaches_everyone_from_their_primary_address() {
    everyone_reaches_everyone(PodNetwork::Routed);
}

#[test]
fn everyone_reaches_everyone_with_pods_on_a_bridge() {
    everyone_reaches_everyone(PodNetwork::Bridge);
}

#[test]
fn pods_hang_on_the_devices_that_local_detection_knows() {
    let devices = |pod_network| {
        let topology = cluster(pod_network);
        topology.node().command("ip").args(["-o", "link"]).run().unwrap()
    };
    let routed = devices(PodNetwork::Routed);
    assert!(routed.contains("veth0@") && routed.contains("veth1@") && !routed.contains("cni0"), "{routed}");
    let bridged = devices(PodNetwork::Bridge);
    assert!(bridged.contains("cni0:") && bridged.matches("master cni0").count() == 2, "{bridged}");
}

#[test]
fn the_secondary_address_of_the_node_is_reachable() {
    let topology = cluster(PodNetwork::Routed);
    for ip in NODE_SECONDARY.both() {
        let target = SocketAddr::new(ip, PORT);
        topology.node().serve_on(Transport::Tcp, target, Default::default()).unwrap();
        for client in [topology.outside(), topology.node_b(), topology.pod(0), topology.node()] {
            let outcome = client.tcp(target).unwrap();
            assert_eq!(outcome.host(), Some("node-a"), "{} to {target}: {outcome}", client.name());
        }
    }
}

#[test]
fn the_outside_speaks_from_any_of_its_addresses() {
    let topology = cluster(PodNetwork::Routed);
    topology.pod(0).serve(Transport::Tcp, PORT).unwrap();
    let target = SocketAddr::new(topology.pod(0).ip().v4.into(), PORT);
    let clients: Vec<IpAddr> = topology.outside().addresses().iter().map(|ip| ip.v4.into()).collect();
    assert!(clients.len() >= 5, "{clients:?}");
    for ip in clients {
        let outcome = topology.outside().probe().from(ip).tcp(target).unwrap();
        assert_eq!(outcome.source(), Some(ip), "{outcome}");
    }
}

#[test]
fn service_addresses_vanish_without_rules() {
    let topology = cluster(PodNetwork::Routed);
    let clients = [topology.outside(), topology.pod(0), topology.remote_pod(0), topology.node()];
    // All at the same time, as each takes a while.
    std::thread::scope(|scope| {
        for client in clients {
            for ip in [SERVICE_CIDR.host(10), VIPS.host(13)].into_iter().flat_map(|ip| ip.both()) {
                scope.spawn(move || {
                    let outcome = client.probe().short_timeout().tcp(SocketAddr::new(ip, 80)).unwrap();
                    assert_eq!(outcome, Outcome::Dropped, "{} to {ip}: {outcome}", client.name());
                });
            }
        }
    });
}

#[test]
fn loopback_works_everywhere() {
    let topology = cluster(PodNetwork::Routed);
    for host in topology.hosts() {
        for ip in ["127.0.0.1", "::1"] {
            let target = SocketAddr::new(ip.parse().unwrap(), PORT);
            host.serve_on(Transport::Udp, target, Default::default()).unwrap();
            assert_eq!(host.udp(target).unwrap().host(), Some(host.name()));
        }
    }
}

#[test]
fn hosts_are_found_by_name_and_address() {
    let topology = cluster(PodNetwork::Routed);
    assert_eq!(topology.host("remote-pod-1").map(Host::name), Some("remote-pod-1"));
    assert!(topology.host("pod-2").is_none());
    let owner = |ip: IpAddr| topology.owner(ip).map(Host::name);
    assert_eq!(owner(NODE.v4.into()), Some("node-a"));
    assert_eq!(owner(NODE_SECONDARY.v6.into()), Some("node-a"));
    assert_eq!(owner(NODE_B.v6.into()), Some("node-b"));
    assert_eq!(owner("203.0.113.12".parse().unwrap()), Some("outside"));
    assert_eq!(owner("10.244.0.11".parse().unwrap()), Some("pod-1"));
    assert_eq!(owner(VIPS.host(1).v4.into()), None);
}

#[test]
fn no_pods_is_a_cluster_too() {
    for pod_network in [PodNetwork::Routed, PodNetwork::Bridge] {
        let topology = Topology::builder().pods(0).remote_pods(0).pod_network(pod_network).build().unwrap();
        assert_eq!(topology.hosts().count(), 3);
    }
}
