//! The objects of most tests in this crate: `demo/web`, its slices and our Node, made with [`crate::build`].

use std::net::IpAddr;

use crate::build::{self, port};
pub(crate) use crate::build::{ToEvent, service_cidr};
use crate::cluster::Cluster;
use crate::desired::{ProxiedPort, ProxiedService};
use crate::event::{Event, Kind};
use crate::ip::Family;
use crate::manifest::{self, LABEL_ZONE};
use crate::name::{Name, NamespacedName};
use crate::pool::Pool;
use crate::settings::Settings;

/// The node on which all tests run.
pub(crate) const HERE: &str = "here";

/// `demo/web` at 10.96.0.10, with the TCP port `http` 80. Only `clusterIP` is set, as in manifests of old clusters.
pub(crate) fn service(change: impl FnOnce(&mut manifest::Service)) -> manifest::Service {
    let mut service = build::service("web").port(port(80).name("http")).build();
    service.spec.cluster_ip = "10.96.0.10".to_owned();
    change(&mut service);
    service
}

/// `demo/web` at 10.96.0.10 and fd00:96::10.
pub(crate) fn dual_stack(change: impl FnOnce(&mut manifest::Service)) -> manifest::Service {
    let service = build::service("web").cluster_ip("10.96.0.10").cluster_ip("fd00:96::10");
    let mut service = service.port(port(80).name("http")).build();
    change(&mut service);
    service
}

/// One port of a Service.
pub(crate) fn service_port(name: &str, protocol: &str, port: i32) -> manifest::ServicePort {
    manifest::ServicePort { name: name.to_owned(), protocol: protocol.to_owned(), port, node_port: 0 }
}

/// An IPv4 slice of `demo/web` with the port `http` 8080 and these [`endpoints`].
pub(crate) fn slice(
    name: &str,
    codes: &str,
    change: impl FnOnce(&mut manifest::EndpointSlice),
) -> manifest::EndpointSlice {
    let mut slice = build::slice("web", name).port(port(8080).name("http")).build();
    slice.endpoints = endpoints(codes, HERE, Family::V4);
    change(&mut slice);
    slice
}

/// One port of a slice.
pub(crate) fn slice_port(name: &str, protocol: &str, port: i32) -> manifest::EndpointPort {
    manifest::EndpointPort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_owned()),
        port: Some(port),
    }
}

/// Endpoints from codes such as `A R L z:ab n:1, B ST`: a letter for the address (10.1.0.1 for A, 10.1.0.2 for B, ...), the
/// state (R ready, RT ready and terminating, ST serving and terminating, S serving only, T terminating only, N nothing), L when
/// it runs on `node`, and hints for zones and nodes with names of one letter.
pub(crate) fn endpoints(codes: &str, node: &str, family: Family) -> Vec<manifest::Endpoint> {
    let codes = codes.split(',').map(str::trim).filter(|code| !code.is_empty());
    codes.map(|code| endpoint(code, node, family)).collect()
}

fn endpoint(code: &str, node: &str, family: Family) -> manifest::Endpoint {
    let mut words = code.split_whitespace();
    let letter = words.next().expect("a code starts with a letter");
    let (ready, serving, terminating) = match words.next().expect("a code has a state") {
        "R" => (true, true, false),
        "RT" => (true, true, true),
        "ST" => (false, true, true),
        "S" => (false, true, false),
        "T" => (false, false, true),
        "N" => (false, false, false),
        other => panic!("no such state: {other}"),
    };
    let mut endpoint = build::endpoint(address(letter, family))
        .on("elsewhere")
        .ready(ready)
        .serving(serving)
        .terminating(terminating);
    for word in words {
        endpoint = match word.split_once(':') {
            None if word == "L" => endpoint.on(node),
            Some(("z", zones)) => zones.chars().fold(endpoint, |one, zone| one.for_zone(&zone.to_string())),
            Some(("n", nodes)) => nodes.chars().fold(endpoint, |one, node| one.for_node(&node.to_string())),
            _ => panic!("no such word: {word}"),
        };
    }
    endpoint.build()
}

/// The address that a letter stands for.
pub(crate) fn address(letter: &str, family: Family) -> IpAddr {
    let number = letter.bytes().next().expect("one letter") - b'A' + 1;
    match family {
        Family::V4 => IpAddr::from([10, 1, 0, number]),
        Family::V6 => IpAddr::from([0xfd01, 0, 0, 0, 0, 0, 0, u16::from(number)]),
    }
}

/// The letters of a pool's endpoints, in the pool's order; `-` if there is none.
pub(crate) fn letters(pool: &Pool) -> String {
    letters_of(pool.iter().map(|backend| backend.ip))
}

/// The letters that stand for these addresses; `-` if there is none.
pub(crate) fn letters_of(ips: impl Iterator<Item = IpAddr>) -> String {
    let letter = |ip: IpAddr| {
        let last = match ip {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        char::from(b'A' + last - 1).to_string()
    };
    let letters: Vec<String> = ips.map(letter).collect();
    if letters.is_empty() { "-".to_owned() } else { letters.join(" ") }
}

/// The Node we run on, at 192.0.2.1 and 2001:db8::1.
pub(crate) fn node(change: impl FnOnce(&mut manifest::Node)) -> manifest::Node {
    let mut node = build::node(HERE).ip("192.0.2.1").ip("2001:db8::1").build();
    change(&mut node);
    node
}

/// The Node in a zone.
pub(crate) fn node_in_zone(zone: &str) -> manifest::Node {
    node(|node| {
        node.metadata.labels.insert(LABEL_ZONE.to_owned(), zone.to_owned());
    })
}

/// `demo/<name>`.
pub(crate) fn demo(name: &str) -> NamespacedName {
    NamespacedName::new("demo", name)
}

/// Settings for our node.
pub(crate) fn settings() -> Settings {
    Settings::new(HERE)
}

/// A resolved cluster with these objects, on our node with default settings.
pub(crate) fn cluster(objects: &[&dyn ToEvent]) -> Cluster {
    cluster_with(settings(), objects)
}

/// A resolved cluster with these objects and settings.
pub(crate) fn cluster_with(settings: Settings, objects: &[&dyn ToEvent]) -> Cluster {
    let mut cluster = Cluster::new(settings);
    for object in objects {
        cluster.apply(object.event());
    }
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
    cluster
}

/// `demo/web` as desired in a family.
pub(crate) fn web(cluster: &Cluster, family: Family) -> &ProxiedService {
    cluster.desired(family).service(&demo("web")).expect("demo/web is proxied")
}

/// The first port of `demo/web` as desired in a family.
pub(crate) fn web_port(cluster: &Cluster, family: Family) -> &ProxiedPort {
    web(cluster, family).ports.first().expect("demo/web has a port")
}

/// Owned strings.
pub(crate) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A shared name.
pub(crate) fn name(text: &str) -> Name {
    Name::from(text)
}
