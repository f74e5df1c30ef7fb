//! How long a TCP connection from a pod to a pod of the same node takes to establish, and how many can be made and closed in a second.
//!
//! All setups stand side by side, each in a node of its own, and take turns. One thread does everything; the servers only listen, so that the
//! handshake runs within the call. Each connection goes to a random Service. Programs are attached to a cgroup for each setup, and this
//! process moves into it for its turn.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
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

/// What leaves connection tracking in the variant `notrack`: packets from pod to pod.
const NOTRACK: &str = "table ip untracked { chain prerouting { type filter hook prerouting priority raw; \
    ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 notrack; }; }";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No rules, no tracking.
    Direct,
    /// To the pod itself, past the rules of mode nftables, which turn tracking on.
    Beside,
    Nftables,
    Ebpf,
    EbpfNotrack,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Direct => "direct, no rules",
            Kind::Beside => "direct, beside nftables rules",
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
    microseconds: Vec<f64>,
    per_second: Vec<f64>,
}

pub(crate) fn run(effort: Effort) -> Result<()> {
    let home = bpf::cgroup()?;
    let mut setups = vec![Setup::new(Kind::Direct, 0, &home)?];
    for services in SERVICES {
        for kind in [Kind::Beside, Kind::Nftables, Kind::Ebpf, Kind::EbpfNotrack] {
            setups.push(Setup::new(kind, services, &home)?);
        }
    }
    let rounds = effort.choose(40, 200);
    println!("connect: {} connections through each of {} setups, in turns", rounds * BATCH, setups.len());
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
        let targets = if matches!(kind, Kind::Direct | Kind::Beside) { to_pods } else { to_services };
        let name = format!("{kind:?}-{services}");
        let cgroup = home.join(&name);
        fs::create_dir_all(&cgroup)?;
        let mut pins = None;
        if kind != Kind::Direct {
            let cluster = cluster(services, |_| addresses.clone());
            let desired = cluster.desired(Family::V4);
            let _inside = topology.node().namespace().enter()?;
            let failed = |error: portwarden_model::SyncError| anyhow::anyhow!("{error}");
            let mut below = Nftables::new(&[Family::V4], NftablesOptions::default())?;
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
        if kind == Kind::EbpfNotrack {
            topology.node().command("nft").arg(NOTRACK).run()?;
        }
        println!("connect: {} with {services} Services is ready", kind.name());
        let (microseconds, per_second) = (Vec::new(), Vec::new());
        Ok(Setup { kind, services, topology, listeners, targets, cgroup, pins, microseconds, per_second })
    }

    fn run(&mut self, dice: &mut u64) -> Result<()> {
        fs::write(self.cgroup.join("cgroup.procs"), "0").context("cannot move into the cgroup")?;
        let _inside = self.topology.pod(0).namespace().enter()?;
        let mut target = || {
            *dice ^= *dice << 13;
            *dice ^= *dice >> 7;
            *dice ^= *dice << 17;
            let index = usize::try_from(*dice >> 32).unwrap_or(0) % self.targets.len();
            SockaddrStorage::from(self.targets[index])
        };
        for _ in 0..WARM_UP {
            connect_once(&target())?;
        }
        let started = Instant::now();
        for _ in 0..BATCH {
            let took = connect_once(&target())?;
            self.microseconds.push(took);
        }
        self.per_second.push(BATCH as f64 / started.elapsed().as_secs_f64());
        for listener in &self.listeners {
            while listener.accept().is_ok() {}
        }
        Ok(())
    }
}

/// Connects, resets, and returns how long the connection took, in microseconds.
fn connect_once(to: &SockaddrStorage) -> Result<f64> {
    let descriptor = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let reset = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&descriptor, sockopt::Linger, &reset)?;
    let started = Instant::now();
    connect(descriptor.as_raw_fd(), to).with_context(|| format!("connecting to {to:?}"))?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

fn print(setups: &mut [Setup]) {
    let figures: Vec<(Kind, usize, [f64; 3])> = setups
        .iter_mut()
        .map(|setup| {
            let times = &mut setup.microseconds;
            let figures =
                [percentile(times, 50), percentile(times, 99), percentile(&mut setup.per_second, 50)];
            (setup.kind, setup.services, figures)
        })
        .collect();
    let find = |kind, services| {
        let found = figures.iter().find(|(k, s, _)| *k == kind && (*s == services || kind == Kind::Direct));
        found.map_or([f64::NAN; 3], |(_, _, figures)| *figures)
    };
    println!(
        "\nconnecting from a pod to a pod of the same node, IPv4; ratios to a direct connection and to nftables"
    );
    println!(
        "| Services | path | connect p50 us | p99 us | connections/s | p50 : direct | p50 : nftables | rate : direct |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (kind, services, [p50, p99, rate]) in &figures {
        let [direct, _, direct_rate] = find(Kind::Direct, 0);
        let [nftables, ..] = find(Kind::Nftables, *services);
        let ratio = if *kind == Kind::Direct { "-".to_owned() } else { format!("{:.2}", p50 / nftables) };
        println!(
            "| {services} | {} | {p50:.1} | {p99:.1} | {rate:.0} | {:.2} | {ratio} | {:.2} |",
            kind.name(),
            p50 / direct,
            rate / direct_rate
        );
    }
}
