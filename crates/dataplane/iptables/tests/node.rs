//! What a sync does besides writing rules: kernel settings, counters, gauges, canaries; and when it is a full one.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Tables, VARIANTS, assert_same, cluster, full_sync, recorded_settings, sync};
use nix::poll::{PollFd, PollFlags, poll};
use portwarden_iptables::{IptablesDataplane, Options, PACKET_COUNTERS};
use portwarden_model::object::{EndpointSlice, Service};
use portwarden_model::{
    Changes, Cluster, Dataplane, Event, Family, Interner, NodePortRange, Notification, Report, Settings,
    manifest,
};
use portwarden_xtables::Variant;

const HOUR: Duration = Duration::from_secs(3600);

fn reference_cluster(settings: Settings) -> Cluster {
    cluster(settings, "reference/objects.json", "reference/node.json")
}

/// Whether packets to loopback addresses may leave the loopback device, after a sync.
fn route_localnet(settings: Settings, options: Options, family: Family) -> bool {
    let tables = Tables::new("localnet", Variant::Nft);
    full_sync(&mut tables.dataplane(family, options), &tables, &reference_cluster(settings));
    let _inside = tables.namespace.enter().unwrap();
    fs::read_to_string("/proc/sys/net/ipv4/conf/all/route_localnet").unwrap().trim() == "1"
}

#[test]
fn loopback_is_opened_only_for_node_ports_that_answer_there() {
    let settings = recorded_settings;
    assert!(route_localnet(settings(), Options::default(), Family::V4));
    assert!(!route_localnet(settings(), Options::default(), Family::V6));
    let off = Options { localhost_node_ports: false, ..Options::default() };
    assert!(!route_localnet(settings(), off, Family::V4));
    let primary = Settings { node_port_addresses: vec![NodePortRange::Primary], ..settings() };
    assert!(!route_localnet(primary, Options::default(), Family::V4));
}

#[test]
fn counters_exist_after_a_sync() {
    let tables = Tables::new("counters", Variant::Nft);
    let read = || PACKET_COUNTERS.map(|counter| counter.read().unwrap());
    let _inside = tables.namespace.enter().unwrap();
    assert_eq!(read(), [None, None]);
    full_sync(
        &mut tables.dataplane(Family::V6, Options::default()),
        &tables,
        &reference_cluster(recorded_settings()),
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
        &mut tables.dataplane(Family::V4, Options::default()),
        &tables,
        &reference_cluster(recorded_settings()),
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
        let mut dataplane = tables.dataplane(Family::V4, Options::default());
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
        let cluster = reference_cluster(recorded_settings());
        let tables = Tables::new("flush", variant);
        let options = Options { sync_period: Duration::from_millis(50), ..Options::default() };
        let mut dataplane = tables.dataplane(Family::V4, options);
        full_sync(&mut dataplane, &tables, &cluster);
        let expected = tables.rules(Family::V4);
        for table in ["mangle", "nat", "filter"] {
            for flush in ["-F", "-X"] {
                tables.run(Family::V4, "", &["-w", "5", "-t", table, flush], "").unwrap();
            }
        }
        let told = wait_for_tampering(&mut dataplane, &tables);
        // By its canary, or by the kernel's word on the first chain that went.
        let expected_word = if variant == Variant::Legacy { "KUBE-PROXY-CANARY" } else { "KUBE-" };
        assert!(told.contains(expected_word), "{told}");
        let report = sync(&mut dataplane, &tables, &cluster, &Changes::default()).unwrap();
        assert!(report.full, "even if the engine forgets to ask for it");
        assert_same(&tables.rules(Family::V4), &expected, "after the flush");
    }
}

/// Where the kernel tells of changes, nobody has to look.
#[test]
fn what_others_change_is_noticed_at_once_in_the_nft_variant() {
    let cluster = reference_cluster(recorded_settings());
    for family in Family::BOTH {
        let tables = Tables::new("changes", Variant::Nft);
        let mut dataplane = tables.dataplane(family, Options::default());
        full_sync(&mut dataplane, &tables, &cluster);
        let expected = tables.rules(family);
        let no_tampering = |dataplane: &mut IptablesDataplane| {
            let _inside = tables.namespace.enter().unwrap();
            let deadline = Instant::now() + Duration::from_millis(500);
            while let Some(left) = deadline.checked_duration_since(Instant::now()) {
                let watch = PollFd::new(dataplane.watch_fds()[0], PollFlags::POLLIN);
                poll(&mut [watch], u16::try_from(left.as_millis()).unwrap()).unwrap();
                assert_eq!(dataplane.poll(Instant::now()), []);
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
            let told = wait_for_tampering(&mut dataplane, &tables);
            assert!(told.contains(what), "{change:?}: {told}");
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

/// Whoever flushes does not wait for us.
#[test]
fn what_others_change_during_a_sync_is_noticed_too() {
    let mut cluster = large_cluster(20, 3);
    let tables = Tables::new("meanwhile", Variant::Nft);
    let mut dataplane = tables.dataplane(Family::V4, Options::default());
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
        let told = wait_for_tampering(&mut dataplane, &tables);
        assert!(told.contains("KUBE-SERVICES"), "round {round}: {told}");
        sync(&mut dataplane, &tables, &cluster, &Changes::default()).unwrap();
    }
}

/// While much is written nobody listens; the engine is asked to look again.
#[test]
fn a_large_write_is_followed_by_another_look() {
    let cluster = large_cluster(200, 20);
    for variant in VARIANTS {
        let tables = Tables::new("large", variant);
        let mut dataplane = tables.dataplane(Family::V4, Options::default());
        let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
        assert_eq!(
            report.missed_notifications,
            variant == Variant::Nft,
            "{variant}: it is not listened to at all"
        );
        let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
        assert_eq!((report.written, report.missed_notifications), (0, false), "{variant}");
    }
}

fn wait_for_tampering(dataplane: &mut IptablesDataplane, tables: &Tables) -> String {
    let _inside = tables.namespace.enter().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        let watch = dataplane.watch_fds()[0];
        poll(&mut [PollFd::new(watch, PollFlags::POLLIN)], 1000u16).unwrap();
        if let Some(Notification::Tampered { what, .. }) = dataplane.poll(Instant::now()).pop() {
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
    let mut service = manifest::Service::default();
    service.metadata.namespace = "demo".to_owned();
    service.metadata.name = format!("service-{number}");
    service.spec.cluster_ip = format!("10.96.1.{}", number + 1);
    service.spec.ports = vec![manifest::ServicePort { port: 80, ..Default::default() }];
    Event::ServiceApplied(Service::from_manifest(&service, &mut Interner::default()).0.unwrap())
}

fn slice(number: usize, endpoints: usize) -> Event {
    let mut slice = manifest::EndpointSlice { address_type: "IPv4".to_owned(), ..Default::default() };
    slice.metadata.namespace = "demo".to_owned();
    slice.metadata.name = format!("slice-{number}");
    slice.metadata.labels.insert(manifest::LABEL_SERVICE_NAME.to_owned(), format!("service-{number}"));
    let address = |index: usize| format!("10.244.{number}.{}", index + 1);
    let endpoint = |index| manifest::Endpoint { addresses: vec![address(index)], ..Default::default() };
    slice.endpoints = (0..endpoints).map(endpoint).collect();
    slice.ports =
        vec![manifest::EndpointPort { name: Some(String::new()), protocol: None, port: Some(8080) }];
    Event::SliceApplied(EndpointSlice::from_manifest(&slice, &mut Interner::default()).0.unwrap())
}

#[test]
fn an_hour_later_a_sync_is_a_full_one_unless_the_cluster_is_large() {
    for (endpoints, full) in [(100, true), (101, false)] {
        let cluster = large_cluster(10, endpoints);
        let tables = Tables::new("hour", Variant::Nft);
        let mut dataplane = tables.dataplane(Family::V4, Options::default());
        let _inside = tables.namespace.enter().unwrap();
        let mut sync =
            |now, changes: &Changes| dataplane.sync_at(now, cluster.desired(Family::V4), changes).unwrap();
        let start = Instant::now();
        assert!(sync(start, &Changes::default()).full, "the first one");
        assert!(!sync(start + HOUR, &Changes::default()).full);
        assert_eq!(sync(start + HOUR + Duration::from_secs(1), &Changes::default()).full, full);
    }
}

/// As with the reference, chains with and without comments stand side by side until the next full sync.
#[test]
fn crossing_the_limit_of_large_clusters_rewrites_only_what_changes() {
    let mut cluster = large_cluster(10, 100);
    let tables = Tables::new("large", Variant::Nft);
    let mut dataplane = tables.dataplane(Family::V4, Options::default());
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
