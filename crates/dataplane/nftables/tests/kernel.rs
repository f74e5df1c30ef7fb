//! The dataplane against the real kernel.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

#[allow(dead_code, reason = "each test binary uses its part")]
mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Node, web};
use portwarden_model::{Changes, Dataplane, Family};
use portwarden_netlink::nftables::{self, Client, Table, TableId, Transaction};
use portwarden_nftables::{Nftables, Options};
use portwarden_testkit::{Topology, Transport, wait};
use serde_json::json;

fn pods(topology: &Topology) -> Vec<String> {
    topology.pods().iter().map(|pod| pod.ip().v4.to_string()).collect()
}

fn serving(pods: u8) -> Node {
    let topology = Topology::builder().pods(pods).build().unwrap();
    for pod in topology.pods() {
        pod.serve(Transport::Tcp, 8080).unwrap();
    }
    Node::new(topology)
}

#[test]
fn a_cluster_address_leads_to_every_endpoint_and_nft_can_list_it() {
    let mut node = serving(3);
    let all = pods(&node.topology);
    node.service(web("10.96.0.1", json!({})));
    node.endpoints("web", &all);
    node.sync();
    let listing = node.nft(&["list", "ruleset"]);
    assert!(listing.contains("demo/web"), "{listing}");
    let tally =
        node.topology.outside().probe().volley(Transport::Tcp, "10.96.0.1:80".parse().unwrap(), 60).unwrap();
    assert_eq!((tally.answered(), tally.answered_by().len()), (60, 3), "{tally}\n{listing}");
}

/// A name that is a word of nft's own language could only be listed with everything else.
#[test]
fn nft_understands_every_name() {
    let mut node = serving(1);
    node.service(web("10.96.0.1", json!({ "sessionAffinity": "ClientIP" })));
    let all = pods(&node.topology);
    node.endpoints("web", &all);
    node.sync();
    let listing = node.nft(&["list", "table", "ip", "kube-proxy"]);
    let mut objects = 0;
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [kind @ ("chain" | "set" | "map"), name, "{"] = words[..] {
            node.nft(&["list", kind, "ip", "kube-proxy", name]);
            objects += 1;
        }
    }
    assert!(objects > 60, "{listing}");
}

#[test]
fn the_same_sync_twice_writes_nothing() {
    let mut node = serving(2);
    let all = pods(&node.topology);
    node.service(web("10.96.0.1", json!({})));
    node.endpoints("web", &all);
    assert!(node.sync().v4.written > 0);
    assert_eq!(node.sync().v4.written, 0);
    node.endpoints("web", &all[..1]);
    let report = node.sync();
    assert!(!report.v4.full && report.v4.written <= 4, "{report:?}");
}

#[test]
fn clients_keep_their_endpoint_over_a_restart_and_when_other_endpoints_go() {
    let mut node = serving(4);
    let all = pods(&node.topology);
    let sticky = json!({ "spec": { "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 600 } } } });
    node.service(web("10.96.0.1", sticky));
    node.endpoints("web", &all);
    node.sync();
    let ask = |node: &Node| {
        node.topology.outside().tcp("10.96.0.1:80".parse().unwrap()).unwrap().host().unwrap().to_owned()
    };
    let first = ask(&node);
    assert!((0..10).all(|_| ask(&node) == first));
    node.restart();
    assert!(node.sync().v4.full);
    assert!((0..10).all(|_| ask(&node) == first), "{}", node.nft(&["list", "ruleset"]));
    let survivors: Vec<String> = node
        .topology
        .pods()
        .iter()
        .filter(|pod| pod.name() == first)
        .map(|pod| pod.ip().v4.to_string())
        .collect();
    let others: Vec<String> = all.iter().filter(|ip| !survivors.contains(ip)).cloned().collect();
    node.endpoints("web", &[survivors, others[..1].to_vec()].concat());
    node.sync();
    assert!((0..10).all(|_| ask(&node) == first));
    node.endpoints("web", &others);
    node.sync();
    let second = ask(&node);
    assert_ne!(second, first);
    assert!((0..10).all(|_| ask(&node) == second));
}

#[test]
fn changes_by_other_processes_are_detected_and_repaired() {
    let mut node = serving(2);
    let all = pods(&node.topology);
    node.service(web("10.96.0.1", json!({})));
    node.endpoints("web", &all);
    node.sync();
    assert_eq!(node.repair().v4, None, "our own changes are not tampering");
    let works =
        |node: &Node| node.topology.outside().tcp("10.96.0.1:80".parse().unwrap()).unwrap().is_answered();
    for damage in [
        &["flush", "ruleset"][..],
        &["delete", "table", "ip", "kube-proxy"],
        &["delete", "element", "ip", "kube-proxy", "frontends", "{ 10.96.0.1 . tcp . 80 }"],
        &["insert", "rule", "ip", "kube-proxy", "services", "ip", "daddr", "10.96.0.1", "drop"],
        &["flush", "chain", "ip", "kube-proxy", "nat-prerouting"],
    ] {
        node.nft(damage);
        let found =
            wait::until(Duration::from_secs(5), "the damage to be detected", || node.repair().v4).unwrap();
        assert!(works(&node), "after {damage:?}, detected as: {found}");
    }
    assert_eq!(node.repair().v4, None);
}

#[test]
fn a_service_that_cannot_be_written_does_not_hold_up_the_others() {
    let mut node = serving(1);
    let all = pods(&node.topology);
    node.service(web("10.96.0.1", json!({})));
    node.endpoints("web", &all);
    let sticky = json!({ "metadata": { "name": "huge" }, "spec": { "sessionAffinity": "ClientIP" } });
    node.service(web("10.96.0.2", sticky));
    let many: Vec<String> = (0..17_000u32).map(|n| format!("10.200.{}.{}", n / 250, n % 250 + 1)).collect();
    node.endpoints("huge", &many);
    let report = node.sync();
    assert_eq!(report.v4.refused.len(), 1, "{report:?}");
    assert_eq!(report.v4.refused[0].service.to_string(), "demo/huge");
    assert!(report.v4.refused[0].reason.contains("17000"), "{report:?}");
    assert!(node.topology.outside().tcp("10.96.0.1:80".parse().unwrap()).unwrap().is_answered());
}

/// One dataplane serves both families, and each is repaired alone.
#[test]
fn a_change_is_reported_for_its_family_only() {
    let mut node = serving(1);
    node.service(web("10.96.0.1", json!({})));
    node.sync();
    node.nft(&["delete", "table", "ip6", "kube-proxy"]);
    let found = wait::until(Duration::from_secs(5), "the damage to be detected", || {
        let found = node.repair();
        found.v6.is_some().then_some(found)
    });
    assert_eq!(found.unwrap().v4, None);
    assert!(node.nft(&["list", "ruleset"]).contains("table ip6 kube-proxy"));
}

#[test]
fn a_family_that_is_not_served_is_an_error_and_nothing_is_applied() {
    let node = serving(0);
    let _inside = node.topology.node().namespace().enter().unwrap();
    let mut dataplane = Nftables::new(&[Family::V4], Options::default()).unwrap();
    assert_eq!(dataplane.families(), [Family::V4]);
    let desired = node.cluster.desired(Family::V6);
    let error = dataplane.sync(desired, &Changes::everything(), Instant::now()).unwrap_err();
    assert!(error.to_string().contains("IPv6"), "{error}");
    assert_eq!((error.report.written, error.report.full), (0, false));
    assert!(!node.nft(&["list", "ruleset"]).contains("kube-proxy"));
}

/// Notifications are paused during a large change, so the report says whether another process changed anything meanwhile.
#[test]
fn missed_notifications_during_a_large_change_are_reported() {
    let mut node = serving(1);
    let many: Vec<String> = (0..900).map(|n| format!("10.245.{}.{}", n / 250, n % 250 + 1)).collect();
    node.service(web("10.96.0.1", json!({})));
    node.endpoints("web", &many);
    assert!(!node.sync().v4.missed_notifications, "no other process made changes");
    let inside = node.topology.node().namespace().clone();
    let over = AtomicBool::new(false);
    let others = || {
        let _inside = inside.enter().unwrap();
        let mut client = Client::open().unwrap();
        let table = TableId::new(nftables::Family::Ip, "others");
        let mut transaction = Transaction::new();
        transaction.add(Table::new(&table));
        transaction.delete(Table::new(&table));
        let deadline = Instant::now() + Duration::from_secs(30);
        while !over.load(Ordering::Relaxed) && Instant::now() < deadline {
            client.commit(&transaction).unwrap();
            // Slow enough for a listing in between.
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(others);
        let missed = wait::until(Duration::from_secs(20), "missed notifications", || {
            node.restart();
            node.sync().v4.missed_notifications.then_some(())
        });
        over.store(true, Ordering::Relaxed);
        missed.unwrap();
    });
    node.restart();
    assert!(!node.sync().v4.missed_notifications);
}

#[test]
fn another_programs_table_of_the_same_name_is_replaced_at_once() {
    let mut node = serving(1);
    let all = pods(&node.topology);
    let theirs = "
        table ip kube-proxy {
            map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
            chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
            chain nat-prerouting {
                type nat hook prerouting priority -100;
                jump services
            }
        }";
    node.topology.node().command("nft").args(["-f", "-"]).input(theirs).run().unwrap();
    node.service(web("10.96.0.1", json!({})));
    node.endpoints("web", &all);
    node.sync();
    assert!(!node.nft(&["list", "ruleset"]).contains("service-ips"));
    assert!(node.topology.outside().tcp("10.96.0.1:80".parse().unwrap()).unwrap().is_answered());
}

#[test]
fn kube_proxys_own_table_is_taken_over_and_open_connections_go_on() {
    let mut node = serving(1);
    let pod = node.topology.pod(0).ip().v4;
    let dnat = format!(
        "table ip before {{ chain nat {{ type nat hook prerouting priority -105; ip daddr 10.96.0.1 tcp dport 80 dnat to {pod}:8080; }}; }}"
    );
    let load = |text: &str| node.topology.node().command("nft").args(["-f", "-"]).input(text).run().unwrap();
    load(&dnat);
    load(include_str!("fixtures/kube-proxy.nft"));
    let (mut open, first) =
        node.topology.outside().probe().open(Transport::Tcp, "10.96.0.1:80".parse().unwrap()).unwrap();
    assert!(first.is_answered(), "{first}");
    node.nft(&["delete", "table", "ip", "before"]);

    let all = pods(&node.topology);
    node.service(web("10.96.0.1", json!({})));
    node.endpoints("web", &all);
    node.sync();
    let listing = node.nft(&["list", "ruleset"]);
    assert!(!listing.contains("service-ips") && !listing.contains("KUBE"), "{listing}");
    assert_eq!(listing.matches(" hook ").count(), 12, "no source ranges, no hook for them: {listing}");
    assert!(open.exchange().unwrap().is_answered(), "a connection from before was cut");
    assert!(node.topology.outside().tcp("10.96.0.1:80".parse().unwrap()).unwrap().is_answered());
}
