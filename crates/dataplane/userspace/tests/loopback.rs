//! Node ports on loopback addresses, with real sockets in a namespace.

mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};

use anyhow::{Context, Result, ensure};
use portwarden_model::{Count, Gauge, NodePortRange, Report, Settings};
use portwarden_testkit::build::{ServiceBuilder, endpoint, port, service, slice};
use portwarden_testkit::rig::Object;
use portwarden_userspace::{CREATION_FAILURES, LISTENERS, LoopbackProxy};
use support::{Node, ask, connect, echo, in_namespace, letter, wait_until};

const ADDRESSES: [&str; 3] = ["10.244.0.10/32", "10.244.0.11/32", "10.244.0.12/32"];
const NODE_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 30080);

fn node() -> Result<Node<LoopbackProxy>> {
    let settings =
        Settings { node_port_addresses: [NodePortRange::Localhost].into(), ..Settings::new("here") };
    Node::new(LoopbackProxy::new()?, settings, &[])
}

fn web() -> ServiceBuilder {
    service("web").cluster_ip("10.96.0.10").of_type("NodePort").port(port(80).node_port(NODE_PORT.port()))
}

fn objects(service: ServiceBuilder, endpoints: &[&str]) -> Vec<Object> {
    let slice = slice("web", "web-1").port(port(8080));
    let local = |ip: &&str| endpoint(ip).on("here");
    let slice = endpoints.iter().map(local).fold(slice, |slice, endpoint| slice.endpoint(endpoint));
    vec![service.into(), slice.into()]
}

fn listeners(report: &Report) -> Option<usize> {
    let gauge = |gauge: &Gauge| (gauge.metric == LISTENERS).then_some(gauge.value);
    report.gauges.iter().find_map(gauge)
}

#[test]
fn bytes_and_ends_pass_in_both_directions() -> Result<()> {
    in_namespace(&ADDRESSES, |_| {
        echo("10.244.0.10:8080", b'a')?;
        let mut node = node()?;
        let reports = node.apply(objects(web(), &["10.244.0.10"]))?;
        ensure!(listeners(&reports.v4) == Some(1) && reports.v4.written == 1, "{reports:?}");
        let mut stream = connect(NODE_PORT)?;
        ensure!(letter(&mut stream) == Some(b'a'));
        let sent: Vec<u8> = (0..5_000_000u32).map(|number| number.to_le_bytes()[1]).collect();
        let mut writing = stream.try_clone()?;
        let received = std::thread::scope(|scope| -> Result<Vec<u8>> {
            let sending = scope.spawn(|| {
                writing.write_all(&sent)?;
                writing.shutdown(Shutdown::Write)
            });
            let mut received = Vec::new();
            stream.read_to_end(&mut received)?;
            sending.join().ok().context("the sender panicked")??;
            Ok(received)
        })?;
        ensure!(received.split_last() == Some((&b'!', sent.as_slice())), "{} bytes", received.len());
        Ok(())
    })
}

#[test]
fn a_dead_endpoint_is_skipped_without_an_error_for_the_client() -> Result<()> {
    in_namespace(&ADDRESSES, |_| {
        echo("10.244.0.10:8080", b'a')?;
        let mut node = node()?;
        node.apply(objects(web(), &["10.244.0.10", "10.244.0.11"]))?;
        for _ in 0..20 {
            ensure!(ask(NODE_PORT) == Some(b'a'));
        }
        let counters = node.dataplane.counters().read();
        let retries = counters.iter().find(|one| one.metric == "dial_retries_total").context("counted")?;
        ensure!(retries.value > 0, "the dead endpoint has its turns: {retries:?}");
        node.apply(objects(web(), &["10.244.0.11"]))?;
        ensure!(ask(NODE_PORT).is_none(), "reset if nothing answers");
        Ok(())
    })
}

#[test]
fn established_connections_go_on_when_endpoints_or_the_port_go() -> Result<()> {
    in_namespace(&ADDRESSES, |_| {
        echo("10.244.0.10:8080", b'a')?;
        echo("10.244.0.11:8080", b'b')?;
        let mut node = node()?;
        node.apply(objects(web(), &["10.244.0.10"]))?;
        let mut staying = connect(NODE_PORT)?;
        ensure!(letter(&mut staying) == Some(b'a'));
        node.apply(objects(web(), &["10.244.0.11"]))?;
        ensure!(ask(NODE_PORT) == Some(b'b'));
        let reports = node.apply(objects(web(), &[]))?;
        ensure!(listeners(&reports.v4) == Some(0), "{reports:?}");
        wait_until("the port to close", || Ok(connect(NODE_PORT).is_err()))?;
        staying.write_all(b"x")?;
        ensure!(letter(&mut staying) == Some(b'x'));
        Ok(())
    })
}

#[test]
fn affinity_pins_all_clients_to_one_endpoint() -> Result<()> {
    in_namespace(&ADDRESSES, |_| {
        for (address, letter) in [("10.244.0.10:8080", b'a'), ("10.244.0.11:8080", b'b')] {
            echo(address, letter)?;
        }
        let mut node = node()?;
        node.apply(objects(web().affinity(600), &["10.244.0.10", "10.244.0.11"]))?;
        let seen: BTreeSet<_> = (0..10).map(|_| ask(NODE_PORT)).collect();
        ensure!(seen.len() == 1, "{seen:?}");
        node.apply(objects(web(), &["10.244.0.10", "10.244.0.11"]))?;
        let seen: BTreeSet<_> = (0..10).map(|_| ask(NODE_PORT)).collect();
        ensure!(seen == [Some(b'a'), Some(b'b')].into(), "{seen:?}");
        Ok(())
    })
}

#[test]
fn a_taken_port_is_refused_counted_and_opened_when_it_is_free() -> Result<()> {
    in_namespace(&ADDRESSES, |_| {
        echo("10.244.0.10:8080", b'a')?;
        let taken = TcpListener::bind(NODE_PORT)?;
        let mut node = node()?;
        let reports = node.apply(objects(web(), &["10.244.0.10"]))?;
        let refused = reports.v4.refused.first().context("refused")?;
        ensure!(refused.reason.contains("127.0.0.1:30080"), "{refused:?}");
        ensure!(reports.v4.counts == [Count::one(CREATION_FAILURES)] && listeners(&reports.v4) == Some(0));
        drop(taken);
        let reports = node.sync_all()?;
        ensure!(reports.v4.refused.is_empty() && listeners(&reports.v4) == Some(1), "{reports:?}");
        ensure!(ask(NODE_PORT) == Some(b'a'));
        let again = node.sync_all()?;
        ensure!(again.v4.written == 0, "the same sync writes nothing the second time");
        Ok(())
    })
}

#[test]
fn idle_clients_of_one_service_cannot_take_everything() -> Result<()> {
    in_namespace(&ADDRESSES, |_| {
        echo("10.244.0.10:8080", b'a')?;
        let mut node = node()?;
        node.apply(objects(web(), &["10.244.0.10"]))?;
        let mut idle = Vec::new();
        for _ in 0..256 {
            let mut client = connect(NODE_PORT)?;
            ensure!(letter(&mut client) == Some(b'a'));
            idle.push(client);
        }
        ensure!(ask(NODE_PORT).is_none(), "reset at once");
        idle.pop();
        wait_until("room again", || Ok(ask(NODE_PORT) == Some(b'a')))
    })
}

#[test]
fn nothing_is_served_unless_a_loopback_range_is_named() -> Result<()> {
    in_namespace(&ADDRESSES, |_| {
        echo("10.244.0.10:8080", b'a')?;
        for ranges in [vec![], vec![NodePortRange::All], vec![NodePortRange::Primary]] {
            let settings = Settings { node_port_addresses: ranges, ..Settings::new("here") };
            let mut node = Node::new(LoopbackProxy::new()?, settings, &[])?;
            let reports = node.apply(objects(web(), &["10.244.0.10"]))?;
            ensure!(listeners(&reports.v4).is_none(), "{reports:?}");
            ensure!(connect(NODE_PORT).is_err());
        }
        Ok(())
    })
}
