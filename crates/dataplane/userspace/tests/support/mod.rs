//! A namespace with endpoints in it, and a dataplane that follows a small cluster.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portwarden_model::{
    Changes, Cluster, Dataplane, Event, Family, Interner, Kind, PerFamily, Report, Settings, SyncError,
};
use portwarden_testkit::Namespace;
use portwarden_testkit::rig::Object;

/// Long enough for anything; nothing waits for it when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster of one node, whose dataplane runs in the namespace of the test.
pub(crate) struct Node<D> {
    pub(crate) dataplane: D,
    cluster: Cluster,
    names: Interner,
}

impl<D: Dataplane> Node<D> {
    pub(crate) fn new(dataplane: D, settings: Settings, addresses: &[IpAddr]) -> Result<Self> {
        let mut cluster = Cluster::new(settings);
        cluster.apply(Event::HostAddresses(addresses.into()));
        for kind in Kind::ALL {
            cluster.apply(Event::ListDone(kind));
        }
        cluster.resolve();
        let mut node = Node { dataplane, cluster, names: Interner::default() };
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
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
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

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !holds()? {
        ensure!(Instant::now() < until, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The family of an address, for reports.
pub(crate) fn family(address: SocketAddr) -> Family {
    Family::of(address.ip())
}
