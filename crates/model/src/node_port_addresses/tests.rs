//! Where node ports answer, for the node and host addresses below.

use super::*;
use crate::desired::NodeView;
use crate::ip::{parse_cidr, parse_ip};
use crate::manifest;
use crate::node_view::node_view;
use crate::object::Node;
use crate::sample::{node, settings};
use crate::settings::Settings;

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

#[test]
fn loopback_can_be_included_or_named() {
    use super::LoopbackNodePorts::{Excluded, Included, Named};
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

#[test]
fn easy_to_miss_30_ranges_of_one_family_leave_the_other_open() {
    let v4_only = the_node(|n| n.status.addresses.truncate(1));
    assert_eq!(answers(Family::V6, &["192.0.2.0/24"], Some(&v4_only)), "all");
    assert_eq!(answers(Family::V6, &["primary"], Some(&v4_only)), "all");
}

#[test]
fn loopback_ranges_are_known_before_the_node_is() {
    use super::LoopbackNodePorts::{Excluded, Included, Named};
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
