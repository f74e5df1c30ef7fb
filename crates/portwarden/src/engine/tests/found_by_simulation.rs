//! Mistakes that the simulation found (`crates/simulation`), each as a test of its own.

use super::*;

#[test]
fn every_family_is_compared_once_an_hour() {
    let mut bench = Bench::synced(web());
    bench.pass(3 * 3600 * SECOND + SECOND);
    // The second family becomes due while the first one is synced.
    for family in [&bench.v4, &bench.v6] {
        let calls = family.calls();
        assert_eq!(calls.len(), 3, "{calls:?}");
        assert!(calls.iter().all(|call| call.changes.full));
    }
}

#[test]
fn a_shorter_interval_of_full_syncs_holds_in_a_quiet_cluster() {
    let mut bench = Bench::new();
    *bench.v4.full_sync_interval.lock().unwrap() = Some(30 * SECOND);
    bench.list(web());
    bench.pass(95 * SECOND);
    let calls = bench.v4.calls();
    assert_eq!(
        calls.iter().filter(|call| call.changes.full).count(),
        4,
        "the first one and three more: {calls:?}"
    );
}

#[test]
fn an_idle_run_does_not_delay_the_next_full_sync() {
    let mut bench = Bench::synced(web());
    bench.pass(3000 * SECOND);
    // Both ask for a sync, which has nothing to do.
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {}), slice("web", 1, "TCP", |_| {})]);
    bench.pass(601 * SECOND);
    let calls = bench.v4.calls();
    assert!(matches!(calls.as_slice(), [call] if call.changes.full), "{calls:?}");
}

#[test]
fn a_failed_sync_without_notifications_is_followed_by_a_comparison() {
    let mut bench = Bench::synced(web());
    bench.pass(SECOND);
    bench.v4.reply(Reply::FailWithMissedNotifications("busy"));
    bench.engine.apply(vec![slice("web", 9, "TCP", |_| {})]);
    bench.pass(10 * SECOND);
    let full: Vec<bool> = bench.v4.calls().iter().map(|call| call.changes.full).collect();
    assert_eq!(full, [false, false, true], "the failure, its repetition, the comparison");
}

/// Replaces the mode by one that serves IPv4 only.
fn serve_v4_only(bench: &mut Bench) -> Strings {
    serve(bench, &[Family::V4]).remove(0)
}

/// Replaces the mode by one that serves these families.
fn serve(bench: &mut Bench, families: &[Family]) -> Vec<Strings> {
    let fresh: Vec<Strings> = families.iter().map(|_| Strings::default()).collect();
    let dataplanes = families
        .iter()
        .zip(&fresh)
        .map(|(family, strings)| fake(*family, "second", strings, &bench.time, MILLI))
        .collect();
    bench.engine.take(Message::Reconfigure(Box::new(Reconfiguration {
        settings: Settings::new("here"),
        pacing: PacerConfig::default(),
        dataplanes: Some(Replacement {
            words: words("second"),
            dataplanes,
            remove_leftovers: Some(Box::new(|| {})),
        }),
    })));
    fresh
}

#[test]
fn a_family_that_a_reload_adds_is_judged_before_its_first_success() {
    let mut bench = Bench::synced(web());
    serve_v4_only(&mut bench);
    bench.pass(SECOND);
    let fresh = serve(&mut bench, &Family::BOTH);
    for _ in 0..1000 {
        fresh[1].reply(Reply::Fail("busy"));
    }
    bench.pass(300 * SECOND);
    assert!(!bench.health.report(bench.time.now().instant).0.healthy);
}

#[test]
fn a_family_that_the_new_mode_does_not_serve_does_not_make_the_proxy_unhealthy() {
    let mut bench = Bench::synced(web());
    bench.v6.reply(Reply::Fail("busy"));
    bench.engine.apply(vec![node(|node| node.spec.pod_cidrs.clear()), Event::HostAddresses([].into())]);
    bench.engine.apply(vec![Event::HostAddresses(["192.168.0.9".parse().unwrap()].into())]);
    serve_v4_only(&mut bench);
    bench.pass(300 * SECOND);
    assert!(bench.health.report(bench.time.now().instant).0.healthy);
}

#[test]
fn flows_of_a_family_that_the_new_mode_does_not_serve_do_not_keep_the_engine_busy() {
    let mut bench = Bench::new();
    bench.list(dns());
    // The change ends in the same turn in which the first syncs ask for a clean-up.
    serve_v4_only(&mut bench);
    bench.turn();
    assert!(bench.turn().is_none_or(|wait| wait > SECOND), "nothing is left that is due at once");
}

#[test]
fn a_frontend_that_is_gone_is_not_forgotten_when_dataplanes_are_replaced() {
    let mut bench = Bench::synced(dns());
    bench.pass(SECOND);
    bench.flows.asked.lock().unwrap().clear();
    bench.v4.reply(Reply::Fail("busy"));
    bench.engine.apply(vec![Event::ServiceDeleted(name("dns"))]);
    bench.turn();
    bench.engine.take(Message::Reconfigure(Box::new(Reconfiguration {
        settings: Settings::new("here"),
        pacing: PacerConfig::default(),
        dataplanes: Some(Replacement {
            words: words("first"),
            dataplanes: vec![fake(Family::V4, "first", &Strings::default(), &bench.time, MILLI)],
            remove_leftovers: None,
        }),
    })));
    bench.pass(SECOND);
    let asked = bench.flows.asked.lock().unwrap();
    assert!(asked.iter().any(|(_, changes)| !changes.gone.is_empty()), "{asked:?}");
}

#[test]
fn flows_are_cleaned_when_a_refused_service_is_accepted() {
    let mut bench = Bench::synced(dns());
    bench.pass(SECOND);
    let refused = RefusedService { service: name("dns"), reason: "no room".to_owned() };
    bench.v4.reply(Reply::Refuse(vec![refused]));
    bench.engine.apply(vec![slice("dns", 9, "UDP", |_| {})]);
    bench.turn();
    // The old rules are still in the kernel, and flows follow them.
    bench.flows.asked.lock().unwrap().clear();
    bench.pass(5 * SECOND);
    assert_eq!(bench.flows.asked.lock().unwrap().len(), 1);
}

#[test]
fn a_frontend_that_went_while_its_service_was_refused_is_cleaned_when_it_is_accepted() {
    let mut bench = Bench::synced(dns());
    bench.pass(SECOND);
    let refused = RefusedService { service: name("dns"), reason: "no room".to_owned() };
    bench.v4.reply(Reply::Refuse(vec![refused]));
    bench.engine.apply(vec![service("dns", 2, "TCP", |_| {})]);
    bench.turn();
    // The old rules are still in the kernel, and let in flows after the first removal.
    bench.flows.asked.lock().unwrap().clear();
    bench.pass(5 * SECOND);
    let asked = bench.flows.asked.lock().unwrap();
    assert!(matches!(asked.as_slice(), [(_, changes)] if changes.gone.len() == 1), "{asked:?}");
}
