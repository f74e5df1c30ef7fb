//! kube-proxy's rules for stale flows, and the cases that it leaves out.

use super::*;
use crate::cluster::Cluster;
use crate::event::Event;
use crate::ip::{Family, parse_cidr};
use crate::manifest;
use crate::node_port_addresses::NodePortRange;
use crate::sample::{
    HERE, ToEvent, cluster, cluster_with, demo, dual_stack, endpoints, service, service_port, settings,
    slice, slice_port, strings,
};
use crate::settings::{DetectLocal, Settings};

const CLIENT: &str = "203.0.113.200";
const POD: &str = "10.1.0.77";

/// A UDP Service on all kinds of frontends: 10.96.0.10:53, 198.51.100.1:53, 203.0.113.1:53 and node port 30053.
fn dns(change: impl FnOnce(&mut manifest::Service)) -> manifest::Service {
    service(|s| {
        s.spec.r#type = "LoadBalancer".to_owned();
        s.spec.health_check_node_port = 31000;
        s.spec.ports = vec![service_port("dns", "UDP", 53)];
        s.spec.ports[0].node_port = 30053;
        s.spec.external_ips = strings(&["198.51.100.1"]);
        s.status.load_balancer.ingress =
            vec![manifest::LoadBalancerIngress { ip: "203.0.113.1".to_owned(), ip_mode: None }];
        change(s);
    })
}

fn pods(codes: &str) -> manifest::EndpointSlice {
    slice("web-1", codes, |s| s.ports = vec![slice_port("dns", "UDP", 5353)])
}

fn flow(source: &str, destination: &str, reply_source: &str) -> Flow {
    Flow {
        protocol: Protocol::Udp,
        source: source.parse().expect("an address"),
        destination: destination.parse().expect("an address and port"),
        reply_source: reply_source.parse().expect("an address and port"),
        answered: true,
    }
}

fn host() -> Vec<IpAddr> {
    ["127.0.0.1", "192.0.2.1", "192.0.2.2", "2001:db8::1"]
        .iter()
        .map(|ip| ip.parse().expect("an address"))
        .collect()
}

/// Whether a flow from a client outside is stale in this cluster, after some change to UDP.
fn stale(cluster: &Cluster, destination: &str, reply_source: &str) -> bool {
    stale_from(cluster, CLIENT, destination, reply_source)
}

fn stale_from(cluster: &Cluster, source: &str, destination: &str, reply_source: &str) -> bool {
    let changes = Changes { udp: true, ..Changes::default() };
    let flow = flow(source, destination, reply_source);
    let family = Family::of(flow.source);
    StaleFlows::after(&changes, cluster.desired(family), &host()).expect("UDP changed").is_stale(&flow)
}

const FRONTENDS: [&str; 4] = ["10.96.0.10:53", "198.51.100.1:53", "203.0.113.1:53", "192.0.2.1:30053"];

#[test]
fn a_flow_stays_with_an_endpoint_that_answers() {
    let cluster = cluster(&[&dns(|_| {}), &pods("A R, B ST, C S, D T, E N")]);
    for frontend in FRONTENDS {
        for serving in ["10.1.0.1:5353", "10.1.0.2:5353", "10.1.0.3:5353"] {
            assert!(!stale(&cluster, frontend, serving), "row 1: {frontend} by {serving}");
        }
        for gone in ["10.1.0.4:5353", "10.1.0.5:5353", "10.1.0.99:5353", "10.1.0.1:53"] {
            assert!(stale(&cluster, frontend, gone), "row 2: {frontend} by {gone}");
        }
        assert!(stale(&cluster, frontend, frontend), "row 3: {frontend} was not redirected");
    }
}

#[test]
fn a_port_that_is_no_service_port_is_left_alone() {
    let cluster = cluster(&[&dns(|_| {}), &pods("A R")]);
    assert!(!stale(&cluster, "10.96.0.10:54", "10.96.0.10:54"));
    assert!(!stale(&cluster, "192.0.2.1:53", "192.0.2.1:53"), "the node's own name server");
    for elsewhere in ["198.51.100.1:54", "203.0.113.1:54", "192.0.2.1:30054"] {
        assert!(
            !stale(&cluster, elsewhere, elsewhere),
            "another port of an address of the Service: {elsewhere}"
        );
        assert!(
            !stale(&cluster, elsewhere, "10.1.0.9:5353"),
            "even if something else redirects it: {elsewhere}"
        );
    }
}

#[test]
fn without_endpoints_all_flows_go_those_of_the_node_port_too() {
    let cluster = cluster(&[&dns(|_| {}), &pods("A N")]);
    for frontend in FRONTENDS {
        assert!(stale(&cluster, frontend, "10.1.0.1:5353"), "{frontend}");
    }
}

#[test]
fn node_ports_count_on_this_host_only() {
    let cluster = cluster(&[&dns(|_| {}), &pods("A R")]);
    assert!(stale(&cluster, "192.0.2.2:30053", "10.1.0.9:5353"));
    assert!(!stale(&cluster, "198.51.100.77:30053", "198.51.100.77:30053"), "another host's port");
}

#[test]
fn node_ports_count_where_they_answer_only() {
    let range = NodePortRange::Cidr(parse_cidr("192.0.2.1/32").expect("a CIDR"));
    let settings = Settings { node_port_addresses: vec![range], ..settings() };
    let mut cluster = cluster_with(settings, &[&dns(|_| {}), &pods("A R")]);
    cluster.apply(Event::HostAddresses(host().into()));
    cluster.resolve();
    assert!(stale(&cluster, "192.0.2.1:30053", "10.1.0.9:5353"));
    assert!(
        !stale(&cluster, "192.0.2.2:30053", "192.0.2.2:30053"),
        "a process of the host on another address"
    );
    assert!(!stale_from(&cluster, "127.0.0.1", "127.0.0.1:30053", "127.0.0.1:30053"));
}

#[test]
fn node_ports_on_loopback_count_where_the_operator_wants_them() {
    let range = NodePortRange::Cidr(parse_cidr("127.0.0.0/8").expect("a CIDR"));
    let settings = Settings { node_port_addresses: vec![range], ..settings() };
    let mut cluster = cluster_with(settings, &[&dns(|_| {}), &pods("A R")]);
    cluster.apply(Event::HostAddresses(host().into()));
    cluster.resolve();
    assert!(stale_from(&cluster, "127.0.0.1", "127.0.0.1:30053", "10.1.0.9:5353"));
    assert!(
        !stale_from(&cluster, "127.0.0.1", "127.0.0.1:30053", "10.1.0.1:5353"),
        "an endpoint that serves"
    );
}

/// What is gone leaves no flows behind.
#[test]
fn flows_to_what_is_gone_go_too() {
    let mut cluster = cluster(&[&dns(|_| {}), &pods("A R")]);
    cluster.apply(Event::ServiceDeleted(demo("web")));
    let changes = cluster.resolve().v4;
    let stale = StaleFlows::after(&changes, cluster.desired(Family::V4), &host()).expect("UDP changed");
    for frontend in FRONTENDS {
        assert!(stale.is_stale(&flow(CLIENT, frontend, "10.1.0.1:5353")), "{frontend}");
        assert!(!stale.is_stale(&flow(CLIENT, frontend, frontend)), "{frontend} belongs to no Service");
    }
    assert!(!stale.is_stale(&flow(CLIENT, "198.51.100.77:30053", "10.1.0.1:5353")), "another host");
    assert!(!stale.is_stale(&flow(CLIENT, "10.96.0.10:54", "10.1.0.1:5353")), "another port");
}

#[test]
fn a_removed_address_or_type_takes_its_flows_along() {
    let mut cluster = cluster(&[&dns(|_| {}), &pods("A R")]);
    let narrowed = dns(|s| {
        s.spec.r#type = "ClusterIP".to_owned();
        s.spec.ports[0].node_port = 0;
        s.spec.external_ips.clear();
        s.status.load_balancer.ingress.clear();
    });
    cluster.apply(narrowed.event());
    let changes = cluster.resolve().v4;
    let stale = StaleFlows::after(&changes, cluster.desired(Family::V4), &host()).expect("UDP changed");
    for frontend in &FRONTENDS[1..] {
        assert!(stale.is_stale(&flow(CLIENT, frontend, "10.1.0.1:5353")), "{frontend}");
    }
    assert!(
        !stale.is_stale(&flow(CLIENT, FRONTENDS[0], "10.1.0.1:5353")),
        "the cluster address is still there"
    );
}

/// A failed sync left "gone" to be done; by the next one the frontend is back.
#[test]
fn what_came_back_is_not_gone() {
    let mut cluster = cluster(&[&dns(|_| {}), &pods("A R")]);
    cluster.apply(Event::ServiceDeleted(demo("web")));
    let mut changes = cluster.resolve().v4;
    cluster.apply(dns(|_| {}).event());
    changes.merge(cluster.resolve().v4);
    let stale = StaleFlows::after(&changes, cluster.desired(Family::V4), &host()).expect("UDP changed");
    for frontend in FRONTENDS {
        assert!(!stale.is_stale(&flow(CLIENT, frontend, "10.1.0.1:5353")), "{frontend}");
        assert!(stale.is_stale(&flow(CLIENT, frontend, "10.1.0.2:5353")), "{frontend}");
    }
}

#[test]
fn other_protocols_are_left_alone() {
    let changes = Changes { udp: true, ..Changes::default() };
    let cluster = cluster(&[&dns(|_| {}), &pods("A R")]);
    let stale = StaleFlows::after(&changes, cluster.desired(Family::V4), &host()).expect("UDP changed");
    for protocol in [Protocol::Tcp, Protocol::Sctp] {
        for frontend in FRONTENDS {
            for reply in ["10.1.0.1:5353", "10.1.0.9:5353", frontend] {
                let flow = Flow { protocol, ..flow(CLIENT, frontend, reply) };
                assert!(!stale.is_stale(&flow), "{protocol:?} to {frontend}, answered by {reply}");
            }
        }
    }
}

/// TCP, UDP and SCTP on one port number, with different endpoints, and then without the Service.
#[test]
fn protocols_on_one_port_number_are_told_apart() {
    let all = dns(|s| {
        s.spec.ports.push(service_port("dns-tcp", "TCP", 53));
        s.spec.ports.push(service_port("dns-sctp", "SCTP", 53));
        s.spec.ports[1].node_port = 30053;
        s.spec.ports[2].node_port = 30053;
    });
    let others = slice("web-2", "B R", |s| {
        s.ports = vec![slice_port("dns-tcp", "TCP", 5353), slice_port("dns-sctp", "SCTP", 5353)];
    });
    let mut cluster = cluster(&[&all, &pods("A R"), &others]);
    let check = |changes: &Changes, cluster: &Cluster, gone: &str| {
        let stale = StaleFlows::after(changes, cluster.desired(Family::V4), &host()).expect("UDP changed");
        for frontend in FRONTENDS {
            for (protocol, wanted) in [(Protocol::Udp, true), (Protocol::Tcp, false), (Protocol::Sctp, false)]
            {
                let flow = Flow { protocol, ..flow(CLIENT, frontend, gone) };
                assert_eq!(stale.is_stale(&flow), wanted, "{protocol:?} to {frontend}, answered by {gone}");
            }
        }
    };
    check(&Changes { udp: true, ..Changes::default() }, &cluster, "10.1.0.2:5353");
    cluster.apply(Event::ServiceDeleted(demo("web")));
    let changes = cluster.resolve().v4;
    check(&changes, &cluster, "10.1.0.1:5353");
}

/// Each flow is one lookup, however many there are: a million flows of a busy name server.
#[test]
fn of_a_million_flows_only_those_to_a_gone_endpoint_are_stale() {
    let cluster = cluster(&[&dns(|_| {}), &pods("A R, B R")]);
    let changes = Changes { udp: true, ..Changes::default() };
    let stale = StaleFlows::after(&changes, cluster.desired(Family::V4), &host()).expect("UDP changed");
    let endpoints = ["10.1.0.1:5353", "10.1.0.2:5353", "10.1.0.3:5353", "10.1.0.4:5353"];
    let flows = endpoints.map(|endpoint| FRONTENDS.map(|frontend| flow(CLIENT, frontend, endpoint)));
    let found = (0..1_000_000).filter(|number| stale.is_stale(&flows[number % 4][number / 4 % 4])).count();
    assert_eq!(found, 500_000);
}

#[test]
fn tcp_frontends_on_the_same_port_do_not_matter() {
    let both = dns(|s| s.spec.ports.push(service_port("dns-tcp", "TCP", 53)));
    let tcp = slice("web-2", "B R", |s| s.ports = vec![slice_port("dns-tcp", "TCP", 5353)]);
    let cluster = cluster(&[&both, &pods("A R"), &tcp]);
    assert!(stale(&cluster, "10.96.0.10:53", "10.1.0.2:5353"), "B answers TCP only");
}

/// Whose policy became Local: flows to other nodes end, so that the next packet finds an endpoint here.
#[test]
fn a_local_policy_is_held_against_flows_that_leave_the_node() {
    let detect_local = DetectLocal::ClusterCidr(vec![parse_cidr("10.1.0.0/16").expect("a CIDR")]);
    let with = |internal: &str, external: &str, codes: &str| {
        let local = dns(|s| {
            s.spec.internal_traffic_policy = Some(internal.to_owned());
            s.spec.external_traffic_policy = external.to_owned();
        });
        let settings = Settings { detect_local: detect_local.clone(), ..settings() };
        cluster_with(settings, &[&local, &pods(codes)])
    };
    let (here, there) = ("10.1.0.1:5353", "10.1.0.2:5353");
    let external = with("Cluster", "Local", "A R L, B R");
    for frontend in &FRONTENDS[1..] {
        assert!(stale(&external, frontend, there), "{frontend}");
        assert!(!stale(&external, frontend, here), "{frontend}");
        assert!(!stale_from(&external, POD, frontend, there), "pods may go anywhere: {frontend}");
        assert!(!stale_from(&external, "192.0.2.1", frontend, there), "so may the host: {frontend}");
    }
    assert!(!stale(&external, FRONTENDS[0], there), "the internal policy is another one");
    let internal = with("Local", "Cluster", "A R L, B R");
    assert!(stale_from(&internal, POD, FRONTENDS[0], there));
    assert!(!stale_from(&internal, POD, FRONTENDS[0], here));
    assert!(!stale(&internal, FRONTENDS[3], there));
    let nobody_here = with("Cluster", "Local", "A S L, B R");
    assert!(stale(&nobody_here, FRONTENDS[3], there), "new connections are dropped, this one ends");
    assert!(!stale(&nobody_here, FRONTENDS[3], here), "it still answers");
}

/// Where pods are identified by interface, an address does not show whether it is a pod's: such a flow is kept.
#[test]
fn without_pod_ranges_a_local_policy_spares_flows_of_possible_pods() {
    let local = dns(|s| s.spec.external_traffic_policy = "Local".to_owned());
    let bridge = Settings { detect_local: DetectLocal::BridgeInterface("cni0".into()), ..settings() };
    let cluster = cluster_with(bridge, &[&local, &pods("A R L, B R")]);
    assert!(!stale(&cluster, FRONTENDS[3], "10.1.0.2:5353"));
}

#[test]
fn a_shadowed_frontend_has_no_say() {
    let thief = dns(|s| {
        s.metadata.name = "a-thief".to_owned();
        s.spec.cluster_ip = "10.96.0.99".to_owned();
        s.spec.ports[0].node_port = 0;
        s.spec.external_ips = strings(&["10.96.0.10"]);
        s.status.load_balancer.ingress.clear();
    });
    let cluster = cluster(&[&thief, &dns(|_| {}), &pods("A R")]);
    assert!(!stale(&cluster, "10.96.0.10:53", "10.1.0.1:5353"));
}

#[test]
fn ipv6_flows_follow_the_same_rules() {
    let dual = dual_stack(|s| s.spec.ports = vec![service_port("dns", "UDP", 53)]);
    let v6 = slice("web-6", "", |s| {
        s.address_type = "IPv6".to_owned();
        s.endpoints = endpoints("A R", HERE, Family::V6);
        s.ports = vec![slice_port("dns", "UDP", 5353)];
    });
    let cluster = cluster(&[&dual, &v6]);
    let client = "2001:db8::200";
    assert!(!stale_from(&cluster, client, "[fd00:96::10]:53", "[fd01::1]:5353"));
    assert!(stale_from(&cluster, client, "[fd00:96::10]:53", "[fd01::2]:5353"));
}

#[test]
fn nothing_is_looked_at_when_nothing_about_udp_changed() {
    let cluster = cluster(&[&dns(|_| {}), &pods("A R")]);
    let changes = Changes { node: true, services: [demo("web")].into(), ..Changes::default() };
    assert!(StaleFlows::after(&changes, cluster.desired(Family::V4), &host()).is_none());
}

#[test]
fn easy_to_miss_20_changes_to_services_ask_for_it_too() {
    let mut cluster = cluster(&[&pods("A R")]);
    cluster.apply(dns(|_| {}).event());
    assert!(cluster.resolve().v4.udp, "a new Service whose endpoints were known");
    cluster.apply(dns(|s| s.spec.ports[0].node_port = 30054).event());
    assert!(cluster.resolve().v4.udp, "another node port");
    cluster.apply(Event::ServiceDeleted(demo("web")));
    assert!(cluster.resolve().v4.udp, "deleted");
    let mut tcp = super::super::sample::cluster(&[&service(|_| {})]);
    tcp.apply(slice("web-1", "A R", |_| {}).event());
    assert!(!tcp.resolve().v4.udp, "TCP needs no such thing");
}

/// A restart finds flows that it did not see begin: those to endpoints that answer are left alone.
#[test]
fn easy_to_miss_21_a_first_sync_spares_good_flows() {
    let mut cluster = Cluster::new(settings());
    cluster.apply(dns(|_| {}).event());
    cluster.apply(pods("A R").event());
    let mut changes = Changes::everything();
    changes.merge(cluster.resolve().v4);
    let stale = StaleFlows::after(&changes, cluster.desired(Family::V4), &host()).expect("first sync");
    for frontend in FRONTENDS {
        assert!(!stale.is_stale(&flow(CLIENT, frontend, "10.1.0.1:5353")), "{frontend}");
        assert!(stale.is_stale(&flow(CLIENT, frontend, "10.1.0.2:5353")), "{frontend}");
    }
}

/// Its first packet came while rules were missing, so that the kernel would not redirect the next ones either.
#[test]
fn after_a_full_sync_connections_that_never_began_are_stale() {
    let web = dns(|s| {
        s.spec.ports = vec![service_port("web", "TCP", 53), service_port("sctp", "SCTP", 54)];
        s.spec.ports[0].node_port = 30053;
    });
    let cluster = cluster(&[&web]);
    let stale =
        StaleFlows::after(&Changes::everything(), cluster.desired(Family::V4), &host()).expect("a full sync");
    for frontend in FRONTENDS {
        let waiting = Flow { protocol: Protocol::Tcp, answered: false, ..flow(CLIENT, frontend, frontend) };
        assert!(stale.is_stale(&waiting), "{frontend}");
        assert!(!stale.is_stale(&Flow { answered: true, ..waiting }), "{frontend}: it was answered");
        assert!(!stale.is_stale(&Flow { protocol: Protocol::Sctp, ..waiting }), "{frontend} is TCP's");
        let redirected =
            Flow { reply_source: "10.1.0.1:8080".parse().expect("an address and port"), ..waiting };
        assert!(!stale.is_stale(&redirected), "{frontend}: it waits for its endpoint");
    }
    let sctp =
        Flow { protocol: Protocol::Sctp, answered: false, ..flow(CLIENT, "10.96.0.10:54", "10.96.0.10:54") };
    assert!(stale.is_stale(&sctp));
    let elsewhere = "198.51.100.77:30053";
    let elsewhere = Flow { protocol: Protocol::Tcp, answered: false, ..flow(CLIENT, elsewhere, elsewhere) };
    assert!(!stale.is_stale(&elsewhere), "another host's port");
}
