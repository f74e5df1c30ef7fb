//! Node ports on loopback addresses against the real kernel: rejected, counted, and removed without traces.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

#[allow(dead_code, reason = "every test file uses its own part of this")]
mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use common::Node;
use portwarden_model::{Family, NodePortRange, Protocol};
use portwarden_nftables::{Options, loopback_rejected_packets};
use portwarden_testkit::probe::Behaviour;
use portwarden_testkit::{Topology, Transport};
use serde_json::json;

const SERVED: u16 = 30080;
const UNSERVED: u16 = 30081;
const SECOND: Duration = Duration::from_secs(1);

/// A node with node ports of TCP and UDP, with and without endpoints, in both families.
fn node(wanted: bool, ranges: Vec<NodePortRange>) -> Node {
    let topology = Topology::builder().pods(1).build().unwrap();
    for transport in [Transport::Tcp, Transport::Udp] {
        topology.pod(0).serve(transport, 8080).unwrap();
    }
    let pod = topology.pod(0).ip();
    let options = Options { loopback_node_ports: wanted, ..Options::default() };
    let mut node = Node::with(topology, options, ranges);
    for (name, last, port) in [("web", 1, SERVED), ("empty", 2, UNSERVED)] {
        let ports = ["TCP", "UDP"]
            .map(|protocol| json!({ "name": protocol, "port": 80, "nodePort": port, "protocol": protocol }));
        let ips = [format!("10.96.0.{last}"), format!("fd00:10:96::{last}")];
        node.service(json!({
            "metadata": { "namespace": "demo", "name": name },
            "spec": { "type": "NodePort", "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": ["IPv4", "IPv6"], "ports": ports },
        }));
    }
    for (family, ip) in [("IPv4", pod.v4.to_string()), ("IPv6", pod.v6.to_string())] {
        let ports =
            ["TCP", "UDP"].map(|protocol| json!({ "name": protocol, "port": 8080, "protocol": protocol }));
        node.slice(json!({
            "metadata": { "namespace": "demo", "name": format!("web-{family}"), "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": family, "endpoints": [{ "addresses": [ip], "nodeName": "node-a" }], "ports": ports,
        }));
    }
    node.sync();
    node
}

/// A server of another process on the loopback addresses of the node.
fn listen(node: &Node, transport: Transport, port: u16) {
    for family in Family::BOTH {
        let address = SocketAddr::new(family.loopback(), port);
        node.topology.node().serve_on(transport, address, Behaviour::Answer).unwrap();
    }
}

fn answered(node: &Node, family: Family, transport: Transport, port: u16) -> bool {
    let target = SocketAddr::new(family.loopback(), port);
    let outcome = node.topology.node().probe().send(transport, target).unwrap();
    assert!(outcome.is_answered() || outcome.is_refused(), "{target} {transport:?}: {outcome}");
    outcome.is_answered()
}

fn counted(node: &Node, family: Family) -> Vec<(Protocol, u64)> {
    let _inside = node.topology.node().namespace().enter().unwrap();
    loopback_rejected_packets(family, 2 * SECOND).unwrap()
}

/// All objects of both tables, and the rules for packets to the host.
fn objects(node: &Node) -> BTreeSet<String> {
    let listing = node.nft(&["-s", "list", "ruleset"]);
    let of_interest =
        |line: &&str| line.ends_with('{') || line.contains("127.0.0.0/8") || line.contains("::1 ");
    listing.lines().filter(of_interest).map(str::to_owned).collect()
}

#[test]
fn every_protocol_is_refused_and_counted_where_no_proxy_listens() {
    let node = node(true, Vec::new());
    for transport in [Transport::Tcp, Transport::Udp] {
        for port in [SERVED, UNSERVED, 30082] {
            listen(&node, transport, port);
        }
    }
    for family in Family::BOTH {
        assert_eq!(counted(&node, family), [(Protocol::Tcp, 0), (Protocol::Udp, 0), (Protocol::Sctp, 0)]);
        for transport in [Transport::Tcp, Transport::Udp] {
            assert!(!answered(&node, family, transport, SERVED), "{}", node.nft(&["list", "ruleset"]));
            assert!(!answered(&node, family, transport, UNSERVED));
            assert!(answered(&node, family, transport, 30082), "not a node port");
        }
        assert_eq!(counted(&node, family), [(Protocol::Tcp, 2), (Protocol::Udp, 2), (Protocol::Sctp, 0)]);
    }
    let chain = node.nft(&["list", "chain", "ip", "kube-proxy", "nodeport-endpoints-check"]);
    assert!(
        chain.contains("counter name \"localhost-nodeport-rejected-sctp\" goto refuse"),
        "nft can list it: {chain}"
    );
    let own = SocketAddr::new(node.topology.node().ip().v4.into(), SERVED);
    assert!(
        node.topology.outside().tcp(own).unwrap().is_answered(),
        "other addresses still serve node ports"
    );
}

#[test]
fn tcp_is_left_to_the_proxy_where_ranges_name_loopback_addresses() {
    let node = node(true, vec![NodePortRange::Localhost]);
    listen(&node, Transport::Tcp, SERVED);
    listen(&node, Transport::Udp, SERVED);
    for family in Family::BOTH {
        assert!(answered(&node, family, Transport::Tcp, SERVED));
        assert!(!answered(&node, family, Transport::Udp, SERVED));
        assert_eq!(counted(&node, family), [(Protocol::Udp, 1), (Protocol::Sctp, 0)]);
    }
}

#[test]
fn nothing_is_there_unless_it_is_wanted() {
    let mut node = node(false, Vec::new());
    listen(&node, Transport::Tcp, SERVED);
    let before = objects(&node);
    assert!(!before.iter().any(|line| line.contains("counter") || line.contains("nodeport")), "{before:?}");
    assert!(answered(&node, Family::V4, Transport::Tcp, SERVED));
    assert_eq!(counted(&node, Family::V4), []);

    node.options.loopback_node_ports = true;
    node.restart();
    node.sync();
    assert!(!answered(&node, Family::V4, Transport::Tcp, SERVED));
    assert_eq!(node.sync().v4.written, 0, "the same again writes nothing");
    assert_eq!(node.repair().v4, None, "our own changes are not tampering");
    node.restart();
    node.sync();
    assert_eq!(counted(&node, Family::V4)[0], (Protocol::Tcp, 1), "counters survive a restart");

    node.options.loopback_node_ports = false;
    node.restart();
    node.sync();
    assert_eq!(objects(&node), before);
}

#[test]
fn other_ranges_change_what_is_refused_at_once() {
    let mut node = node(true, Vec::new());
    let mut settings = node.cluster.settings().clone();
    settings.node_port_addresses = vec![NodePortRange::Localhost];
    node.cluster.set_settings(settings.clone());
    assert!(!node.sync().v4.full);
    let protocols =
        |node: &Node| counted(node, Family::V4).iter().map(|(protocol, _)| *protocol).collect::<Vec<_>>();
    assert_eq!(protocols(&node), [Protocol::Udp, Protocol::Sctp]);
    settings.node_port_addresses = vec![NodePortRange::All];
    node.cluster.set_settings(settings);
    assert!(!node.sync().v4.full);
    assert_eq!(protocols(&node), Protocol::ALL);
    assert!(!answered(&node, Family::V4, Transport::Tcp, SERVED));
}

#[test]
fn a_removed_table_is_restored() {
    let mut node = node(true, Vec::new());
    node.nft(&["delete", "table", "ip", "kube-proxy"]);
    assert_eq!(counted(&node, Family::V4), [], "no table, no counters");
    assert!(node.repair().v4.is_some());
    assert!(!answered(&node, Family::V4, Transport::Tcp, SERVED));
    assert_eq!(counted(&node, Family::V4)[0], (Protocol::Tcp, 1));
}

/// kube-proxy empties its own chains and removes the counters that it does not want, all in one transaction.
#[test]
fn kube_proxy_can_take_the_table_over() {
    let node = node(true, Vec::new());
    let mut theirs = String::from("flush chain ip kube-proxy filter-input\n");
    theirs.push_str("add chain ip kube-proxy nodeport-endpoints-check\nflush chain ip kube-proxy nodeport-endpoints-check\n");
    for protocol in ["tcp", "udp", "sctp"] {
        for object in [
            format!("chain ip kube-proxy localhost-nodeport-reject-{protocol}"),
            format!("counter ip kube-proxy localhost-nodeport-rejected-{protocol}"),
        ] {
            theirs.push_str(&format!("add {object}\ndelete {object}\n"));
        }
    }
    node.topology.node().command("nft").args(["-f", "-"]).input(theirs).run().unwrap();
    assert_eq!(counted(&node, Family::V4), []);
}
