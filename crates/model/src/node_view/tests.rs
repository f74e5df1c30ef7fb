//! Sections 5.5 and 10 of the model's rules: node addresses, local traffic detection, node-port addresses.

use super::*;
use crate::ip::{parse_cidr, parse_ip};
use crate::manifest;
use crate::name::Name;
use crate::sample::{HERE, node, settings, strings};

fn the_node(change: impl FnOnce(&mut manifest::Node)) -> Node {
    Node::from_manifest(&node(change)).0
}

fn view(family: Family, settings: &Settings, node: Option<&Node>) -> NodeView {
    let host: Vec<IpAddr> =
        ["127.0.0.1", "::1", "192.0.2.1", "192.0.2.9", "10.20.30.4", "2001:db8::1", "fe80::1"]
            .iter()
            .filter_map(|ip| parse_ip(ip))
            .collect();
    node_view(family, settings, node, &host, [].iter())
}

fn ranges(texts: &[&str]) -> Vec<NodePortRange> {
    let range = |text: &&str| match *text {
        "primary" => NodePortRange::Primary,
        "localhost" => NodePortRange::Localhost,
        "all" => NodePortRange::All,
        cidr => NodePortRange::Cidr(parse_cidr(cidr).expect("a CIDR")),
    };
    texts.iter().map(range).collect()
}

/// The addresses on which node ports answer: `all`, or a list.
fn answers(family: Family, given: &[&str], node: Option<&Node>) -> String {
    let settings = Settings { node_port_addresses: ranges(given), ..settings() };
    match view(family, &settings, node).node_ports {
        NodePortAddresses::All => "all".to_owned(),
        NodePortAddresses::Only(ips) => ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

/// Section 10, row by row.
#[test]
fn cases_node_port_addresses() {
    let dual = the_node(|_| {});
    let v4_only = the_node(|n| n.status.addresses.truncate(1));
    let rows: [(u32, &[&str], &Node, &str, &str); 6] = [
        (1, &[], &dual, "all", "all"),
        (2, &["10.20.30.0/24"], &dual, "10.20.30.4", "all"),
        (3, &["192.0.2.0/24", "0.0.0.0/0"], &dual, "all", "all"),
        (4, &["::/0", "192.0.2.0/24", "2001:db8::1/128"], &dual, "192.0.2.1 192.0.2.9", "all"),
        (5, &["primary"], &v4_only, "192.0.2.1", "all"),
        (6, &["203.0.113.0/24", "2001:db8:1::/64"], &dual, "", ""),
    ];
    for (row, given, node, v4, v6) in rows {
        assert_eq!(answers(Family::V4, given, Some(node)), v4, "row {row}, IPv4");
        assert_eq!(answers(Family::V6, given, Some(node)), v6, "row {row}, IPv6");
    }
}

/// Section 10, keywords.
#[test]
fn keywords_stand_for_ranges_of_both_families() {
    let dual = the_node(|_| {});
    assert_eq!(answers(Family::V4, &["primary"], Some(&dual)), "192.0.2.1");
    assert_eq!(answers(Family::V6, &["primary"], Some(&dual)), "2001:db8::1");
    assert_eq!(answers(Family::V4, &["localhost"], Some(&dual)), "127.0.0.1");
    assert_eq!(answers(Family::V6, &["localhost"], Some(&dual)), "::1");
    assert_eq!(answers(Family::V4, &["all", "primary"], Some(&dual)), "all");
    assert_eq!(answers(Family::V6, &["all"], Some(&dual)), "all");
    assert_eq!(answers(Family::V4, &["primary", "localhost"], Some(&dual)), "127.0.0.1 192.0.2.1");
}

#[test]
fn a_loopback_node_address_is_not_primary() {
    assert_eq!(
        answers(Family::V4, &["primary"], None),
        "all",
        "the node is not known: nothing is left, hence all"
    );
    assert_eq!(answers(Family::V4, &["primary", "10.20.30.0/24"], None), "10.20.30.4");
}

/// Section 10, properties.
#[test]
fn loopback_can_be_included_or_named() {
    use crate::desired::LoopbackNodePorts::{Excluded, Included, Named};
    let loopback = |family: Family, given: &[&str]| {
        let settings = Settings { node_port_addresses: ranges(given), ..settings() };
        let view = view(family, &settings, None);
        view.loopback_node_ports
    };
    assert_eq!(loopback(Family::V4, &[]), Included);
    assert_eq!(loopback(Family::V4, &["0.0.0.0/0"]), Included, "everything does not name loopback");
    assert_eq!(loopback(Family::V4, &["64.0.0.0/2"]), Included, "it contains 127.0.0.0");
    assert_eq!(loopback(Family::V4, &["127.0.0.1/32"]), Named);
    assert_eq!(loopback(Family::V4, &["0.0.0.0/0", "127.0.0.0/8"]), Named, "at any position");
    assert_eq!(loopback(Family::V4, &["192.0.2.0/24"]), Excluded);
    assert_eq!(loopback(Family::V6, &["::1/128"]), Named);
    assert_eq!(loopback(Family::V6, &["2001:db8::/64"]), Excluded);
    assert_eq!(loopback(Family::V6, &["localhost"]), Named);
}

/// Section 5.5, first rows.
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

/// Section 5.5, the primary family.
#[test]
fn the_family_that_the_node_prefers() {
    let v6_first = the_node(|n| n.status.addresses.reverse());
    let bound = |text: &str| Settings { bind_address: parse_ip(text), ..settings() };
    assert_eq!(primary_family(&settings(), None), Family::V4);
    assert_eq!(primary_family(&settings(), Some(&v6_first)), Family::V6);
    assert_eq!(primary_family(&bound("192.0.2.1"), Some(&v6_first)), Family::V4);
    assert_eq!(primary_family(&bound("::"), Some(&the_node(|_| {}))), Family::V4);
}

/// Section 5.5, local traffic detection.
#[test]
fn how_pod_traffic_is_told() {
    let cidrs = |texts: &[&str]| texts.iter().filter_map(|text| parse_cidr(text)).collect::<Vec<_>>();
    let told = |family, detect_local, node: Option<&Node>| {
        view(family, &Settings { detect_local, ..settings() }, node).pod_traffic
    };
    let from = |text: &str| PodTraffic::From(parse_cidr(text).expect("a CIDR"));
    let ranges = DetectLocal::ClusterCidr(cidrs(&["fd00::/48", "10.0.0.0/8", "172.16.0.0/12"]));
    assert_eq!(told(Family::V4, ranges.clone(), None), from("10.0.0.0/8"), "the first of the family");
    assert_eq!(told(Family::V6, ranges, None), from("fd00::/48"));
    let v4 = DetectLocal::ClusterCidr(cidrs(&["10.0.0.0/8"]));
    assert_eq!(told(Family::V6, v4, None), PodTraffic::Unknown);
    let node = the_node(|n| n.spec.pod_cidrs = strings(&["10.1.2.0/24", "10.1.3.0/24"]));
    assert_eq!(told(Family::V4, DetectLocal::NodeCidr, Some(&node)), from("10.1.2.0/24"));
    assert_eq!(told(Family::V6, DetectLocal::NodeCidr, Some(&node)), PodTraffic::Unknown);
    assert_eq!(told(Family::V4, DetectLocal::NodeCidr, None), PodTraffic::Unknown);
    let bridge = Name::from("cni0");
    for family in Family::BOTH {
        let found = told(family, DetectLocal::BridgeInterface(bridge.clone()), None);
        assert_eq!(found, PodTraffic::Interface(bridge.clone()));
        let found = told(family, DetectLocal::InterfaceNamePrefix(bridge.clone()), None);
        assert_eq!(found, PodTraffic::InterfacePrefix(bridge.clone()));
        assert_eq!(told(family, DetectLocal::Off, Some(&node)), PodTraffic::Unknown);
    }
}

/// Section 5.6: the union of all objects, each range once, family by family.
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
fn easy_to_miss_30_ranges_of_one_family_leave_the_other_open() {
    let v4_only = the_node(|n| n.status.addresses.truncate(1));
    assert_eq!(answers(Family::V6, &["192.0.2.0/24"], Some(&v4_only)), "all");
    assert_eq!(answers(Family::V6, &["primary"], Some(&v4_only)), "all");
}

#[test]
fn loopback_ranges_are_known_before_the_node_is() {
    use crate::desired::LoopbackNodePorts::{Excluded, Included, Named};
    for (given, expected) in [
        (&[][..], Included),
        (&["all"], Included),
        (&["localhost"], Named),
        (&["primary"], Excluded),
        (&["primary", "localhost"], Named),
        (&["primary", "fd00::/8"], Excluded),
        (&["10.0.0.0/8"], Excluded),
        (&["0.0.0.0/0"], Included),
        (&["127.0.0.1/32"], Named),
        (&["126.0.0.0/7"], Included),
        (&["fd00::/8"], Included),
        (&["fd00::/8", "10.0.0.0/8"], Excluded),
    ] {
        assert_eq!(loopback_node_ports(Family::V4, &ranges(given)), expected, "{given:?}");
    }
}
