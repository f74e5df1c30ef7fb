//! Session affinity against the real kernel, where a service port has two lists: all endpoints, and those on this node.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

#[allow(dead_code, reason = "each test binary uses its part")]
mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;

use common::{Node, web};
use portwarden_testkit::{Topology, Transport};
use serde_json::{Value, json};

const CLUSTER: &str = "10.96.0.1:80";
/// An external address, policy Local.
const LOCAL: &str = "192.0.2.1:80";

fn sticky(more: Value) -> Value {
    let mut service = json!({
        "spec": {
            "type": "NodePort", "externalIPs": ["192.0.2.1"], "externalTrafficPolicy": "Local",
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 600 } },
        }
    });
    common::merge(&mut service, more);
    web("10.96.0.1", service)
}

/// A node with three pods, another with three, and a sticky Service for all of them.
fn both_policies() -> Node {
    let topology = Topology::builder().pods(3).remote_pods(3).build().unwrap();
    for host in topology.hosts().filter(|host| host.name().contains("pod")) {
        host.serve(Transport::Tcp, 8080).unwrap();
    }
    let mut node = Node::new(topology);
    node.service(sticky(json!({})));
    let all = addresses(&node, |_| true);
    node.endpoints("web", &all);
    node.sync();
    node
}

fn addresses(node: &Node, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let pods = node.topology.hosts().filter(|host| host.name().contains("pod"));
    pods.filter(|host| wanted(host.name())).map(|host| host.ip().v4.to_string()).collect()
}

fn clients() -> impl Iterator<Item = IpAddr> {
    (10..=13).map(|number| IpAddr::from([203, 0, 113, number]))
}

/// The name of the pod that answers.
fn ask(node: &Node, client: IpAddr, target: &str) -> String {
    let probe = node.topology.outside().probe().from(client);
    probe.tcp(target.parse().unwrap()).unwrap().host().unwrap().to_owned()
}

/// Asks several times; the answer is always the same.
fn pinned(node: &Node, client: IpAddr, target: &str) -> String {
    let answers: BTreeSet<String> = (0..6).map(|_| ask(node, client, target)).collect();
    assert_eq!(answers.len(), 1, "{client} to {target}: {answers:?}\n{}", node.nft(&["list", "ruleset"]));
    answers.into_iter().next().unwrap()
}

fn is_local(pod: &str) -> bool {
    pod.starts_with("pod-")
}

#[test]
fn one_endpoint_for_both_policies_also_over_a_restart() {
    let mut node = both_policies();
    let mut bound = Vec::new();
    for client in clients() {
        let pod = pinned(&node, client, LOCAL);
        assert!(is_local(&pod));
        assert_eq!(pinned(&node, client, CLUSTER), pod);
        bound.push((client, pod));
    }
    node.restart();
    assert!(node.sync().v4.full);
    for (client, pod) in &bound {
        assert_eq!(pinned(&node, *client, CLUSTER), *pod);
        assert_eq!(pinned(&node, *client, LOCAL), *pod);
    }
}

/// A client of an endpoint on another node cannot keep it with policy Local: it has one endpoint for each policy from then on.
#[test]
fn a_client_with_an_endpoint_elsewhere_has_a_second_one_here() {
    let mut node = both_policies();
    let remote = addresses(&node, |name| !is_local(name));
    node.endpoints("web", &remote);
    node.sync();
    let elsewhere: Vec<String> = clients().map(|client| pinned(&node, client, CLUSTER)).collect();
    let all = addresses(&node, |_| true);
    node.endpoints("web", &all);
    node.sync();
    let here: Vec<String> = clients().map(|client| pinned(&node, client, LOCAL)).collect();
    assert!(here.iter().all(|pod| is_local(pod)), "{here:?}");
    let check = |node: &Node| {
        for ((client, elsewhere), here) in clients().zip(&elsewhere).zip(&here) {
            assert_eq!(&pinned(node, client, CLUSTER), elsewhere);
            assert_eq!(&pinned(node, client, LOCAL), here);
        }
    };
    check(&node);
    node.restart();
    node.sync();
    check(&node);
    // Without the endpoints elsewhere, those here serve both.
    let local = addresses(&node, is_local);
    node.endpoints("web", &local);
    node.sync();
    for (client, here) in clients().zip(&here) {
        assert_eq!(&pinned(&node, client, CLUSTER), here);
        assert_eq!(&pinned(&node, client, LOCAL), here);
    }
}

#[test]
fn a_removed_endpoint_gets_no_connection_with_either_policy() {
    let mut node = both_policies();
    for client in clients() {
        let gone = pinned(&node, client, LOCAL);
        assert_eq!(pinned(&node, client, CLUSTER), gone);
        let others = addresses(&node, |name| name != gone);
        node.endpoints("web", &others);
        assert!(!node.sync().v4.full);
        let next = pinned(&node, client, CLUSTER);
        assert_ne!(next, gone);
        let here = pinned(&node, client, LOCAL);
        assert!(here != gone && is_local(&here));
        assert!(!is_local(&next) || next == here, "{next} serves both ways");
        let all = addresses(&node, |_| true);
        node.endpoints("web", &all);
        node.sync();
        assert_eq!(pinned(&node, client, CLUSTER), next);
        assert_eq!(pinned(&node, client, LOCAL), here);
    }
}

/// An earlier version gave both lists of a port unrelated numbers: the list of all endpoints stays.
#[test]
fn clients_of_an_earlier_layout_stay() {
    let mut node = both_policies();
    node.nft(&["delete", "table", "ip", "kube-proxy"]);
    let earlier = "
        table ip kube-proxy {
            map sticky-names {
                typeof numgen random mod 65536 . numgen random mod 65536 : meta priority
                elements = { 2539969997 . 482893619 : c000:0, 327686628 . 3517142542 : c000:4000 }
            }
            map sticky-endpoints {
                type classid : ipv4_addr . inet_service
                elements = {
                    c000:7 : 10.244.0.10 . 8080, c000:8 : 10.244.0.11 . 8080, c000:9 : 10.244.1.12 . 8080,
                    c000:4001 : 10.244.0.12 . 8080, c000:4002 : 10.244.0.11 . 8080
                }
            }
            map client-affinity {
                type ipv4_addr . classid : classid
                size 1048576
                flags dynamic,timeout
                timeout 3h
                comment \"clients of sticky services: entry\"
                elements = {
                    203.0.113.10 . c000:0 timeout 10m : c000:7,
                    203.0.113.11 . c000:0 timeout 10m : c000:8,
                    203.0.113.12 . c000:0 timeout 10m : c000:9,
                    203.0.113.13 . c000:4000 timeout 10m : c000:4001
                }
            }
        }";
    node.topology.node().command("nft").args(["-f", "-"]).input(earlier).run().unwrap();
    node.restart();
    node.sync();
    let clients: Vec<IpAddr> = clients().collect();
    assert_eq!(pinned(&node, clients[0], LOCAL), "pod-0");
    assert_eq!(pinned(&node, clients[0], CLUSTER), "pod-0");
    assert_eq!(pinned(&node, clients[1], CLUSTER), "pod-1");
    assert_eq!(pinned(&node, clients[2], CLUSTER), "remote-pod-2");
    assert!(is_local(&pinned(&node, clients[3], LOCAL)));
}

#[test]
fn clients_stay_when_a_policy_changes() {
    let mut node = both_policies();
    let bound: Vec<(IpAddr, String)> =
        clients().map(|client| (client, pinned(&node, client, LOCAL))).collect();
    let policies = |internal: &str, external: &str| {
        sticky(json!({ "spec": { "internalTrafficPolicy": internal, "externalTrafficPolicy": external } }))
    };
    for (internal, external) in
        [("Cluster", "Cluster"), ("Local", "Local"), ("Local", "Cluster"), ("Cluster", "Local")]
    {
        node.service(policies(internal, external));
        assert!(!node.sync().v4.full);
        for (client, pod) in &bound {
            for target in [CLUSTER, LOCAL] {
                assert_eq!(&pinned(&node, *client, target), pod, "{internal}, {external}, {target}");
            }
        }
    }
}

/// Policy Local uses terminating pods of this node while it has no other; policy Cluster does not. A client that loses its pod with one
/// policy keeps it with the other.
#[test]
fn an_endpoint_that_serves_one_policy_only_keeps_its_clients_there() {
    let mut node = both_policies();
    let local = addresses(&node, is_local);
    node.endpoints("web", &local);
    node.sync();
    let before: Vec<String> = clients().map(|client| pinned(&node, client, CLUSTER)).collect();
    let endpoint = |address: &String, node: &str, ready: bool| {
        let conditions = json!({ "ready": ready, "serving": true, "terminating": !ready });
        json!({ "addresses": [address], "nodeName": node, "conditions": conditions })
    };
    let mut endpoints: Vec<Value> = local.iter().map(|ip| endpoint(ip, "node-a", false)).collect();
    let remote = addresses(&node, |name| !is_local(name));
    endpoints.extend(remote.iter().map(|ip| endpoint(ip, "node-b", true)));
    node.slice(json!({
        "metadata": { "namespace": "demo", "name": "web-IPv4", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
    }));
    node.sync();
    for (client, before) in clients().zip(before) {
        let elsewhere = pinned(&node, client, CLUSTER);
        assert!(!is_local(&elsewhere), "{elsewhere}");
        assert_eq!(pinned(&node, client, LOCAL), before);
        assert_eq!(pinned(&node, client, CLUSTER), elsewhere);
    }
}

/// A changed endpoint writes a slot and an entry for each list that has it, and the routes if the class of the list changes.
#[test]
fn a_change_sends_only_what_differs() {
    let mut node = both_policies();
    assert_eq!(node.sync().v4.written, 0);
    let fewer = addresses(&node, |name| name != "remote-pod-2");
    node.endpoints("web", &fewer);
    let report = node.sync().v4;
    assert!(!report.full && report.written <= 5, "{report:?}");
    let all = addresses(&node, |_| true);
    node.endpoints("web", &all);
    let report = node.sync().v4;
    assert!(!report.full && report.written <= 5, "{report:?}");
    node.endpoints("web", &all);
    assert_eq!(node.sync().v4.written, 0);
}
