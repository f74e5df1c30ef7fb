//! Connections that last, loads and distributions, with rules made by hand.

mod common;

use std::net::IpAddr;
use std::time::Duration;

use common::{BACK, TRANSPORTS, fronts, masquerade, meet_with, rules, serving_cluster, translate, vip};
use portwarden_testkit::probe::uniformity;
use portwarden_testkit::{Host, Namespace, Outcome, Topology, Transport, wait};

const LONG: Duration = Duration::from_secs(20);

/// Rules that drop everything forwarded to `client`.
fn silence(client: IpAddr) -> String {
    let family = if client.is_ipv4() { "ip" } else { "ip6" };
    format!(
        "
        table inet silence {{
            chain answers {{ type filter hook forward priority 0; {family} daddr {client} drop; }}
        }}
        "
    )
}

#[test]
fn an_established_connection_goes_on_when_its_rules_change() {
    let topology = serving_cluster();
    rules(&topology, &translate(topology.pod(0).ip()));
    let outside = topology.outside().probe();
    for transport in TRANSPORTS {
        rules(&topology, &translate(topology.pod(0).ip()));
        let (mut connection, first) = outside.open(transport, fronts()[0]).unwrap();
        assert_eq!(first.host(), Some("pod-0"), "{first}");
        rules(&topology, &translate(topology.pod(1).ip()));
        assert_eq!(outside.send(transport, fronts()[0]).unwrap().host(), Some("pod-1"));
        assert_eq!(connection.exchange().unwrap().host(), Some("pod-0"));
    }
}

#[test]
fn a_connection_in_use_reports_every_exchange() {
    let topology = serving_cluster();
    rules(&topology, &translate(topology.pod(0).ip()));
    let (connection, _) = topology.outside().probe().open(Transport::Tcp, fronts()[1]).unwrap();
    let exchanging = connection.keep_exchanging(Duration::from_millis(1)).unwrap();
    for _ in 0..5 {
        rules(&topology, &translate(topology.pod(1).ip()));
    }
    let tally = exchanging.stop().unwrap();
    assert!(tally.failed() == 0 && tally.answered() > 0, "{tally}");
    assert_eq!(tally.answered_by().keys().collect::<Vec<_>>(), ["pod-0"]);
}

#[test]
fn a_connection_ends_with_its_server() {
    let topology = serving_cluster();
    rules(&topology, &translate(topology.pod(0).ip()));
    let (mut connection, _) = topology.outside().probe().open(Transport::Tcp, fronts()[0]).unwrap();
    topology.pod(0).stop_serving(Transport::Tcp, BACK).unwrap();
    let outcome = connection.exchange().unwrap();
    assert!(matches!(outcome, Outcome::Closed | Outcome::Reset), "{outcome}");
}

#[test]
fn a_udp_socket_sticks_to_its_endpoint_until_its_flow_is_forgotten() {
    let topology = serving_cluster();
    rules(&topology, &translate(topology.pod(0).ip()));
    let (mut socket, _) = topology.outside().probe().open(Transport::Udp, fronts()[0]).unwrap();
    rules(&topology, &translate(topology.pod(1).ip()));
    assert_eq!(socket.exchange().unwrap().host(), Some("pod-0"));
    let address = vip().v4.to_string();
    topology.node().command("conntrack").args(["-D", "-p", "udp", "-d", &address]).run().unwrap();
    assert_eq!(socket.exchange().unwrap().host(), Some("pod-1"));
}

#[test]
fn an_exchange_that_times_out_does_not_spoil_the_next() {
    let topology = serving_cluster();
    rules(&topology, &translate(topology.pod(0).ip()));
    let client = topology.outside().ip().v4;
    for transport in TRANSPORTS {
        let (mut connection, _) =
            topology.outside().probe().short_timeout().open(transport, fronts()[0]).unwrap();
        rules(&topology, &(translate(topology.pod(0).ip()) + &silence(client.into())));
        let expected = if transport == Transport::Tcp { Outcome::Stalled } else { Outcome::Dropped };
        assert_eq!(connection.exchange().unwrap(), expected);
        rules(&topology, &translate(topology.pod(0).ip()));
        connection.set_timeout(LONG);
        assert_eq!(connection.exchange().unwrap().host(), Some("pod-0"));
    }
}

#[test]
fn a_load_sees_no_gap_while_rules_are_replaced() {
    let topology = serving_cluster();
    rules(&topology, &translate(topology.pod(0).ip()));
    let load = topology.outside().probe().load(Transport::Tcp, fronts()[0], 200).unwrap();
    load.wait_for(LONG, "answers of the first pod", |tally| tally.answered_by().contains_key("pod-0"))
        .unwrap();
    rules(&topology, &translate(topology.pod(1).ip()));
    load.wait_for(LONG, "answers of the second pod", |tally| tally.answered_by().contains_key("pod-1"))
        .unwrap();
    let tally = load.stop().unwrap();
    assert_eq!(tally.failed(), 0, "{tally}");
    assert_eq!(tally.answered_by().len(), 2, "{tally}");
    assert_eq!(tally.sources().iter().copied().collect::<Vec<_>>(), [topology.outside().ip().v4]);
}

#[test]
fn a_load_counts_failures_by_kind() {
    let topology = serving_cluster();
    rules(&topology, &meet_with("reject"));
    let probe = topology.outside().probe().short_timeout();
    for transport in TRANSPORTS {
        let load = probe.load(transport, fronts()[1], 100).unwrap();
        load.wait_for(LONG, "a refusal", |tally| tally.failures().contains_key("refused")).unwrap();
        rules(&topology, &meet_with("drop"));
        load.wait_for(LONG, "a drop", |tally| tally.failures().contains_key("dropped")).unwrap();
        rules(&topology, &meet_with("reject"));
        let tally = load.stop().unwrap();
        assert_eq!(tally.answered(), 0, "{tally}");
        assert_eq!(tally.failures().len(), 2, "{tally}");
    }
}

#[test]
fn a_load_keeps_its_rate_while_nothing_answers() {
    let topology = Topology::builder().build().unwrap();
    let probe = topology.outside().probe().timeout(Duration::from_secs(2));
    let load = probe.load(Transport::Udp, fronts()[0], 100).unwrap();
    load.wait_for(LONG, "the first to give up", |tally| tally.failed() > 0).unwrap();
    // Had each waited for the one before, this would be the only one.
    let tally = load.stop().unwrap();
    assert!(tally.failed() >= 100, "{tally}");
}

#[test]
fn random_choice_differs_from_a_biased_one() {
    let topology = serving_cluster();
    let pods: Vec<_> = topology.pods().iter().chain(topology.remote_pods()).collect();
    let choose = |choices: u32| {
        let choice = |(number, pod): (u32, &&Host)| format!("{number} : {} . {BACK}", pod.ip().v4);
        let map: Vec<_> = (0..choices).zip(pods.iter().cycle()).map(choice).collect();
        let (map, vip, masquerade) = (map.join(", "), vip().v4, masquerade());
        format!(
            "table ip nat {{
                chain pods {{
                    type nat hook prerouting priority -100
                    ip daddr {vip} meta l4proto {{ tcp, udp }} dnat ip to numgen random mod {choices} map {{ {map} }}
                }}
            }}
            {masquerade}"
        )
    };
    let counts = |transport| {
        let tally = topology.outside().probe().volley(transport, fronts()[0], 400).unwrap();
        assert_eq!(tally.answered(), 400, "{tally}");
        pods.iter().map(|pod| tally.answered_by().get(pod.name()).copied().unwrap_or(0)).collect::<Vec<_>>()
    };
    for transport in TRANSPORTS {
        rules(&topology, &choose(4));
        let fair = counts(transport);
        assert!(uniformity::is_uniform(&fair), "{transport:?}: {fair:?}");
        // Two of the four are never chosen.
        rules(&topology, &choose(2));
        let biased = counts(transport);
        assert!(!uniformity::is_uniform(&biased), "{transport:?}: {biased:?}");
    }
}

#[test]
fn everything_ends_with_the_cluster() {
    let survivor = |topology: &Topology| topology.node().namespace().clone();
    let has_uplink =
        |namespace: &Namespace| namespace.command("ip").args(["-o", "link"]).run().unwrap().contains("eth0");
    let topology = Topology::builder().build().unwrap();
    let node = survivor(&topology);
    assert!(has_uplink(&node));
    drop(topology);
    wait::until(LONG, "the uplink to go with the outside", || (!has_uplink(&node)).then_some(())).unwrap();

    let (sender, receiver) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let topology = Topology::builder().build().unwrap();
        sender.send(survivor(&topology)).unwrap();
        panic!("a test that fails");
    });
    assert!(panicked.join().is_err());
    let node = receiver.recv().unwrap();
    wait::until(LONG, "the uplink to go after a panic", || (!has_uplink(&node)).then_some(())).unwrap();
}
