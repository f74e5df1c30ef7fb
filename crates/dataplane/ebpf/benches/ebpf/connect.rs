//! What TCP between two pods of the same node costs: establishing a connection (to any Service, and to one of a few that the client uses all the
//! time), a connection with one request and one response, and a request and response on a connection that is open.
//!
//! All setups stand side by side, each in a node of its own, and take turns. One thread is client and server, so that everything runs within its calls
//! and no scheduler is measured. Programs are attached to a cgroup for each setup, and this process moves into
//! it for its turn.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use portwarden_ebpf::{Ebpf, Options, cleanup};
use portwarden_model::{Changes, Dataplane, Family};
use portwarden_nftables::{Nftables, Options as NftablesOptions};
use portwarden_testkit::{Topology, bpf};

use crate::{Effort, cluster, cluster_ip, percentile};

const SERVICES: [usize; 3] = [1, 5_000, 30_000];
/// Connections in a row; below what a listening socket queues.
const BATCH: usize = 200;
/// As many go first, to warm the caches that others used.
const WARM_UP: usize = 20;
/// The Services that a client uses all the time.
const IN_USE: usize = 20;
/// Connections with a request and a response in a row.
const SHORT_BATCH: usize = 60;
/// Requests in a row on one connection.
const REQUEST_BATCH: usize = 200;

/// What is measured.
const MEASURES: [&str; 4] = [
    "connect to any Service",
    "connect to one of 20 Services",
    "connect, request, close",
    "request on an open connection",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No rules, no tracking.
    Direct,
    /// To the pod itself, past the rules of mode nftables, which turn tracking on.
    Beside,
    /// The same, with packets from pod to pod untracked.
    BesideNotrack,
    Nftables,
    Ebpf,
    EbpfNotrack,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Direct => "direct, no rules",
            Kind::Beside => "direct, beside nftables rules",
            Kind::BesideNotrack => "direct, beside nftables rules + notrack",
            Kind::Nftables => "nftables",
            Kind::Ebpf => "ebpf",
            Kind::EbpfNotrack => "ebpf + notrack",
        }
    }
}

struct Setup {
    kind: Kind,
    services: usize,
    topology: Topology,
    listeners: Vec<TcpListener>,
    targets: Vec<SocketAddr>,
    cgroup: PathBuf,
    pins: Option<PathBuf>,
    /// One list for each of [`MEASURES`].
    microseconds: [Vec<f64>; 4],
}

pub(crate) fn run(effort: Effort) -> Result<()> {
    let home = bpf::cgroup()?;
    let mut setups = vec![Setup::new(Kind::Direct, 0, &home)?];
    for services in SERVICES {
        for kind in [Kind::Beside, Kind::BesideNotrack, Kind::Nftables, Kind::Ebpf, Kind::EbpfNotrack] {
            setups.push(Setup::new(kind, services, &home)?);
        }
    }
    let rounds = effort.choose(40, 200);
    println!("{} connections of each kind through each of {} setups, in turns", rounds * BATCH, setups.len());
    let mut dice = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..rounds {
        // The order changes, since each leaves its own data in the caches.
        for index in 0..setups.len() {
            let index = (index * 5 + round * 7) % setups.len();
            setups[index].run(&mut dice)?;
        }
    }
    fs::write(home.join("cgroup.procs"), "0")?;
    print(&mut setups);
    for setup in setups {
        if let Some(pins) = &setup.pins {
            cleanup(pins)?;
        }
    }
    Ok(())
}

impl Setup {
    fn new(kind: Kind, services: usize, home: &std::path::Path) -> Result<Setup> {
        let topology = Topology::builder().pods(4).remote_pods(0).build()?;
        let servers = &topology.pods()[1..];
        let mut listeners = Vec::new();
        for pod in servers {
            let _inside = pod.namespace().enter()?;
            let listener = TcpListener::bind(SocketAddr::new(pod.ip().v4.into(), 8080))?;
            listener.set_nonblocking(true)?;
            listeners.push(listener);
        }
        let addresses: Vec<String> = servers.iter().map(|pod| pod.ip().v4.to_string()).collect();
        let to_pods = servers.iter().map(|pod| SocketAddr::new(pod.ip().v4.into(), 8080)).collect();
        let to_services = (0..services).map(|number| SocketAddr::from((cluster_ip(number), 80))).collect();
        let targets = if matches!(kind, Kind::Direct | Kind::Beside | Kind::BesideNotrack) {
            to_pods
        } else {
            to_services
        };
        let name = format!("{kind:?}-{services}");
        let cgroup = home.join(&name);
        fs::create_dir_all(&cgroup)?;
        let mut pins = None;
        if kind != Kind::Direct {
            let cluster = cluster(services, |_| addresses.clone());
            let desired = cluster.desired(Family::V4);
            let _inside = topology.node().namespace().enter()?;
            let failed = |error: portwarden_model::SyncError| anyhow::anyhow!("{error}");
            let untracked_pods = matches!(kind, Kind::BesideNotrack | Kind::EbpfNotrack);
            let own = NftablesOptions { untracked_pods, ..NftablesOptions::default() };
            let mut below = Nftables::new(&[Family::V4], own)?;
            below.sync(desired, &Changes::everything(), Instant::now()).map_err(failed)?;
            if matches!(kind, Kind::Ebpf | Kind::EbpfNotrack) {
                let directory = bpf::pin_directory(&name)?;
                let options = Options {
                    cgroup: Some(cgroup.clone()),
                    pin_directory: directory.clone(),
                    ..Options::new(&[Family::V4])
                };
                // What is pinned stays when this is dropped.
                let mut above = Ebpf::new(options, Default::default())?;
                above.sync(desired, &Changes::everything(), Instant::now()).map_err(failed)?;
                pins = Some(directory);
            }
        }
        println!("connect: {} with {services} Services is ready", kind.name());
        let microseconds = Default::default();
        Ok(Setup { kind, services, topology, listeners, targets, cgroup, pins, microseconds })
    }

    fn run(&mut self, dice: &mut u64) -> Result<()> {
        fs::write(self.cgroup.join("cgroup.procs"), "0").context("cannot move into the cgroup")?;
        let _inside = self.topology.pod(0).namespace().enter()?;
        let mut random = |below: usize| {
            *dice ^= *dice << 13;
            *dice ^= *dice >> 7;
            *dice ^= *dice << 17;
            usize::try_from(*dice >> 32).unwrap_or(0) % below
        };
        let targets = &self.targets;
        let in_use: Vec<_> = (0..IN_USE).map(|_| targets[random(targets.len())].into()).collect();
        let mut target = || SockaddrStorage::from(targets[random(targets.len())]);
        let [connects, repeated, short, requests] = &mut self.microseconds;
        for _ in 0..WARM_UP {
            connect_once(&target())?;
        }
        for _ in 0..BATCH {
            let (_, took) = connect_once(&target())?;
            connects.push(took);
        }
        drain(&self.listeners);
        for to in &in_use {
            connect_once(to)?;
        }
        for _ in 0..BATCH / IN_USE {
            // All of them may go to the same pod.
            drain(&self.listeners);
            for to in &in_use {
                let (_, took) = connect_once(to)?;
                repeated.push(took);
            }
        }
        drain(&self.listeners);
        for _ in 0..SHORT_BATCH {
            let to = target();
            let started = Instant::now();
            let (client, _) = connect_once(&to)?;
            exchange(&mut TcpStream::from(client), &mut accept(&self.listeners)?)?;
            short.push(started.elapsed().as_secs_f64() * 1e6);
        }
        let mut client = TcpStream::from(connect_once(&target())?.0);
        let mut server = accept(&self.listeners)?;
        for _ in 0..REQUEST_BATCH {
            let started = Instant::now();
            exchange(&mut client, &mut server)?;
            requests.push(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(())
    }
}

/// Connects a socket that is reset when it is closed, and says how long the connection took, in microseconds.
fn connect_once(to: &SockaddrStorage) -> Result<(OwnedFd, f64)> {
    let descriptor = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let reset = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&descriptor, sockopt::Linger, &reset)?;
    let started = Instant::now();
    connect(descriptor.as_raw_fd(), to).with_context(|| format!("connecting to {to:?}"))?;
    Ok((descriptor, started.elapsed().as_secs_f64() * 1e6))
}

/// Closes the other ends of all connections so far.
fn drain(listeners: &[TcpListener]) {
    for listener in listeners {
        while listener.accept().is_ok() {}
    }
}

/// The other end of a connection that was just made.
fn accept(listeners: &[TcpListener]) -> Result<TcpStream> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if let Some((server, _)) = listeners.iter().find_map(|listener| listener.accept().ok()) {
            server.set_nonblocking(false)?;
            server.set_nodelay(true)?;
            return Ok(server);
        }
    }
    bail!("no connection arrives")
}

/// A request of 64 bytes, and a response of as many.
fn exchange(client: &mut TcpStream, server: &mut TcpStream) -> Result<()> {
    let mut message = [7; 64];
    client.write_all(&message)?;
    server.read_exact(&mut message)?;
    server.write_all(&message)?;
    client.read_exact(&mut message)?;
    Ok(())
}

/// What the table says about one measure of a setup.
#[derive(Debug, Clone, Copy)]
struct Figures {
    median: f64,
    p99: f64,
    per_second: f64,
}

impl Figures {
    fn of(microseconds: &mut [f64]) -> Figures {
        let mean = microseconds.iter().sum::<f64>() / microseconds.len() as f64;
        let [median, p99] = [50, 99].map(|percent| percentile(microseconds, percent));
        Figures { median, p99, per_second: 1e6 / mean }
    }

    /// Ratios to another setup, if there is one.
    fn ratios(self, other: Option<Figures>) -> [String; 3] {
        let ratio = |own: f64, other: Option<f64>| {
            other.map_or("-".to_owned(), |other| format!("{:.2}", own / other))
        };
        [
            ratio(self.median, other.map(|other| other.median)),
            ratio(self.p99, other.map(|other| other.p99)),
            ratio(self.per_second, other.map(|other| other.per_second)),
        ]
    }
}

fn print(setups: &mut [Setup]) {
    let rows: Vec<(Kind, usize, [Figures; 4])> = setups
        .iter_mut()
        .map(|setup| {
            let figures = setup.microseconds.each_mut().map(|times| Figures::of(times));
            (setup.kind, setup.services, figures)
        })
        .collect();
    println!(
        "\nfrom a pod to a pod of the same node, IPv4; microseconds, and ratios to a direct connection and to nftables"
    );
    for (measure, name) in MEASURES.into_iter().enumerate() {
        println!(
            "\n| Services | {name} | p50 us | : direct | : nftables | p99 us | : direct | : nftables | per second | : direct | : nftables |"
        );
        println!("|{}", "---|".repeat(11));
        let of = |wanted: Kind, services: usize| {
            let found = rows.iter().find(|(kind, count, _)| (*kind, *count) == (wanted, services));
            found.map(|(_, _, figures)| figures[measure])
        };
        for (kind, services, figures) in &rows {
            let own = figures[measure];
            let direct = own.ratios(of(Kind::Direct, 0));
            let nftables = own.ratios(of(Kind::Nftables, *services));
            println!(
                "| {services} | {} | {:.1} | {} | {} | {:.1} | {} | {} | {:.0} | {} | {} |",
                kind.name(),
                own.median,
                direct[0],
                nftables[0],
                own.p99,
                direct[1],
                nftables[1],
                own.per_second,
                direct[2],
                nftables[2]
            );
        }
    }
}
