//! A namespace with endpoints in it, and a dataplane that follows a small cluster.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portwarden_model::{
    Changes, Cluster, Dataplane, Event, Family, Interner, Kind, PerFamily, Report, Settings, SyncError,
};
use portwarden_testkit::Namespace;
use portwarden_testkit::build::{PortBuilder, endpoint, port, service, slice};
use portwarden_testkit::rig::Object;
use portwarden_userspace::{Counters, Drain, Options, Userspace};

/// Long enough for anything; nothing waits for it when all is well.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// A cluster of one node, whose dataplane runs in the namespace of the test.
pub(crate) struct Node<D> {
    pub(crate) dataplane: D,
    cluster: Cluster,
    names: Interner,
}

impl<D: Dataplane> Node<D> {
    pub(crate) fn new(dataplane: D, settings: Settings, addresses: &[IpAddr]) -> Result<Self> {
        Node::with_objects(dataplane, settings, addresses, [])
    }

    /// A node that knows these objects before its first sync.
    pub(crate) fn with_objects(
        dataplane: D,
        settings: Settings,
        addresses: &[IpAddr],
        objects: impl IntoIterator<Item = Object>,
    ) -> Result<Self> {
        let mut cluster = Cluster::new(settings);
        let mut names = Interner::default();
        cluster.apply(Event::HostAddresses(addresses.into()));
        for object in objects {
            cluster.apply(object.event(&mut names));
        }
        for kind in Kind::ALL {
            cluster.apply(Event::ListDone(kind));
        }
        cluster.resolve();
        let mut node = Node { dataplane, cluster, names };
        node.sync_with(&PerFamily::from_fn(|_| Changes::everything()))?;
        Ok(node)
    }

    /// Takes in objects and syncs.
    pub(crate) fn apply(&mut self, objects: impl IntoIterator<Item = Object>) -> Result<PerFamily<Report>> {
        for object in objects {
            let event = object.event(&mut self.names);
            self.cluster.apply(event);
        }
        let changes = self.cluster.resolve();
        self.sync_with(&changes)
    }

    /// Syncs everything again.
    pub(crate) fn sync_all(&mut self) -> Result<PerFamily<Report>> {
        self.sync_with(&PerFamily::from_fn(|_| Changes::everything()))
    }

    fn sync_with(&mut self, changes: &PerFamily<Changes>) -> Result<PerFamily<Report>> {
        let mut reports = PerFamily::default();
        for (family, changes) in changes.iter().filter(|(_, changes)| !changes.is_empty()) {
            let failed = |error: SyncError| anyhow::anyhow!("{family}: {error}");
            let desired = self.cluster.desired(family);
            reports[family] = self.dataplane.sync(desired, changes, Instant::now()).map_err(failed)?;
        }
        Ok(reports)
    }
}

/// Runs a test in a namespace with these addresses on its loopback device.
pub(crate) fn in_namespace(
    addresses: &[&str],
    test: impl FnOnce(&Namespace) -> Result<()> + Send,
) -> Result<()> {
    let namespace = Namespace::new("userspace")?;
    namespace.command("ip").args(["link", "set", "lo", "up"]).run()?;
    for address in addresses {
        let family = if address.contains(':') { "-6" } else { "-4" };
        namespace.command("ip").args([family, "address", "add", address, "dev", "lo", "nodad"]).run()?;
    }
    namespace.run(|| test(&namespace))
}

/// The address of the node in [`on_node`], and a cluster address that is routed there.
pub(crate) const NODE: &str = "192.0.2.1";
pub(crate) const CLUSTER_IP: &str = "10.96.0.10";

/// Runs a test on a node with one address, endpoints at 10.244.0.10 to .12, and routes for cluster addresses.
pub(crate) fn on_node(test: impl FnOnce(&Namespace) -> Result<()> + Send) -> Result<()> {
    let addresses = ["192.0.2.1/24", "10.244.0.10/32", "10.244.0.11/32", "10.244.0.12/32"];
    in_namespace(&addresses, |namespace| {
        namespace.command("ip").args(["route", "add", "10.96.0.0/16", "dev", "lo", "src", NODE]).run()?;
        test(namespace)
    })
}

/// A Service at [`CLUSTER_IP`], port 80 to 8080, with these endpoints.
pub(crate) fn web(protocol: &'static str, endpoints: &[&str]) -> Vec<Object> {
    service_with("web", CLUSTER_IP, port(80).protocol(protocol), port(8080).protocol(protocol), endpoints)
}

/// A Service with one port.
pub(crate) fn service_with(
    name: &str,
    ip: &str,
    from: PortBuilder,
    to: PortBuilder,
    endpoints: &[&str],
) -> Vec<Object> {
    let pods = endpoints.iter().map(|ip| endpoint(ip).on("here"));
    let slice = pods.fold(slice(name, &format!("{name}-1")).port(to), |slice, pod| slice.endpoint(pod));
    vec![service(name).cluster_ip(ip).port(from).into(), slice.into()]
}

/// A dataplane for [`on_node`], with its counters.
pub(crate) fn start(change: impl FnOnce(&mut Options)) -> Result<(Node<Userspace>, Arc<Counters>)> {
    start_with(change, [])
}

/// The same, with objects that are known before its first sync.
pub(crate) fn start_with(
    change: impl FnOnce(&mut Options),
    objects: impl IntoIterator<Item = Object>,
) -> Result<(Node<Userspace>, Arc<Counters>)> {
    let mut settings = Settings::new("here");
    settings.bind_address = Some(NODE.parse()?);
    let mut options = Options::new(&Family::BOTH);
    change(&mut options);
    let counters = Arc::<Counters>::default();
    let dataplane = Userspace::new(options, Arc::clone(&counters), &Drain::default())?;
    Ok((Node::with_objects(dataplane, settings, &[NODE.parse()?], objects)?, counters))
}

/// One dataplane takes over from another, `rounds` times. Returns the last one.
pub(crate) fn take_over_again_and_again(
    rounds: u32,
    next: impl Fn() -> Result<Node<Userspace>>,
    mut present: Node<Userspace>,
) -> Result<Node<Userspace>> {
    for round in 0..rounds {
        present = if round % 2 == 0 {
            // A process ends after the next one has started.
            next()?
        } else {
            // A reload drops a dataplane before.
            drop(present);
            next()?
        };
    }
    Ok(present)
}

/// The value of a counter, over all labels.
pub(crate) fn counted(counters: &Counters, metric: &str) -> u64 {
    counters.read().iter().filter(|one| one.metric == metric).map(|one| one.value).sum()
}

/// An endpoint that sends its letter, then everything back, then `!` when the client has ended.
pub(crate) fn echo(address: &str, letter: u8) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let local = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            thread::spawn(move || serve_echo(stream, letter));
        }
    });
    Ok(local)
}

fn serve_echo(mut stream: TcpStream, letter: u8) -> std::io::Result<()> {
    stream.write_all(&[letter])?;
    let mut reading = stream.try_clone()?;
    std::io::copy(&mut reading, &mut stream)?;
    stream.write_all(b"!")?;
    stream.shutdown(std::net::Shutdown::Write)
}

pub(crate) fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// The letter of the endpoint that a new connection leads to; nothing if it is closed or reset.
pub(crate) fn letter(stream: &mut TcpStream) -> Option<u8> {
    let mut letter = [0];
    matches!(stream.read(&mut letter), Ok(1)).then_some(letter[0])
}

/// The letter that one new connection gets.
pub(crate) fn ask(to: SocketAddr) -> Option<u8> {
    letter(&mut connect(to).ok()?)
}

/// How often one dataplane takes over from another. A stress test sets more.
pub(crate) fn rounds() -> Result<u32> {
    match std::env::var("PORTWARDEN_ROUNDS") {
        Ok(text) => text.parse().context("PORTWARDEN_ROUNDS is not a number"),
        Err(_) => Ok(12),
    }
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    while !holds()? {
        ensure!(Instant::now() < until, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
