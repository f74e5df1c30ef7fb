//! What a Service becomes: virtual servers, set entries, addresses. No kernel is needed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portwarden_ipvs::plan::{ServicePlan, Surroundings, plan, scheduler_flags};
use portwarden_model::{Cluster, Event, Family, Interner, Kind, NamespacedName, NodePortRange, Settings};
use portwarden_testkit::build::{ServiceBuilder, endpoint, node, port, service, slice};
use portwarden_testkit::rig::Object;

const NODE_IPS: [&str; 2] = ["192.168.0.2", "192.168.1.2"];

fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

/// The IPv4 plan of a Service with endpoint 10.244.0.N on this node for each `local`, and 10.244.1.N elsewhere for each `remote`.
fn planned(service: ServiceBuilder, local: &[u8], remote: &[u8], settings: Settings) -> ServicePlan {
    let mut names = Interner::default();
    let mut cluster = Cluster::new(settings);
    let built = service.build();
    let name = built.metadata.name.clone();
    let ports: Vec<_> = built.spec.ports.iter().map(|port| port.protocol.clone()).collect();
    let mut endpoints = slice(&name, "slice");
    for (index, protocol) in ports.iter().enumerate() {
        let target = port(8080 + u16::try_from(index).expect("few ports")).name(&format!("p{index}"));
        endpoints = endpoints.port(match protocol.as_str() {
            "UDP" => target.udp(),
            "SCTP" => target.sctp(),
            _ => target,
        });
    }
    for number in local {
        endpoints = endpoints.endpoint(endpoint(format!("10.244.0.{number}")).on("node-a"));
    }
    for number in remote {
        endpoints = endpoints.endpoint(endpoint(format!("10.244.1.{number}")).on("node-b"));
    }
    let objects = [Object::Service(Box::new(built)), endpoints.into(), node("node-a").ip(NODE_IPS[0]).into()];
    for object in objects {
        cluster.apply(object.event(&mut names));
    }
    cluster.apply(Event::HostAddresses(NODE_IPS.map(|ip| ip.parse().expect("an address")).into()));
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
    let desired = cluster.desired(Family::V4);
    let around = Surroundings {
        node: &desired.node,
        node_addresses: &addresses(&NODE_IPS),
        scheduler_flags: scheduler_flags("rr"),
    };
    let namespaced = NamespacedName::new(portwarden_testkit::build::NAMESPACE, &name);
    plan(desired.service(&namespaced).expect("the Service"), around)
}

/// Virtual servers with their real servers, one a line.
fn servers(plan: &ServicePlan) -> Vec<String> {
    let mut lines: Vec<String> = plan
        .servers
        .iter()
        .map(|server| {
            let reals: Vec<String> = server.reals.iter().map(|real| real.address().to_string()).collect();
            format!("{} -> {}", server.key, reals.join(" "))
        })
        .collect();
    lines.sort();
    lines
}

fn bound(plan: &ServicePlan) -> BTreeSet<IpAddr> {
    plan.addresses.iter().copied().collect()
}

/// Set entries, one a line.
fn entries(plan: &ServicePlan) -> Vec<String> {
    plan.entries.iter().map(|(set, entry)| format!("{} {entry}", set.name(Family::V4))).collect()
}

fn settings() -> Settings {
    Settings::new("node-a")
}

fn web() -> ServiceBuilder {
    service("web").cluster_ip("10.96.0.10").port(port(80).name("p0"))
}

#[test]
fn a_cluster_ip_is_bound_and_has_all_endpoints() {
    let plan = planned(web(), &[5], &[6], settings());
    assert_eq!(servers(&plan), ["10.96.0.10:80/TCP -> 10.244.0.5:8080 10.244.1.6:8080"]);
    assert_eq!(
        entries(&plan),
        ["KUBE-LOOP-BACK 10.244.0.5,tcp:8080,10.244.0.5", "KUBE-CLUSTER-IP 10.96.0.10,tcp:80"]
    );
    assert_eq!(bound(&plan), addresses(&["10.96.0.10"]));
}

#[test]
fn a_service_without_endpoints_has_a_virtual_server_that_refuses() {
    assert_eq!(servers(&planned(web(), &[], &[], settings())), ["10.96.0.10:80/TCP -> "]);
}

#[test]
fn an_external_address_is_bound_unless_another_device_bears_it() {
    let exposed = |ip: &str| planned(web().external_ip(ip), &[5], &[], settings());
    assert_eq!(bound(&exposed("192.0.2.1")), addresses(&["10.96.0.10", "192.0.2.1"]));
    assert_eq!(bound(&exposed("192.168.0.2")), addresses(&["10.96.0.10"]));
    assert!(entries(&exposed("192.0.2.1")).contains(&"KUBE-EXTERNAL-IP 192.0.2.1,tcp:80".to_owned()));
}

#[test]
fn policy_local_uses_local_endpoints_and_falls_back_to_all() {
    let local = |here: &[u8]| {
        let service = service("web")
            .cluster_ip("10.96.0.10")
            .port(port(80).name("p0").node_port(30080))
            .of_type("LoadBalancer")
            .vip("198.51.100.1")
            .external_policy_local();
        planned(service, here, &[6], settings())
    };
    let plan = local(&[5]);
    assert_eq!(
        servers(&plan),
        [
            "10.96.0.10:80/TCP -> 10.244.0.5:8080 10.244.1.6:8080",
            "192.168.0.2:30080/TCP -> 10.244.0.5:8080",
            "192.168.1.2:30080/TCP -> 10.244.0.5:8080",
            "198.51.100.1:80/TCP -> 10.244.0.5:8080",
        ]
    );
    for entry in [
        "KUBE-LOAD-BALANCER 198.51.100.1,tcp:80",
        "KUBE-LOAD-BALANCER-LOCAL 198.51.100.1,tcp:80",
        "KUBE-NODE-PORT-TCP 30080",
        "KUBE-NODE-PORT-LOCAL-TCP 30080",
    ] {
        assert!(entries(&plan).contains(&entry.to_owned()), "{entry} in {:?}", entries(&plan));
    }
    let fallback = local(&[]);
    assert!(
        servers(&fallback).contains(&"198.51.100.1:80/TCP -> 10.244.1.6:8080".to_owned()),
        "{fallback:?}"
    );
}

#[test]
fn internal_policy_local_falls_back_only_if_there_are_external_addresses() {
    let pure = planned(web().internal_policy_local(), &[], &[6], settings());
    assert_eq!(servers(&pure), ["10.96.0.10:80/TCP -> "]);
    let exposed = planned(web().internal_policy_local().external_ip("192.0.2.1"), &[], &[6], settings());
    assert!(servers(&exposed).contains(&"10.96.0.10:80/TCP -> 10.244.1.6:8080".to_owned()));
}

#[test]
fn node_ports_are_where_the_operator_wants_them() {
    let service = || {
        service("web").cluster_ip("10.96.0.10").port(port(80).name("p0").node_port(30080)).of_type("NodePort")
    };
    let only = |range: &str| Settings {
        node_port_addresses: vec![NodePortRange::Cidr(range.parse().expect("a range"))],
        ..settings()
    };
    let plan = planned(service(), &[5], &[], only("192.168.1.0/24"));
    assert_eq!(
        servers(&plan),
        ["10.96.0.10:80/TCP -> 10.244.0.5:8080", "192.168.1.2:30080/TCP -> 10.244.0.5:8080"]
    );
    let none = planned(service(), &[5], &[], only("172.16.0.0/12"));
    assert_eq!(servers(&none).len(), 1);
    assert!(!entries(&none).iter().any(|entry| entry.contains("NODE-PORT")), "{:?}", entries(&none));
}

#[test]
fn node_ports_of_sctp_are_in_a_set_of_addresses() {
    let service = service("web")
        .cluster_ip("10.96.0.10")
        .port(port(80).name("p0").sctp().node_port(30080))
        .of_type("NodePort");
    let plan = planned(service, &[5], &[], settings());
    assert!(entries(&plan).contains(&"KUBE-NODE-PORT-SCTP-HASH 192.168.1.2,sctp:30080".to_owned()));
    assert!(servers(&plan).contains(&"192.168.0.2:30080/SCTP -> 10.244.0.5:8080".to_owned()));
}

#[test]
fn source_ranges_let_the_node_in_or_keep_it_out() {
    let service = |range: &str| {
        let service = web().of_type("LoadBalancer").vip("198.51.100.1").source_range(range);
        planned(service, &[5], &[], settings())
    };
    let inside = service("192.168.0.0/16");
    let sets = entries(&inside).join("\n");
    assert!(sets.contains("KUBE-LOAD-BALANCER-FW 198.51.100.1,tcp:80"), "{sets}");
    assert!(sets.contains("KUBE-LOAD-BALANCER-SOURCE-CIDR 198.51.100.1,tcp:80,192.168.0.0/16"), "{sets}");
    assert!(sets.contains("KUBE-LOAD-BALANCER-SOURCE-IP 198.51.100.1,tcp:80,198.51.100.1"), "{sets}");
    assert!(inside.source_drops.is_empty());
    let outside = service("203.0.113.7/24");
    assert!(
        entries(&outside)
            .contains(&"KUBE-LOAD-BALANCER-SOURCE-CIDR 198.51.100.1,tcp:80,203.0.113.0/24".to_owned())
    );
    assert_eq!(outside.source_drops.len(), 1);
    let everything = service("0.0.0.0/0");
    assert!(!entries(&everything).iter().any(|entry| entry.contains("-FW")), "{:?}", entries(&everything));
}

#[test]
fn affinity_is_persistence_and_mh_hashes_ports() {
    let plan = planned(web().affinity(600), &[5], &[], settings());
    let settings = plan.servers[0].settings;
    assert_eq!((settings.flags, settings.timeout), (1, 600));
    assert_eq!((scheduler_flags("mh"), scheduler_flags("sh")), (0x10, 0));
}

#[test]
fn health_check_ports_are_open() {
    let service = service("web")
        .cluster_ip("10.96.0.10")
        .port(port(80).name("p0").node_port(30080))
        .of_type("LoadBalancer")
        .external_policy_local()
        .health_check_node_port(32000);
    let plan = planned(service, &[5], &[], settings());
    assert!(entries(&plan).contains(&"KUBE-HEALTH-CHECK-NODE-PORT 32000".to_owned()), "{:?}", entries(&plan));
}
