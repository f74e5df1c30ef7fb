//! The node's address, how pod traffic is identified, the ranges of cluster addresses.

use super::*;
use crate::ip::{parse_cidr, parse_ip};
use crate::manifest;
use crate::name::Name;
use crate::sample::{HERE, node, settings, strings};

fn the_node(change: impl FnOnce(&mut manifest::Node)) -> Node {
    Node::from_manifest(&node(change)).0
}

fn view(family: Family, settings: &Settings, node: Option<&Node>) -> NodeView {
    node_view(family, settings, node, &[], [].iter())
}

#[test]
fn the_address_of_the_node() {
    let ip = |family, settings: &Settings, node: Option<&Node>| view(family, settings, node).ip.to_string();
    let dual = the_node(|_| {});
    let plain = settings();
    assert_eq!(
        (ip(Family::V4, &plain, None), ip(Family::V6, &plain, None)),
        ("127.0.0.1".into(), "::1".into())
    );
    assert_eq!(ip(Family::V4, &plain, Some(&dual)), "192.0.2.1");
    assert_eq!(ip(Family::V6, &plain, Some(&dual)), "2001:db8::1");
    let bound = |text: &str| Settings { bind_address: parse_ip(text), ..settings() };
    assert_eq!(ip(Family::V4, &bound("192.0.2.77"), Some(&dual)), "192.0.2.77");
    assert_eq!(ip(Family::V6, &bound("192.0.2.77"), Some(&dual)), "2001:db8::1");
    assert_eq!(ip(Family::V4, &bound("127.0.0.1"), Some(&dual)), "127.0.0.1", "also a loopback one");
    assert_eq!(
        ip(Family::V4, &bound("0.0.0.0"), Some(&dual)),
        "192.0.2.1",
        "an unspecified one says nothing"
    );
}

#[test]
fn the_family_that_the_node_prefers() {
    let v6_first = the_node(|n| n.status.addresses.reverse());
    let bound = |text: &str| Settings { bind_address: parse_ip(text), ..settings() };
    assert_eq!(primary_family(&settings(), None), Family::V4);
    assert_eq!(primary_family(&settings(), Some(&v6_first)), Family::V6);
    assert_eq!(primary_family(&bound("192.0.2.1"), Some(&v6_first)), Family::V4);
    assert_eq!(primary_family(&bound("::"), Some(&the_node(|_| {}))), Family::V4);
}

#[test]
fn how_pod_traffic_is_identified() {
    let cidrs = |texts: &[&str]| texts.iter().filter_map(|text| parse_cidr(text)).collect::<Vec<_>>();
    let pod_traffic = |family, detect_local, node: Option<&Node>| {
        view(family, &Settings { detect_local, ..settings() }, node).pod_traffic
    };
    let from = |text: &str| PodTraffic::From(parse_cidr(text).expect("a CIDR"));
    let ranges = DetectLocal::ClusterCidr(cidrs(&["fd00::/48", "10.0.0.0/8", "172.16.0.0/12"]));
    assert_eq!(pod_traffic(Family::V4, ranges.clone(), None), from("10.0.0.0/8"), "the first of the family");
    assert_eq!(pod_traffic(Family::V6, ranges, None), from("fd00::/48"));
    let v4 = DetectLocal::ClusterCidr(cidrs(&["10.0.0.0/8"]));
    assert_eq!(pod_traffic(Family::V6, v4, None), PodTraffic::Unknown);
    let node = the_node(|n| n.spec.pod_cidrs = strings(&["10.1.2.0/24", "10.1.3.0/24"]));
    assert_eq!(pod_traffic(Family::V4, DetectLocal::NodeCidr, Some(&node)), from("10.1.2.0/24"));
    assert_eq!(pod_traffic(Family::V6, DetectLocal::NodeCidr, Some(&node)), PodTraffic::Unknown);
    assert_eq!(pod_traffic(Family::V4, DetectLocal::NodeCidr, None), PodTraffic::Unknown);
    let bridge = Name::from("cni0");
    for family in Family::BOTH {
        let found = pod_traffic(family, DetectLocal::BridgeInterface(bridge.clone()), None);
        assert_eq!(found, PodTraffic::Interface(bridge.clone()));
        let found = pod_traffic(family, DetectLocal::InterfaceNamePrefix(bridge.clone()), None);
        assert_eq!(found, PodTraffic::InterfacePrefix(bridge.clone()));
        assert_eq!(pod_traffic(family, DetectLocal::Off, Some(&node)), PodTraffic::Unknown);
    }
}

/// The union of all objects, each range once, family by family.
#[test]
fn service_ranges_are_a_sorted_set() {
    let nets: Vec<IpNet> = ["10.96.0.0/12", "fd00:96::/108", "10.0.0.0/16", "10.96.0.0/12"]
        .iter()
        .filter_map(|text| parse_cidr(text))
        .collect();
    let of = |family| node_view(family, &settings(), None, &[], nets.iter()).service_cidrs;
    assert_eq!(
        of(Family::V4).iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.0.0/16", "10.96.0.0/12"]
    );
    assert_eq!(of(Family::V6).iter().map(ToString::to_string).collect::<Vec<_>>(), ["fd00:96::/108"]);
}

#[test]
fn the_node_is_named_by_the_settings() {
    assert_eq!(view(Family::V4, &settings(), None).name.as_str(), HERE);
}

#[test]
fn the_addresses_of_the_host_among_those_of_pods() {
    let ips = |texts: &[&str]| texts.iter().filter_map(|text| parse_ip(text)).collect::<Vec<_>>();
    let pod_ranges: Vec<IpNet> =
        ["10.244.0.0/16", "fd00:244::/56"].iter().filter_map(|text| parse_cidr(text)).collect();
    let settings = Settings { pod_ranges, ..settings() };
    let own = |family, settings: &Settings, host: &[&str]| {
        node_view(family, settings, None, &ips(host), [].iter()).own_in_pod_range.map(Vec::from)
    };
    let host = ["127.0.0.1", "192.0.2.1", "10.244.3.1", "10.244.0.1", "10.244.3.1", "::1", "fd00:244::1"];
    assert_eq!(own(Family::V4, &settings, &host), Some(ips(&["10.244.0.1", "10.244.3.1"])));
    assert_eq!(own(Family::V6, &settings, &host), Some(ips(&["fd00:244::1"])));
    assert_eq!(own(Family::V4, &settings, &["127.0.0.1"]), Some(Vec::new()));
    assert_eq!(own(Family::V4, &settings, &[]), None, "not known yet");
}
