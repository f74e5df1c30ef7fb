//! How long a TCP connection takes to establish: direct, through our table, through kube-proxy's layout.
//!
//! A pod connects to pods of the same node, over veth, through the node's rules. All tables stand side by side, each in a node of its
//! own, and take turns: whatever else the machine does meets all alike. One thread does everything, the servers only listen, so that the
//! handshake runs from end to end within the call and no scheduler has a say in it. Each connection goes to a random service.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::linger;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use portwarden_model::Family;
use portwarden_netlink::nftables::{self, Client, Elements, TableId, Transaction};
use portwarden_testkit::{Host, Topology};

use crate::Effort;
use crate::kube_proxy::KubeProxy;
use crate::measure::{Dice, Times};
use crate::report::{Figure, Report, Side};
use crate::updates::{self, LoadedNode};
use crate::workload::{ENDPOINT_PORT, SERVICE_PORT, Shape, Workload};

const SECTION: &str = "connecting from a pod to a service on the same node, IPv4";
const COMMENTS: &str = "layout: comments on the elements of frontends";
const NOISE: &str = "what a ratio means here: kube-proxy's layout twice, one as if it were ours";

/// How many services there are; each has [`ENDPOINTS`].
const SERVICES: [usize; 3] = [1, 5_000, 30_000];
const ENDPOINTS: usize = 4;

/// Connections in a row before the next table has its turn; below what a listening socket queues.
const BATCH: usize = 200;
/// Connections of which the slowest hundredth is looked at: in a batch that would be two, and the timer alone hits one or two of them.
const SAMPLE: usize = 10 * BATCH;
/// As many connections go first, to warm the caches that the other measurements used.
const WARM_UP: usize = 20;

pub(crate) fn run(effort: Effort, report: &mut Report) -> Result<()> {
    let mut setups = vec![Setup::direct()?];
    for services in SERVICES {
        let shape = Shape::new(services, ENDPOINTS);
        report.begin(&format!("connections: loading {services} services"));
        setups.push(Setup::ours(shape)?);
        if services <= effort.choose(5_000, usize::MAX) {
            setups.push(Setup::kube_proxy(shape, effort, report)?);
        }
    }
    let [smallest, .., largest] = SERVICES;
    let again = Setup::kube_proxy(Shape::new(smallest, ENDPOINTS), effort, report)?;
    setups.push(Setup { kind: Kind::KubeProxyAgain, ..again });
    setups.push(Setup::without_comments(Shape::new(largest, ENDPOINTS))?);
    setups.push(Setup::beside_services(Shape::new(largest, ENDPOINTS))?);
    let rounds = effort.choose(100, 600);
    report.begin(&format!(
        "connections: {} through each of {} tables, in turns",
        rounds * BATCH,
        setups.len()
    ));
    let mut dice = Dice::new();
    let mut order: Vec<usize> = (0..setups.len()).collect();
    for _ in 0..rounds {
        // The order changes, since each measurement leaves its own data in the caches.
        dice.shuffle(&mut order);
        for &index in &order {
            setups[index].run(&mut dice)?;
        }
    }
    record(&setups, report);
    Ok(())
}

fn record(setups: &[Setup], report: &mut Report) {
    for services in SERVICES {
        let subject = format!("{services} services x {ENDPOINTS}");
        for setup in setups.iter().filter(|setup| setup.services.is_none_or(|count| count == services)) {
            let side = match setup.kind {
                Kind::Direct => Side::Direct,
                Kind::Ours => Side::Ours,
                Kind::KubeProxy => Side::Baseline,
                Kind::KubeProxyAgain | Kind::WithoutComments | Kind::BesideServices => continue,
            };
            setup.record(SECTION, &subject, side, report);
        }
    }
    let [smallest, .., largest] = SERVICES;
    let same = format!("{smallest} services x {ENDPOINTS}");
    let subject = format!("{largest} services x {ENDPOINTS}");
    let beside = format!("no service, beside {largest}");
    for setup in setups {
        match setup.kind {
            Kind::KubeProxyAgain => setup.record(NOISE, &same, Side::Ours, report),
            Kind::KubeProxy if setup.services == Some(smallest) => {
                setup.record(NOISE, &same, Side::Baseline, report);
            }
            Kind::Direct => setup.record(SECTION, &beside, Side::Direct, report),
            Kind::BesideServices => setup.record(SECTION, &beside, Side::Ours, report),
            _ if setup.services != Some(largest) => {}
            Kind::Ours => setup.record(COMMENTS, &subject, Side::Ours, report),
            Kind::WithoutComments => setup.record(COMMENTS, &subject, Side::Baseline, report),
            Kind::KubeProxy => {}
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Direct,
    Ours,
    KubeProxy,
    /// The same once more.
    KubeProxyAgain,
    WithoutComments,
    /// Direct, through a node that has our table.
    BesideServices,
}

/// A node with pods and one table.
#[derive(Debug)]
struct Setup {
    kind: Kind,
    services: Option<usize>,
    topology: Topology,
    listeners: Vec<TcpListener>,
    targets: Vec<SocketAddr>,
    connects: Times,
    /// The latest connections, until there are enough of them for a percentile that hardly anything exceeds.
    latest: Times,
    /// The 99th percentile of each [`SAMPLE`]. A disturbance of the machine slows one in a hundred connections of some, not of all.
    slow: Times,
    /// How long each batch took, from opening its first socket to having closed its last.
    busy: Times,
}

impl Setup {
    fn direct() -> Result<Setup> {
        let (topology, _) = build()?;
        let targets = topology.pods()[1..].iter().map(direct_target).collect();
        Setup::new(Kind::Direct, None, topology, targets)
    }

    fn ours(shape: Shape) -> Result<Setup> {
        Setup::with_services(Kind::Ours, shape, |topology, workload| {
            LoadedNode::load_into(topology.node().namespace(), workload).map(drop)
        })
    }

    /// The largest one is also where the baseline of updates is measured: loading it twice would take minutes.
    fn kube_proxy(shape: Shape, effort: Effort, report: &mut Report) -> Result<Setup> {
        Setup::with_services(Kind::KubeProxy, shape, |topology, workload| {
            let kube_proxy = KubeProxy::new(topology.node().namespace(), workload);
            if crate::SHAPES.contains(&shape) {
                updates::baseline(effort, &kube_proxy, workload, report)
            } else {
                kube_proxy.load(usize::MAX).map(drop)
            }
        })
    }

    fn without_comments(shape: Shape) -> Result<Setup> {
        Setup::with_services(Kind::WithoutComments, shape, |topology, workload| {
            LoadedNode::load_into(topology.node().namespace(), workload)?;
            let _inside = topology.node().namespace().enter()?;
            remove_comments()
        })
    }

    fn beside_services(shape: Shape) -> Result<Setup> {
        let mut setup = Setup { kind: Kind::BesideServices, ..Setup::ours(shape)? };
        setup.targets = setup.topology.pods()[1..].iter().map(direct_target).collect();
        Ok(setup)
    }

    fn with_services(
        kind: Kind,
        shape: Shape,
        load: impl FnOnce(&Topology, &Workload) -> Result<()>,
    ) -> Result<Setup> {
        let (topology, pods) = build()?;
        let workload = Workload { shape, family: Family::V4, pods };
        load(&topology, &workload)?;
        let targets = (0..shape.services).map(|n| SocketAddr::new(workload.address(n), SERVICE_PORT));
        Setup::new(kind, Some(shape.services), topology, targets.collect())
    }

    fn new(
        kind: Kind,
        services: Option<usize>,
        topology: Topology,
        targets: Vec<SocketAddr>,
    ) -> Result<Setup> {
        {
            // Otherwise the closed connections of all rounds would stay in the table for ten seconds.
            let _inside = topology.node().namespace().enter()?;
            std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", "1")
                .context("cannot set a timeout of the connection tracking")?;
        }
        let listen = |pod: &Host| -> Result<TcpListener> {
            let _inside = pod.namespace().enter()?;
            let listener = TcpListener::bind((pod.ip().v4, ENDPOINT_PORT))?;
            // The usual queue is shorter than a batch.
            nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(4096)?)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listeners = topology.pods()[1..].iter().map(listen).collect::<Result<_>>()?;
        let [connects, latest, slow, busy] = std::array::from_fn(|_| Times::default());
        Ok(Setup { kind, services, topology, listeners, targets, connects, latest, slow, busy })
    }

    /// One batch of connections.
    fn run(&mut self, dice: &mut Dice) -> Result<()> {
        let inside = self.topology.pod(0).namespace().enter()?;
        let mut busy = Duration::ZERO;
        for number in 0..WARM_UP + BATCH {
            let target = self.targets[dice.roll(self.targets.len())];
            let start = Instant::now();
            let time = time_connect(target).with_context(|| {
                format!("{:?}, {:?} services: connecting to {target}", self.kind, self.services)
            })?;
            if number >= WARM_UP {
                self.connects.push(time);
                self.latest.push(time);
                busy += start.elapsed();
            }
        }
        if self.latest.len() >= SAMPLE {
            self.slow.push(std::mem::take(&mut self.latest).percentile(99));
        }
        self.busy.push(busy);
        drop(inside);
        // The handshakes are over; only the queues have to be emptied.
        for listener in &self.listeners {
            while listener.accept().is_ok() {}
        }
        Ok(())
    }

    fn record(&self, section: &'static str, subject: &str, side: Side, report: &mut Report) {
        report.record(section, subject, "p50", side, Figure::microseconds(self.connects.median()));
        report.record(section, subject, "p99", side, Figure::microseconds(self.slow.median()));
        let rate = BATCH as f64 / self.busy.median().as_secs_f64();
        report.record(section, subject, "connections", side, Figure::per_second(rate));
    }
}

/// A node with one pod that connects and [`ENDPOINTS`] that answer.
fn build() -> Result<(Topology, Vec<IpAddr>)> {
    let pods = u8::try_from(ENDPOINTS + 1)?;
    let topology = Topology::builder().pods(pods).remote_pods(0).build()?;
    let servers = topology.pods()[1..].iter().map(|pod| pod.ip().v4.into()).collect();
    Ok((topology, servers))
}

fn direct_target(pod: &Host) -> SocketAddr {
    SocketAddr::new(pod.ip().v4.into(), ENDPOINT_PORT)
}

/// Opens a socket, connects, and closes it without a farewell, so that nothing of it stays in the way of the next.
fn time_connect(target: SocketAddr) -> Result<Duration> {
    let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&client, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    setsockopt(&client, sockopt::SendTimeout, &TimeVal::seconds(5))?;
    let target = SockaddrStorage::from(target);
    let start = Instant::now();
    connect(client.as_raw_fd(), &target)?;
    Ok(start.elapsed())
}

/// Puts the elements of our map of frontends back as they were, without their comments.
fn remove_comments() -> Result<()> {
    const FRONTENDS: &str = "frontends";
    let mut client = Client::open()?;
    let table = TableId::new(nftables::Family::Ip, "kube-proxy");
    let set = client.sets(&table)?.into_iter().find(|set| *set.object.name == *FRONTENDS);
    let set = Arc::new(set.context("our table has a map of frontends")?.object);
    let mut elements = Elements::new();
    for mut element in client.elements(&table, FRONTENDS)? {
        element.comment = None;
        elements.push(&element.parts());
    }
    let mut transaction = Transaction::new();
    transaction.flush(&set);
    transaction.add_elements(&set, elements);
    Ok(client.commit(&transaction)?)
}
