//! The desired state of the kernel for one IP family, in terms that fit every dataplane.
//!
//! Every policy decision is made before: a dataplane reads which frontends exist, which pool serves each kind of traffic, and what
//! happens when the pool is empty.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ipnet::IpNet;

use crate::health_check::HealthCheck;
use crate::ip::Family;
use crate::name::{Name, NamespacedName, PortName, Protocol};
use crate::node_port_addresses::{LoopbackNodePorts, NodePortAddresses};
use crate::pool::{Backend, Pool};
use crate::source_ranges::SourceRanges;

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

/// Sums over all Services, updated with every change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Endpoints of all service ports, in any state.
    pub endpoints: usize,
    /// Service ports whose internal policy is Local and which have endpoints, but none here.
    pub no_local_internal: usize,
    /// Service ports whose external policy is Local and which have endpoints, but none here.
    pub no_local_external: usize,
}

/// What holds for the node as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// The Node's name, from the configuration.
    pub name: Name,
    /// The node's address in this family; a loopback address while unknown.
    pub ip: IpAddr,
    /// How pod traffic is identified.
    pub pod_traffic: PodTraffic,
    /// The range that holds the addresses of all pods in the cluster, if it is configured.
    pub pod_range: Option<IpNet>,
    /// The addresses of this host inside that range, such as the one of the pods' bridge, sorted. `None` while the host's addresses are unknown.
    pub own_in_pod_range: Option<Box<[IpAddr]>>,
    /// The addresses on which node ports answer.
    pub node_ports: NodePortAddresses,
    /// Whether node ports should also answer on loopback addresses.
    pub loopback_node_ports: LoopbackNodePorts,
    /// The ranges of cluster addresses. Traffic to an address in them that no Service has is not forwarded.
    pub service_cidrs: Box<[IpNet]>,
}

/// How packets from pods are identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodTraffic {
    /// Not at all: no packet counts as a pod's.
    Unknown,
    /// By a source address in this range.
    From(IpNet),
    /// By arrival on this interface.
    Interface(Name),
    /// By arrival on an interface whose name has this prefix.
    InterfacePrefix(Name),
}

/// One Service in this family.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxiedService {
    /// In the order of the Service's `spec.ports`.
    pub ports: Box<[ProxiedPort]>,
    /// The port for load balancers' health checks, with the number to answer.
    pub health_check: Option<HealthCheck>,
}

/// One port of a Service, with all its frontends and pools.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxiedPort {
    /// Service, port name and protocol.
    pub name: PortName,
    /// The cluster address first, then external addresses, load-balancer addresses, node port.
    pub frontends: Box<[Frontend]>,
    /// Endpoints anywhere in the cluster; empty if no policy needs them.
    pub cluster: Pool,
    /// Endpoints on this node; empty if no policy needs them.
    pub local: Pool,
    /// Every endpoint in any state, used or not.
    pub endpoints: Pool,
    /// Session affinity: for how many seconds after its last connection a client keeps its endpoint.
    pub affinity: Option<NonZeroU32>,
    /// The clients that may use the load-balancer frontends; `None` means all.
    pub source_ranges: Option<Box<SourceRanges>>,
    /// Whether the cluster has a usable endpoint, even if no pool holds it.
    pub has_endpoints: bool,
    /// The internal policy is Local, and all endpoints are on other nodes.
    pub no_local_internal: bool,
    /// The external policy is Local, and all endpoints are on other nodes.
    pub no_local_external: bool,
}

/// Which part of a Service defines a frontend. The order is that of precedence when two frontends have the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exposure {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancerIp,
    /// `spec.ports[].nodePort`, on the node's own addresses.
    NodePort,
}

/// One address and port at which a service port can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// Which part of the Service defines it.
    pub exposure: Exposure,
    /// `None` for a node port, which answers on [`NodeView::node_ports`].
    pub ip: Option<IpAddr>,
    /// The Service's port, or the node port.
    pub port: u16,
    /// What happens to traffic that starts on this node: from host processes, and from pods as [`NodeView::pod_traffic`] identifies them.
    pub from_node: Verdict,
    /// What happens to all other traffic.
    pub from_elsewhere: Verdict,
    /// The traffic policy behind the verdicts.
    pub policy: TrafficPolicy,
    /// Which traffic is masqueraded.
    pub masquerade: Masquerade,
    /// Whether the frontend is served at all.
    pub admission: Admission,
}

/// The traffic policy of a frontend: internal for a cluster address, external for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrafficPolicy {
    /// Any endpoint of the cluster.
    Cluster,
    /// Only endpoints on this node. An external policy does not apply to traffic that starts on this node.
    Local,
}

/// Whether a frontend is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// Dataplanes serve it.
    Active,
    /// Another frontend with the same address, port and protocol takes precedence, independent of the order of events.
    Shadowed,
    /// The settings forbid it.
    NotAllowed,
}

/// What happens to a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Forwarded to a random endpoint of a pool (with affinity, to the client's last one). The pool is not empty.
    Forward(PoolKind),
    /// Refused at once: the cluster has no usable endpoint.
    Reject,
    /// Dropped, so that load balancers try another node: all endpoints are on other nodes.
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

/// Which traffic is masqueraded: its source address is replaced by the node's. A connection from an endpoint to itself is always masqueraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Masquerade {
    /// None.
    Never,
    /// Everything except traffic from pods, as [`NodeView::pod_traffic`] identifies it.
    NotFromPods,
    /// Traffic from processes on this host.
    FromHost,
    /// All traffic.
    Always,
}

impl Desired {
    /// A state without Services.
    pub fn new(family: Family, node: NodeView) -> Self {
        Desired { family, node, services: HashMap::new(), totals: Totals::default() }
    }

    /// Looks up a Service.
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

    /// Sums over all Services, at no cost.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Sets or (`None`) removes a Service. Returns whether the state differs.
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
    /// The transport protocol, part of the port's name.
    pub fn protocol(&self) -> Protocol {
        self.name.protocol
    }

    /// The frontends that dataplanes serve.
    pub fn active_frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.frontends.iter().filter(|frontend| frontend.is_active())
    }

    /// The pool that a verdict names.
    pub fn pool(&self, kind: PoolKind) -> &Pool {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }

    /// The endpoints of both pools, each once, sorted like a pool.
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
    /// Whether dataplanes serve it.
    pub fn is_active(&self) -> bool {
        self.admission == Admission::Active
    }

    /// Whether the settings allow it, even if another frontend takes precedence.
    pub fn is_allowed(&self) -> bool {
        self.admission != Admission::NotAllowed
    }
}
