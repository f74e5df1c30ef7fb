//! Frontends, verdicts, masquerading, source ranges, health-check counts.

use ipnet::IpNet;

use crate::cluster::Cluster;
use crate::desired::{Admission, Exposure, Frontend, Masquerade, PoolKind, ProxiedPort, Verdict};
use crate::health_check::HealthCheck;
use crate::ip::{Family, parse_cidr};
use crate::manifest;
use crate::sample::{
    cluster, cluster_with, dual_stack, endpoints, letters, name, node, service, service_port, settings,
    slice, slice_port, strings, web, web_port,
};
use crate::settings::{DetectLocal, Settings};

const CLUSTER: Verdict = Verdict::Forward(PoolKind::Cluster);
const LOCAL: Verdict = Verdict::Forward(PoolKind::Local);

fn everywhere(service: &mut manifest::Service) {
    service.spec.r#type = "LoadBalancer".to_owned();
    service.spec.health_check_node_port = 31000;
    service.spec.ports[0].node_port = 30080;
    service.spec.external_ips = strings(&["198.51.100.1"]);
    service.status.load_balancer.ingress =
        vec![manifest::LoadBalancerIngress { ip: "203.0.113.1".to_owned(), ip_mode: None }];
}

fn policies(service: &mut manifest::Service, internal: &str, external: &str) {
    everywhere(service);
    service.spec.internal_traffic_policy = Some(internal.to_owned());
    service.spec.external_traffic_policy = external.to_owned();
}

fn frontend(port: &ProxiedPort, exposure: Exposure) -> &Frontend {
    port.frontends.iter().find(|f| f.exposure == exposure).expect("there is such a frontend")
}

fn cidrs(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().filter_map(|text| parse_cidr(text)).collect()
}

#[test]
fn frontends_come_in_a_fixed_order() {
    let cluster = cluster(&[&service(everywhere), &slice("web-1", "A R", |_| {})]);
    let port = web_port(&cluster, Family::V4);
    let found: Vec<_> =
        port.frontends.iter().map(|f| (f.exposure, f.ip.map(|ip| ip.to_string()), f.port)).collect();
    assert_eq!(
        found,
        [
            (Exposure::ClusterIp, Some("10.96.0.10".to_owned()), 80),
            (Exposure::ExternalIp, Some("198.51.100.1".to_owned()), 80),
            (Exposure::LoadBalancerIp, Some("203.0.113.1".to_owned()), 80),
            (Exposure::NodePort, None, 30080),
        ]
    );
}

/// Internal and external policy, endpoints, then what cluster and external frontends do with traffic from this
/// node and from elsewhere.
#[test]
fn verdicts() {
    let rows = [
        (1, "Cluster", "Cluster", "A N", [Verdict::Reject; 2], [Verdict::Reject; 2]),
        (1, "Local", "Local", "A N L", [Verdict::Reject; 2], [Verdict::Reject; 2]),
        (2, "Cluster", "Cluster", "A R", [CLUSTER; 2], [CLUSTER; 2]),
        (3, "Local", "Cluster", "A R L, B R", [LOCAL; 2], [CLUSTER; 2]),
        (4, "Local", "Cluster", "A R", [Verdict::Drop; 2], [CLUSTER; 2]),
        (5, "Local", "Cluster", "A ST", [Verdict::Drop; 2], [CLUSTER; 2]),
        (6, "Cluster", "Local", "A R L, B R", [CLUSTER; 2], [CLUSTER, LOCAL]),
        (7, "Cluster", "Local", "A R", [CLUSTER; 2], [CLUSTER, Verdict::Drop]),
    ];
    for (row, internal, external, codes, from_cluster_ip, from_outside) in rows {
        let cluster =
            cluster(&[&service(|s| policies(s, internal, external)), &slice("web-1", codes, |_| {})]);
        let port = web_port(&cluster, Family::V4);
        for exposure in [Exposure::ExternalIp, Exposure::LoadBalancerIp, Exposure::NodePort] {
            let frontend = frontend(port, exposure);
            assert_eq!(
                [frontend.from_node, frontend.from_elsewhere],
                from_outside,
                "row {row}, {exposure:?}"
            );
        }
        let inside = frontend(port, Exposure::ClusterIp);
        assert_eq!([inside.from_node, inside.from_elsewhere], from_cluster_ip, "row {row}");
    }
}

/// A verdict never forwards to an empty pool, whatever the policies and states are.
#[test]
fn nothing_is_forwarded_to_an_empty_pool() {
    let states = ["R", "R L", "ST", "ST L", "S L", "T", "N"];
    for (first, second) in states.iter().flat_map(|a| states.iter().map(move |b| (a, b))) {
        for (internal, external) in [("Cluster", "Local"), ("Local", "Cluster"), ("Local", "Local")] {
            let codes = format!("A {first}, B {second}");
            let cluster =
                cluster(&[&service(|s| policies(s, internal, external)), &slice("web-1", &codes, |_| {})]);
            let port = web_port(&cluster, Family::V4);
            for verdict in port.frontends.iter().flat_map(|f| [f.from_node, f.from_elsewhere]) {
                if let Verdict::Forward(kind) = verdict {
                    assert!(!port.pool(kind).is_empty(), "{codes}, {internal}, {external}: {verdict:?}");
                }
            }
        }
    }
}

#[test]
fn who_is_masqueraded() {
    let pods = DetectLocal::ClusterCidr(cidrs(&["10.1.0.0/16"]));
    let masquerade = |detect_local: DetectLocal, masquerade_all: bool, external: &str| {
        let settings = Settings { detect_local, masquerade_all, ..settings() };
        let objects = service(|s| policies(s, "Cluster", external));
        let cluster = cluster_with(settings, &[&objects, &slice("web-1", "A R L, B R", |_| {})]);
        let port = web_port(&cluster, Family::V4);
        [Exposure::ClusterIp, Exposure::NodePort, Exposure::LoadBalancerIp]
            .map(|e| frontend(port, e).masquerade)
    };
    use Masquerade::{Always, FromHost, Never, NotFromPods};
    assert_eq!(masquerade(DetectLocal::Off, false, "Cluster"), [Never, Always, Always]);
    assert_eq!(masquerade(pods.clone(), false, "Cluster"), [NotFromPods, Always, Always]);
    assert_eq!(masquerade(pods.clone(), true, "Cluster"), [Always, Always, Always]);
    assert_eq!(masquerade(pods, false, "Local"), [NotFromPods, FromHost, FromHost]);
    assert_eq!(masquerade(DetectLocal::Off, true, "Local"), [Always, FromHost, FromHost]);
    let v6_only = DetectLocal::ClusterCidr(cidrs(&["fd01::/64"]));
    assert_eq!(masquerade(v6_only, false, "Cluster"), [Never, Always, Always], "no range of this family");
    let bridge = DetectLocal::BridgeInterface(name("cni0"));
    assert_eq!(masquerade(bridge, false, "Cluster"), [NotFromPods, Always, Always]);
}

/// Source ranges only ever concern load-balancer addresses.
#[test]
fn source_ranges_need_a_load_balancer_address() {
    let ranges = |change: fn(&mut manifest::Service)| {
        let limited = service(|s| {
            everywhere(s);
            s.spec.load_balancer_source_ranges = strings(&["192.0.2.0/24", "198.51.100.0/24"]);
            change(s);
        });
        let cluster = cluster(&[&limited, &slice("web-1", "A R", |_| {}), &node(|_| {})]);
        web_port(&cluster, Family::V4).source_ranges.clone()
    };
    let both = ranges(|_| {}).expect("limited");
    assert_eq!(*both.ranges, cidrs(&["192.0.2.0/24", "198.51.100.0/24"]));
    assert!(both.frontends_too, "the node's address 192.0.2.1 is in a range");
    let elsewhere = ranges(|s| s.spec.load_balancer_source_ranges = strings(&["198.51.100.0/24"]));
    assert!(!elsewhere.expect("limited").frontends_too);
    assert_eq!(ranges(|s| s.status.load_balancer.ingress.clear()), None);
    assert_eq!(ranges(|s| s.spec.load_balancer_source_ranges.push("0.0.0.0/0".to_owned())), None);
}

/// Protocol and name make the port, and each has its own endpoints.
#[test]
fn ports_of_one_service_do_not_share_endpoints() {
    let dns =
        service(|s| s.spec.ports = vec![service_port("dns", "UDP", 53), service_port("dns", "TCP", 53)]);
    let udp = slice("web-1", "A R", |s| s.ports = vec![slice_port("dns", "UDP", 5353)]);
    let tcp = slice("web-2", "B R", |s| s.ports = vec![slice_port("dns", "TCP", 5353)]);
    let cluster = cluster(&[&dns, &udp, &tcp]);
    let pools: Vec<_> = web(&cluster, Family::V4).ports.iter().map(|port| letters(&port.cluster)).collect();
    assert_eq!(pools, ["A", "B"]);
    assert_eq!(web(&cluster, Family::V4).ports[0].name.to_string(), "demo/web:dns");
}

/// Endpoints count for their own family only.
#[test]
fn families_are_kept_apart() {
    let v6 = slice("web-6", "", |s| {
        s.address_type = "IPv6".to_owned();
        s.endpoints = endpoints("B R", "elsewhere", Family::V6);
    });
    let cluster = cluster(&[&dual_stack(|_| {}), &slice("web-4", "A R", |_| {}), &v6]);
    assert_eq!(letters(&web_port(&cluster, Family::V4).cluster), "A");
    assert_eq!(letters(&web_port(&cluster, Family::V6).cluster), "B");
    let single = super::super::sample::cluster(&[&service(|_| {}), &v6]);
    assert_eq!(single.desired(Family::V6).services().len(), 0);
    assert!(!web_port(&single, Family::V4).has_endpoints);
}

fn health(service: &manifest::Service, slices: &[manifest::EndpointSlice]) -> Option<HealthCheck> {
    let mut objects: Vec<&dyn crate::sample::ToEvent> = vec![service];
    objects.extend(slices.iter().map(|slice| slice as &dyn crate::sample::ToEvent));
    web(&cluster(&objects), Family::V4).health_check
}

fn counted(codes: &str) -> usize {
    let local = service(|s| policies(s, "Cluster", "Local"));
    health(&local, &[slice("web-1", codes, |_| {})]).expect("it has a health-check port").local_endpoints
}

#[test]
fn only_a_local_load_balancer_has_a_health_check_port() {
    let port = |change: fn(&mut manifest::Service)| {
        health(&service(change), &[slice("web-1", "A R L", |_| {})]).map(|check| check.port.get())
    };
    assert_eq!(port(|s| policies(s, "Cluster", "Local")), Some(31000));
    assert_eq!(port(|s| policies(s, "Cluster", "Cluster")), None);
    assert_eq!(port(|_| {}), None);
}

#[test]
fn ports_without_local_endpoints_are_counted() {
    let totals = |change: &dyn Fn(&mut manifest::Service), codes: &str| {
        let cluster = cluster(&[&service(change), &slice("web-1", codes, |_| {})]);
        let totals = cluster.desired(Family::V4).totals();
        (totals.no_local_internal, totals.no_local_external)
    };
    assert_eq!(totals(&|s| policies(s, "Local", "Local"), "A R"), (1, 1));
    assert_eq!(totals(&|s| policies(s, "Local", "Local"), "A R L"), (0, 0));
    assert_eq!(
        totals(&|s| policies(s, "Local", "Local"), "A N"),
        (0, 0),
        "no endpoint anywhere is no such case"
    );
    assert_eq!(totals(&|s| policies(s, "Cluster", "Cluster"), "A R"), (0, 0));
}

#[test]
fn endpoints_are_counted_in_whatever_state() {
    let cluster = cluster(&[&service(|_| {}), &slice("web-1", "A R, B N, C T, D ST", |_| {})]);
    assert_eq!(cluster.desired(Family::V4).totals().endpoints, 4);
}

#[test]
fn easy_to_miss_04_serving_alone_keeps_udp_flows_alive() {
    let udp = service(|s| s.spec.ports = vec![service_port("dns", "UDP", 53)]);
    let given = slice("web-1", "A S, B R, C T, D ST", |s| s.ports = vec![slice_port("dns", "UDP", 53)]);
    let cluster = cluster(&[&udp, &given]);
    let port = web_port(&cluster, Family::V4);
    let serving: Vec<_> = port.endpoints.iter().filter(|backend| backend.conditions.serving).collect();
    assert_eq!(
        (letters(&port.cluster), letters(&crate::pool::Pool::new(&serving))),
        ("B".to_owned(), "A B D".to_owned())
    );
}

#[test]
fn all_endpoints_are_known_with_their_state_whether_used_or_not() {
    let cluster = cluster(&[&service(|_| {}), &slice("web-1", "A R, B S, C ST L, D T", |_| {})]);
    let port = web_port(&cluster, Family::V4);
    assert_eq!((letters(&port.cluster), letters(&port.endpoints)), ("A".to_owned(), "A B C D".to_owned()));
    let state = |index: usize| {
        let backend = port.endpoints.get(index).expect("four endpoints");
        let conditions = backend.conditions;
        (conditions.ready, conditions.serving, conditions.terminating, backend.local, backend.weight)
    };
    assert_eq!(state(0), (true, true, false, false, 1));
    assert_eq!(state(1), (false, true, false, false, 1));
    assert_eq!(state(2), (false, true, true, true, 1));
    assert_eq!(state(3), (false, false, true, false, 1));
}

#[test]
fn equal_pools_are_stored_once() {
    let udp = service(|s| {
        policies(s, "Local", "Local");
        s.spec.ports[0].protocol = "UDP".to_owned();
    });
    let given = slice("web-1", "A R L, B R L", |s| s.ports = vec![slice_port("http", "UDP", 53)]);
    let cluster = cluster(&[&udp, &given]);
    let port = web_port(&cluster, Family::V4);
    assert!(port.cluster.shares_with(&port.local) && port.cluster.shares_with(&port.endpoints));
}

#[test]
fn easy_to_miss_17_local_policy_without_external_frontend_is_plain_but_counted() {
    let bare = service(|s| {
        s.spec.r#type = "LoadBalancer".to_owned();
        s.spec.external_traffic_policy = "Local".to_owned();
        s.spec.health_check_node_port = 31000;
    });
    let cluster = cluster(&[&bare, &slice("web-1", "A R L, B R", |_| {})]);
    let port = web_port(&cluster, Family::V4);
    assert_eq!((letters(&port.cluster), letters(&port.local)), ("A B".to_owned(), "-".to_owned()));
    assert_eq!(cluster.desired(Family::V4).totals().no_local_external, 1);
}

#[test]
fn easy_to_miss_19_health_counts_distinct_ready_local_addresses() {
    assert_eq!(counted("A R L, B R L, C R, D N L"), 2);
    assert_eq!(counted("A ST L"), 0, "still used as fallback, but not counted");
    assert_eq!(counted("A RT L"), 1, "ready although going away");
    let two_ports = service(|s| {
        policies(s, "Cluster", "Local");
        s.spec.ports.push(service_port("metrics", "TCP", 9090));
    });
    let ports = |s: &mut manifest::EndpointSlice| s.ports.push(slice_port("metrics", "TCP", 9090));
    let check = health(&two_ports, &[slice("web-1", "A R L, B R L", ports)]);
    assert_eq!(check.expect("counted").local_endpoints, 2, "a pod with two ports counts once");
}

/// A pod that is seen as ready in one slice and as terminating in another counts as its merged state.
#[test]
fn health_counts_what_is_left_after_merging() {
    let local = service(|s| policies(s, "Cluster", "Local"));
    let slices = [slice("web-1", "A RT L", |_| {}), slice("web-2", "A N L", |_| {})];
    assert_eq!(health(&local, &slices).expect("counted").local_endpoints, 0);
}

#[test]
fn easy_to_miss_34_forbidden_external_addresses_still_make_a_port_external() {
    let external = service(|s| {
        s.spec.external_ips = strings(&["198.51.100.1"]);
        s.spec.external_traffic_policy = "Local".to_owned();
        s.spec.internal_traffic_policy = Some("Local".to_owned());
    });
    let settings = Settings { allow_external_ips: false, ..settings() };
    let cluster: Cluster = cluster_with(settings, &[&external, &slice("web-1", "A R L, B R", |_| {})]);
    let port = web_port(&cluster, Family::V4);
    assert_eq!(port.active_frontends().count(), 1, "nothing leads to the other one");
    assert_eq!(port.frontends[1].admission, Admission::NotAllowed);
    assert_eq!(port.frontends[1].from_elsewhere, Verdict::Forward(PoolKind::Local));
    assert_eq!((letters(&port.cluster), letters(&port.local)), ("A B".to_owned(), "A".to_owned()));
}
