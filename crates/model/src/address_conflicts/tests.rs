//! Several frontends with one address and port: the winner does not depend on the order of events.

use crate::changes::GoneFrontend;
use crate::cluster::Cluster;
use crate::desired::Exposure;
use crate::event::Event;
use crate::ip::Family;
use crate::manifest;
use crate::name::Protocol;
use crate::sample::{ToEvent, cluster, demo, service, service_port, settings, strings};

fn named(name: &str, ip: &str, change: impl FnOnce(&mut manifest::Service)) -> manifest::Service {
    service(|s| {
        s.metadata.name = name.to_owned();
        s.spec.cluster_ip = ip.to_owned();
        change(s);
    })
}

/// The owner of each frontend: `service exposure address:port`, without those that are shadowed.
fn owners(cluster: &Cluster) -> Vec<String> {
    let mut owners: Vec<String> = cluster
        .desired(Family::V4)
        .ports()
        .flat_map(|port| port.frontends.iter().map(move |frontend| (port, frontend)))
        .filter(|(_, frontend)| frontend.is_active())
        .map(|(port, f)| {
            let ip = f.ip.map_or("node".to_owned(), |ip| ip.to_string());
            format!("{} {:?} {ip}:{}", port.name, f.exposure, f.port)
        })
        .collect();
    owners.sort();
    owners
}

fn after(events: &[Event]) -> Cluster {
    let mut cluster = Cluster::new(settings());
    for event in events {
        cluster.apply(event.clone());
        cluster.resolve();
    }
    cluster
}

#[test]
fn a_cluster_address_comes_before_an_external_one_of_the_same_number() {
    let thief = named("a-thief", "10.96.0.99", |s| s.spec.external_ips = strings(&["10.96.0.10"]));
    let cluster = cluster(&[&thief, &named("web", "10.96.0.10", |_| {})]);
    assert_eq!(
        owners(&cluster),
        ["demo/a-thief:http ClusterIp 10.96.0.99:80", "demo/web:http ClusterIp 10.96.0.10:80"]
    );
}

#[test]
fn of_two_equal_claims_the_first_name_wins() {
    let external =
        |name: &str, ip: &str| named(name, ip, |s| s.spec.external_ips = strings(&["198.51.100.1"]));
    let cluster = cluster(&[&external("b", "10.96.0.2"), &external("a", "10.96.0.1")]);
    let external: Vec<_> = owners(&cluster).into_iter().filter(|o| o.contains("External")).collect();
    assert_eq!(external, ["demo/a:http ExternalIp 198.51.100.1:80"]);
}

#[test]
fn other_ports_and_protocols_are_no_conflict() {
    let tcp = named("a", "10.96.0.1", |s| s.spec.external_ips = strings(&["198.51.100.1"]));
    let udp = named("b", "10.96.0.2", |s| {
        s.spec.external_ips = strings(&["198.51.100.1"]);
        s.spec.ports = vec![service_port("udp", "UDP", 80), service_port("tcp", "TCP", 81)];
    });
    let cluster = cluster(&[&tcp, &udp]);
    assert!(cluster.desired(Family::V4).ports().all(|p| p.frontends.iter().all(|f| f.is_active())));
}

#[test]
fn node_ports_are_claimed_by_number_and_protocol() {
    let on = |name: &str, ip: &str, protocol: &str| {
        named(name, ip, |s| {
            s.spec.ports = vec![service_port("p", protocol, 80)];
            s.spec.ports[0].node_port = 30000;
        })
    };
    let cluster =
        cluster(&[&on("b", "10.96.0.2", "TCP"), &on("a", "10.96.0.1", "TCP"), &on("c", "10.96.0.3", "UDP")]);
    let node_ports: Vec<_> = owners(&cluster).into_iter().filter(|o| o.contains("NodePort")).collect();
    assert_eq!(node_ports, ["demo/a:p NodePort node:30000", "demo/c:p NodePort node:30000"]);
}

#[test]
fn one_service_does_not_shadow_itself_away() {
    let greedy = named("web", "10.96.0.10", |s| {
        s.spec.external_ips = strings(&["198.51.100.1", "198.51.100.1"]);
        s.status.load_balancer.ingress =
            vec![manifest::LoadBalancerIngress { ip: "198.51.100.1".to_owned(), ip_mode: None }];
    });
    assert_eq!(
        owners(&cluster(&[&greedy])),
        ["demo/web:http ClusterIp 10.96.0.10:80", "demo/web:http ExternalIp 198.51.100.1:80"]
    );
}

/// Two ports of one Service with the same number: the API refuses it, a file may have it.
#[test]
fn of_two_ports_with_one_number_the_first_gets_the_traffic() {
    let doubled = named("web", "10.96.0.10", |s| {
        s.spec.ports = vec![service_port("one", "TCP", 80), service_port("two", "TCP", 80)];
    });
    assert_eq!(owners(&cluster(&[&doubled])), ["demo/web:one ClusterIp 10.96.0.10:80"]);
}

#[test]
fn the_next_in_line_inherits() {
    let external =
        |name: &str, ip: &str| named(name, ip, |s| s.spec.external_ips = strings(&["198.51.100.1"]));
    let mut cluster =
        cluster(&[&external("a", "10.96.0.1"), &external("b", "10.96.0.2"), &external("c", "10.96.0.3")]);
    for (gone, heir) in [("a", "b"), ("b", "c")] {
        cluster.apply(Event::ServiceDeleted(demo(gone)));
        let changes = cluster.resolve().v4;
        assert_eq!(changes.services, [demo(gone), demo(heir)].into());
        let owner = owners(&cluster).into_iter().find(|o| o.contains("External"));
        assert_eq!(owner, Some(format!("demo/{heir}:http ExternalIp 198.51.100.1:80")));
    }
}

#[test]
fn a_loser_that_goes_changes_nobody_else() {
    let external =
        |name: &str, ip: &str| named(name, ip, |s| s.spec.external_ips = strings(&["198.51.100.1"]));
    let mut cluster = cluster(&[&external("a", "10.96.0.1"), &external("b", "10.96.0.2")]);
    cluster.apply(Event::ServiceDeleted(demo("b")));
    assert_eq!(cluster.resolve().v4.services, [demo("b")].into());
}

/// Two Services swap their addresses within one sync.
#[test]
fn addresses_can_be_swapped_at_once() {
    let mut cluster = cluster(&[&named("a", "10.96.0.1", |_| {}), &named("b", "10.96.0.2", |_| {})]);
    cluster.apply(named("a", "10.96.0.2", |_| {}).event());
    cluster.apply(named("b", "10.96.0.1", |_| {}).event());
    assert_eq!(cluster.resolve().v4.services, [demo("a"), demo("b")].into());
    assert_eq!(
        owners(&cluster),
        ["demo/a:http ClusterIp 10.96.0.2:80", "demo/b:http ClusterIp 10.96.0.1:80"]
    );
}

/// All orders of three Services that contest two addresses, one of which is then removed.
#[test]
fn the_outcome_does_not_depend_on_the_order_of_events() {
    let quarrel = [
        named("a", "10.96.0.1", |s| s.spec.external_ips = strings(&["10.96.0.3", "198.51.100.1"])),
        named("b", "10.96.0.2", |s| s.spec.external_ips = strings(&["198.51.100.1"])),
        named("c", "10.96.0.3", |s| {
            s.status.load_balancer.ingress =
                vec![manifest::LoadBalancerIngress { ip: "198.51.100.1".to_owned(), ip_mode: None }];
        }),
    ]
    .map(|service| service.event());
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let all: Vec<Cluster> =
        orders.iter().map(|order| after(&order.map(|index| quarrel[index].clone()))).collect();
    for (cluster, order) in all.iter().zip(orders) {
        assert_eq!(cluster.desired(Family::V4), all[0].desired(Family::V4), "{order:?}");
    }
    let gone = Event::ServiceDeleted(demo("a"));
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut events = order.map(|index| quarrel[index].clone()).to_vec();
        events.push(gone.clone());
        let never = after(&[quarrel[1].clone(), quarrel[2].clone()]);
        assert_eq!(
            after(&events).desired(Family::V4),
            never.desired(Family::V4),
            "{order:?}, then without a"
        );
    }
}

/// A UDP frontend that moves to another Service is not gone; one that no Service has any more is.
#[test]
fn a_frontend_is_gone_only_when_nobody_has_it() {
    let udp = |name: &str, ip: &str, external: &[&str]| {
        named(name, ip, |s| {
            s.spec.ports = vec![service_port("dns", "UDP", 53)];
            s.spec.external_ips = strings(external);
        })
    };
    let mut cluster = cluster(&[
        &udp("a", "10.96.0.1", &["198.51.100.1", "198.51.100.2"]),
        &udp("b", "10.96.0.2", &["198.51.100.1"]),
    ]);
    cluster.apply(udp("a", "10.96.0.1", &[]).event());
    let changes = cluster.resolve().v4;
    let gone: Vec<_> = changes.gone.iter().map(|g| (g.ip.map(|ip| ip.to_string()), g.port)).collect();
    assert_eq!(gone, [(Some("198.51.100.2".to_owned()), 53)]);
    assert!(changes.udp);
    cluster.apply(Event::ServiceDeleted(demo("b")));
    let changes = cluster.resolve().v4;
    assert_eq!(changes.gone.len(), 2);
    assert!(changes.gone.iter().all(|g: &GoneFrontend| g.protocol == Protocol::Udp));
}

#[test]
fn exposures_rank_from_cluster_address_to_node_port() {
    let ranked = [Exposure::ClusterIp, Exposure::ExternalIp, Exposure::LoadBalancerIp, Exposure::NodePort];
    assert!(ranked.is_sorted());
}
