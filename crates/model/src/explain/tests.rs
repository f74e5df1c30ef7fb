//! Every reason that an explanation can give, and that the text says so.

use super::*;
use crate::cluster::Cluster;
use crate::manifest;
use crate::sample::{
    HERE, cluster, demo, dual_stack, endpoints, letters_of, node_in_zone, service, service_port, slice,
    slice_port, web_port,
};

fn explain(cluster: &Cluster) -> PortExplanation {
    let explanation = cluster.explain(&demo("web"), Family::V4).expect("proxied");
    explanation.ports.into_iter().next().expect("one port")
}

fn policies(service: &mut manifest::Service, internal: &str, external: &str) {
    service.spec.r#type = "NodePort".to_owned();
    service.spec.ports[0].node_port = 30080;
    service.spec.internal_traffic_policy = Some(internal.to_owned());
    service.spec.external_traffic_policy = external.to_owned();
}

/// `A reason` for every endpoint, for the cluster-wide and the local pool.
fn reasons(internal: &str, external: &str, codes: &str) -> (Vec<Option<Reason>>, Vec<Option<Reason>>) {
    let given = slice("web-1", codes, |_| {});
    let port =
        explain(&cluster(&[&service(|s| policies(s, internal, external)), &given, &node_in_zone("a")]));
    (port.endpoints.iter().map(|e| e.cluster).collect(), port.endpoints.iter().map(|e| e.local).collect())
}

#[test]
fn every_reason_of_the_cluster_wide_pool() {
    let cluster_wide = |codes: &str| -> Vec<Reason> {
        reasons("Cluster", "Cluster", codes).0.into_iter().flatten().collect()
    };
    assert_eq!(cluster_wide("A R"), [Reason::Ready]);
    assert_eq!(
        cluster_wide("A R, B ST, C T, D S, E N"),
        [
            Reason::Ready,
            Reason::TerminatingWhileOthersAreReady,
            Reason::TerminatingAndNotServing,
            Reason::NotReady,
            Reason::NotReady,
        ]
    );
    assert_eq!(cluster_wide("A ST, B N"), [Reason::TerminatingFallback, Reason::NotReady]);
    assert_eq!(cluster_wide("A R z:a, B R z:b"), [Reason::Ready, Reason::HintedForOtherZones]);
    let hinted = slice("web-1", "A R n:x, B R n:y", |s| {
        s.endpoints[0].hints.as_mut().expect("hinted").for_nodes[0].name = HERE.to_owned();
    });
    let port = explain(&cluster(&[&service(|_| {}), &hinted]));
    assert_eq!(port.topology, Some(Topology::SameNode));
    assert_eq!(port.endpoints[1].cluster, Some(Reason::HintedForOtherNodes));
}

#[test]
fn every_reason_of_the_local_pool() {
    let local =
        |codes: &str| -> Vec<Reason> { reasons("Local", "Local", codes).1.into_iter().flatten().collect() };
    assert_eq!(
        local("A R L, B R, C ST L, D N L"),
        [Reason::Ready, Reason::OnAnotherNode, Reason::TerminatingWhileOthersAreReady, Reason::NotReady]
    );
    assert_eq!(local("A ST L, B R"), [Reason::TerminatingFallback, Reason::OnAnotherNode]);
}

#[test]
fn a_pool_that_no_policy_needs_is_not_explained() {
    let (_, local) = reasons("Cluster", "Cluster", "A R L");
    assert_eq!(local, [None]);
    let internal = service(|s| s.spec.internal_traffic_policy = Some("Local".to_owned()));
    let port = explain(&cluster(&[&internal, &slice("web-1", "A R L", |_| {})]));
    assert_eq!((port.topology, port.endpoints[0].cluster), (None, None));
    assert_eq!(port.endpoints[0].local, Some(Reason::Ready));
}

#[test]
fn how_hints_narrow_is_explained() {
    let topology = |codes: &str| {
        explain(&cluster(&[&service(|_| {}), &slice("web-1", codes, |_| {}), &node_in_zone("a")])).topology
    };
    assert_eq!(topology("A R z:a, B R z:b"), Some(Topology::SameZone));
    assert_eq!(topology("A R z:a, B R"), Some(Topology::Everywhere));
}

#[test]
fn every_reason_of_a_frontend() {
    let given = |internal: &str, external: &str, codes: &str| {
        let objects = service(|s| policies(s, internal, external));
        let port = explain(&cluster(&[&objects, &slice("web-1", codes, |_| {})]));
        port.frontends.iter().map(|f| (f.from_node, f.from_elsewhere)).collect::<Vec<_>>()
    };
    use FrontendReason::{ClusterEndpoints, LocalEndpoints, NoEndpoints, NoLocalEndpoints};
    assert_eq!(given("Cluster", "Cluster", "A N"), [(NoEndpoints, NoEndpoints); 2]);
    assert_eq!(given("Cluster", "Cluster", "A R"), [(ClusterEndpoints, ClusterEndpoints); 2]);
    assert_eq!(
        given("Local", "Local", "A R L"),
        [(LocalEndpoints, LocalEndpoints), (ClusterEndpoints, LocalEndpoints)]
    );
    assert_eq!(
        given("Local", "Local", "A R"),
        [(NoLocalEndpoints, NoLocalEndpoints), (ClusterEndpoints, NoLocalEndpoints)]
    );
    let twin = service(|s| s.metadata.name = "alias".to_owned());
    let port = explain(&cluster(&[&service(|_| {}), &twin]));
    assert_eq!(port.frontends[0].from_node, FrontendReason::TakenByAnother);
    assert_eq!(port.frontends[0].frontend.admission, Admission::Shadowed);
}

/// What is said to be used is what is in the pools, and what frontends say is what they do.
#[test]
fn explanations_agree_with_the_desired_state() {
    let states = ["R", "R L", "ST L", "ST", "S", "T", "N", "R z:b", "R z:a L"];
    for (first, second) in states.iter().flat_map(|a| states.iter().map(move |b| (a, b))) {
        let given = slice("web-1", &format!("A {first}, B {second}"), |_| {});
        let cluster = cluster(&[&service(|s| policies(s, "Local", "Local")), &given, &node_in_zone("a")]);
        let (port, explained) = (web_port(&cluster, Family::V4), explain(&cluster));
        let used = |pick: fn(&EndpointExplanation) -> Option<Reason>| {
            let used = explained.endpoints.iter().filter(|e| pick(e).is_some_and(Reason::used));
            letters_of(used.map(|e| e.address.ip()))
        };
        let pool = |kind| letters_of(port.pool(kind).iter().map(|b| b.ip));
        assert_eq!(used(|e| e.cluster), pool(PoolKind::Cluster), "{first}, {second}");
        assert_eq!(used(|e| e.local), pool(PoolKind::Local), "{first}, {second}");
        assert!(explained.frontends.iter().map(|f| &f.frontend).eq(port.frontends.iter()));
    }
}

#[test]
fn what_was_left_out_is_named() {
    let v6 = slice("web-6", "", |s| {
        s.address_type = "IPv6".to_owned();
        s.endpoints = endpoints("A R", HERE, Family::V6);
    });
    let renamed = slice("web-4", "A R", |s| s.ports = vec![slice_port("web", "TCP", 8080)]);
    let cluster = cluster(&[&dual_stack(|_| {}), &v6, &renamed]);
    let explanation = cluster.explain(&demo("web"), Family::V4).expect("proxied");
    assert_eq!(explanation.other_family, [demo("web-6")]);
    let unmatched = UnmatchedPort { slice: demo("web-4"), port: Name::from("web"), protocol: Protocol::Tcp };
    assert_eq!(explanation.unmatched, [unmatched]);
    assert!(explanation.ports[0].endpoints.is_empty());
}

#[test]
fn what_is_not_proxied_has_no_explanation() {
    let cluster = cluster(&[&service(|_| {})]);
    assert_eq!(cluster.explain(&demo("web"), Family::V6), None, "no address in this family");
    assert_eq!(cluster.explain(&demo("other"), Family::V4), None);
}

#[test]
fn each_port_has_its_own_explanation() {
    let two = service(|s| s.spec.ports.push(service_port("metrics", "TCP", 9090)));
    let cluster = cluster(&[&two, &slice("web-1", "A R", |_| {})]);
    let explanation = cluster.explain(&demo("web"), Family::V4).expect("proxied");
    let counts: Vec<_> =
        explanation.ports.iter().map(|p| (p.name.port.to_string(), p.endpoints.len())).collect();
    assert_eq!(counts, [("http".to_owned(), 1), ("metrics".to_owned(), 0)]);
}

/// Each reason has its own text, and the text says whether the endpoint is used.
#[test]
fn texts_differ_and_say_whether_an_endpoint_is_used() {
    let all = [
        Reason::Ready,
        Reason::TerminatingFallback,
        Reason::HintedForOtherNodes,
        Reason::HintedForOtherZones,
        Reason::OnAnotherNode,
        Reason::NotReady,
        Reason::TerminatingWhileOthersAreReady,
        Reason::TerminatingAndNotServing,
    ];
    let texts: std::collections::BTreeSet<String> = all.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), all.len());
    for reason in all {
        assert_eq!(reason.to_string().starts_with("used: "), reason.used(), "{reason}");
    }
    let frontends = [
        FrontendReason::TakenByAnother,
        FrontendReason::NoEndpoints,
        FrontendReason::NoLocalEndpoints,
        FrontendReason::LocalEndpoints,
        FrontendReason::ClusterEndpoints,
    ];
    let texts: std::collections::BTreeSet<String> = frontends.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), frontends.len());
}
