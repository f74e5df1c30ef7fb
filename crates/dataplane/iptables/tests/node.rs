//! What a sync does besides writing rules: kernel settings, counters, gauges, canaries; and when it is a full one.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Tables, VARIANTS, assert_same, cluster, full_sync, recorded_settings, sync};
use portwarden_iptables::{IptablesDataplane, Options, PACKET_COUNTERS};
use portwarden_model::{
    Changes, Cluster, Dataplane, Event, Family, NodePortRange, Notification, Report, Settings,
};
use portwarden_testkit::build::{self, ToEvent, port};
use portwarden_testkit::drive::next_notifications;
use portwarden_xtables::Variant;

const HOUR: Duration = Duration::from_secs(3600);

fn recorded_cluster(settings: Settings) -> Cluster {
    cluster(settings, "kube-proxy/objects.json", "kube-proxy/node.json")
}

/// Whether packets to loopback addresses may leave the loopback device, after a sync.
fn route_localnet(settings: Settings, options: &Options, family: Family) -> bool {
    let tables = Tables::new("localnet", Variant::Nft);
    full_sync(&mut tables.dataplane(family, options), &tables, &recorded_cluster(settings));
    let _inside = tables.namespace.enter().unwrap();
    fs::read_to_string("/proc/sys/net/ipv4/conf/all/route_localnet").unwrap().trim() == "1"
}

#[test]
fn loopback_is_opened_only_for_node_ports_that_answer_there() {
    let settings = recorded_settings;
    assert!(route_localnet(settings(), &Options::default(), Family::V4));
    assert!(!route_localnet(settings(), &Options::default(), Family::V6));
    let off = Options { loopback_node_ports: false, ..Options::default() };
    assert!(!route_localnet(settings(), &off, Family::V4));
    let primary = Settings { node_port_addresses: vec![NodePortRange::Primary], ..settings() };
    assert!(!route_localnet(primary, &Options::default(), Family::V4));
}

#[test]
fn counters_exist_after_a_sync() {
    let tables = Tables::new("counters", Variant::Nft);
    let read = || PACKET_COUNTERS.map(|counter| counter.read().unwrap());
    let _inside = tables.namespace.enter().unwrap();
    assert_eq!(read(), [None, None]);
    full_sync(
        &mut tables.dataplane(Family::V6, &Options::default()),
        &tables,
        &recorded_cluster(recorded_settings()),
    );
    assert_eq!(read(), [Some(0), Some(0)]);
}

#[test]
fn liberal_conntrack_lets_invalid_packets_pass() {
    let tables = Tables::new("liberal", Variant::Nft);
    {
        let _inside = tables.namespace.enter().unwrap();
        // The setting exists once conntrack is in use.
        let track = ["-w", "5", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT"];
        tables.run(Family::V4, "", &track, "").unwrap();
        fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "1").unwrap();
    }
    full_sync(
        &mut tables.dataplane(Family::V4, &Options::default()),
        &tables,
        &recorded_cluster(recorded_settings()),
    );
    let rules = tables.rules(Family::V4);
    assert!(rules.contains("-A KUBE-FORWARD") && !rules.contains("--ctstate INVALID"));
}

fn gauge(report: &Report, metric: &str, table: &str) -> usize {
    let labels = [("table", table.to_owned())];
    report.gauges.iter().find(|gauge| gauge.metric == metric && gauge.labels == labels).unwrap().value
}

/// Rules in our chains of a table.
fn rules_in(tables: &Tables, table: &str) -> usize {
    let saved = tables.run(Family::V4, "-save", &["-t", table], "").unwrap();
    saved.lines().filter(|line| line.starts_with("-A KUBE-")).count()
}

#[test]
fn gauges_count_rules() {
    for variant in VARIANTS {
        let mut cluster = large_cluster(10, 5);
        let tables = Tables::new("gauges", variant);
        let mut dataplane = tables.dataplane(Family::V4, &Options::default());
        let check = |report: &Report| {
            for table in ["filter", "nat"] {
                assert_eq!(gauge(report, "sync_proxy_rules_iptables_total", table), rules_in(&tables, table));
            }
        };
        let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
        check(&report);
        for table in ["filter", "nat"] {
            let written = gauge(&report, "sync_proxy_rules_iptables_last", table);
            assert_eq!(written, rules_in(&tables, table));
        }
        cluster.apply(slice(0, 6));
        let changes = cluster.resolve();
        let report = sync(&mut dataplane, &tables, &cluster, &changes[Family::V4]).unwrap();
        check(&report);
        // Masquerading, six ways to an endpoint, and the two rules of the new endpoint.
        assert_eq!(gauge(&report, "sync_proxy_rules_iptables_last", "nat"), 1 + 6 + 2);
        assert_eq!(gauge(&report, "sync_proxy_rules_iptables_last", "filter"), 0);
    }
}

#[test]
fn a_flush_is_noticed_and_repaired() {
    for variant in VARIANTS {
        let cluster = recorded_cluster(recorded_settings());
        let tables = Tables::new("flush", variant);
        let options = Options { sync_period: Duration::from_millis(50), ..Options::default() };
        let mut dataplane = tables.dataplane(Family::V4, &options);
        full_sync(&mut dataplane, &tables, &cluster);
        let expected = tables.rules(Family::V4);
        for table in ["mangle", "nat", "filter"] {
            for flush in ["-F", "-X"] {
                tables.run(Family::V4, "", &["-w", "5", "-t", table, flush], "").unwrap();
            }
        }
        let what = wait_for_tampering(&mut dataplane, &tables);
        // By its canary, or by the kernel's notification of the first chain that went.
        let expected_word = if variant == Variant::Legacy { "KUBE-PROXY-CANARY" } else { "KUBE-" };
        assert!(what.contains(expected_word), "{what}");
        let report = sync(&mut dataplane, &tables, &cluster, &Changes::default()).unwrap();
        assert!(report.full, "even if the engine forgets to ask for it");
        assert_same(&tables.rules(Family::V4), &expected, "after the flush");
    }
}

/// The kernel sends notifications of changes there.
#[test]
fn what_others_change_is_noticed_at_once_in_the_nft_variant() {
    let cluster = recorded_cluster(recorded_settings());
    for family in Family::BOTH {
        let tables = Tables::new("changes", Variant::Nft);
        let mut dataplane = tables.dataplane(family, &Options::default());
        full_sync(&mut dataplane, &tables, &cluster);
        let expected = tables.rules(family);
        let no_tampering = |dataplane: &mut IptablesDataplane| {
            let _inside = tables.namespace.enter().unwrap();
            let deadline = Instant::now() + Duration::from_millis(500);
            while Instant::now() < deadline {
                assert_eq!(next_notifications(dataplane, deadline), []);
            }
        };
        no_tampering(&mut dataplane);
        let iptables = |arguments: &[&str]| tables.run(family, "", arguments, "").unwrap();
        // Others may do as they like with their own, and the kubelet with its chain.
        iptables(&["-t", "nat", "-N", "CNI-X"]);
        iptables(&["-t", "nat", "-A", "OUTPUT", "-j", "CNI-X"]);
        iptables(&["-t", "nat", "-D", "OUTPUT", "-j", "CNI-X"]);
        iptables(&["-t", "nat", "-X", "CNI-X"]);
        if family == Family::V4 {
            iptables(&["-t", "filter", "-A", "KUBE-FIREWALL", "-j", "RETURN"]);
        }
        no_tampering(&mut dataplane);
        for (change, what) in [
            (&["-t", "nat", "-F", "KUBE-SERVICES"][..], "KUBE-SERVICES"),
            (&["-t", "nat", "-A", "KUBE-MARK-MASQ", "-j", "RETURN"], "KUBE-MARK-MASQ"),
            (&["-t", "filter", "-D", "INPUT", "-j", "KUBE-FIREWALL"], "KUBE-FIREWALL"),
            (&["-t", "nat", "-F"], "KUBE-"),
        ] {
            iptables(change);
            let reported = wait_for_tampering(&mut dataplane, &tables);
            assert!(reported.contains(what), "{change:?}: {reported}");
            sync(&mut dataplane, &tables, &cluster, &Changes::default()).unwrap();
            let sorted = |rules: &str| {
                let mut lines: Vec<_> = rules.lines().map(str::to_owned).collect();
                lines.sort_unstable();
                lines
            };
            assert_eq!(sorted(&tables.rules(family)), sorted(&expected), "after {change:?}");
        }
        no_tampering(&mut dataplane);
    }
}

/// A flush does not wait for us.
#[test]
fn what_others_change_during_a_sync_is_noticed_too() {
    let mut cluster = large_cluster(20, 3);
    let tables = Tables::new("meanwhile", Variant::Nft);
    let mut dataplane = tables.dataplane(Family::V4, &Options::default());
    full_sync(&mut dataplane, &tables, &cluster);
    for round in 0..12u64 {
        cluster.apply(slice(0, if round % 2 == 0 { 4 } else { 3 }));
        let changes = cluster.resolve();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(3 * round));
                tables.run(Family::V4, "", &["-w", "5", "-t", "nat", "-F", "KUBE-SERVICES"], "").unwrap();
            });
            sync(&mut dataplane, &tables, &cluster, &changes[Family::V4]).unwrap();
        });
        let what = wait_for_tampering(&mut dataplane, &tables);
        assert!(what.contains("KUBE-SERVICES"), "round {round}: {what}");
        sync(&mut dataplane, &tables, &cluster, &Changes::default()).unwrap();
    }
}

/// Notifications are paused during a large write; the engine is asked to compare again.
#[test]
fn a_large_write_is_followed_by_another_look() {
    let cluster = large_cluster(200, 20);
    for variant in VARIANTS {
        let tables = Tables::new("large", variant);
        let mut dataplane = tables.dataplane(Family::V4, &Options::default());
        let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
        assert_eq!(
            report.missed_notifications,
            variant == Variant::Nft,
            "{variant}: the legacy variant has no notifications to miss"
        );
        let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
        assert_eq!((report.written, report.missed_notifications), (0, false), "{variant}");
    }
}

fn wait_for_tampering(dataplane: &mut IptablesDataplane, tables: &Tables) -> String {
    let _inside = tables.namespace.enter().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(Notification::Tampered { what, .. }) = next_notifications(dataplane, deadline).pop() {
            return what;
        }
    }
    panic!("the flush was not noticed");
}

/// Services with so many endpoints each.
fn large_cluster(services: usize, endpoints: usize) -> Cluster {
    let mut cluster = Cluster::new(recorded_settings());
    for number in 0..services {
        cluster.apply(service(number));
        cluster.apply(slice(number, endpoints));
    }
    cluster.resolve();
    cluster
}

fn service(number: usize) -> Event {
    let name = format!("service-{number}");
    build::service(&name).cluster_ip(format!("10.96.1.{}", number + 1)).port(port(80)).build().event()
}

fn slice(number: usize, endpoints: usize) -> Event {
    let slice = build::slice(&format!("service-{number}"), &format!("slice-{number}")).port(port(8080));
    let endpoint = |index| build::endpoint(format!("10.244.{number}.{index}"));
    (1..=endpoints).map(endpoint).fold(slice, build::SliceBuilder::endpoint).build().event()
}

/// As in kube-proxy: the endpoints of all service ports count.
#[test]
fn large_clusters_have_no_periodic_full_sync() {
    let tables = Tables::new("hour", Variant::Nft);
    let dataplane = tables.dataplane(Family::V4, &Options::default());
    for (endpoints, interval) in [(100, Some(HOUR)), (101, None)] {
        let cluster = large_cluster(10, endpoints);
        assert_eq!(dataplane.full_sync_interval(cluster.desired(Family::V4)), interval);
    }
}

/// A full sync is the engine's decision, however much time passes.
#[test]
fn a_partial_sync_stays_partial_until_the_engine_or_tampering_asks_for_more() {
    let cluster = large_cluster(10, 10);
    let tables = Tables::new("partial", Variant::Nft);
    let mut dataplane = tables.dataplane(Family::V4, &Options::default());
    assert!(sync(&mut dataplane, &tables, &cluster, &Changes::default()).unwrap().full, "the first one");
    let _inside = tables.namespace.enter().unwrap();
    let later = Instant::now() + 2 * HOUR;
    let report = dataplane.sync(cluster.desired(Family::V4), &Changes::default(), later).unwrap();
    assert!(!report.full);
}

/// As in kube-proxy, chains with and without comments stand side by side until the next full sync.
#[test]
fn crossing_the_limit_of_large_clusters_rewrites_only_what_changes() {
    let mut cluster = large_cluster(10, 100);
    let tables = Tables::new("large", Variant::Nft);
    let mut dataplane = tables.dataplane(Family::V4, &Options::default());
    full_sync(&mut dataplane, &tables, &cluster);
    let commented = |tables: &Tables| {
        let saved = tables.save(Family::V4);
        saved.lines().filter(|line| line.starts_with("-A KUBE-SEP") && line.contains("--comment")).count()
    };
    assert_eq!(commented(&tables), 2 * 1000);
    cluster.apply(slice(0, 101));
    let changes = cluster.resolve();
    let report = sync(&mut dataplane, &tables, &cluster, &changes[Family::V4]).unwrap();
    assert!(!report.full);
    assert_eq!(commented(&tables), 2 * 900);
    full_sync(&mut dataplane, &tables, &cluster);
    assert_eq!(commented(&tables), 0);
}
