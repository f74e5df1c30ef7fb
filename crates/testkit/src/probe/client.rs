//! Single probes, and the way to connections and load.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::connection::Connection;
use super::dialogue::Dialogue;
use super::load::{Ended, Load, Tally};
use super::outcome::Outcome;
use super::socket::Source;
use super::{Transport, load};
use crate::netns::Namespace;

/// Long enough for an answer on a busy machine; TCP has sent its SYN three times by then.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(4);

/// Long enough to conclude that a packet was dropped; TCP has sent its SYN once by then.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

/// A client in a namespace.
#[derive(Clone, Debug)]
pub struct Probe {
    namespace: Namespace,
    source: Source,
    timeout: Duration,
}

impl Probe {
    /// A client that speaks from whatever address the kernel chooses.
    pub fn new(namespace: Namespace) -> Probe {
        Probe { namespace, source: Source::default(), timeout: DEFAULT_TIMEOUT }
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

    /// Sets how long to wait for an answer; the default is 4 s.
    pub fn timeout(mut self, timeout: Duration) -> Probe {
        self.timeout = timeout;
        self
    }

    /// Waits for 300 ms only: for probes that are expected to be dropped, or that are repeated.
    pub fn short_timeout(self) -> Probe {
        self.timeout(SHORT_TIMEOUT)
    }

    /// Connects and sends one question.
    pub fn tcp(&self, target: SocketAddr) -> Result<Outcome> {
        self.send(Transport::Tcp, target)
    }

    /// Sends one datagram.
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
        Ok((Connection::new(dialogue, self.timeout), outcome))
    }

    /// `count` probes as fast as they go, and how they ended.
    pub fn volley(&self, transport: Transport, target: SocketAddr, count: u32) -> Result<Tally> {
        load::volley(self, transport, target, count)
    }

    /// Probes at a steady rate in the background, whether or not earlier ones are answered.
    pub fn load(&self, transport: Transport, target: SocketAddr, per_second: u32) -> Result<Load> {
        ensure!(per_second > 0, "a load needs at least one probe per second");
        self.load_observed(transport, target, Duration::from_secs(1) / per_second, |_| ())
    }

    /// The same, with one probe per `interval`, and calls `listener` with each outcome, on the thread of the load.
    pub fn load_observed(
        &self,
        transport: Transport,
        target: SocketAddr,
        interval: Duration,
        listener: impl FnMut(&Ended) + Send + 'static,
    ) -> Result<Load> {
        Load::start(self.clone(), transport, target, interval, Box::new(listener))
    }

    pub(super) fn start(&self, transport: Transport, target: SocketAddr) -> Result<Dialogue> {
        Dialogue::start(&self.namespace, transport, self.source, target, Instant::now() + self.timeout)
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}
