//! What processes see through their sockets.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, Map, MapData};
use common::{Node, TIMEOUT, client, echo};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect as connect_socket, socket,
};
use portwarden_testkit::Host;
use portwarden_testkit::build::{ServiceBuilder, port, service};

const V4: &str = "10.96.0.10";
const V6: &str = "fd00:10:96::10";

fn dns() -> ServiceBuilder {
    service("dns").of_type("NodePort").cluster_ip(V4).cluster_ip(V6).port(port(53).udp().node_port(30053))
}

fn web() -> ServiceBuilder {
    service("web").of_type("NodePort").cluster_ip(V4).cluster_ip(V6).port(port(80).node_port(30080))
}

fn targets(number: u16) -> [SocketAddr; 2] {
    [V4, V6].map(|ip| SocketAddr::new(ip.parse().expect("an address"), number))
}

/// Sends a datagram without a connection; returns who answered and from where that seemed to come.
fn ask(socket: &UdpSocket, to: SocketAddr) -> Result<(String, SocketAddr)> {
    let mut buffer = [0; 64];
    socket.send_to(b"?", to).with_context(|| format!("sending to {to}"))?;
    let (length, from) = socket.recv_from(&mut buffer).with_context(|| format!("waiting for {to}"))?;
    Ok((String::from_utf8_lossy(&buffer[..length]).into_owned(), from))
}

/// Accepts connections and answers each with the host's name and the client's address.
fn serve_tcp(host: &Host, number: u16) -> Result<()> {
    for ip in host.ip().both() {
        let listener = {
            let _inside = host.namespace().enter()?;
            TcpListener::bind(SocketAddr::new(ip, number))?
        };
        let name = host.name().to_owned();
        thread::spawn(move || {
            while let Ok((mut stream, from)) = listener.accept() {
                let _ = stream.write_all(format!("{name} {}", from.ip()).as_bytes());
            }
        });
    }
    Ok(())
}

fn connect(host: &Host, to: SocketAddr) -> Result<(TcpStream, String)> {
    let _inside = host.namespace().enter()?;
    let mut stream = TcpStream::connect(to).with_context(|| format!("connecting to {to}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok((stream, answer))
}

#[test]
fn a_connected_socket_shows_the_service_and_no_packet_is_translated() -> Result<()> {
    let mut node = Node::new("peer")?;
    serve_tcp(node.topology.pod(0), 8080)?;
    node.apply(web(), "web", &port(8080), &[0]);
    node.sync()?;
    for (from, source) in
        [(node.topology.pod(1), node.topology.pod(1).ip()), (node.topology.node(), node.topology.node().ip())]
    {
        for to in targets(80) {
            let (stream, answer) = connect(from, to)?;
            ensure!(stream.peer_addr()? == to, "the process asked for {to}, not {}", stream.peer_addr()?);
            ensure!(answer == format!("pod-0 {}", source.like(to.ip())), "{answer}");
        }
    }
    // Even an endpoint that connects to itself.
    let (_, answer) = connect(node.topology.pod(0), targets(80)[0])?;
    ensure!(answer == format!("pod-0 {}", node.topology.pod(0).ip().v4), "{answer}");
    let flows = node.topology.node().command("conntrack").args(["-L", "-d", V4]).run()?;
    ensure!(!flows.contains(V4), "a flow was translated: {flows}");
    Ok(())
}

/// A place in the map `connections`: the cookie of the socket that has it comes first.
type Place = [u8; 48];
const PLACES: u32 = 32_768;

fn places(node: &Node) -> Result<Array<MapData, Place>> {
    let versions = fs::read_dir(&node.options.pin_directory)?.flatten();
    let maps = versions.map(|entry| entry.path()).find(|path| path.join("connections").exists());
    let pin = maps.context("no maps are pinned")?.join("connections");
    Ok(Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?)
}

fn is_taken(places: &Array<MapData, Place>, index: u32) -> Result<bool> {
    Ok(places.get(&index, 0)?[..8] != [0; 8])
}

#[test]
fn a_connection_keeps_its_place_until_it_is_closed() -> Result<()> {
    let mut node = Node::new("places")?;
    serve_tcp(node.topology.pod(0), 8080)?;
    node.apply(web(), "web", &port(8080), &[0]);
    node.sync()?;
    let mut places = places(&node)?;
    let taken = |places: &Array<MapData, Place>| -> Result<usize> {
        let all = (0..PLACES).map(|index| is_taken(places, index)).collect::<Result<Vec<bool>>>()?;
        Ok(all.into_iter().filter(|taken| *taken).count())
    };
    let mut open = Vec::new();
    for to in targets(80).into_iter().cycle().take(6) {
        open.push((to, connect(node.topology.pod(1), to)?.0));
    }
    ensure!(taken(&places)? == 6, "{} places are taken", taken(&places)?);
    // All other places are taken by sockets that stay.
    let mut other = [0; size_of::<Place>()];
    other[..8].fill(0xff);
    for index in 0..PLACES {
        if !is_taken(&places, index)? {
            places.set(index, other, 0)?;
        }
    }
    for to in targets(80) {
        open.push((to, connect(node.topology.pod(1), to)?.0));
    }
    for (to, stream) in &open {
        ensure!(stream.peer_addr()? == *to, "the process asked for {to}, not {}", stream.peer_addr()?);
    }
    drop(open);
    ensure!(taken(&places)? == PLACES as usize - 6, "{} places are taken", taken(&places)?);
    Ok(())
}

#[test]
fn a_socket_that_connects_again_shows_what_it_asked_for_last() -> Result<()> {
    let mut node = Node::new("again")?;
    node.apply(web(), "web", &port(8080), &[0]);
    node.sync()?;
    let endpoint = SocketAddr::new(node.topology.pod(0).ip().v4.into(), 8080);
    let socket = {
        let _inside = node.topology.pod(1).namespace().enter()?;
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?
    };
    let try_to = |to: SocketAddr| connect_socket(socket.as_raw_fd(), &SockaddrStorage::from(to));
    ensure!(try_to(targets(80)[0]) == Err(Errno::ECONNREFUSED), "nothing listens yet");
    serve_tcp(node.topology.pod(0), 8080)?;
    try_to(endpoint)?;
    let stream = TcpStream::from(socket);
    ensure!(stream.peer_addr()? == endpoint, "the process asked for {endpoint}, not {}", stream.peer_addr()?);
    Ok(())
}

#[test]
fn node_ports_answer_on_localhost_for_processes_of_the_node_only() -> Result<()> {
    let mut node = Node::new("localhost")?;
    serve_tcp(node.topology.pod(0), 8080)?;
    echo(node.topology.pod(0), 5353)?;
    node.apply(web(), "web", &port(8080), &[0]);
    node.apply(
        service("dns")
            .of_type("NodePort")
            .cluster_ip("10.96.0.11")
            .cluster_ip("fd00:10:96::11")
            .port(port(53).udp().node_port(30053)),
        "dns",
        &port(5353).udp(),
        &[0],
    );
    node.sync()?;
    for ip in ["127.0.0.1", "127.1.2.3", "::1"] {
        let ip: IpAddr = ip.parse()?;
        let (_, answer) = connect(node.topology.node(), SocketAddr::new(ip, 30080))?;
        ensure!(answer.starts_with("pod-0"), "{ip}: {answer}");
        let to = SocketAddr::new(ip, 30053);
        let (name, from) = ask(&client(node.topology.node(), to)?, to)?;
        ensure!((name.as_str(), from) == ("pod-0", to), "{name} {from}");
        ensure!(
            connect(node.topology.pod(1), SocketAddr::new(ip, 30080)).is_err(),
            "a pod's loopback is its own"
        );
    }
    Ok(())
}

#[test]
fn datagrams_without_connection_move_on_when_their_endpoint_leaves() -> Result<()> {
    let mut node = Node::new("datagrams")?;
    for pod in node.topology.pods() {
        echo(pod, 5353)?;
    }
    node.apply(dns(), "dns", &port(5353).udp(), &[0, 1]);
    node.sync()?;
    for to in targets(53) {
        let socket = client(node.topology.pod(2), to)?;
        let (first, from) = ask(&socket, to)?;
        ensure!(from == to, "the answer seems to come from {from}");
        for _ in 0..20 {
            ensure!(ask(&socket, to)?.0 == first, "the socket keeps its endpoint");
        }
        let (gone, left) = if first == "pod-0" { (0, 1) } else { (1, 0) };
        node.endpoints("dns", &port(5353).udp(), &[left]);
        node.sync()?;
        ensure!(ask(&socket, to)?.0 == format!("pod-{left}"), "pod-{gone} has left");
        node.endpoints("dns", &port(5353).udp(), &[0, 1]);
        node.sync()?;
    }
    Ok(())
}

#[test]
fn a_connected_datagram_socket_is_ended_when_its_endpoint_leaves() -> Result<()> {
    let mut node = Node::new("ended")?;
    for pod in node.topology.pods() {
        echo(pod, 5353)?;
    }
    node.apply(dns(), "dns", &port(5353).udp(), &[0]);
    node.sync()?;
    let mut sockets = Vec::new();
    for (host, to) in
        [node.topology.pod(2), node.topology.node()].into_iter().flat_map(|h| targets(53).map(|to| (h, to)))
    {
        let socket = client(host, to)?;
        socket.connect(to)?;
        socket.send(b"?")?;
        socket.recv(&mut [0; 64])?;
        ensure!(socket.peer_addr()? == to);
        sockets.push((socket, to));
    }
    // Directly, without the Service: none of our business.
    let endpoint = SocketAddr::new(node.topology.pod(0).ip().v4.into(), 5353);
    let direct = client(node.topology.pod(2), endpoint)?;
    direct.connect(endpoint)?;
    node.endpoints("dns", &port(5353).udp(), &[1]);
    node.sync()?;
    for (socket, to) in &sockets {
        // It waits for an answer, as resolvers do, and is woken.
        let error = socket.recv(&mut [0; 64]).expect_err("nothing was sent");
        ensure!(error.kind() == std::io::ErrorKind::ConnectionAborted, "{error}");
        socket.connect(to)?;
        socket.send(b"?")?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        ensure!(&buffer[..length] == b"pod-1", "the same socket connects again and gets another endpoint");
    }
    direct.send(b"?")?;
    direct.recv(&mut [0; 64]).context("a socket that was not ours was ended")?;
    Ok(())
}

#[test]
fn a_connected_datagram_socket_stays_when_its_endpoint_leaves_another_service() -> Result<()> {
    let mut node = Node::new("shared")?;
    for pod in node.topology.pods() {
        echo(pod, 5353)?;
    }
    let other = service("other").cluster_ip("10.96.0.11").port(port(53).udp());
    node.apply(dns(), "dns", &port(5353).udp(), &[0]);
    node.apply(other, "other", &port(5353).udp(), &[0]);
    node.sync()?;
    let connected = |to: SocketAddr| -> Result<UdpSocket> {
        let socket = client(node.topology.pod(2), to)?;
        socket.connect(to)?;
        socket.send(b"?")?;
        socket.recv(&mut [0; 64])?;
        Ok(socket)
    };
    let (leaving, staying) = (connected(targets(53)[0])?, connected("10.96.0.11:53".parse()?)?);
    node.endpoints("dns", &port(5353).udp(), &[1]);
    node.sync()?;
    let error = leaving.recv(&mut [0; 64]).expect_err("nothing was sent");
    ensure!(error.kind() == std::io::ErrorKind::ConnectionAborted, "{error}");
    staying.send(b"?")?;
    let mut buffer = [0; 64];
    let length =
        staying.recv(&mut buffer).context("the socket of a Service that did not change was ended")?;
    ensure!(&buffer[..length] == b"pod-0");
    Ok(())
}

#[test]
fn ipv6_sockets_reach_ipv4_services() -> Result<()> {
    let mut node = Node::new("mapped")?;
    serve_tcp(node.topology.pod(0), 8080)?;
    echo(node.topology.pod(0), 5353)?;
    node.apply(web(), "web", &port(8080), &[0]);
    node.apply(service("dns").cluster_ip("10.96.0.11").port(port(53).udp()), "dns", &port(5353).udp(), &[0]);
    node.sync()?;
    let (stream, answer) = connect(node.topology.pod(1), "[::ffff:10.96.0.10]:80".parse()?)?;
    ensure!(answer.starts_with("pod-0"), "{answer}");
    ensure!(stream.peer_addr()?.to_string() == "[::ffff:10.96.0.10]:80", "{}", stream.peer_addr()?);
    let to: SocketAddr = "[::ffff:10.96.0.11]:53".parse()?;
    let (name, from) = ask(&client(node.topology.pod(1), to)?, to)?;
    ensure!((name.as_str(), from) == ("pod-0", to), "{name} {from}");
    Ok(())
}

/// The first two numbers of the kernel's version.
fn kernel_version() -> Result<(u32, u32)> {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = text.split('.').map(|part| part.parse().ok());
    Ok((numbers.next().flatten().unwrap_or(0), numbers.next().flatten().unwrap_or(0)))
}

#[test]
fn connections_and_refusals_are_counted() -> Result<()> {
    let mut node = Node::new("counters")?;
    serve_tcp(node.topology.pod(0), 8080)?;
    node.apply(web(), "web", &port(8080), &[0]);
    node.sync()?;
    for _ in 0..5 {
        connect(node.topology.pod(1), targets(80)[0])?;
    }
    node.endpoints("web", &port(8080), &[]);
    node.sync()?;
    for _ in 0..3 {
        let error = connect(node.topology.pod(1), targets(80)[0]).expect_err("no endpoints");
        ensure!(format!("{error:#}").contains("refused"), "{error:#}");
    }
    let counts = node.counters.read();
    let v4 =
        counts.iter().find(|port| port.family == portwarden_model::Family::V4).context("IPv4 is counted")?;
    // The library tries once per address, so each call is one connection.
    // Before 5.18, nftables refuses.
    let refusals = if kernel_version()? >= (5, 18) { 3 } else { 0 };
    ensure!((v4.connections, v4.refusals) == (5, refusals), "{counts:?}");
    node.start()?;
    ensure!(node.counters.read() == counts, "a restart keeps them: {:?}", node.counters.read());
    Ok(())
}

#[test]
fn programs_are_replaced_while_connections_are_made() -> Result<()> {
    let mut node = Node::new("replaced")?;
    serve_tcp(node.topology.pod(0), 8080)?;
    serve_tcp(node.topology.pod(1), 8080)?;
    node.apply(web().affinity(600), "web", &port(8080), &[0, 1]);
    node.sync()?;
    let to = targets(80)[0];
    let (_, home) = connect(node.topology.pod(2), to)?;
    let namespace = node.topology.pod(2).namespace().clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let load = thread::spawn(move || -> Result<u32> {
        let _inside = namespace.enter()?;
        let mut count = 0;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let mut answer = String::new();
            TcpStream::connect(to).context("a connection failed")?.read_to_string(&mut answer)?;
            ensure!(answer == home, "{answer} answers, before {home}");
            count += 1;
        }
        Ok(count)
    });
    for _ in 0..8 {
        let report = node.start()?;
        ensure!(report.refused.is_empty(), "{report:?}");
    }
    stop.send(())?;
    let count = load.join().expect("the load did not panic")?;
    ensure!(count > 50, "only {count} connections");
    Ok(())
}

#[test]
fn a_socket_that_is_open_over_a_restart_still_shows_the_service() -> Result<()> {
    let mut node = Node::new("open")?;
    echo(node.topology.pod(0), 5353)?;
    echo(node.topology.pod(1), 5353)?;
    node.apply(dns(), "dns", &port(5353).udp(), &[0, 1]);
    node.sync()?;
    let to = targets(53)[0];
    let socket = client(node.topology.pod(2), to)?;
    let (first, _) = ask(&socket, to)?;
    node.start()?;
    for _ in 0..10 {
        let (name, from) = ask(&socket, to)?;
        ensure!((&name, from) == (&first, to), "{name} {from}");
    }
    Ok(())
}

/// A datagram socket that is connected to a Service and has had an answer from it.
fn connected(node: &Node, to: SocketAddr) -> Result<UdpSocket> {
    let socket = client(node.topology.pod(2), to)?;
    socket.connect(to)?;
    socket.send(b"?")?;
    socket.recv(&mut [0; 64])?;
    Ok(socket)
}

#[test]
fn open_sockets_survive_a_change_of_the_size_of_the_tables() -> Result<()> {
    let mut node = Node::new("resized")?;
    serve_tcp(node.topology.pod(0), 8080)?;
    for pod in node.topology.pods() {
        echo(pod, 5353)?;
    }
    let udp = port(5353).udp();
    let other = |name: &str, ip: &str| service(name).cluster_ip(ip).port(port(53).udp());
    node.apply(web(), "web", &port(8080), &[0]);
    node.apply(dns(), "dns", &udp, &[0]);
    node.apply(other("other", "10.96.0.20"), "other", &udp, &[1]);
    node.apply(other("leaving", "10.96.0.30"), "leaving", &udp, &[2]);
    node.sync()?;
    let (stream, _) = connect(node.topology.pod(2), targets(80)[0])?;
    let (leaves, other, leaving) = (
        connected(&node, targets(53)[0])?,
        connected(&node, "10.96.0.20:53".parse()?)?,
        connected(&node, "10.96.0.30:53".parse()?)?,
    );
    let is_ended = |socket: &UdpSocket| -> Result<()> {
        let error = socket.recv(&mut [0; 64]).expect_err("nothing was sent");
        ensure!(error.kind() == std::io::ErrorKind::ConnectionAborted, "{error}");
        Ok(())
    };
    // One endpoint leaves while no process is there to notice, and the next process has larger tables.
    node.endpoints("leaving", &udp, &[]);
    node.options.sizes.endpoints *= 2;
    node.start()?;
    let directories: Vec<_> = fs::read_dir(&node.options.pin_directory)?.flatten().collect();
    ensure!(directories.len() == 3, "links, tables and sockets; the old tables are gone: {directories:?}");
    is_ended(&leaving)?;
    ensure!(stream.peer_addr()? == targets(80)[0] && leaves.peer_addr()? == targets(53)[0]);
    // Another one leaves later.
    node.endpoints("dns", &udp, &[1]);
    node.sync()?;
    is_ended(&leaves)?;
    other.send(b"?")?;
    other.recv(&mut [0; 64]).context("the endpoint of another Service was not concerned")?;
    Ok(())
}
