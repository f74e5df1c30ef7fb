//! What the kernel should do, for one IP family, in words that fit every dataplane.
//!
//! All policy is settled here: a dataplane reads which frontends there are, which pool answers each kind of traffic, and what
//! happens when there is none. It never asks why.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use ipnet::IpNet;

use crate::ip::Family;
use crate::name::{Name, NamespacedName, PortName, Protocol};
use crate::pool::{Backend, Pool};

/// The desired state of one family.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// The family of everything in here.
    pub family: Family,
    /// What holds for the node as a whole.
    pub node: NodeView,
    services: HashMap<NamespacedName, Arc<ProxiedService>>,
    totals: Totals,
}

/// Sums over all services, kept up to date with every change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Endpoints of all service ports, in whatever state.
    pub endpoints: usize,
    /// Service ports whose internal policy is Local and which have endpoints, but none here.
    pub no_local_internal: usize,
    /// The same for the external policy.
    pub no_local_external: usize,
}

/// What holds for the node as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// The Node's name.
    pub name: Name,
    /// The node's address in this family; loopback while unknown.
    pub ip: IpAddr,
    /// How packets from pods are told.
    pub pod_traffic: PodTraffic,
    /// Where node ports answer.
    pub node_ports: NodePortAddresses,
    /// Whether node ports are meant to answer on loopback addresses, too.
    pub loopback_node_ports: LoopbackNodePorts,
    /// The ranges of cluster addresses: one in here that no Service has leads nowhere.
    pub service_cidrs: Box<[IpNet]>,
}

/// How packets from pods are told from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodTraffic {
    /// They cannot be told: no packet counts as a pod's.
    Unknown,
    /// Their source is in this range.
    From(IpNet),
    /// They arrive on this interface.
    Interface(Name),
    /// They arrive on an interface whose name starts like this.
    InterfacePrefix(Name),
}

/// The local addresses on which node ports answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Every local address, loopback ones included where the dataplane can.
    All,
    /// These, sorted; loopback addresses only if the operator named their range.
    Only(Box<[IpAddr]>),
}

/// What the ranges that the operator gave for node ports say about loopback addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopbackNodePorts {
    /// The ranges leave loopback addresses out.
    Excluded,
    /// No range is given, or one of all addresses.
    Included,
    /// One of the ranges is a loopback range by itself.
    Named,
}

/// One Service in this family.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxiedService {
    /// Its ports.
    pub ports: Box<[ProxiedPort]>,
    /// Where load balancers ask whether this node has endpoints, and the answer.
    pub health_check: Option<HealthCheck>,
}

/// A port on which load balancers ask for the number of local endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: NonZeroU16,
    /// Distinct ready endpoints on this node.
    pub local_endpoints: usize,
}

/// One port of a Service, with all its frontends and pools.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxiedPort {
    /// Who it is.
    pub name: PortName,
    /// Where it can be reached: cluster address first, then external addresses, load-balancer addresses, node port.
    pub frontends: Box<[Frontend]>,
    /// Endpoints anywhere in the cluster; empty if no policy needs them.
    pub cluster: Pool,
    /// Endpoints on this node; empty if no policy needs them.
    pub local: Pool,
    /// Every endpoint in whatever state, used or not.
    pub endpoints: Pool,
    /// Seconds that a client stays with its endpoint.
    pub affinity: Option<NonZeroU32>,
    /// Who may use the load-balancer frontends; `None` means everybody.
    pub source_ranges: Option<Box<SourceRanges>>,
    /// Whether there is a usable endpoint anywhere, even if no pool holds it.
    pub has_endpoints: bool,
    /// Internal policy Local, and endpoints only elsewhere.
    pub no_local_internal: bool,
    /// External policy Local, and endpoints only elsewhere.
    pub no_local_external: bool,
}

/// Who may use load-balancer frontends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRanges {
    /// These ranges, as given, of this family; never empty.
    pub ranges: Box<[IpNet]>,
    /// Also the load-balancer addresses themselves: one range holds the node's address, and a process on the node that connects
    /// to a load-balancer address bound there has that address as its source.
    pub frontends_too: bool,
}

/// Through which part of a Service a frontend came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exposure {
    /// The cluster address.
    ClusterIp,
    /// One of `spec.externalIPs`.
    ExternalIp,
    /// An address of the load balancer.
    LoadBalancerIp,
    /// A port on the node's own addresses.
    NodePort,
}

/// One place where a service port can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// Where it came from.
    pub exposure: Exposure,
    /// Its address; `None` for a node port, which answers on [`NodeView::node_ports`].
    pub ip: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// Traffic that starts on this node: host processes, and pods as [`NodeView::pod_traffic`] tells them.
    pub from_node: Verdict,
    /// All other traffic.
    pub from_elsewhere: Verdict,
    /// The traffic policy behind the verdicts.
    pub policy: TrafficPolicy,
    /// Whose source address is replaced by the node's.
    pub masquerade: Masquerade,
    /// Whether traffic is to be led here at all.
    pub admission: Admission,
}

/// The traffic policy of a frontend: internal for a cluster address, external for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrafficPolicy {
    /// Any endpoint of the cluster.
    Cluster,
    /// Only endpoints on this node, for traffic that comes from elsewhere. An external policy does not hold for traffic that starts on this node.
    Local,
}

/// Whether a frontend gets traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It does.
    Active,
    /// Another frontend of higher rank has the same address, port and protocol. Which one that is does not depend on the order of events.
    Shadowed,
    /// The settings do not allow it. Nothing leads there.
    NotAllowed,
}

/// What happens to a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to a random (or, with affinity, the remembered) endpoint of a pool, which is not empty.
    Forward(PoolKind),
    /// It is refused at once: there is no endpoint anywhere.
    Reject,
    /// It is dropped silently, so that load balancers try another node: endpoints are only elsewhere.
    Drop,
}

/// One of a port's pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// [`ProxiedPort::cluster`].
    Cluster,
    /// [`ProxiedPort::local`].
    Local,
}

/// Whose source address is replaced by the node's. A connection from an endpoint to itself is masqueraded in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Masquerade {
    /// Nobody's.
    Never,
    /// Everybody's but pods', as [`NodeView::pod_traffic`] tells them.
    NotFromPods,
    /// That of processes on this host.
    FromHost,
    /// Everybody's.
    Always,
}

impl Desired {
    /// Nothing is proxied yet.
    pub fn new(family: Family, node: NodeView) -> Self {
        Desired { family, node, services: HashMap::new(), totals: Totals::default() }
    }

    /// One Service.
    pub fn service(&self, name: &NamespacedName) -> Option<&Arc<ProxiedService>> {
        self.services.get(name)
    }

    /// All Services, in no particular order.
    pub fn services(&self) -> impl ExactSizeIterator<Item = (&NamespacedName, &Arc<ProxiedService>)> {
        self.services.iter()
    }

    /// All ports of all Services, in no particular order.
    pub fn ports(&self) -> impl Iterator<Item = &ProxiedPort> {
        self.services.values().flat_map(|service| service.ports.iter())
    }

    /// Sums over all Services.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Puts a Service in place of what was there. Returns whether anything differs.
    pub fn set_service(&mut self, name: &NamespacedName, service: Option<ProxiedService>) -> bool {
        if self.services.get(name).map(AsRef::as_ref) == service.as_ref() {
            return false;
        }
        let old = match service {
            Some(service) => {
                self.totals.add(&service);
                self.services.insert(name.clone(), Arc::new(service))
            }
            None => self.services.remove(name),
        };
        if let Some(old) = old {
            self.totals.subtract(&old);
        }
        true
    }
}

impl Totals {
    fn add(&mut self, service: &ProxiedService) {
        for port in &service.ports {
            self.endpoints += port.endpoints.len();
            self.no_local_internal += usize::from(port.no_local_internal);
            self.no_local_external += usize::from(port.no_local_external);
        }
    }

    fn subtract(&mut self, service: &ProxiedService) {
        for port in &service.ports {
            self.endpoints -= port.endpoints.len();
            self.no_local_internal -= usize::from(port.no_local_internal);
            self.no_local_external -= usize::from(port.no_local_external);
        }
    }
}

impl ProxiedPort {
    /// Its protocol.
    pub fn protocol(&self) -> Protocol {
        self.name.protocol
    }

    /// The frontends that get traffic.
    pub fn active_frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.frontends.iter().filter(|frontend| frontend.is_active())
    }

    /// One of its pools.
    pub fn pool(&self, kind: PoolKind) -> &Pool {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }

    /// All endpoints of both pools, each once, in the order of pools.
    pub fn reachable(&self) -> Vec<Backend> {
        if self.local.is_empty() || self.local.shares_with(&self.cluster) {
            return self.cluster.iter().collect();
        }
        let mut all: Vec<Backend> = self.cluster.iter().chain(self.local.iter()).collect();
        crate::endpoints::sort_by_text(&mut all);
        all.dedup();
        all
    }
}

impl Frontend {
    /// Whether traffic is led here.
    pub fn is_active(&self) -> bool {
        self.admission == Admission::Active
    }

    /// Whether the settings allow it, even if another frontend gets its traffic.
    pub fn is_allowed(&self) -> bool {
        self.admission != Admission::NotAllowed
    }
}

impl NodePortAddresses {
    /// Whether node ports answer on this local address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match self {
            NodePortAddresses::All => true,
            NodePortAddresses::Only(ips) => ips.contains(&ip),
        }
    }
}
