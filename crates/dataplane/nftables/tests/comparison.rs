//! A full sync compares the table with what was written, in pieces, and writes only what differs.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

#[allow(dead_code, reason = "each test binary uses its part")]
mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{Node, web};
use portwarden_model::{Dataplane, Family, Notification};
use portwarden_netlink::nftables::{self, Client, Elements, Image, Monitor, Notice, Set, Subject, TableId};
use portwarden_netlink::nftables::{DataType, Transaction};
use portwarden_testkit::{Topology, Transport};
use serde_json::json;

/// A Service of every kind that has elements of its own, and one with more endpoints than one piece of a comparison.
fn large() -> Node {
    let mut node = Node::new(Topology::builder().pods(2).build().unwrap());
    for pod in node.topology.pods() {
        pod.serve(Transport::Tcp, 8080).unwrap();
    }
    let pods: Vec<String> = node.topology.pods().iter().map(|pod| pod.ip().v4.to_string()).collect();
    let named = |name: &str, ip: &str, more: serde_json::Value| {
        let mut service = web(ip, json!({ "metadata": { "name": name } }));
        common::merge(&mut service, more);
        service
    };
    node.service(named("web", "10.96.0.1", json!({})));
    node.endpoints("web", &pods);
    node.service(named("many", "10.96.0.2", json!({})));
    let many: Vec<String> = (0..9_000u32).map(|n| format!("10.200.{}.{}", n / 250, n % 250 + 1)).collect();
    node.endpoints("many", &many);
    node.service(named("sticky", "10.96.0.3", json!({ "spec": { "sessionAffinity": "ClientIP" } })));
    node.endpoints("sticky", &pods);
    let ranges = json!({ "spec": {
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31080,
        "loadBalancerSourceRanges": ["192.0.2.0/24", "198.51.100.0/25"],
        "ports": [{ "port": 80, "nodePort": 30080, "protocol": "TCP" }] },
        "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.1" }] } } });
    node.service(named("balanced", "10.96.0.4", ranges));
    node.endpoints("balanced", &pods);
    node.service(named("none", "10.96.0.5", json!({})));
    node
}

/// Runs a comparison to its end, as the engine would, and returns what it reported.
fn compare(node: &mut Node) -> Vec<Notification> {
    let mut now = Instant::now();
    let mut notifications = Vec::new();
    let mut pieces = 0;
    while let Some(at) = node.dataplane.next_deadline() {
        now = now.max(at);
        notifications.extend(node.dataplane.poll(now));
        pieces += 1;
    }
    assert!(pieces > 10, "{pieces} pieces: one Service alone has 9,000 endpoints");
    notifications
}

/// Changes the table as another process would, without notifications, as if all of them had been lost.
fn unnoticed(node: &mut Node, change: impl FnOnce(&TableId, &mut Transaction)) {
    let mut transaction = Transaction::new();
    change(&TableId::new(nftables::Family::Ip, "kube-proxy"), &mut transaction);
    let monitor = {
        let _inside = node.topology.node().namespace().enter().unwrap();
        Monitor::open().unwrap()
    };
    let _inside = node.topology.node().namespace().enter().unwrap();
    let mut client = Client::open().unwrap();
    monitor.with_notifications_paused(|| client.commit(&transaction)).unwrap().unwrap();
}

fn set(table: &TableId, name: &str) -> std::sync::Arc<Set> {
    use DataType::{ClassId, Integer, Ipv4Address, Protocol, Service};
    std::sync::Arc::new(match name {
        "endpoints" => Set::map(table, name, [ClassId, Integer], [Ipv4Address, Service]),
        "frontends" => Set::map(table, name, [Ipv4Address, Protocol, Service], [ClassId]),
        _ => Set::new(table, name, [Ipv4Address]),
    })
}

fn listing(node: &Node) -> BTreeSet<String> {
    // Timeouts and handles do not appear in it. The order of elements differs, so braces must not stick to the first or last of them.
    let text = node.nft(&["list", "table", "ip", "kube-proxy"]);
    text.replace("elements =", "").split(['\n', ',', '{', '}']).map(|part| part.trim().to_owned()).collect()
}

#[test]
fn a_full_sync_of_an_unchanged_table_writes_nothing() {
    let mut node = large();
    assert!(node.sync().v4.full);
    let mut monitor = {
        let _inside = node.topology.node().namespace().enter().unwrap();
        Monitor::open().unwrap()
    };
    node.full();
    let report = node.sync();
    assert_eq!((report.v4.full, report.v4.written, report.v6.written), (true, 0, 0), "{report:?}");
    assert_eq!(compare(&mut node), []);
    let mut changes = Vec::new();
    monitor.read(|notice| changes.push(notice)).unwrap();
    // Listings make the kernel end a transaction without content.
    changes.retain(
        |notice| !matches!(notice, Notice::Event(event) if matches!(event.subject, Subject::Generation(_))),
    );
    assert_eq!(changes, []);
}

/// Endpoint changes move slots, and sticky lists keep entries: what is remembered must be what the kernel has.
#[test]
fn a_comparison_after_many_changes_finds_no_difference() {
    let mut node = large();
    node.sync();
    let pods: Vec<String> = (1..200).map(|n| format!("10.201.0.{n}")).collect();
    for (round, size) in [150usize, 20, 199, 1, 0, 64].into_iter().enumerate() {
        node.endpoints("sticky", &pods[..size]);
        node.endpoints("web", &pods[round..round + size.min(190)]);
        node.endpoints("balanced", &pods[size / 2..size]);
        node.sync();
        node.full();
        assert_eq!(node.sync().v4.written, 0);
        assert_eq!(compare(&mut node), [], "round {round}");
    }
}

#[test]
fn what_changed_unnoticed_is_found_and_restored() {
    let mut node = large();
    node.sync();
    let before = listing(&node);
    unnoticed(&mut node, |table, transaction| {
        let frontend = Image::new().ipv4([10, 96, 0, 2].into()).protocol(6).port(80);
        let mut elements = Elements::new();
        elements.push_key(frontend);
        transaction.delete_elements(&set(table, "frontends"), elements);
        let mut elements = Elements::new();
        elements.push_key(Image::new().ipv4([10, 96, 0, 1].into()));
        transaction.delete_elements(&set(table, "cluster-addresses"), elements);
        let mut foreign = Elements::new();
        foreign.push_key(Image::new().ipv4([192, 0, 2, 77].into()));
        transaction.add_elements(&set(table, "cluster-addresses"), foreign);
    });
    assert_ne!(listing(&node), before);
    assert_eq!(node.dataplane.poll(Instant::now()), [], "nothing was noticed");
    node.full();
    assert_eq!(node.sync().v4.written, 0, "elements are compared in pieces");
    assert_eq!(compare(&mut node), [Notification::Restored { family: Family::V4, written: 3 }]);
    assert_eq!(listing(&node), before);
    node.full();
    node.sync();
    assert_eq!(compare(&mut node), []);
}

/// Changes are served between two pieces, and each piece is compared with the state of its time.
#[test]
fn changes_between_the_pieces_are_no_differences() {
    let mut node = large();
    node.sync();
    node.full();
    node.sync();
    let mut now = Instant::now();
    let mut round = 0u32;
    while let Some(at) = node.dataplane.next_deadline() {
        now = now.max(at);
        assert_eq!(node.dataplane.poll(now), []);
        round += 1;
        let few = |base: u32, count: u32| -> Vec<String> {
            (0..count).map(|n| format!("10.20{base}.{}.{}", n / 250, n % 250 + 1)).collect()
        };
        node.endpoints("many", &few(round % 3, 9_000 - round * 200));
        node.endpoints("sticky", &few(1, 20 + round));
        node.sync();
    }
    assert!(round > 5);
}

/// An element that a notification names is restored at once, whatever the size of the table, and nothing else is written.
#[test]
fn a_changed_element_is_restored_alone() {
    let mut node = large();
    node.sync();
    let before = listing(&node);
    for damage in [
        &["delete", "element", "ip", "kube-proxy", "frontends", "{ 10.96.0.2 . tcp . 80 }"][..],
        &["add", "element", "ip", "kube-proxy", "cluster-addresses", "{ 192.0.2.99 }"],
        &["delete", "element", "ip", "kube-proxy", "unserved", "{ 10.96.0.5 . tcp . 80 }"],
        &["flush", "set", "ip", "kube-proxy", "allowed-sources"],
        &["flush", "chain", "ip", "kube-proxy", "services"],
        &["add", "rule", "ip", "kube-proxy", "masquerading", "drop"],
    ] {
        node.nft(damage);
        let found = portwarden_testkit::wait::until(Duration::from_secs(10), "the damage", || {
            let found: Vec<Notification> = node.dataplane.poll(Instant::now());
            (!found.is_empty()).then_some(found)
        });
        found.unwrap();
        node.full();
        let report = node.sync().v4;
        assert!(report.full && (1..100).contains(&report.written), "{damage:?}: {report:?}");
        assert_eq!(listing(&node), before, "{damage:?}");
    }
}

/// Another process flushes a large map: more notifications than are remembered one by one.
#[test]
fn a_large_loss_is_restored_in_pieces() {
    let mut node = large();
    node.sync();
    let before = listing(&node);
    node.nft(&["flush", "map", "ip", "kube-proxy", "endpoints"]);
    portwarden_testkit::wait::until(Duration::from_secs(10), "the damage", || {
        (!node.dataplane.poll(Instant::now()).is_empty()).then_some(())
    })
    .unwrap();
    node.full();
    // As many as are remembered are restored at once.
    let first = node.sync().v4.written;
    let rest = compare(&mut node);
    assert!(
        matches!(rest[..], [Notification::Restored { written, .. }] if written + first >= 9_000),
        "{first} and {rest:?}"
    );
    assert_eq!(listing(&node), before);
}

/// On an empty kernel the lists are written first, in pieces, and then all Services at once.
#[test]
fn a_large_table_is_written_in_pieces_and_services_appear_last() {
    let mut node = large();
    let namespace = node.topology.node().namespace().clone();
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let written = over.clone();
    let watcher = std::thread::spawn(move || {
        let _inside = namespace.enter().unwrap();
        let mut client = Client::open().unwrap();
        let table = TableId::new(nftables::Family::Ip, "kube-proxy");
        let mut seen = BTreeSet::new();
        loop {
            let counts = client.set_counts(&table).unwrap_or_default();
            let of = |set: &str| counts.get(set).copied().unwrap_or(0);
            let (endpoints, frontends) = (of("endpoints"), of("frontends"));
            assert!(
                frontends == 0 || endpoints >= 9_000,
                "{frontends} frontends lead to {endpoints} endpoints"
            );
            seen.insert((endpoints, frontends));
            if written.load(std::sync::atomic::Ordering::Relaxed) {
                return seen;
            }
        }
    });
    let generation = |node: &Node| {
        let _inside = node.topology.node().namespace().enter().unwrap();
        Client::open().unwrap().generation().unwrap().id
    };
    let before = generation(&node);
    let report = node.sync().v4;
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(report.full && report.written > 9_000);
    let transactions = generation(&node).wrapping_sub(before);
    assert!(transactions >= 4, "{transactions} transactions for both families");
    let seen = watcher.join().unwrap();
    println!("seen while it was written: {seen:?}");
    let answer = node.topology.outside().tcp("10.96.0.1:80".parse().unwrap()).unwrap();
    assert!(answer.is_answered(), "{answer}");
}
