//! What the engine does, with time and the kernel in the tests' hands.

mod bench;
mod found_by_simulation;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portwarden_model::{
    Count, DetectLocal, Event, Family, Kind, Notification, PacerConfig, RefusedService, Settings,
};

use super::*;
use crate::logging::captured::logged;
use bench::{Bench, Reply, Strings, fake, name, node, service, slice, words};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn web() -> Vec<Event> {
    vec![node(|_| {}), service("web", 1, "TCP", |_| {}), slice("web", 1, "TCP", |_| {})]
}

fn dns() -> Vec<Event> {
    vec![node(|_| {}), service("dns", 2, "UDP", |_| {}), slice("dns", 2, "UDP", |_| {})]
}

#[test]
fn nothing_is_written_before_services_and_slices_are_known() {
    let mut bench = Bench::new();
    assert_eq!(bench.turn(), None);
    bench.engine.apply(vec![Event::ListStarted(Kind::Service)]);
    bench.engine.apply(web());
    bench.engine.apply(vec![Event::ListDone(Kind::Service)]);
    assert_eq!(bench.turn(), None);
    assert!(bench.v4.calls().is_empty());
    bench.engine.apply(vec![Event::ListStarted(Kind::EndpointSlice), slice("web", 1, "TCP", |_| {})]);
    bench.engine.apply(vec![Event::ListDone(Kind::EndpointSlice)]);
    bench.turn();
    let calls = bench.v4.calls();
    assert!(matches!(calls.as_slice(), [call] if call.changes.full && call.services == 1), "{calls:?}");
    assert!(bench.v6.calls().iter().all(|call| call.changes.full && call.services == 0));
    assert_eq!(*bench.retired.lock().unwrap(), 1, "leftovers go once ours is in force");
}

#[test]
fn a_change_reaches_only_its_family_and_names_only_its_service() {
    let mut events = web();
    events.extend(dns());
    let mut bench = Bench::synced(events);
    bench.time.pass(SECOND);
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {})]);
    bench.turn();
    let calls = bench.v4.calls();
    assert_eq!(calls.len(), 1);
    assert!(!calls[0].changes.full);
    assert_eq!(calls[0].changes.services, [name("web")].into());
    assert!(bench.v6.calls().is_empty());
    bench.pass(SECOND);
    assert!(bench.v4.calls().is_empty(), "once is enough");
}

#[test]
fn the_same_again_writes_nothing() {
    let mut bench = Bench::synced(web());
    bench.engine.apply(web());
    bench.pass(SECOND);
    assert!(bench.v4.calls().is_empty() && bench.v6.calls().is_empty());
    assert_eq!(bench.metric("kubeproxy_sync_proxy_rules_service_changes_total").as_deref(), Some("4"));
    assert_eq!(bench.metric("kubeproxy_sync_proxy_rules_endpoint_changes_total").as_deref(), Some("2"));
}

#[test]
fn a_change_that_is_taken_back_asks_for_a_sync_that_has_nothing_to_do() {
    let mut bench = Bench::synced(web());
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {}), slice("web", 1, "TCP", |_| {})]);
    bench.pass(SECOND);
    assert!(bench.v4.calls().is_empty());
    let (report, _) = bench.health.report(bench.time.now().instant + 1000 * SECOND);
    assert!(report.healthy, "nothing is left waiting");
}

#[test]
fn a_failed_sync_loses_nothing() {
    let mut bench = Bench::synced(dns());
    for _ in 0..3 {
        bench.v4.reply(Reply::Fail("busy"));
    }
    bench.flows.asked.lock().unwrap().clear();
    let triggered = bench.time.now().wall.to_string();
    bench.time.pass(SECOND);
    bench.engine.apply(vec![Event::ServiceDeleted(name("dns")), service("web", 1, "TCP", |_| {})]);
    bench.turn();
    let next = bench.turn().expect("a retry");
    assert!(next <= Duration::from_millis(50), "{next:?}");
    assert!(bench.flows.asked.lock().unwrap().is_empty(), "flows wait for the rules");
    bench.engine.apply(vec![slice("web", 1, "TCP", |slice| {
        let annotation = "endpoints.kubernetes.io/last-change-trigger-time".to_owned();
        slice.metadata.annotations.insert(annotation, triggered);
    })]);
    bench.pass(SECOND);
    let calls = bench.v4.calls();
    assert_eq!(calls.len(), 4);
    assert!(calls[0].changes.services.contains(&name("dns")) && !calls[0].changes.gone.is_empty());
    for call in &calls[1..] {
        assert_eq!(call.changes.services, [name("dns"), name("web")].into(), "merged, never dropped");
        assert_eq!(call.changes.gone, calls[0].changes.gone);
    }
    let asked = bench.flows.asked.lock().unwrap().clone();
    assert!(
        asked.iter().any(|(family, changes)| *family == Family::V4 && changes.gone == calls[0].changes.gone)
    );
    let family = "{ip_family=\"IPv4\"}";
    assert_eq!(
        bench.metric(&format!("kubeproxy_network_programming_duration_seconds_count{family}")).as_deref(),
        Some("1")
    );
    assert_eq!(
        bench.metric(&format!("kubeproxy_sync_proxy_rules_duration_seconds_count{family}")).as_deref(),
        Some("5")
    );
}

#[test]
fn retries_come_ever_more_rarely_but_not_more_rarely_than_the_sync_period() {
    let mut bench = Bench::synced(web());
    for _ in 0..1000 {
        bench.v4.reply(Reply::Fail("busy"));
    }
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {})]);
    bench.pass(300 * SECOND);
    let attempts = bench.v4.calls().len();
    assert!((15..30).contains(&attempts), "{attempts} attempts in five minutes");
    let (report, _) = bench.health.report(bench.time.now().instant);
    assert!(!report.healthy, "what waits for minutes makes the proxy unhealthy");
    bench.v4.replies.lock().unwrap().clear();
    bench.pass(31 * SECOND);
    assert_eq!(bench.v4.calls().len(), 1);
    assert!(bench.health.report(bench.time.now().instant).0.healthy);
}

#[test]
fn what_others_change_is_put_back_at_once_but_a_fight_does_not_spin() {
    let mut bench = Bench::synced(web());
    bench.v4.tamper("the table is gone");
    bench.engine.poll_dataplanes();
    bench.turn();
    let calls = bench.v4.calls();
    assert!(matches!(calls.as_slice(), [call] if call.changes.full), "{calls:?}");
    assert!(bench.v6.calls().is_empty());
    let start = bench.time.now().instant;
    for _ in 0..1000 {
        bench.v4.tamper("again");
        bench.engine.poll_dataplanes();
        bench.pass(10 * MILLI);
    }
    let seconds = bench.time.now().instant.duration_since(start).as_secs();
    let repairs = bench.v4.calls().len() as u64;
    assert!(repairs <= 2 * seconds && repairs >= seconds, "{repairs} repairs in {seconds} s");
    let count = bench.metric("portwarden_tampering_total{ip_family=\"IPv4\"}");
    assert_eq!(count.as_deref(), Some("1001"));
}

#[test]
fn after_a_write_without_notifications_everything_is_compared_once() {
    let mut bench = Bench::synced(web());
    bench.pass(SECOND);
    bench.v4.calls();
    bench.v4.reply(Reply::MissedNotifications);
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {})]);
    bench.pass(900 * MILLI);
    let calls = bench.v4.calls();
    assert!(matches!(calls.as_slice(), [call] if !call.changes.full), "{calls:?}");
    bench.pass(10 * SECOND);
    let calls = bench.v4.calls();
    assert!(matches!(calls.as_slice(), [call] if call.changes.full), "{calls:?}");
    assert_eq!(bench.metric("portwarden_tampering_total{ip_family=\"IPv4\"}"), None, "no process is blamed");
}

#[test]
fn a_refused_service_is_reported_once_and_tried_again() {
    let mut bench = Bench::synced(web());
    let refused = RefusedService { service: name("web"), reason: "no room".to_owned() };
    for _ in 0..2 {
        bench.v4.reply(Reply::Refuse(vec![refused.clone()]));
    }
    bench.time.pass(SECOND);
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {})]);
    bench.turn();
    assert_eq!(bench.metric("portwarden_refused_services{ip_family=\"IPv4\"}").as_deref(), Some("1"));
    bench.pass(5 * SECOND);
    let calls = bench.v4.calls();
    assert_eq!(calls.len(), 3, "tried after one and after two more seconds");
    assert!(calls.iter().all(|call| call.changes.services == [name("web")].into() && !call.changes.full));
    assert_eq!(
        bench.receivers.notices.try_recv().ok(),
        Some(Notice::Refused { family: Family::V4, refused })
    );
    assert!(bench.receivers.notices.try_recv().is_err(), "reported once");
    assert_eq!(bench.metric("portwarden_refused_services{ip_family=\"IPv4\"}").as_deref(), Some("0"));
}

#[test]
fn a_node_port_of_our_own_servers_is_reported_once() {
    let mut bench =
        Bench::with(Settings { reserved_ports: vec![10256], ..Settings::new("here") }, NodeWait::NONE);
    for _ in 0..2 {
        bench.list(vec![service("web", 1, "TCP", |s| s.spec.ports[0].node_port = 10256)]);
        bench.turn();
    }
    let notices: Vec<Notice> = std::iter::from_fn(|| bench.receivers.notices.try_recv().ok()).collect();
    assert!(
        matches!(notices.as_slice(), [Notice::Problem(problem)] if problem.object == "Service demo/web"),
        "{notices:?}"
    );
    assert_eq!(bench.metric("portwarden_object_problems_total").as_deref(), Some("1"));
}

#[test]
fn stale_flows_are_looked_for_until_that_worked() {
    let mut bench = Bench::synced(dns());
    bench.pass(SECOND);
    bench.flows.asked.lock().unwrap().clear();
    *bench.flows.failures.lock().unwrap() = 2;
    bench.engine.apply(vec![slice("dns", 9, "UDP", |_| {})]);
    bench.pass(10 * SECOND);
    assert_eq!(bench.flows.asked.lock().unwrap().len(), 3);
    let family = "{ip_family=\"IPv4\"}";
    assert_eq!(bench.metric(&format!("portwarden_conntrack_failures_total{family}")).as_deref(), Some("2"));
    bench.engine.apply(vec![service("web", 1, "TCP", |_| {}), slice("web", 1, "TCP", |_| {})]);
    bench.pass(SECOND);
    assert_eq!(bench.flows.asked.lock().unwrap().len(), 3, "TCP alone is no reason");
    bench.v4.tamper("another process flushed");
    bench.engine.poll_dataplanes();
    bench.pass(SECOND);
    let asked = bench.flows.asked.lock().unwrap();
    let full: Vec<bool> = asked.iter().map(|(_, changes)| changes.full).collect();
    assert_eq!(full, [false, false, false, true], "flows may have begun while rules were missing");
}

#[test]
fn the_first_sync_waits_for_the_node() {
    let mut bench = Bench::with(Settings::new("here"), NodeWait::FOR_API_SERVER);
    bench.list(vec![service("web", 1, "TCP", |_| {})]);
    assert_eq!(bench.turn(), Some(10 * SECOND), "then it is logged again");
    bench.pass(10 * SECOND);
    assert!(bench.v4.calls().is_empty());
    bench.engine.apply(vec![node(|node| node.status.addresses.clear())]);
    bench.pass(SECOND);
    assert!(bench.v4.calls().is_empty(), "a Node without an address is not enough");
    bench.engine.apply(vec![node(|_| {})]);
    bench.turn();
    assert_eq!(bench.v4.calls().len(), 1);
}

#[test]
fn a_node_that_never_comes_is_done_without() {
    let mut bench = Bench::with(Settings::new("here"), NodeWait::FOR_API_SERVER);
    bench.list(vec![service("web", 1, "TCP", |_| {})]);
    bench.turn();
    bench.pass(30 * SECOND);
    assert_eq!(bench.v4.calls().len(), 1);
}

#[test]
fn refused_services_do_not_count_as_in_force() {
    let lines = logged(|| {
        let mut bench = Bench::with(Settings::new("here"), NodeWait::NONE);
        let refused = RefusedService { service: name("web"), reason: "no room".to_owned() };
        bench.v4.reply(Reply::Refuse(vec![refused]));
        bench.list([web(), vec![service("dns", 2, "UDP", |_| {})]].concat());
        bench.turn();
    });
    assert!(lines.contains("The rules are in force services=1"), "{lines}");
    assert!(lines.contains("The kernel refuses Services"), "{lines}");
}

#[test]
fn what_the_first_sync_waits_for_is_logged() {
    let lines = logged(|| {
        let settings = Settings { detect_local: DetectLocal::NodeCidr, ..Settings::new("here") };
        let mut bench = Bench::with(settings, NodeWait::FOR_API_SERVER);
        bench.list(vec![service("web", 1, "TCP", |_| {})]);
        bench.pass(5 * SECOND);
        bench.engine.apply(vec![node(|node| node.status.addresses.clear())]);
        bench.pass(20 * SECOND);
        bench.engine.apply(vec![node(|_| {})]);
        bench.pass(5 * SECOND);
        bench.engine.apply(vec![node(|node| node.spec.pod_cidrs = vec!["10.1.0.0/24".to_owned()])]);
        bench.pass(SECOND);
    });
    let logged_lines = |words: &str| lines.lines().filter(|line| line.contains(words)).count();
    assert_eq!(logged_lines("Waiting for node to exist"), 1, "{lines}");
    assert_eq!(
        logged_lines("Waiting for node to be assigned IPs"),
        2,
        "at once and after ten seconds\n{lines}"
    );
    assert_eq!(logged_lines("Waiting for PodCIDR allocation on the node"), 1, "{lines}");
    assert_eq!(logged_lines("Successfully retrieved NodeIPs"), 1, "{lines}");
}

#[test]
fn pod_ranges_are_waited_for_where_they_identify_pod_traffic() {
    let settings = Settings { detect_local: DetectLocal::NodeCidr, ..Settings::new("here") };
    let mut bench = Bench::with(settings, NodeWait::FOR_API_SERVER);
    bench.list(vec![node(|_| {}), service("web", 1, "TCP", |_| {})]);
    bench.turn();
    bench.pass(200 * SECOND);
    assert!(bench.v4.calls().is_empty());
    bench.time.pass(130 * SECOND);
    assert!(matches!(bench.engine.turn(), Err(EngineError::NoPodCidrs(node)) if node == "here"));
}

#[test]
fn without_a_node_there_are_no_pod_ranges_to_wait_for() {
    let settings = Settings { detect_local: DetectLocal::NodeCidr, ..Settings::new("here") };
    let mut bench = Bench::with(settings, NodeWait::FOR_API_SERVER);
    bench.list(vec![service("web", 1, "TCP", |_| {})]);
    bench.turn();
    bench.time.pass(331 * SECOND);
    let error = bench.engine.turn().expect_err("it gives up");
    assert!(matches!(&error, EngineError::NoNode(node) if node == "here"), "{error}");
    assert!(error.to_string().starts_with("timeout waiting for node \"here\" to exist"), "{error}");
}

#[test]
fn an_api_server_that_does_not_answer_is_no_reason_to_restart() {
    let mut bench = Bench::with(Settings::new("here"), NodeWait::FOR_API_SERVER);
    bench.engine.apply(vec![
        Event::HostAddresses(vec![std::net::IpAddr::from([192, 168, 0, 2])].into()),
        node(|node| {
            node.metadata.labels.insert("topology.kubernetes.io/zone".to_owned(), "a".to_owned());
        }),
    ]);
    bench.pass(1000 * SECOND);
    assert!(bench.health.report(bench.time.now().instant).0.healthy, "nothing can be written yet");
    for strings in [&bench.v4, &bench.v6] {
        (0..1000).for_each(|_| strings.reply(Reply::Fail("busy")));
    }
    bench.list(web());
    bench.pass(59 * SECOND);
    assert!(bench.health.report(bench.time.now().instant).0.healthy);
    bench.pass(SECOND);
    assert!(!bench.health.report(bench.time.now().instant).0.healthy, "now there is something to write");
}

#[test]
fn the_words_that_alerts_look_for_are_logged() {
    let lines = logged(|| {
        let mut bench = Bench::with(Settings::new("here"), NodeWait::NONE);
        bench.v4.reply(Reply::Fail("busy"));
        bench.list(web());
        bench.turn();
        let now = bench.time.now().wall.to_string();
        bench.time.pass(SECOND);
        bench.engine.apply(vec![slice("web", 9, "TCP", |slice| {
            let annotation = "endpoints.kubernetes.io/last-change-trigger-time".to_owned();
            slice.metadata.annotations.insert(annotation, now);
        })]);
        bench.pass(SECOND);
        bench.engine.apply(vec![node(|node| {
            node.status.addresses[0].address = "192.168.0.3".to_owned();
            node.spec.pod_cidrs = vec!["10.1.0.0/24".to_owned()];
        })]);
        bench.engine.apply(vec![Event::NodeDeleted("here".into())]);
    });
    for (level, words) in [
        ("INFO", "Caches are synced controller=\"service config\""),
        ("INFO", "Caches are synced controller=\"endpoint slice config\""),
        ("INFO", "Caches are synced controller=\"node config\""),
        ("INFO", "Caches are synced controller=\"serviceCIDR config\""),
        ("DEBUG", "Syncing first rules ipFamily=IPv4 fullSync=true"),
        ("DEBUG", "Reloading service first data ipFamily=IPv4 numServices=1 numEndpoints=1"),
        ("ERROR", "a sync failed ipFamily=IPv4 err=\"busy\""),
        ("INFO", "Sync failed ipFamily=IPv4 mode=\"first\" retryingTime="),
        ("DEBUG", "SyncProxyRules complete ipFamily=IPv4"),
        ("TRACE", "Network programming ipFamily=IPv4 elapsed="),
        ("INFO", "NodeIPs changed for the node node=here"),
        ("INFO", "PodCIDRs changed for the node node=here"),
        ("WARN", "Node is being deleted; keeping its addresses node=here"),
    ] {
        let found = lines.lines().any(|line| line.trim_start().starts_with(level) && line.contains(words));
        assert!(found, "no {level} {words} in\n{lines}");
    }
}

#[test]
fn a_deleted_node_keeps_its_address_but_gets_no_new_traffic() {
    let mut bench = Bench::synced(web());
    let now = bench.time.now().instant;
    assert!(bench.health.report(now).1);
    bench.engine.apply(vec![Event::NodeDeleted("here".into())]);
    bench.pass(SECOND);
    assert!(!bench.health.report(now).1, "load balancers go elsewhere");
    assert!(bench.v4.calls().iter().all(|call| !call.changes.node), "rules stay as they are");
    let kept = Arc::new(Mutex::new(None));
    let seen = kept.clone();
    bench.engine.take(Message::Inspect(Box::new(move |cluster| {
        *seen.lock().unwrap() = Some(cluster.desired(Family::V4).node.ip.to_string());
    })));
    assert_eq!(kept.lock().unwrap().as_deref(), Some("192.168.0.2"));
    bench.engine.apply(vec![node(|_| {})]);
    assert!(bench.health.report(now).1, "and back when it is");
}

#[test]
fn another_mode_comes_before_the_old_one_goes() {
    let mut bench = Bench::synced(web());
    let (new_v4, new_v6) = (Strings::default(), Strings::default());
    new_v6.reply(Reply::Fail("not yet"));
    let retired = Arc::new(Mutex::new(false));
    let flag = retired.clone();
    bench.engine.take(Message::Reconfigure(Box::new(Reconfiguration {
        settings: Settings::new("here"),
        pacing: PacerConfig::default(),
        dataplanes: Some(Replacement {
            words: words("second"),
            dataplanes: vec![
                fake(Family::V4, "second", &new_v4, &bench.time, MILLI),
                fake(Family::V6, "second", &new_v6, &bench.time, MILLI),
            ],
            remove_leftovers: Some(Box::new(move || *flag.lock().unwrap() = true)),
        }),
    })));
    bench.turn();
    assert!(!*retired.lock().unwrap(), "one family of the new mode is not in force yet");
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {})]);
    bench.pass(10 * MILLI);
    let old = bench.v4.calls();
    assert!(
        old.iter().any(|call| call.changes.services.contains(&name("web"))),
        "the old mode goes on meanwhile"
    );
    bench.pass(SECOND);
    assert!(*retired.lock().unwrap());
    assert!(new_v4.calls().first().is_some_and(|call| call.changes.full && call.mode == "second"));
    bench.v4.calls();
    bench.engine.apply(vec![slice("web", 8, "TCP", |_| {})]);
    bench.pass(SECOND);
    assert!(bench.v4.calls().is_empty(), "the old mode is at rest");
    assert_eq!(new_v4.calls().len(), 1);
}

#[test]
fn other_options_of_the_same_mode_take_over_its_objects() {
    let mut bench = Bench::synced(web());
    let fresh = Strings::default();
    bench.engine.take(Message::Reconfigure(Box::new(Reconfiguration {
        settings: Settings::new("here"),
        pacing: PacerConfig::default(),
        dataplanes: Some(Replacement {
            words: words("first"),
            dataplanes: vec![fake(Family::V4, "first", &fresh, &bench.time, MILLI)],
            remove_leftovers: None,
        }),
    })));
    bench.turn();
    assert!(bench.v4.calls().is_empty(), "two of one mode would fight");
    let calls = fresh.calls();
    assert!(matches!(calls.as_slice(), [call] if call.changes.full && call.services == 1), "{calls:?}");
}

#[test]
fn other_settings_take_effect_at_once() {
    let mut bench = Bench::synced(web());
    bench.time.pass(SECOND);
    bench.engine.take(Message::Reconfigure(Box::new(Reconfiguration {
        settings: Settings { masquerade_all: true, ..Settings::new("here") },
        pacing: PacerConfig::default(),
        dataplanes: None,
    })));
    bench.turn();
    let calls = bench.v4.calls();
    assert!(matches!(calls.as_slice(), [call] if call.changes.services.contains(&name("web"))), "{calls:?}");
}

#[test]
fn health_check_ports_follow_what_the_kernel_has() {
    let local = |service: &mut portwarden_model::manifest::Service| {
        service.spec.r#type = "LoadBalancer".to_owned();
        service.spec.external_traffic_policy = "Local".to_owned();
        service.spec.health_check_node_port = 31000;
    };
    let mut bench = Bench::synced(web());
    bench.time.pass(SECOND);
    bench.v4.reply(Reply::Fail("busy"));
    bench.engine.apply(vec![service("web", 1, "TCP", local)]);
    bench.turn();
    assert!(bench.receivers.health_checks.borrow().v4.ports.is_empty(), "not before the rules are in force");
    bench.pass(SECOND);
    let check = bench.receivers.health_checks.borrow().v4.ports.get(&name("web")).copied();
    assert!(check.is_some_and(|check| check.port.get() == 31000 && check.local_endpoints == 1), "{check:?}");
    bench.engine.apply(vec![Event::SliceDeleted(name("web-1"))]);
    bench.pass(SECOND);
    let count =
        bench.receivers.health_checks.borrow().v4.ports.get(&name("web")).map(|check| check.local_endpoints);
    assert_eq!(count, Some(0));
    bench.engine.apply(vec![Event::ServiceDeleted(name("web"))]);
    bench.pass(SECOND);
    assert!(bench.receivers.health_checks.borrow().v4.ports.is_empty());
}

#[test]
fn everything_is_compared_once_an_hour() {
    let mut bench = Bench::synced(web());
    bench.pass(2 * 3600 * SECOND + SECOND);
    let calls = bench.v4.calls();
    assert!(calls.iter().all(|call| call.changes.full));
    assert_eq!(calls.len(), 2);
}

#[test]
fn health_is_late_only_while_something_waits() {
    let mut bench = Bench::synced(web());
    let later = bench.time.now().instant + 10_000 * SECOND;
    assert!(bench.health.report(later).0.healthy);
    bench.v4.reply(Reply::Fail("busy"));
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {})]);
    bench.turn();
    assert!(!bench.health.report(bench.time.now().instant + 60 * SECOND).0.healthy);
    bench.pass(SECOND);
    assert!(bench.health.report(later).0.healthy);
}

#[test]
fn a_stop_ends_the_loop_and_leaves_the_kernel_alone() {
    let bench = Bench::synced(web());
    let (handle, inbox) = inbox().expect("a socket pair");
    assert!(handle.send(Message::Stop));
    run(bench.engine, &inbox, None).expect("ends well");
    assert!(bench.v4.calls().is_empty());
}

#[test]
fn a_sync_that_waits_for_its_dataplane_is_repeated_when_the_dataplane_is_ready() {
    let mut bench = Bench::synced(web());
    bench.v4.reply(Reply::FailUntilReady("another process holds the lock"));
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {})]);
    bench.pass(10 * SECOND);
    assert_eq!(bench.v4.calls().len(), 1, "no attempt without a reason");
    assert!(!bench.health.report(bench.time.now().instant + 60 * SECOND).0.healthy, "the family is late");
    bench.v4.notify(Notification::Ready { family: Family::V4 });
    bench.engine.poll_dataplanes();
    bench.pass(SECOND);
    let calls = bench.v4.calls();
    assert!(matches!(calls.as_slice(), [call] if call.changes.services.contains(&name("web"))), "{calls:?}");
    bench.v4.reply(Reply::FailUntilReady("a child never ends"));
    bench.engine.apply(vec![slice("web", 8, "TCP", |_| {})]);
    bench.pass(40 * SECOND);
    assert_eq!(bench.v4.calls().len(), 2, "after the sync period it is tried without a notification");
}

#[test]
fn a_service_can_be_refused_and_accepted_after_its_sync() {
    let mut bench = Bench::synced(web());
    let refused = RefusedService { service: name("web"), reason: "port 80 is in use".to_owned() };
    for _ in 0..2 {
        bench.v4.notify(Notification::Refused { family: Family::V4, refused: refused.clone() });
        bench.engine.poll_dataplanes();
    }
    let count = |bench: &Bench| bench.metric("portwarden_refused_services{ip_family=\"IPv4\"}");
    assert_eq!(count(&bench).as_deref(), Some("1"));
    assert_eq!(
        bench.receivers.notices.try_recv().ok(),
        Some(Notice::Refused { family: Family::V4, refused })
    );
    assert!(bench.receivers.notices.try_recv().is_err(), "reported once");
    bench.v4.notify(Notification::Accepted { family: Family::V4, service: name("web") });
    bench.engine.poll_dataplanes();
    assert_eq!(count(&bench).as_deref(), Some("0"));
}

#[test]
fn what_a_dataplane_counts_becomes_a_metric() {
    let mut bench = Bench::synced(web());
    let counts = vec![Count { metric: "things_total", labels: vec![("kind", "late".to_owned())], by: 3 }];
    bench.v4.notify(Notification::Counts { family: Family::V4, counts });
    bench.engine.poll_dataplanes();
    let series = "kubeproxy_things_total{ip_family=\"IPv4\",kind=\"late\"}";
    assert_eq!(bench.metric(series).as_deref(), Some("3"));
}
