//! A small cluster in network namespaces, IPv4 and IPv6.
//!
//! ```text
//!  pod-0   pod-1 ...                         remote-pod-0 ...
//!    | eth0   |                                 | eth0
//!    | veth0  | veth1  (or ports of cni0)       | veth0
//!  +----------------------+                  +---------+
//!  | node-a: under test   |                  | node-b  |
//!  +----------------------+                  +---------+
//!              | eth0                           | eth0
//!          ====+===== br0, the uplink ==========+====
//!                         |
//!                     outside: clients, and the router of the uplink
//! ```
//!
//! Only `node-a` gets a dataplane's rules. `outside` and `node-b` send cluster IPs, external IPs and VIPs to
//! `node-a`; `outside` forwards nothing, so whatever `node-a` lets through untranslated vanishes there. All
//! neighbours are known from the start and ICMP is not rate limited: the first packet is as good as the hundredth.

pub mod addresses;
mod host;
mod wiring;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use addresses::DualIp;
use anyhow::{Result, ensure};

pub use host::Host;

/// How the pods of the node under test are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodNetwork {
    /// One routed device per pod: `veth0`, `veth1`, ... (for local detection by interface prefix `veth`).
    #[default]
    Routed,
    /// All on the bridge `cni0` (for local detection by bridge interface).
    Bridge,
}

/// What to build; one pod on each node by default.
#[derive(Clone, Debug)]
pub struct Builder {
    pods: u8,
    remote_pods: u8,
    pod_network: PodNetwork,
    node_addresses: Vec<DualIp>,
}

/// The cluster. Everything in it ends with it.
#[derive(Debug)]
pub struct Topology {
    node: Host,
    node_b: Host,
    outside: Host,
    pods: Vec<Host>,
    remote_pods: Vec<Host>,
    pod_network: PodNetwork,
}

impl Topology {
    /// Starts a description.
    pub fn builder() -> Builder {
        Builder { pods: 1, remote_pods: 1, pod_network: PodNetwork::Routed, node_addresses: Vec::new() }
    }

    /// The node under test, `node-a`.
    pub fn node(&self) -> &Host {
        &self.node
    }

    /// The second node.
    pub fn node_b(&self) -> &Host {
        &self.node_b
    }

    /// The client outside of the cluster; it has several addresses to speak from.
    pub fn outside(&self) -> &Host {
        &self.outside
    }

    /// The pods on the node under test.
    pub fn pods(&self) -> &[Host] {
        &self.pods
    }

    /// The pods on the second node.
    pub fn remote_pods(&self) -> &[Host] {
        &self.remote_pods
    }

    /// Pod `index` on the node under test; panics if it was not asked for.
    pub fn pod(&self, index: usize) -> &Host {
        &self.pods[index]
    }

    /// Pod `index` on the second node; panics if it was not asked for.
    pub fn remote_pod(&self, index: usize) -> &Host {
        &self.remote_pods[index]
    }

    /// How the pods of the node under test are attached.
    pub fn pod_network(&self) -> PodNetwork {
        self.pod_network
    }

    /// All addresses of the node under test, loopback and the bridge of the pods included, link-local ones not.
    pub fn node_addresses(&self) -> Vec<IpAddr> {
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let bridge = (self.pod_network == PodNetwork::Bridge).then(|| addresses::POD_BRIDGE.both());
        let own = self.node.addresses().iter().flat_map(|ip| ip.both());
        loopback.into_iter().chain(own).chain(bridge.into_iter().flatten()).collect()
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        [&self.node, &self.node_b, &self.outside].into_iter().chain(&self.pods).chain(&self.remote_pods)
    }

    /// The host called `name`.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts().find(|host| host.name() == name)
    }

    /// The host that bears `ip`.
    pub fn owner(&self, ip: IpAddr) -> Option<&Host> {
        self.hosts().find(|host| host.owns(ip))
    }
}

impl Builder {
    /// How many pods run on the node under test.
    pub fn pods(mut self, count: u8) -> Builder {
        self.pods = count;
        self
    }

    /// How many pods run on the second node.
    pub fn remote_pods(mut self, count: u8) -> Builder {
        self.remote_pods = count;
        self
    }

    /// How the pods of the node under test are attached.
    pub fn pod_network(mut self, pod_network: PodNetwork) -> Builder {
        self.pod_network = pod_network;
        self
    }

    /// Another address that the node under test bears.
    pub fn node_address(mut self, ip: DualIp) -> Builder {
        self.node_addresses.push(ip);
        self
    }

    /// Makes the namespaces and joins them.
    pub fn build(self) -> Result<Topology> {
        const MOST: u8 = 200;
        ensure!(self.pods <= MOST && self.remote_pods <= MOST, "a node takes at most {MOST} pods");
        wiring::build(&self)
    }
}
