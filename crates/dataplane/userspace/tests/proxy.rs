//! The userspace dataplane on a node of its own, with real sockets and rules.

mod support;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{Resource, getrlimit};
use portwarden_model::{Dataplane, Family, Notification};
use portwarden_testkit::Namespace;
use portwarden_testkit::build::{endpoint, port, service as service_named, slice};
use portwarden_testkit::rig::Object;
use portwarden_userspace::{Drain, Options, Userspace};
use support::{
    CLUSTER_IP, NODE, TIMEOUT, ask, connect, counted, echo, letter, on_node, service_with, start, start_with,
    wait_until, web,
};

fn service() -> SocketAddr {
    SocketAddr::new(CLUSTER_IP.parse().expect("an address"), 80)
}

/// Our sockets, as the rules name them.
fn sockets(namespace: &Namespace) -> Result<BTreeSet<SocketAddr>> {
    let table =
        namespace.command("nft").args(["list", "set", "ip", "portwarden-userspace", "sockets"]).run()?;
    let (_, elements) = table.split_once("elements = {").context("no sockets")?;
    let socket = |text: &str| {
        let mut fields = text.trim_matches(|c: char| c.is_whitespace() || c == '}').split(" . ");
        let (ip, port) = (fields.next()?.parse().ok()?, fields.nth(1)?.trim().parse().ok()?);
        Some(SocketAddr::new(ip, port))
    };
    let found = elements.split(',').map(|text| socket(text).with_context(|| format!("cannot read {text:?}")));
    found.collect()
}

#[test]
fn either_side_can_end_first() -> Result<()> {
    on_node(|_| {
        // An endpoint that ends first, and then answers what it still gets into another connection.
        let listener = TcpListener::bind("10.244.0.10:8080")?;
        let server = thread::spawn(move || -> std::io::Result<Vec<u8>> {
            let (mut stream, _) = listener.accept()?;
            stream.write_all(b"bye")?;
            stream.shutdown(Shutdown::Write)?;
            let mut received = Vec::new();
            stream.read_to_end(&mut received)?;
            Ok(received)
        });
        let (mut node, _) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let mut stream = connect(service())?;
        let mut received = String::new();
        stream.read_to_string(&mut received)?;
        ensure!(received == "bye");
        stream.write_all(b"still here")?;
        stream.shutdown(Shutdown::Write)?;
        ensure!(server.join().ok().context("the server panicked")?? == b"still here");
        Ok(())
    })
}

#[test]
fn a_reset_is_passed_on_as_a_reset() -> Result<()> {
    on_node(|_| {
        let listener = TcpListener::bind("10.244.0.10:8080")?;
        let server = thread::spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            stream.write_all(b"a")?;
            let mut asked = [0];
            stream.read_exact(&mut asked)?;
            // Closing with unread bytes resets the connection.
            stream.peek(&mut asked).map(drop)
        });
        let (mut node, _) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let mut stream = connect(service())?;
        ensure!(letter(&mut stream) == Some(b'a'));
        stream.write_all(b"two")?;
        server.join().ok().context("the server panicked")??;
        let error = loop {
            match stream.read(&mut [0; 16]) {
                Ok(0) => bail!("an end, not a reset"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
        Ok(())
    })
}

#[test]
fn a_silent_endpoint_delays_nobody_else() -> Result<()> {
    on_node(|namespace| {
        echo("10.244.0.10:8080", b'a')?;
        silence(namespace, "10.244.0.12")?;
        let (mut node, counters) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10", "10.244.0.12"]))?;
        node.apply(service_with("silent", "10.96.0.11", port(80), port(8080), &["10.244.0.12"]))?;
        let waiting = SocketAddr::new("10.96.0.11".parse()?, 80);
        let mut patient = connect(waiting)?;
        let patient = namespace.spawn(move || letter(&mut patient))?;
        for _ in 0..4 {
            ensure!(
                ask(service()) == Some(b'a'),
                "the silent endpoint is skipped after a quarter of a second"
            );
        }
        ensure!(!patient.is_finished(), "four attempts take longer than that");
        let outcome = patient.join().ok().context("the client panicked")??;
        ensure!(outcome.is_none(), "reset after the last attempt");
        ensure!(counted(&counters, "service_connections_unanswered_total") == 1);
        Ok(())
    })
}

/// Leaves packets to this endpoint without an answer.
fn silence(namespace: &Namespace, endpoint: &str) -> Result<()> {
    let rules = format!(
        "add table ip silence; add chain ip silence input {{ type filter hook input priority 0; }}; \
         add rule ip silence input ip daddr {endpoint} tcp dport 8080 drop"
    );
    namespace.command("nft").args([rules]).run().map(drop)
}

/// Connections to this endpoint that wait for its answer.
fn dials_in_flight(endpoint: &str) -> Result<usize> {
    const SYN_SENT: &str = "02";
    let address: std::net::Ipv4Addr = endpoint.parse()?;
    let remote = format!("{:08X}:1F90", address.to_bits().to_be());
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp")?;
    let fields = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    Ok(fields.filter(|f| f.get(2) == Some(&&*remote) && f.get(3) == Some(&SYN_SENT)).count())
}

#[test]
fn a_silent_endpoint_gets_no_more_dials_than_it_may_have() -> Result<()> {
    on_node(|namespace| {
        echo("10.244.0.10:8080", b'a')?;
        silence(namespace, "10.244.0.12")?;
        let (mut node, counters) = start(|options| options.dials_per_endpoint = 3)?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        node.apply(service_with("silent", "10.96.0.11", port(80), port(8080), &["10.244.0.12"]))?;
        let waiting = SocketAddr::new("10.96.0.11".parse()?, 80);
        let mut clients = (0..10).map(|_| connect(waiting)).collect::<std::io::Result<Vec<_>>>()?;
        wait_until("all of them to be accepted", || {
            Ok(counted(&counters, "service_connections_active") == 10)
        })?;
        wait_until("dials", || Ok(dials_in_flight("10.244.0.12")? > 0))?;
        for _ in 0..10 {
            let dials = dials_in_flight("10.244.0.12")?;
            ensure!(dials <= 3, "{dials} dials");
            ensure!(ask(service()) == Some(b'a'), "other Services do not wait");
        }
        for client in &mut clients {
            ensure!(letter(client).is_none(), "reset after the last attempt");
        }
        let limited = counters
            .read()
            .into_iter()
            .find(|one| one.metric == "dials_total" && one.labels.iter().any(|(_, value)| value == "limit"));
        ensure!(limited.is_some_and(|one| one.value > 0), "some waited in vain for their turn");
        Ok(())
    })
}

/// How often the kernel of this namespace sent an acknowledgement only because time was up.
fn delayed_acknowledgements() -> Result<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/netstat")?;
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = lines.next().zip(lines.next()).context("TcpExt")?;
    let found = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "DelayedACKs");
    Ok(found.context("DelayedACKs")?.1.parse()?)
}

#[test]
fn an_endpoint_that_speaks_first_does_not_wait_for_the_handshake() -> Result<()> {
    on_node(|_| {
        echo("10.244.0.10:8080", b'a')?;
        let (mut node, _) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let before = delayed_acknowledgements()?;
        for _ in 0..20 {
            ensure!(ask(service()) == Some(b'a'));
        }
        let delayed = delayed_acknowledgements()? - before;
        // A busy machine may be the reason for a few.
        ensure!(delayed < 20, "{delayed} of 20 handshakes waited for the kernel's timer");
        Ok(())
    })
}

#[test]
fn connections_that_last_lose_no_byte_when_they_change_threads() -> Result<()> {
    on_node(|_| {
        echo("10.244.0.10:8080", b'a')?;
        let (mut node, counters) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let mut streams = (0..32).map(|_| connect(service())).collect::<std::io::Result<Vec<_>>>()?;
        for stream in &mut streams {
            ensure!(letter(stream) == Some(b'a'));
        }
        for round in 0..40 {
            for stream in &mut streams {
                stream.write_all(&[round; 100])?;
            }
            for stream in &mut streams {
                let mut received = [0; 100];
                stream.read_exact(&mut received)?;
                ensure!(received == [round; 100]);
            }
        }
        ensure!(counted(&counters, "connections_active") == 32);
        drop(streams);
        wait_until("all of them to end", || Ok(counted(&counters, "connections_active") == 0))
    })
}

/// Ten thousand, or as many as descriptors allow: this process has both ends of both connections, four for each.
fn many() -> Result<usize> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let many = usize::try_from(limit.saturating_sub(1000) / 4)?.min(10_000);
    println!("{many} connections, with a limit of {limit} descriptors");
    Ok(many)
}

#[test]
fn ten_thousand_idle_connections_are_held() -> Result<()> {
    on_node(|_| {
        let listener = TcpListener::bind("10.244.0.10:8080")?;
        thread::spawn(move || {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                // A client that is gone already is noticed by its proxy.
                let _ = stream.write_all(b"a");
                held.push(stream);
            }
        });
        let (mut node, counters) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let many = many()?;
        let mut idle = Vec::with_capacity(many);
        for number in 0..many {
            let mut stream = connect(service()).with_context(|| format!("connection {number}"))?;
            ensure!(letter(&mut stream) == Some(b'a'), "connection {number}");
            idle.push(stream);
        }
        ensure!(counted(&counters, "connections_active") == u64::try_from(many)?);
        ensure!(ask(service()) == Some(b'a'), "and one more");
        Ok(())
    })
}

#[test]
fn nothing_reaches_the_sockets_but_through_the_rules() -> Result<()> {
    on_node(|namespace| {
        echo("10.244.0.10:8080", b'a')?;
        let (mut node, _) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        node.apply(service_with("dns", "10.96.0.11", port(53).udp(), port(53).udp(), &["10.244.0.10"]))?;
        let sockets = sockets(namespace)?;
        ensure!(sockets.len() == 3, "two for TCP, one for UDP: {sockets:?}");
        for socket in sockets {
            let error = TcpStream::connect(socket).err().with_context(|| format!("{socket} is open"))?;
            ensure!(error.kind() == ErrorKind::ConnectionRefused, "{socket}: {error}");
            let client = UdpSocket::bind((NODE, 0))?;
            client.connect(socket)?;
            client.send(b"x")?;
            client.set_read_timeout(Some(TIMEOUT))?;
            let error = client.recv(&mut [0]).err().with_context(|| format!("{socket} answers"))?;
            ensure!(error.kind() == ErrorKind::ConnectionRefused, "{socket}: {error}");
        }
        Ok(())
    })
}

#[test]
fn datagrams_of_every_size_come_back_from_the_address_that_was_asked() -> Result<()> {
    on_node(|_| {
        let server = UdpSocket::bind("10.244.0.10:8080")?;
        thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, from)) = server.recv_from(&mut buffer) {
                // A lost reply fails the test by itself.
                let _ = server.send_to(&buffer[..length], from);
            }
        });
        let (mut node, counters) = start(|_| {})?;
        node.apply(web("UDP", &["10.244.0.10"]))?;
        // Not connected: the kernel would hide replies from another address.
        let client = UdpSocket::bind((NODE, 0))?;
        client.set_read_timeout(Some(TIMEOUT))?;
        let mut buffer = vec![0; 65_536];
        for size in [0, 1, 512, 4097, 9000, 65_507] {
            let sent = vec![7; size];
            client.send_to(&sent, service())?;
            let (length, from) = client.recv_from(&mut buffer).with_context(|| format!("{size} bytes"))?;
            ensure!(from == service() && buffer[..length] == sent, "{length} bytes from {from}");
        }
        ensure!(counted(&counters, "connections_total") == 1, "one session");
        wait_until("the session to end when idle", || Ok(counted(&counters, "connections_active") == 0))
    })
}

#[test]
fn ports_are_kept_over_a_restart_and_come_from_the_range() -> Result<()> {
    on_node(|namespace| {
        echo("10.244.0.10:8080", b'a')?;
        let range = |options: &mut Options| options.port_range = Some(40_000..=40_099);
        let objects = || {
            let dns = port(53).udp();
            let udp = service_with("dns", "10.96.0.11", dns.clone(), dns, &["10.244.0.10"]);
            web("TCP", &["10.244.0.10"]).into_iter().chain(udp)
        };
        let (mut old, _) = start(range)?;
        old.apply(objects())?;
        let before = sockets(namespace)?;
        ensure!(before.iter().all(|socket| (40_000..=40_099).contains(&socket.port())), "{before:?}");
        let mut staying = connect(service())?;
        ensure!(letter(&mut staying) == Some(b'a'));
        // A new process that starts with an empty cluster and learns the same.
        let (mut new, _) = start(range)?;
        new.apply(objects())?;
        drop(old);
        ensure!(sockets(namespace)? == before);
        for _ in 0..50 {
            ensure!(ask(service()) == Some(b'a'));
        }
        staying.write_all(b"x")?;
        ensure!(letter(&mut staying) == Some(b'x'), "the old process drains");
        Ok(())
    })
}

#[test]
fn a_udp_port_that_is_kept_over_a_restart_goes_to_one_pool_only() -> Result<()> {
    on_node(|namespace| {
        let objects = |local: bool| -> Vec<Object> {
            let dns = service_named("dns")
                .cluster_ip("10.96.0.11")
                .external_ip("198.51.100.1")
                .port(port(53).udp());
            let dns = dns.of_type("LoadBalancer");
            let endpoints =
                slice("dns", "dns-1").port(port(53).udp()).endpoint(endpoint("10.244.0.10").on("here"));
            let dns = if local { dns.external_policy_local() } else { dns };
            web("TCP", &["10.244.0.10"]).into_iter().chain([dns.into(), endpoints.into()]).collect()
        };
        let (_old, _) = start_with(|_| {}, objects(false))?;
        let before = sockets(namespace)?;
        ensure!(before.len() == 3, "two for TCP, one for UDP: {before:?}");
        // Rules of both addresses name the same port, but now they need a socket each.
        let (_new, _) = start_with(|_| {}, objects(true))?;
        let after = sockets(namespace)?;
        ensure!(after.is_superset(&before) && after.len() == 4, "before: {before:?}, after: {after:?}");
        Ok(())
    })
}

#[test]
fn rules_that_another_process_removes_come_back() -> Result<()> {
    on_node(|namespace| {
        echo("10.244.0.10:8080", b'a')?;
        let (mut node, _) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        ensure!(node.dataplane.poll(Instant::now()).is_empty(), "no other process wrote");
        namespace.command("nft").args(["delete", "table", "ip", "portwarden-userspace"]).run()?;
        let found = node.dataplane.poll(Instant::now());
        let tampered = |one: &Notification| matches!(one, Notification::Tampered { family: Family::V4, .. });
        ensure!(found.iter().any(tampered), "{found:?}");
        node.sync_all()?;
        ensure!(ask(service()) == Some(b'a'));
        Ok(())
    })
}

#[test]
fn what_cannot_be_served_is_refused_and_the_rest_works() -> Result<()> {
    on_node(|_| {
        echo("10.244.0.10:8080", b'a')?;
        // Room for the two TCP sockets only.
        let (mut node, _) = start(|options| options.port_range = Some(40_000..=40_001))?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let udp = || port(53).udp();
        for (name, ip) in [("one", "10.96.1.1"), ("two", "10.96.1.2"), ("three", "10.96.1.3")] {
            node.apply(service_with(name, ip, udp(), udp(), &["10.244.0.10"]))?;
        }
        let sctp = || port(9).protocol("SCTP");
        let reports = node.apply(service_with("sctp", "10.96.0.12", sctp(), sctp(), &["10.244.0.10"]))?;
        let refused = reports.v4.refused.first().context("SCTP is refused")?;
        ensure!(refused.reason.contains("SCTP"), "{refused:?}");
        let reports = node.sync_all()?;
        let full = reports.v4.refused.iter().filter(|one| one.reason.contains("--proxy-port-range"));
        ensure!(full.count() == 1, "two of three UDP sockets fit: {:?}", reports.v4.refused);
        ensure!(ask(service()) == Some(b'a'));
        Ok(())
    })
}

#[test]
fn a_loopback_bind_address_is_refused() {
    for address in ["127.0.0.1", "::1"] {
        let options = Options { bind_address: address.parse().ok(), ..Options::new(&Family::BOTH) };
        let error = Userspace::new(options, Arc::default(), &Drain::default()).expect_err("loopback");
        assert!(error.to_string().contains("--bind-address"), "{error}");
    }
}

#[test]
fn a_udp_session_that_waits_for_a_reply_is_not_cut() -> Result<()> {
    on_node(|_| {
        let server = UdpSocket::bind("10.244.0.10:8080")?;
        thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((length, from)) = server.recv_from(&mut buffer) {
                if &buffer[..length] == b"slow" {
                    // Slower than the idle limit, as a name server that asks others.
                    thread::sleep(Duration::from_millis(600));
                }
                let _ = server.send_to(&buffer[..length], from);
            }
        });
        let (mut node, counters) = start(|_| {})?;
        node.apply(web("UDP", &["10.244.0.10"]))?;
        let client = UdpSocket::bind((NODE, 0))?;
        client.set_read_timeout(Some(TIMEOUT))?;
        let mut buffer = [0; 16];
        // The last two together: the reply to the first one does not end the wait for the second.
        for questions in [&[b"slow"][..], &[b"fast", b"slow"]] {
            for question in questions {
                client.send_to(*question, service())?;
            }
            wait_until("a session", || Ok(counted(&counters, "udp_clients") == 1))?;
            for question in questions {
                let (length, from) = client.recv_from(&mut buffer)?;
                ensure!(from == service() && &buffer[..length] == *question);
            }
        }
        wait_until("the session to end when idle", || Ok(counted(&counters, "udp_clients") == 0))
    })
}
