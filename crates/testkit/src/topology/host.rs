//! One machine of a topology.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;

use super::addresses::DualIp;
use crate::netns::{Namespace, NamespaceCommand};
use crate::probe::{Behaviour, Outcome, Probe, Servers, Transport};

/// A pod, a node or the outside: a namespace with addresses, servers and probes.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    addresses: Vec<DualIp>,
    servers: Arc<Servers>,
}

impl Host {
    /// A host whose first address is its primary one.
    pub(super) fn new(namespace: Namespace, addresses: Vec<DualIp>, servers: Arc<Servers>) -> Host {
        Host { namespace, addresses, servers }
    }

    /// Its name: `node-a`, `node-b`, `outside`, `pod-0`, `remote-pod-0`, ...
    pub fn name(&self) -> &str {
        self.namespace.name()
    }

    /// The network namespace that the host is made of.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its primary addresses.
    pub fn ip(&self) -> DualIp {
        self.addresses[0]
    }

    /// All its addresses, the primary ones first; without loopback, and without the bridge of the pods.
    pub fn addresses(&self) -> &[DualIp] {
        &self.addresses
    }

    /// Whether it bears `ip`.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.like(ip) == ip)
    }

    /// A program that will run on this host.
    pub fn command(&self, program: &str) -> NamespaceCommand {
        self.namespace.command(program)
    }

    /// A client on this host; its source address and timeout can be changed.
    pub fn probe(&self) -> Probe {
        Probe::new(self.namespace.clone())
    }

    /// One TCP probe with the usual settings.
    pub fn tcp(&self, target: SocketAddr) -> Result<Outcome> {
        self.probe().tcp(target)
    }

    /// One UDP probe with the usual settings.
    pub fn udp(&self, target: SocketAddr) -> Result<Outcome> {
        self.probe().udp(target)
    }

    /// Answers on `port` of the primary addresses.
    pub fn serve(&self, transport: Transport, port: u16) -> Result<()> {
        self.serve_as(transport, port, Behaviour::Answer)
    }

    /// Listens on `port` of the primary addresses and behaves as given.
    pub fn serve_as(&self, transport: Transport, port: u16, behaviour: Behaviour) -> Result<()> {
        for ip in self.ip().both() {
            self.serve_on(transport, SocketAddr::new(ip, port), behaviour)?;
        }
        Ok(())
    }

    /// Listens on one address, which need not be one of its primary ones (loopback, for instance).
    pub fn serve_on(&self, transport: Transport, address: SocketAddr, behaviour: Behaviour) -> Result<()> {
        self.servers.listen(&self.namespace, transport, address, behaviour)
    }

    /// Stops listening on `port`, at all addresses, and closes its connections. Done when this returns.
    pub fn stop_serving(&self, transport: Transport, port: u16) -> Result<()> {
        self.servers.close(self.name(), Some((transport, port)))
    }

    /// Stops all servers of this host. Done when this returns.
    pub fn stop_all(&self) -> Result<()> {
        self.servers.close(self.name(), None)
    }
}
