//! Single probes, and the way to connections and load.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::connection::Connection;
use super::dialogue::Dialogue;
use super::load::{Ended, Load, Tally};
use super::outcome::Outcome;
use super::socket::Source;
use super::{Transport, load};
use crate::netns::Namespace;

/// Long enough for an answer on a busy machine; TCP has sent its SYN three times by then.
const PATIENT: Duration = Duration::from_secs(4);

/// Long enough to believe that a packet was dropped; TCP has sent its SYN once by then.
const IMPATIENT: Duration = Duration::from_millis(300);

/// A client in a namespace.
#[derive(Clone, Debug)]
pub struct Probe {
    namespace: Namespace,
    source: Source,
    patience: Duration,
}

impl Probe {
    /// A client that speaks from whatever address the kernel chooses.
    pub fn new(namespace: Namespace) -> Probe {
        Probe { namespace, source: Source::default(), patience: PATIENT }
    }

    /// Speaks from `ip`, which must be an address of the host.
    pub fn from(mut self, ip: impl Into<IpAddr>) -> Probe {
        self.source.ip = Some(ip.into());
        self
    }

    /// Speaks from `port`.
    pub fn from_port(mut self, port: u16) -> Probe {
        self.source.port = Some(port);
        self
    }

    /// Waits so long for an answer; 4 s unless told.
    pub fn patience(mut self, patience: Duration) -> Probe {
        self.patience = patience;
        self
    }

    /// Gives up after 300 ms: for probes that are expected to be dropped, so that waiting for nothing is short.
    pub fn impatient(self) -> Probe {
        self.patience(IMPATIENT)
    }

    /// Connects, asks once, and tells what became of it.
    pub fn tcp(&self, target: SocketAddr) -> Result<Outcome> {
        self.send(Transport::Tcp, target)
    }

    /// Sends one datagram and tells what became of it.
    pub fn udp(&self, target: SocketAddr) -> Result<Outcome> {
        self.send(Transport::Udp, target)
    }

    /// One probe of the given transport.
    pub fn send(&self, transport: Transport, target: SocketAddr) -> Result<Outcome> {
        self.start(transport, target)?.finish()
    }

    /// A socket that stays open after its first question; the outcome of that question comes with it.
    pub fn open(&self, transport: Transport, target: SocketAddr) -> Result<(Connection, Outcome)> {
        let mut dialogue = self.start(transport, target)?;
        let outcome = dialogue.finish()?;
        Ok((Connection::new(dialogue, self.patience), outcome))
    }

    /// `count` probes as fast as they go, and how they ended.
    pub fn volley(&self, transport: Transport, target: SocketAddr, count: u32) -> Result<Tally> {
        load::volley(self, transport, target, count)
    }

    /// Probes at a steady rate in the background, whether or not earlier ones are answered.
    pub fn load(&self, transport: Transport, target: SocketAddr, per_second: u32) -> Result<Load> {
        self.load_telling(transport, target, per_second, |_| ())
    }

    /// The same; what became of each probe is told on the load's own thread.
    pub fn load_telling(
        &self,
        transport: Transport,
        target: SocketAddr,
        per_second: u32,
        listener: impl FnMut(&Ended) + Send + 'static,
    ) -> Result<Load> {
        Load::start(self.clone(), transport, target, per_second, Box::new(listener))
    }

    pub(super) fn start(&self, transport: Transport, target: SocketAddr) -> Result<Dialogue> {
        Dialogue::start(&self.namespace, transport, self.source, target, Instant::now() + self.patience)
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}
