//! Node ports on loopback addresses: what is published for the proxy, and when.

use portwarden_model::NodePortRange;
use portwarden_model::manifest;

use super::*;

/// Settings with loopback addresses among those of node ports, or without.
fn settings(named: bool) -> Settings {
    let ranges = if named { vec![NodePortRange::Localhost] } else { vec![NodePortRange::All] };
    Settings { node_port_addresses: ranges, ..Settings::new("here") }
}

fn node_port(service: &mut manifest::Service) {
    service.spec.r#type = "NodePort".to_owned();
    service.spec.ports[0].node_port = 30080;
}

fn wanted(settings: Settings, mode: Option<&'static str>, bench: &Bench, proxy: bool) -> Message {
    let dataplanes = mode.map(|mode| Replacement {
        words: words(mode),
        dataplanes: vec![fake(Family::V4, mode, &Strings::default(), &bench.time, MILLI)],
        remove_leftovers: None,
    });
    let pacing = PacerConfig::default();
    Message::Reconfigure(Box::new(Reconfiguration { settings, pacing, loopback_proxy: proxy, dataplanes }))
}

/// A bench in nftables mode with a proxy for loopback addresses, and `demo/web` with a node port.
fn bench(change: impl FnOnce(&mut manifest::Service)) -> Bench {
    let mut bench = Bench::new();
    let message = wanted(settings(true), Some("nftables"), &bench, true);
    bench.engine.take(message);
    let service = service("web", 1, "TCP", |service| {
        node_port(service);
        change(service);
    });
    bench.list(vec![node(|_| {}), service, slice("web", 1, "TCP", |_| {})]);
    bench.pass(SECOND);
    bench
}

/// Ports with the number of their endpoints.
fn published(bench: &Bench) -> Vec<(u16, usize)> {
    bench.receivers.loopback_ports.borrow().v4.iter().map(|port| (port.port, port.endpoints.len())).collect()
}

#[test]
fn tcp_node_ports_with_endpoints_are_published() {
    let mut bench = bench(|service| service.spec.session_affinity = "ClientIP".to_owned());
    assert_eq!(published(&bench), [(30080, 1)]);
    let affinity = bench.receivers.loopback_ports.borrow().v4.iter().next().and_then(|port| port.affinity);
    assert_eq!(affinity.map(|seconds| seconds.get()), Some(10_800));
    bench.engine.apply(vec![slice("web", 1, "TCP", |slice| {
        let mut other = slice.endpoints[0].clone();
        other.addresses = vec!["10.1.0.9".to_owned()];
        slice.endpoints.push(other);
    })]);
    bench.pass(SECOND);
    assert_eq!(published(&bench), [(30080, 2)]);
    bench.engine.apply(vec![Event::SliceDeleted(name("web-1"))]);
    bench.pass(SECOND);
    assert_eq!(published(&bench), [], "a port without endpoints is not open");
    bench.engine.apply(dns());
    bench.pass(SECOND);
    bench.engine.apply(vec![service("dns", 2, "UDP", node_port)]);
    bench.pass(SECOND);
    assert_eq!(published(&bench), [], "UDP is refused by rules");
}

#[test]
fn policy_local_knows_only_endpoints_on_this_node() {
    let mut bench = bench(|service| service.spec.external_traffic_policy = "Local".to_owned());
    bench.engine.apply(vec![slice("web", 1, "TCP", |slice| {
        let mut elsewhere = slice.endpoints[0].clone();
        elsewhere.addresses = vec!["10.1.0.9".to_owned()];
        elsewhere.node_name = Some("there".to_owned());
        slice.endpoints.push(elsewhere);
    })]);
    bench.pass(SECOND);
    assert_eq!(published(&bench), [(30080, 1)]);
    bench.engine.apply(vec![slice("web", 1, "TCP", |slice| {
        slice.endpoints[0].node_name = Some("there".to_owned());
    })]);
    bench.pass(SECOND);
    assert_eq!(published(&bench), []);
}

#[test]
fn they_come_and_go_with_the_configuration() {
    let mut bench = bench(|_| {});
    let reconfigure = |bench: &mut Bench, settings, mode, proxy| {
        let message = wanted(settings, mode, bench, proxy);
        bench.engine.take(message);
        bench.pass(SECOND);
    };
    reconfigure(&mut bench, settings(false), None, true);
    assert_eq!(published(&bench), [], "no range names loopback addresses");
    reconfigure(&mut bench, settings(true), None, true);
    assert_eq!(published(&bench), [(30080, 1)]);
    let message = wanted(settings(true), Some("nftables"), &bench, false);
    bench.engine.take(message);
    assert_eq!(published(&bench), [], "switched off: at once");
    bench.pass(SECOND);
    assert_eq!(published(&bench), []);
}

#[test]
fn they_wait_for_the_rules() {
    let mut bench = Bench::new();
    let v4 = Strings::default();
    v4.reply(Reply::Fail("busy"));
    let dataplanes = vec![fake(Family::V4, "nftables", &v4, &bench.time, MILLI)];
    bench.engine.take(Message::Reconfigure(Box::new(Reconfiguration {
        settings: settings(true),
        pacing: PacerConfig::default(),
        loopback_proxy: true,
        dataplanes: Some(Replacement { words: words("nftables"), dataplanes, remove_leftovers: None }),
    })));
    bench.list(vec![node(|_| {}), service("web", 1, "TCP", node_port), slice("web", 1, "TCP", |_| {})]);
    bench.turn();
    assert_eq!(published(&bench), []);
    bench.pass(SECOND);
    assert_eq!(published(&bench), [(30080, 1)]);
}
