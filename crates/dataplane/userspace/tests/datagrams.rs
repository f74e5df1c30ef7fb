//! Datagrams while one dataplane takes over from another: each is answered, whichever of the two has read it.

mod support;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portwarden_model::{Family, Settings};
use portwarden_testkit::Namespace;
use portwarden_userspace::{Counters, Drain, Options, Userspace};
use support::{
    CLUSTER_IP, NODE, Node, TIMEOUT, counted, on_node, rounds, start_with, take_over_again_and_again, web,
};

/// Clients that send one datagram after the other.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Result<Outcomes>>>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Outcomes {
    answered: u32,
    unanswered: u32,
}

/// Whether a client keeps its socket, and with it a session, or has a new one for each datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Socket {
    Kept,
    New,
}

fn service() -> SocketAddr {
    SocketAddr::new(CLUSTER_IP.parse().expect("an address"), 80)
}

fn client() -> Result<UdpSocket> {
    // Not connected: the kernel would hide replies from another address.
    let client = UdpSocket::bind((NODE, 0))?;
    client.set_read_timeout(Some(TIMEOUT))?;
    Ok(client)
}

/// Sends a datagram, and returns whether its reply comes from the address that was asked.
fn is_answered(client: &UdpSocket, number: u32) -> Result<bool> {
    client.send_to(&number.to_be_bytes(), service())?;
    let mut reply = [0; 16];
    match client.recv_from(&mut reply) {
        Ok((length, from)) => {
            ensure!(from == service() && reply[..length] == number.to_be_bytes(), "a reply from {from}");
            Ok(true)
        }
        Err(_) => Ok(false),
    }
}

impl Clients {
    fn start(namespace: &Namespace, count: usize) -> Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let threads = (0..count).map(|number| {
            let stop = Arc::clone(&stop);
            let kind = if number % 2 == 0 { Socket::Kept } else { Socket::New };
            namespace.spawn(move || send(kind, &stop))
        });
        Ok(Clients { stop: Arc::clone(&stop), threads: threads.collect::<Result<_>>()? })
    }

    fn stop(self) -> Result<Outcomes> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Outcomes::default();
        for thread in self.threads {
            let Outcomes { answered, unanswered } = thread.join().ok().context("a client panicked")???;
            all.answered += answered;
            all.unanswered += unanswered;
        }
        Ok(all)
    }
}

fn send(kind: Socket, stop: &AtomicBool) -> Result<Outcomes> {
    let mut outcomes = Outcomes::default();
    let mut socket = client()?;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        if kind == Socket::New {
            socket = client()?;
        }
        match is_answered(&socket, number)? {
            true => outcomes.answered += 1,
            false => outcomes.unanswered += 1,
        }
    }
    Ok(outcomes)
}

/// An endpoint that takes this long for each reply, and can prepare as many at a time as there are clients.
fn echo(delay: Duration, clients: usize) -> Result<()> {
    let socket = UdpSocket::bind("10.244.0.10:8080")?;
    for _ in 0..clients {
        let socket = socket.try_clone()?;
        thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                thread::sleep(delay);
                // A lost reply fails the test by itself.
                let _ = socket.send_to(&buffer[..length], from);
            }
        });
    }
    Ok(())
}

/// One dataplane takes over from another, again and again, from an endpoint that answers after `delay`.
fn take_over_while_clients_send(delay: Duration) -> Result<()> {
    const CLIENTS: usize = 8;
    on_node(|namespace| {
        echo(delay, CLIENTS)?;
        let next = || start_with(|_| {}, web("UDP", &["10.244.0.10"])).map(|(node, _)| node);
        let present = next()?;
        let clients = Clients::start(namespace, CLIENTS)?;
        let _last = take_over_again_and_again(rounds()?, next, present)?;
        let outcomes = clients.stop()?;
        println!("{outcomes:?}");
        ensure!(outcomes.answered > 0 && outcomes.unanswered == 0, "{outcomes:?}");
        Ok(())
    })
}

#[test]
fn no_datagram_is_lost_when_one_dataplane_takes_over_from_another() -> Result<()> {
    take_over_while_clients_send(Duration::ZERO)
}

#[test]
fn replies_that_are_on_their_way_arrive_when_another_dataplane_has_taken_over() -> Result<()> {
    take_over_while_clients_send(Duration::from_millis(100))
}

/// The kernel's numbers of the UDP sockets on the node's address.
fn open() -> Result<BTreeSet<String>> {
    let node = format!("{:08X}:", NODE.parse::<std::net::Ipv4Addr>()?.to_bits().to_be());
    let table = std::fs::read_to_string("/proc/thread-self/net/udp")?;
    let fields = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let open = fields.filter(|fields| fields.get(1).is_some_and(|address| address.starts_with(&node)));
    Ok(open.filter_map(|fields| fields.get(9).map(|&inode| inode.to_owned())).collect())
}

#[test]
fn the_next_dataplane_has_the_same_socket_and_is_the_one_that_reads() -> Result<()> {
    on_node(|_| {
        echo(Duration::ZERO, 1)?;
        let (_old, before) = start_with(|_| {}, web("UDP", &["10.244.0.10"]))?;
        let sockets = open()?;
        ensure!(sockets.len() == 1, "{sockets:?}");
        let (drain, after) = (Drain::default(), Arc::<Counters>::default());
        let mut settings = Settings::new("here");
        settings.bind_address = Some(NODE.parse()?);
        let options = Options { drain: Duration::ZERO, ..Options::new(&Family::BOTH) };
        let next = Userspace::new(options, Arc::clone(&after), &drain)?;
        let next = Node::with_objects(next, settings, &[NODE.parse()?], web("UDP", &["10.244.0.10"]))?;
        ensure!(open()? == sockets, "a socket of its own loses datagrams in the queue of the other");
        // All at once: the kernel could give a port twice, and its session lasts for a while.
        let clients = (0..20).map(|_| client()).collect::<Result<Vec<_>>>()?;
        for (number, client) in (1..).zip(&clients) {
            ensure!(is_answered(client, number)?);
        }
        let read = |counters: &Counters| counted(counters, "connections_total");
        ensure!(
            (read(&before), read(&after)) == (0, 20),
            "both read: {} and {}",
            read(&before),
            read(&after)
        );
        // The next one ends first: the old one goes on.
        drop(next);
        drain.wait();
        let more = (0..20).map(|_| client()).collect::<Result<Vec<_>>>()?;
        for (number, client) in (1..).zip(&more) {
            ensure!(is_answered(client, number)?);
        }
        ensure!((read(&before), read(&after)) == (20, 20));
        drop((clients, more));
        ensure!(open()? == sockets);
        Ok(())
    })
}
