//! What the answers say, for clusters that the tests build.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use portwarden_model::{
    Cluster, DetectLocal, Event, Family, Kind, NamespacedName, NodePortRange, Settings, Timestamp,
};
use portwarden_testkit::build::{self, EndpointBuilder, ServiceBuilder, ToEvent};

use super::activity::{Activity, SyncRecord};
use super::api::{Level, ServiceState, TimelineKind};
use super::explanation::{Action, explain_service, similar_services};
use super::packet::{Origin, Packet, PacketError, PacketExplanation, explain_packet};
use super::services::{Index, Query, at_address, rows};
use crate::engine::Moment;
use crate::modes::{Mode, SourceAddress};

const HERE: &str = "node-a";

fn demo(name: &str) -> NamespacedName {
    NamespacedName::new("demo", name)
}

fn at(seconds: i64) -> Moment {
    Moment { instant: Instant::now(), wall: Timestamp::from_nanos(seconds * 1_000_000_000) }
}

/// A cluster of Services with endpoints, on a node at 192.0.2.2 with pods in 10.244.0.0/16.
fn settings() -> Settings {
    let pods = "10.244.0.0/16".parse().expect("a range");
    Settings { detect_local: DetectLocal::ClusterCidr(vec![pods]), ..Settings::new(HERE) }
}

fn cluster(services: impl IntoIterator<Item = (ServiceBuilder, Vec<EndpointBuilder>)>) -> Cluster {
    cluster_with(settings(), services)
}

fn cluster_with(
    settings: Settings,
    services: impl IntoIterator<Item = (ServiceBuilder, Vec<EndpointBuilder>)>,
) -> Cluster {
    let mut cluster = Cluster::new(settings);
    let ips = ["127.0.0.1", "192.0.2.2"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
    cluster.apply(Event::HostAddresses(ips.into()));
    cluster.apply(build::node(HERE).ip("192.0.2.2").build().event());
    cluster.apply(build::service_cidr("kubernetes", ["10.96.0.0/16"]).event());
    for (service, endpoints) in services {
        let service = service.build();
        let name = service.metadata.name.clone();
        let slice = build::slice(&name, &format!("{name}-1")).port(build::port(8080).name("http"));
        let slice = endpoints.into_iter().fold(slice, |slice, endpoint| slice.endpoint(endpoint));
        cluster.apply(service.event());
        cluster.apply(slice.build().event());
    }
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
    cluster
}

fn web() -> ServiceBuilder {
    build::service("web").cluster_ip("10.96.0.10").port(build::port(80).name("http"))
}

fn here() -> EndpointBuilder {
    build::endpoint("10.244.0.7").on(HERE)
}

fn there() -> EndpointBuilder {
    build::endpoint("10.244.1.7").on("node-b")
}

fn packet(cluster: &Cluster, to: &str, from: &str) -> PacketExplanation {
    explain_packet(cluster, Packet::parse(to, Some(from)).expect("a packet"), SourceAddress::Client)
}

#[test]
fn a_packet_is_followed_to_its_endpoints() {
    let cluster = cluster([(web(), vec![here(), there()])]);
    let explained = packet(&cluster, "10.96.0.10:80", "10.244.0.9");
    assert_eq!(explained.summary, "Forwarded to one of 2 endpoints of Service demo/web.");
    assert_eq!((explained.action, explained.origin), (Action::Forward, Some(Origin::Pod)));
    assert_eq!(explained.endpoints, ["10.244.0.7:8080", "10.244.1.7:8080"]);
    assert_eq!(explained.masqueraded, Some(false));
    assert_eq!(explained.explanation.expect("the Service").families[0].ports[0].cluster_pool, Some(2));
    for (from, origin) in [("192.0.2.2", Origin::Host), ("203.0.113.9", Origin::Elsewhere)] {
        let explained = packet(&cluster, "10.96.0.10:80/tcp", from);
        assert_eq!((explained.origin, explained.masqueraded), (Some(origin), Some(true)), "{from}");
    }
    let to_itself = packet(&cluster, "10.96.0.10:80", "10.244.0.7");
    assert!(to_itself.steps.iter().any(|step| step.contains("masqueraded in any case")), "{to_itself:?}");
}

#[test]
fn where_the_proxy_connects_endpoints_never_see_the_client() {
    let modes = Mode::ALL.into_iter().filter(|mode| mode.source_address() == SourceAddress::Node);
    assert_eq!(modes.collect::<Vec<_>>(), [Mode::Userspace]);
    let service = web().of_type("LoadBalancer").vip("203.0.113.5").external_policy_local();
    let cluster = cluster([(service, vec![here(), there()])]);
    let clients = [Some("10.244.0.9"), Some("192.0.2.2"), Some("203.0.113.9"), Some("10.244.0.7"), None];
    for to in ["10.96.0.10:80", "203.0.113.5:80"] {
        for from in clients {
            let packet = Packet::parse(to, from).expect("a packet");
            let explained = explain_packet(&cluster, packet, SourceAddress::Node);
            assert_eq!(
                (explained.action, explained.masqueraded),
                (Action::Forward, Some(true)),
                "{packet:?}"
            );
            let about = explained.steps.iter().filter(|step| step.contains("address, whoever the client is"));
            assert_eq!(about.count(), 1, "{explained:?}");
            assert!(!explained.steps.iter().any(|step| step.contains("masqueraded")), "{explained:?}");
        }
    }
    let explained = explain_service(&cluster, &demo("web"), SourceAddress::Node).expect("proxied");
    let frontends: Vec<_> =
        explained.families.iter().flat_map(|one| &one.ports).flat_map(|port| &port.frontends).collect();
    assert!(!frontends.is_empty());
    for frontend in frontends {
        assert!(frontend.masquerade.contains("sees the node's address, whoever"), "{frontend:?}");
    }
}

#[test]
fn packets_without_endpoints_without_a_service_and_from_forbidden_clients_are_explained() {
    let local = web().of_type("LoadBalancer").vip("203.0.113.5").source_range("198.51.100.0/24");
    let cluster = cluster([
        (local.external_policy_local(), vec![there()]),
        (build::service("empty").cluster_ip("10.96.0.11").port(build::port(80).name("http")), vec![]),
    ]);
    let outcome = |to: &str, from: &str| {
        let explained = packet(&cluster, to, from);
        (explained.action, explained.summary)
    };
    assert_eq!(
        outcome("203.0.113.5:80", "203.0.113.9"),
        (Action::Drop, "Dropped: 203.0.113.9 is not in the Service's loadBalancerSourceRanges.".to_owned())
    );
    assert_eq!(
        outcome("203.0.113.5:80", "198.51.100.9"),
        (
            Action::Drop,
            "Dropped: the policy is Local, and all endpoints of Service demo/web are on other nodes."
                .to_owned()
        )
    );
    assert_eq!(
        outcome("10.96.0.11:80", "10.244.0.9"),
        (Action::Reject, "Rejected: Service demo/empty has no usable endpoint in the cluster.".to_owned())
    );
    let wrong_port = packet(&cluster, "10.96.0.10:81", "10.244.0.9");
    assert_eq!(
        wrong_port.summary,
        "Not forwarded: Services have the address 10.96.0.10, but none has 10.96.0.10:81/TCP."
    );
    assert_eq!(wrong_port.neighbours, ["demo/web: 10.96.0.10:80/TCP"]);
    assert_eq!(
        outcome("10.96.0.99:80/udp", "10.244.0.9").1,
        "Not forwarded: no Service has 10.96.0.99, although it is in the Service range 10.96.0.0/16."
    );
    assert_eq!(
        outcome("192.0.2.77:80", "10.244.0.9"),
        (Action::None, "Not touched: no Service has 192.0.2.77:80/TCP.".to_owned())
    );
}

#[test]
fn a_node_port_needs_an_address_of_the_node() {
    let service = build::service("web").cluster_ip("10.96.0.10").of_type("NodePort");
    let service = || service.clone().port(build::port(80).name("http").node_port(30080));
    let cluster = cluster([(service(), vec![here()])]);
    assert_eq!(packet(&cluster, "192.0.2.2:30080", "203.0.113.9").service.as_deref(), Some("demo/web"));
    let elsewhere = packet(&cluster, "203.0.113.77:30080", "203.0.113.9");
    assert_eq!(elsewhere.service, None);
    assert_eq!(
        elsewhere.summary,
        "Not touched: 30080 is a node port of Service demo/web, but 203.0.113.77 is not an address of this node."
    );
    assert_eq!(
        packet(&cluster, "203.0.113.77:30080/udp", "203.0.113.9").summary,
        "Not touched: no Service has 203.0.113.77:30080/UDP."
    );
    let primary = Settings { node_port_addresses: vec![NodePortRange::Primary], ..settings() };
    assert_eq!(
        packet(&cluster_with(primary, [(service(), vec![here()])]), "127.0.0.1:30080", "127.0.0.1").summary,
        "Not touched: 30080 is a node port of Service demo/web, but nodePortAddresses does not select 127.0.0.1; it \
         selects 192.0.2.2."
    );
}

#[test]
fn packets_are_parsed_with_care() {
    let parsed = Packet::parse("[fd00::10]:53/UDP", None).expect("a packet");
    assert_eq!((parsed.to.port(), parsed.protocol.as_str()), (53, "UDP"));
    for to in ["", "10.96.0.10", "10.96.0.10:80/icmp", "web:80", "10.96.0.10:70000"] {
        assert_eq!(Packet::parse(to, None), Err(PacketError::To(to.to_owned())));
    }
    assert!(matches!(Packet::parse("10.0.0.1:80", Some("pod")), Err(PacketError::From(_))));
    assert!(matches!(Packet::parse("10.0.0.1:80", Some("fd00::1")), Err(PacketError::Families { .. })));
    assert_eq!(Packet::parse("10.0.0.1:80", Some(" ")).expect("no source").from, None);
}

#[test]
fn a_service_is_explained_with_its_restrictions_and_pools() {
    let service =
        web().of_type("LoadBalancer").vip("203.0.113.5").source_range("198.51.100.0/24").affinity(600);
    let cluster = cluster([(service.external_policy_local(), vec![here(), there().ready(false)])]);
    let explained = explain_service(&cluster, &demo("web"), SourceAddress::Client).expect("proxied");
    assert_eq!(explained.node, HERE);
    let [family] = &explained.families[..] else { panic!("{explained:?}") };
    assert_eq!(family.pod_traffic, "packets from 10.244.0.0/16 are a pod's");
    let port = &family.ports[0];
    assert_eq!((port.affinity, port.source_ranges.clone()), (Some(600), vec!["198.51.100.0/24".to_owned()]));
    assert_eq!((port.cluster_pool, port.local_pool, port.endpoint_count), (Some(1), Some(1), 2));
    let restricted: Vec<bool> = port.frontends.iter().map(|frontend| frontend.restricted).collect();
    assert_eq!(restricted, [false, true]);
    assert_eq!(port.frontends[1].from_elsewhere.pool.as_deref(), Some("local"));
    let reason = |index: usize| port.endpoints[index].cluster.as_ref().expect("a reason").reason.clone();
    assert_eq!((reason(0), reason(1)), ("used: ready".to_owned(), "not used: not ready".to_owned()));
    assert!(port.endpoints[0].on_this_node && !port.endpoints[1].on_this_node);
    let json = serde_json::to_string(&explained).expect("JSON");
    assert_eq!(serde_json::from_str::<super::ServiceExplanation>(&json).expect("reads"), explained);
    assert_eq!(explain_service(&cluster, &demo("wep"), SourceAddress::Client), None);
    assert_eq!(similar_services(&cluster, &NamespacedName::new("other", "web")), ["demo/web"]);
}

/// `demo/s0000` and so on; every tenth has no endpoint.
fn many(count: usize) -> Cluster {
    cluster((0..count).map(|number| {
        let ip = format!("10.96.{}.{}", number / 250, number % 250 + 1);
        let service =
            build::service(&format!("s{number:04}")).cluster_ip(ip).port(build::port(80).name("http"));
        let endpoint = build::endpoint(format!("10.244.{}.{}", number / 250, number % 250 + 1)).on("node-b");
        (service, if number % 10 == 0 { vec![] } else { vec![endpoint] })
    }))
}

#[test]
fn the_list_is_searched_sorted_and_paged() {
    let cluster = many(120);
    let refused = [demo("s0003")];
    let index = Index::build(&cluster, &refused).sort();
    let select = |text: &str, troubled: bool, page: usize| {
        let query = Query { text: text.to_owned(), troubled, page };
        let found = query.address().map(|ip| at_address(&cluster, ip));
        let selection = index.select(&query, found.as_deref());
        let rows = rows(&cluster, &selection.names, &refused);
        selection.with(rows)
    };
    let first = select("", false, 0);
    assert_eq!((first.page, first.pages, first.matching, first.total, first.troubled), (0, 3, 120, 120, 13));
    let names: Vec<&str> = first.services.iter().map(|row| row.service.as_str()).collect();
    assert_eq!((names.len(), names[0], names[49]), (50, "demo/s0000", "demo/s0049"));
    assert_eq!(first.services[0].state, ServiceState::NoEndpoints);
    assert_eq!(first.services[1].state, ServiceState::Serving);
    assert_eq!(first.services[3].state, ServiceState::Refused);
    assert_eq!((first.services[1].used_endpoints, first.services[1].endpoints), (1, 1));
    assert_eq!(first.services[1].ports, ["http 80/TCP"]);
    assert_eq!(select("", false, 99).page, 2, "the last page");
    assert_eq!(select("demo S001", false, 0).matching, 10);
    assert_eq!(select("nothing", false, 0).services, []);
    assert_eq!(select("", true, 0).matching, 13);
    for ip in ["10.96.0.6", "10.244.0.6"] {
        let found = select(ip, false, 0);
        assert_eq!(found.services.iter().map(|row| &row.service).collect::<Vec<_>>(), ["demo/s0005"], "{ip}");
    }
}

fn record(family: Family, at: Moment, full: bool, error: Option<&str>) -> SyncRecord {
    SyncRecord {
        at,
        family,
        mode: "nftables",
        full,
        took: Duration::from_millis(3),
        change_to_kernel: Some(Duration::from_millis(7)),
        written: 5,
        services: 1,
        error: error.map(str::to_owned),
    }
}

#[test]
fn repairs_and_failures_are_on_the_time_line_and_repetitions_are_one_entry() {
    let (activity, cluster) = (Activity::default(), cluster([(web(), vec![here()])]));
    let desired = cluster.desired(Family::V4);
    activity.modes(&[Family::V4], &["nftables"], at(0));
    activity.synced(record(Family::V4, at(1), true, None), desired);
    activity.tampered(Family::V4, "table flushed", at(2));
    activity.synced(record(Family::V4, at(3), false, None), desired);
    activity.synced(record(Family::V4, at(4), true, None), desired);
    for second in 5..9 {
        activity.sync_failed(record(Family::V4, at(second), true, Some("no buffer space")));
    }
    activity.synced(record(Family::V4, at(9), true, None), desired);
    let timeline = activity.timeline();
    let kinds: Vec<(TimelineKind, u32)> =
        timeline.entries.iter().map(|entry| (entry.kind, entry.count)).collect();
    use TimelineKind as Kind;
    let wanted = [
        (Kind::SyncRecovered, 1),
        (Kind::SyncFailed, 4),
        (Kind::Repaired, 1),
        (Kind::Tampered, 1),
        (Kind::Installed, 1),
    ];
    assert_eq!(kinds, wanted);
    assert_eq!(timeline.entries[1].level, Level::Error);
    assert_eq!(timeline.entries[1].last, "1970-01-01T00:00:08Z");
    assert!(timeline.entries[2].text.starts_with("Repaired in "), "{timeline:?}");
    let report = activity.report();
    assert_eq!((report.totals.syncs, report.totals.failed_syncs, report.totals.repairs), (4, 4, 1));
    assert_eq!((report.families[0].1.services, report.families[0].1.endpoints), (1, 1));
    assert_eq!(report.syncs.len(), 8);
}

#[test]
fn what_is_kept_is_bounded() {
    let activity = Activity::default();
    for number in 0..5000 {
        let refused = portwarden_model::RefusedService {
            service: demo(&format!("s{number:04}")),
            reason: "no space".to_owned(),
        };
        activity.refused(Family::V4, &refused, at(number));
        activity.happened(TimelineKind::ConfigurationApplied, format!("change {number}"), at(number));
        activity.sync_failed(record(Family::V6, at(number), false, Some("busy")));
        let problem = portwarden_model::Problem {
            object: format!("Service demo/s{number:04}"),
            field: "spec.ports".to_owned(),
            text: "unusable".to_owned(),
        };
        activity.problems(&[problem], at(number));
    }
    let report = activity.report();
    assert_eq!(report.totals.problems, 5000);
    assert_eq!((report.refused.count, report.refused.services.len()), (5000, 100));
    assert!(activity.timeline().entries.len() <= 400 && report.syncs.len() <= 40);
    assert_eq!(activity.refusals_of(&demo("s0007")).len(), 1);
    activity.accepted(Family::V4, &demo("s0007"), at(6000));
    assert!(activity.refusals_of(&demo("s0007")).is_empty());
}

#[test]
fn a_source_that_fails_and_works_again_is_on_the_time_line_once() {
    let activity = Activity::default();
    for (error, second) in [(None, 1), (Some("refused"), 2), (Some("refused"), 3), (None, 4), (None, 5)] {
        activity.source("Services", error, at(second));
    }
    let kinds: Vec<TimelineKind> = activity.timeline().entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [TimelineKind::SourceFollowing, TimelineKind::SourceFailing]);
    assert!(activity.report().sources[0].following);
}
