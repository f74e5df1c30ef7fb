//! What a sync does to a real kernel. Needs one with IPVS: `scripts/test-uml`.

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use common::{Node, address, key, options, settings, written};
use portwarden_ipvs::Options;
use portwarden_model::{Dataplane, Family, Notification};
use portwarden_netlink::ipvs::{Change, Timeouts, VirtualServer};
use portwarden_netlink::route::Route;
use portwarden_testkit::build::{PortBuilder, ServiceBuilder, port, service};
use portwarden_testkit::wait;

const MINUTE: Duration = Duration::from_secs(60);

fn http() -> Vec<PortBuilder> {
    vec![port(8080)]
}

fn web() -> ServiceBuilder {
    service("web").cluster_ip("10.96.0.10").cluster_ip("fd00:10:96::10").port(port(80)).of_type("ClusterIP")
}

fn with_node_port() -> ServiceBuilder {
    service("web")
        .cluster_ip("10.96.0.10")
        .cluster_ip("fd00:10:96::10")
        .port(port(80).node_port(30080))
        .of_type("NodePort")
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn a_sync_writes_once_and_a_restart_writes_nothing() -> Result<()> {
    let mut node = Node::new()?;
    node.serve(with_node_port(), &[(5, true), (6, false)], http);
    let first = node.full_sync()?;
    ensure!(written(&first) > 0 && first.iter().all(|(_, report)| report.full), "{first:?}");
    ensure!(node.has_server("10.96.0.10:80", 6)? && node.has_server("[fd00:10:96::10]:80", 6)?);
    ensure!(node.has_server("192.168.0.2:30080", 6)? && node.has_server("[fd00:192:168::2]:30080", 6)?);
    let expected = [(address("10.244.0.5:8080"), 1), (address("10.244.0.6:8080"), 1)];
    ensure!(node.weights("10.96.0.10:80")? == expected, "{:?}", node.weights("10.96.0.10:80"));
    let again = node.full_sync()?;
    ensure!(written(&again) == 0, "{again:?}");
    let restarted = node.restart()?;
    ensure!(written(&restarted) == 0, "{restarted:?}");
    ensure!(node.ip("-o link show kube-ipvs0")?.contains("state DOWN"), "the device stays down");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn one_change_costs_work_in_proportion_to_its_service() -> Result<()> {
    let mut node = Node::new()?;
    for number in 1..=200_u8 {
        let service = service(&format!("service-{number}"))
            .cluster_ip(format!("10.96.1.{number}"))
            .port(port(80))
            .of_type("ClusterIP");
        node.serve(service, &[(5, true), (6, false)], http);
    }
    node.full_sync()?;
    ensure!(node.servers()?.len() == 200);
    node.endpoints("service-7", &[(5, true), (7, false)], http);
    let report = node.sync()?;
    // One real server comes, one goes in two steps.
    ensure!(written(&report) == 3, "{report:?}");
    let expected = [(address("10.244.0.5:8080"), 1), (address("10.244.0.7:8080"), 1)];
    ensure!(node.weights("10.96.1.7:80")? == expected, "{:?}", node.weights("10.96.1.7:80"));
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn service_addresses_are_local_when_the_sync_returns() -> Result<()> {
    let mut node = Node::new()?;
    node.full_sync()?;
    let mut route = node.namespace.run(|| Ok(Route::open()?))?;
    for number in 1..=100_u8 {
        let ips = [format!("10.96.1.{number}"), format!("fd00:10:96::1:{number}")];
        let service = ips.iter().fold(service(&format!("service-{number}")), ServiceBuilder::cluster_ip);
        node.serve(service.port(port(80)).of_type("ClusterIP"), &[(5, true)], http);
        node.sync()?;
        for ip in ips {
            ensure!(route.is_local(ip.parse()?)?, "{ip} is bound, but its packets leave the node");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn virtual_servers_of_other_programs_are_left_alone() -> Result<()> {
    let options = Options { exclude_cidrs: vec!["10.96.0.99/32".parse()?], ..options() };
    let mut node = Node::with(settings(), options)?;
    let foreign = |text: &str| VirtualServer {
        key: key(text, 6),
        scheduler: "wlc".into(),
        flags: 0,
        timeout: 0,
        mask_length: key(text, 6).full_mask(),
    };
    let all = ["172.16.0.1:443", "192.168.0.2:8443", "[fd00:172::1]:443"];
    node.ipvs(|ipvs| Ok(all.iter().try_for_each(|text| ipvs.add(&foreign(text)))?))?;
    node.serve(with_node_port(), &[(5, true)], http);
    node.serve(
        service("excluded").cluster_ip("10.96.0.99").port(port(80)).of_type("ClusterIP"),
        &[(5, true)],
        http,
    );
    node.full_sync()?;
    node.delete(with_node_port());
    node.delete(service("excluded").cluster_ip("10.96.0.99").port(port(80)));
    node.sync()?;
    node.restart()?;
    let left: Vec<_> = node.servers()?.into_iter().map(|server| server.key).collect();
    let mut expected: Vec<_> = all.iter().map(|text| key(text, 6)).collect();
    expected.push(key("10.96.0.99:80", 6));
    expected.sort();
    ensure!(left == expected, "{left:?}");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn what_an_earlier_process_left_is_identified_by_device_and_sets() -> Result<()> {
    let mut node = Node::new()?;
    node.serve(with_node_port(), &[(5, true)], http);
    node.serve(
        service("gone")
            .cluster_ip("10.96.0.20")
            .port(port(81).node_port(30081))
            .external_ip("192.168.0.2")
            .of_type("NodePort"),
        &[(6, false)],
        http,
    );
    node.full_sync()?;
    ensure!(node.has_server("192.168.0.2:30081", 6)? && node.has_server("192.168.0.2:81", 6)?);
    // Nothing runs while the Service goes.
    node.delete(service("gone").cluster_ip("10.96.0.20").port(port(81)));
    node.restart()?;
    for text in ["10.96.0.20:81", "192.168.0.2:30081", "192.168.0.2:81"] {
        ensure!(!node.has_server(text, 6)?, "{text} is still there");
    }
    ensure!(node.has_server("192.168.0.2:30080", 6)?);
    ensure!(!node.ip("addr show kube-ipvs0")?.contains("10.96.0.20"));
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn settings_of_a_service_become_settings_of_its_server() -> Result<()> {
    let mut node = Node::with(settings(), Options { scheduler: "mh".into(), ..options() })?;
    node.serve(web().affinity(600), &[(5, true)], http);
    node.full_sync()?;
    let server = node.servers()?.remove(0);
    // Persistent, in the table, and the scheduler hashes ports.
    ensure!((server.scheduler.as_str(), server.flags, server.timeout) == ("mh", 0x13, 600), "{server:?}");
    node.apply(web());
    node.sync()?;
    let server = node.servers()?.remove(0);
    ensure!((server.flags, server.timeout) == (0x12, 0), "{server:?}");
    node.options.scheduler = "rr".into();
    node.restart()?;
    let server = node.servers()?.remove(0);
    ensure!((server.scheduler.as_str(), server.flags) == ("rr", 0x2), "{server:?}");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn what_others_do_to_the_device_is_noticed_and_repaired() -> Result<()> {
    let mut node = Node::new()?;
    node.serve(with_node_port(), &[(5, true)], http);
    node.full_sync()?;
    ensure!(node.poll(Instant::now())?.is_empty(), "our own changes are none of others");
    for damage in [
        "addr del 10.96.0.10/32 dev kube-ipvs0",
        "addr add 10.96.0.77/32 dev kube-ipvs0",
        "link del kube-ipvs0",
    ] {
        node.ip(damage)?;
        let noticed = node.poll(Instant::now())?;
        let tampered = |n: &Notification| matches!(n, Notification::Tampered { family: Family::V4, .. });
        ensure!(noticed.iter().any(tampered), "{damage}: {noticed:?}");
        node.full_sync()?;
        let found = node.ip("-4 addr show kube-ipvs0")?;
        ensure!(found.contains("10.96.0.10/32") && !found.contains("10.96.0.77"), "{damage}: {found}");
        ensure!(node.poll(Instant::now())?.is_empty(), "{damage}: the repair");
    }
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn what_others_do_to_servers_is_found_by_the_comparison() -> Result<()> {
    let mut node = Node::new()?;
    node.serve(web(), &[(5, true), (6, false)], http);
    node.full_sync()?;
    let server = key("10.96.0.10:80", 6);
    node.ipvs(|ipvs| Ok(ipvs.apply(&[Change::DeleteReal(server, address("10.244.0.6:8080"))])?))?;
    ensure!(written(&node.full_sync()?) == 1);
    node.ipvs(|ipvs| Ok(ipvs.delete(&server)?))?;
    node.namespace.command("ipset").args(["flush", "KUBE-CLUSTER-IP"]).run()?;
    node.namespace.command("iptables-legacy").args(["-t", "nat", "-F", "KUBE-SERVICES"]).run()?;
    node.namespace.command("iptables-legacy").args(["-F", "INPUT"]).run()?;
    node.full_sync()?;
    ensure!(node.weights("10.96.0.10:80")?.len() == 2);
    ensure!(node.save(Family::V4, "nat")?.contains("-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN"));
    ensure!(node.save(Family::V4, "filter")?.contains("-A INPUT -m comment"));
    ensure!(
        node.namespace
            .command("ipset")
            .args(["list", "KUBE-CLUSTER-IP"])
            .run()?
            .contains("10.96.0.10,tcp:80")
    );
    ensure!(written(&node.full_sync()?) == 0);
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn a_new_address_of_the_node_gets_the_node_ports() -> Result<()> {
    let mut node = Node::new()?;
    node.serve(with_node_port(), &[(5, true)], http);
    node.full_sync()?;
    node.ip("addr add 192.168.7.2/24 dev eth0")?;
    let noticed = node.poll(Instant::now())?;
    ensure!(!noticed.is_empty(), "the address was not noticed");
    node.full_sync()?;
    ensure!(node.has_server("192.168.7.2:30080", 6)?);
    node.ip("addr del 192.168.7.2/24 dev eth0")?;
    ensure!(!node.poll(Instant::now())?.is_empty(), "the end of the address was not noticed");
    node.full_sync()?;
    ensure!(!node.has_server("192.168.7.2:30080", 6)?);
    Ok(())
}

/// A server on an address of the node, and a connection to it through a Service.
struct Established {
    node: Node,
    _listener: TcpListener,
    connection: TcpStream,
    accepted: TcpStream,
}

const ENDPOINT: &str = "192.168.0.2:8080";

impl Established {
    fn new(options: Options) -> Result<Established> {
        let mut node = Node::with(settings(), options)?;
        node.ipvs(|ipvs| Ok(ipvs.set_timeouts(Timeouts { tcp: 0, tcp_fin: 1, udp: 0 })?))?;
        node.apply(service("web").cluster_ip("10.96.0.10").port(port(80)).of_type("ClusterIP"));
        Established::host_endpoints(&mut node, &["192.168.0.2"]);
        node.full_sync()?;
        let (listener, connection, accepted) = node.namespace.run(|| {
            let listener = TcpListener::bind(ENDPOINT)?;
            let connection = TcpStream::connect("10.96.0.10:80")?;
            let (accepted, _) = listener.accept()?;
            Ok((listener, connection, accepted))
        })?;
        Ok(Established { node, _listener: listener, connection, accepted })
    }

    fn host_endpoints(node: &mut Node, ips: &[&str]) {
        use portwarden_testkit::build::{SliceBuilder, endpoint, slice};
        let empty: SliceBuilder = slice("web", "web-ipv4").port(port(8080));
        node.apply(ips.iter().fold(empty, |slice, ip| slice.endpoint(endpoint(ip).on("node-a"))));
    }

    /// The endpoint leaves, another comes.
    fn replace_endpoint(&mut self) -> Result<()> {
        Established::host_endpoints(&mut self.node, &["192.168.0.9"]);
        self.node.sync().map(drop)
    }

    /// Ends the connection with a reset, which the kernel sends if a socket is closed with something unread. An orderly end would keep the
    /// connection in the table for two minutes.
    fn reset(&mut self) -> Result<()> {
        self.connection.write_all(b"unread")?;
        self.accepted.peek(&mut [0])?;
        let unused = self.connection.try_clone()?;
        drop(std::mem::replace(&mut self.accepted, unused));
        Ok(())
    }

    fn weight(&self) -> Result<Option<u32>> {
        let weights = self.node.weights("10.96.0.10:80")?;
        Ok(weights.into_iter().find(|(real, _)| *real == address(ENDPOINT)).map(|(_, weight)| weight))
    }
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn a_real_server_leaves_with_its_last_connection() -> Result<()> {
    let mut test = Established::new(options())?;
    let start = Instant::now();
    test.replace_endpoint()?;
    ensure!(test.weight()? == Some(0), "it gets no new connections: {:?}", test.weight());
    let deadline = test.node.dataplane.next_deadline();
    ensure!(deadline.is_some_and(|deadline| deadline <= Instant::now() + MINUTE), "{deadline:?}");
    test.node.poll(start + MINUTE * 2)?;
    ensure!(test.weight()? == Some(0), "it still has a connection");
    ensure!(written(&test.node.full_sync()?) == 0, "a comparison leaves it alone");
    ensure!(test.weight()? == Some(0));
    test.reset()?;
    wait::until(Duration::from_secs(30), "the end of the connection", || {
        let reals = test.node.ipvs(|ipvs| Ok(ipvs.real_servers(&key("10.96.0.10:80", 6))?)).ok()?;
        reals.iter().all(|real| real.connections.active + real.connections.inactive == 0).then_some(())
    })?;
    let notifications = test.node.poll(start + MINUTE * 5)?;
    ensure!(matches!(notifications[..], [Notification::Counts { .. }]), "{notifications:?}");
    let left = test.node.weights("10.96.0.10:80")?;
    ensure!(left == [(address("192.168.0.9:8080"), 1)], "{left:?}");
    ensure!(test.node.dataplane.next_deadline().is_none());
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn an_endpoint_that_returns_keeps_its_connections() -> Result<()> {
    let mut test = Established::new(options())?;
    test.replace_endpoint()?;
    ensure!(test.weight()? == Some(0));
    Established::host_endpoints(&mut test.node, &["192.168.0.2"]);
    test.node.sync()?;
    ensure!(test.weight()? == Some(1));
    let reals = test.node.ipvs(|ipvs| Ok(ipvs.real_servers(&key("10.96.0.10:80", 6))?))?;
    let active: u32 = reals.iter().map(|real| real.connections.active).sum();
    ensure!(active == 1, "its connection was not forgotten: {reals:?}");
    ensure!(test.node.dataplane.next_deadline().is_none(), "nothing leaves any more");
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn draining_goes_on_after_a_restart_and_ends_at_the_limit() -> Result<()> {
    let limit = Duration::from_secs(300);
    let mut test = Established::new(Options { drain_limit: Some(limit), ..options() })?;
    test.replace_endpoint()?;
    ensure!(written(&test.node.restart()?) == 0, "its weight is 0 already");
    let start = Instant::now();
    test.node.poll(start + MINUTE * 2)?;
    ensure!(test.weight()? == Some(0));
    test.node.poll(start + limit)?;
    ensure!(test.weight()?.is_none(), "its time is up");
    Ok(())
}
