//! Every kind of outcome, produced by the real kernel with rules made by hand.

mod common;

use std::net::SocketAddr;

use common::{BACK, TRANSPORTS, fronts, masquerade, meet_with, rules, serving_cluster, translate};
use nix::errno::Errno;
use portwarden_testkit::probe::Behaviour;
use portwarden_testkit::topology::addresses::{NODE, NODE_SECONDARY};
use portwarden_testkit::{Host, Outcome, Refusal, Topology, Transport};

/// One who is translated or rejected in the forward path, and one in the output path.
fn clients(topology: &Topology) -> [&Host; 3] {
    [topology.outside(), topology.pod(0), topology.node()]
}

#[test]
fn a_translated_probe_names_the_endpoint_and_keeps_its_source() {
    let topology = serving_cluster();
    rules(&topology, &translate(topology.pod(1).ip()));
    for (client, front) in
        clients(&topology).into_iter().flat_map(|client| fronts().map(|front| (client, front)))
    {
        for transport in TRANSPORTS {
            let outcome = client.probe().send(transport, front).unwrap();
            let answer =
                outcome.answer().unwrap_or_else(|| panic!("{transport:?} from {}: {outcome}", client.name()));
            assert_eq!(answer.host, "pod-1");
            assert_eq!(answer.endpoint, SocketAddr::new(topology.pod(1).ip().like(front.ip()), BACK));
            assert!(answer.kept_source() && client.owns(answer.source.ip()), "{answer}");
        }
    }
}

#[test]
fn a_masqueraded_probe_shows_the_primary_address_of_the_node() {
    let topology = serving_cluster();
    for target in [topology.pod(0), topology.remote_pod(0)] {
        rules(&topology, &format!("{}\n{}", translate(target.ip()), masquerade()));
        for client in [topology.outside(), topology.pod(1), topology.remote_pod(1)] {
            for (transport, front) in
                TRANSPORTS.into_iter().flat_map(|transport| fronts().map(|front| (transport, front)))
            {
                let outcome = client.probe().send(transport, front).unwrap();
                let source = NODE.like(front.ip());
                assert_eq!(outcome.source(), Some(source), "{transport:?} from {}: {outcome}", client.name());
                assert!(!outcome.answer().unwrap().kept_source());
            }
        }
    }
}

#[test]
fn a_pod_reaches_itself_only_when_masqueraded() {
    let topology = serving_cluster();
    let pod = topology.pod(0);
    for (text, answered) in [(translate(pod.ip()), false), (translate(pod.ip()) + masquerade(), true)] {
        rules(&topology, &text);
        for (transport, front) in
            TRANSPORTS.into_iter().flat_map(|transport| fronts().map(|front| (transport, front)))
        {
            let probe = if answered { pod.probe() } else { pod.probe().short_timeout() };
            let outcome = probe.send(transport, front).unwrap();
            if answered {
                assert_eq!(outcome.host(), Some("pod-0"), "{transport:?} {front}: {outcome}");
                assert_eq!(outcome.source(), Some(NODE.like(front.ip())));
            } else {
                assert_eq!(outcome, Outcome::Dropped, "{transport:?} {front}");
            }
        }
    }
}

#[test]
fn rejected_is_not_dropped_and_a_reset_is_not_an_icmp_message() {
    let topology = serving_cluster();
    let icmp = Outcome::Refused(Refusal::PortUnreachable);
    for (verdict, expected) in [
        ("reject", [icmp.clone(), icmp]),
        ("meta l4proto tcp reject with tcp reset", [Outcome::Refused(Refusal::Reset), Outcome::Dropped]),
        (
            "reject with icmpx host-unreachable",
            [Errno::EHOSTUNREACH, Errno::EHOSTUNREACH].map(Outcome::Unreachable),
        ),
        ("drop", [Outcome::Dropped, Outcome::Dropped]),
    ] {
        rules(&topology, &meet_with(verdict));
        // All at the same time, as silence takes a while.
        std::thread::scope(|scope| {
            for (transport, expected) in TRANSPORTS.into_iter().zip(&expected) {
                for client in clients(&topology) {
                    for front in fronts() {
                        scope.spawn(move || {
                            let outcome = client.probe().short_timeout().send(transport, front).unwrap();
                            let name = client.name();
                            assert_eq!(&outcome, expected, "{verdict}: {transport:?} from {name} to {front}");
                        });
                    }
                }
            }
        });
    }
}

#[test]
fn rejections_are_reported_to_every_client() {
    // More than the kernel's rate limit for ICMP would let through.
    let topology = serving_cluster();
    rules(&topology, &meet_with("reject"));
    for (transport, front) in
        TRANSPORTS.into_iter().flat_map(|transport| fronts().map(|front| (transport, front)))
    {
        for client in [topology.outside(), topology.node()] {
            let tally = client.probe().volley(transport, front, 200).unwrap();
            assert_eq!(
                tally.failures().get("refused"),
                Some(&200),
                "{transport:?} from {}: {tally}",
                client.name()
            );
        }
    }
}

#[test]
fn a_closed_port_refuses() {
    let topology = serving_cluster();
    for ip in topology.pod(0).ip().both() {
        let target = SocketAddr::new(ip, BACK + 1);
        for client in [topology.outside(), topology.node(), topology.pod(0)] {
            assert_eq!(client.tcp(target).unwrap(), Outcome::Refused(Refusal::Reset), "{}", client.name());
            assert_eq!(
                client.udp(target).unwrap(),
                Outcome::Refused(Refusal::PortUnreachable),
                "{}",
                client.name()
            );
        }
    }
}

#[test]
fn servers_that_misbehave_are_told_apart() {
    let topology = Topology::builder().build().unwrap();
    let pod = topology.pod(0);
    for (port, behaviour, tcp, udp) in [
        (1, Behaviour::Reset, Outcome::Reset, Outcome::Dropped),
        (2, Behaviour::Mute, Outcome::Stalled, Outcome::Dropped),
    ] {
        for (transport, expected) in [(Transport::Tcp, tcp), (Transport::Udp, udp)] {
            pod.serve_as(transport, port, behaviour).unwrap();
            for ip in pod.ip().both() {
                let outcome =
                    topology.outside().probe().short_timeout().send(transport, (ip, port).into()).unwrap();
                assert_eq!(outcome, expected, "{behaviour:?} {transport:?} {ip}");
            }
        }
    }
}

#[test]
fn no_route_is_unreachable() {
    let topology = Topology::builder().pods(0).remote_pods(0).build().unwrap();
    for target in ["100.64.0.1:80", "[2001:db8:dead::1]:80"] {
        for transport in TRANSPORTS {
            let outcome = topology.outside().probe().send(transport, target.parse().unwrap()).unwrap();
            assert_eq!(outcome, Outcome::Unreachable(Errno::ENETUNREACH), "{transport:?} {target}");
        }
    }
}

#[test]
fn a_probe_uses_the_source_that_it_is_given() {
    let topology = serving_cluster();
    let target = SocketAddr::new(topology.pod(0).ip().v6.into(), BACK);
    for transport in TRANSPORTS {
        let probe = topology.node().probe().from(NODE_SECONDARY.v6).from_port(4242);
        let outcome = probe.send(transport, target).unwrap();
        let source = SocketAddr::new(NODE_SECONDARY.v6.into(), 4242);
        assert_eq!(outcome.answer().map(|answer| answer.source), Some(source), "{outcome}");
    }
    let error = topology.node().probe().from(NODE.v4).from_port(1).tcp(target).unwrap_err();
    assert!(format!("{error:#}").contains("cannot speak from 192.168.0.2:1"), "{error:#}");
    let foreign = topology.pod(0).ip().v6;
    let error = topology.node().probe().from(foreign).tcp(target).unwrap_err();
    assert!(format!("{error:#}").contains("in namespace node-a"), "{error:#}");
}

#[test]
fn a_server_that_stops_refuses_at_once() {
    let topology = serving_cluster();
    let target = SocketAddr::new(topology.pod(0).ip().v4.into(), BACK);
    assert_eq!(topology.outside().tcp(target).unwrap().host(), Some("pod-0"));
    topology.pod(0).stop_serving(Transport::Tcp, BACK).unwrap();
    assert!(topology.outside().tcp(target).unwrap().is_refused());
    assert!(topology.outside().udp(target).unwrap().is_answered());
    topology.pod(0).stop_all().unwrap();
    assert!(topology.outside().udp(target).unwrap().is_refused());
    topology.pod(0).serve(Transport::Tcp, BACK).unwrap();
    assert!(topology.outside().tcp(target).unwrap().is_answered());
}
