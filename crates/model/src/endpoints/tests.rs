//! How slices become one list of endpoints.

use super::*;
use crate::ip::Family;
use crate::manifest;
use crate::name::{Interner, Protocol};
use crate::sample::{HERE, endpoints, name, slice, slice_port, strings};

const LOCATION: NodeLocation<'static> = NodeLocation { node: HERE, zone: None };

fn merged(slices: &[manifest::EndpointSlice], port: &str) -> Vec<(String, Conditions)> {
    let parsed: Vec<EndpointSlice> = slices
        .iter()
        .filter_map(|slice| EndpointSlice::from_manifest(slice, &mut Interner::default()).0)
        .collect();
    let found = merge(parsed.iter(), &name(port), Protocol::Tcp, LOCATION);
    found.iter().map(|c| (c.address().to_string(), c.conditions)).collect()
}

fn addresses(slices: &[manifest::EndpointSlice], port: &str) -> Vec<String> {
    merged(slices, port).into_iter().map(|(address, _)| address).collect()
}

/// The conditions that win when the same address is seen with these states in order, in one slice and over two.
fn kept(first: &str, second: &str) -> Conditions {
    let state = |code: &str| format!("A {code}");
    let one = slice("web-1", &format!("{}, {}", state(first), state(second)), |_| {});
    let two = [slice("web-1", &state(first), |_| {}), slice("web-2", &state(second), |_| {})];
    let (in_one, in_two) = (merged(&[one], "http"), merged(&two, "http"));
    assert_eq!(in_one, in_two, "{first} then {second}");
    let [(_, conditions)] = in_one[..] else { panic!("one address, one endpoint: {in_one:?}") };
    conditions
}

fn conditions(code: &str) -> Conditions {
    merged(&[slice("web-1", &format!("A {code}"), |_| {})], "http")[0].1
}

#[test]
fn duplicates() {
    let rows = [
        (1, "ST", "R", "R"),
        (1, "T", "N", "N"),
        (2, "R", "ST", "R"),
        (2, "N", "RT", "N"),
        (3, "R", "N", "R"),
        (3, "N", "R", "R"),
        (4, "ST", "T", "ST"),
        (4, "T", "RT", "RT"),
        (5, "S", "R", "R"),
        (5, "R", "S", "R"),
        (5, "N", "S", "S"),
        (5, "S", "N", "S"),
    ];
    for (row, first, second, expected) in rows {
        assert_eq!(kept(first, second), conditions(expected), "row {row}: {first} then {second}");
    }
}

/// Different slices may map one key to different numbers.
#[test]
fn all_pairs_of_address_and_port_are_kept() {
    let other = slice("web-2", "A R", |s| s.ports[0] = slice_port("http", "TCP", 9090));
    let all = addresses(&[slice("web-1", "A R", |_| {}), other], "http");
    assert_eq!(all, ["10.1.0.1:8080", "10.1.0.1:9090"]);
}

#[test]
fn the_same_port_twice_in_one_slice_gives_each_endpoint_once() {
    let twice = slice("web-1", "A R, B R", |s| s.ports.push(slice_port("http", "TCP", 8080)));
    assert_eq!(addresses(&[twice], "http"), ["10.1.0.1:8080", "10.1.0.2:8080"]);
}

#[test]
fn protocols_are_part_of_the_key() {
    let udp = slice("web-1", "A R", |s| s.ports[0] = slice_port("http", "UDP", 8080));
    assert_eq!(addresses(&[udp], "http"), [""; 0]);
}

#[test]
fn easy_to_miss_05_port_names_match_exactly_and_may_be_empty() {
    let nameless = slice("web-1", "A R", |s| s.ports[0] = slice_port("", "TCP", 8080));
    assert_eq!(addresses(std::slice::from_ref(&nameless), ""), ["10.1.0.1:8080"]);
    assert_eq!(addresses(&[nameless], "http"), [""; 0]);
    assert_eq!(addresses(&[slice("web-1", "A R", |_| {})], "HTTP"), [""; 0]);
}

#[test]
fn easy_to_miss_06_terminating_loses_against_any_duplicate_in_any_order() {
    for staying in ["R", "S", "N"] {
        for going in ["RT", "ST", "T"] {
            assert_eq!(kept(staying, going), conditions(staying), "{staying}, {going}");
            assert_eq!(kept(going, staying), conditions(staying), "{going}, {staying}");
        }
    }
}

#[test]
fn easy_to_miss_07_endpoints_are_in_text_order() {
    let given = slice("web-1", "A R, B R, C R, D R", |s| {
        for (endpoint, ip) in s.endpoints.iter_mut().zip(["10.0.1.2", "10.0.1.1", "10.0.1.10", "9.0.0.1"]) {
            endpoint.addresses = strings(&[ip]);
        }
    });
    assert_eq!(
        addresses(&[given], "http"),
        ["10.0.1.10:8080", "10.0.1.1:8080", "10.0.1.2:8080", "9.0.0.1:8080"]
    );
}

#[test]
fn text_order_holds_for_ports_and_ipv6_too() {
    let v6 = slice("web-1", "", |s| {
        s.address_type = "IPv6".to_owned();
        s.endpoints = endpoints("A R, B R", HERE, Family::V6);
        s.endpoints[1].addresses = strings(&["fd01::10"]);
        s.ports.push(slice_port("http", "TCP", 443));
    });
    assert_eq!(
        addresses(&[v6], "http"),
        ["[fd01::10]:443", "[fd01::10]:8080", "[fd01::1]:443", "[fd01::1]:8080"]
    );
}

#[test]
fn an_unknown_node_is_not_ours() {
    let nowhere = slice("web-1", "A R", |s| s.endpoints[0].node_name = None);
    let (parsed, _) = EndpointSlice::from_manifest(&nowhere, &mut Interner::default());
    let parsed = parsed.expect("used");
    assert!(!merge([&parsed].into_iter(), &name("http"), Protocol::Tcp, LOCATION)[0].local);
}
