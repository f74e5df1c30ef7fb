//! The services that everything is measured with: one TCP port each, all alike.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, Result};
use portwarden_model::object::{EndpointSlice, Node, Service, ServiceCidr};
use portwarden_model::{Cluster, DetectLocal, Event, Family, Interner, Kind, NodePortRange, Settings};
use portwarden_testkit::build::{endpoint, port, service, service_cidr, slice};
use portwarden_testkit::rig::Rig;
use portwarden_testkit::topology::addresses::{CLUSTER_CIDR, NODE, SERVICE_CIDR};

/// The port of every service.
pub(crate) const SERVICE_PORT: u16 = 80;
/// The port of every endpoint.
pub(crate) const ENDPOINT_PORT: u16 = 8080;
/// The node we are on.
const HERE: &str = "node-a";
/// Endpoints are spread over so many nodes.
const NODES: usize = 1_000;
/// So many addresses are set aside for the endpoints of one service.
const ADDRESSES: usize = 64;

/// How many services, and how many endpoints each has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) services: usize,
    pub(crate) endpoints: usize,
}

impl Shape {
    pub(crate) const fn new(services: usize, endpoints: usize) -> Self {
        Shape { services, endpoints }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.services, self.endpoints)
    }
}

/// `5000x50` as well as `5000 x 50`.
impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Shape> {
        let (services, endpoints) = text.split_once('x').context("a shape is services x endpoints")?;
        Ok(Shape::new(services.trim().parse()?, endpoints.trim().parse()?))
    }
}

/// Services of one family.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    pub(crate) shape: Shape,
    pub(crate) family: Family,
    /// Real pods on this node that are every service's endpoints; without, each endpoint has an address of its own somewhere.
    pub(crate) pods: Vec<IpAddr>,
}

impl Workload {
    pub(crate) fn new(shape: Shape, family: Family) -> Self {
        Workload { shape, family, pods: Vec::new() }
    }

    /// How figures call it.
    pub(crate) fn subject(&self) -> String {
        format!("{}, {}", self.shape, self.family)
    }

    /// A cluster with everything applied and nothing resolved. Objects come one at a time and nothing is kept of their text, as from a
    /// source.
    pub(crate) fn fill(&self) -> Filled {
        let mut filled = Filled { cluster: Cluster::new(self.settings()), names: Interner::default() };
        let (node, _) = Node::from_manifest(&Rig::node().build());
        filled.cluster.apply(Event::NodeApplied(node));
        filled.cluster.apply(Event::HostAddresses(NODE.both().into()));
        let (cidr, _) = ServiceCidr::from_manifest(&service_cidr("kubernetes", SERVICE_CIDR.both()));
        filled.cluster.apply(Event::ServiceCidrApplied(cidr));
        for number in 0..self.shape.services {
            let event = self.service(number, &mut filled.names);
            filled.cluster.apply(event);
            let event = self.slice(number, 0..self.shape.endpoints, &mut filled.names);
            filled.cluster.apply(event);
        }
        for kind in Kind::ALL {
            filled.cluster.apply(Event::ListDone(kind));
        }
        filled
    }

    fn settings(&self) -> Settings {
        Settings {
            detect_local: DetectLocal::ClusterCidr(CLUSTER_CIDR.both().into()),
            node_port_addresses: vec![NodePortRange::Primary],
            ..Settings::new(HERE)
        }
    }

    fn service(&self, number: usize, names: &mut Interner) -> Event {
        let manifest =
            service(&name(number)).cluster_ip(self.address(number)).port(port(SERVICE_PORT).name("http"));
        let (service, _) = Service::from_manifest(&manifest.build(), names);
        Event::ServiceApplied(service.expect("a Service with an address is proxied"))
    }

    /// The one slice of a service, with these of its endpoints.
    pub(crate) fn slice(&self, number: usize, endpoints: Range<usize>, names: &mut Interner) -> Event {
        let service = name(number);
        let port = port(ENDPOINT_PORT).name("http");
        let empty = slice(&service, &format!("{service}-x7k2p")).family(self.family).port(port);
        let manifest = endpoints.fold(empty, |slice, index| {
            let endpoint = endpoint(self.endpoint(number, index));
            let node =
                if self.pods.is_empty() { &format!("node-{}", (number * 7 + index) % NODES) } else { HERE };
            slice.endpoint(endpoint.on(node))
        });
        let (slice, _) = EndpointSlice::from_manifest(&manifest.build(), names);
        Event::SliceApplied(slice.expect("a slice of a Service is used"))
    }

    /// The cluster address of a service.
    pub(crate) fn address(&self, number: usize) -> IpAddr {
        match self.family {
            Family::V4 => plus_v4(SERVICE_CIDR.v4.addr(), number + 1),
            Family::V6 => plus_v6(SERVICE_CIDR.v6.addr(), number + 1),
        }
    }

    /// One endpoint of a service.
    pub(crate) fn endpoint(&self, number: usize, index: usize) -> IpAddr {
        let own = number * ADDRESSES + index % ADDRESSES;
        match self.family {
            _ if !self.pods.is_empty() => self.pods[(number + index) % self.pods.len()],
            Family::V4 => plus_v4(Ipv4Addr::new(10, 128, 0, 0), own),
            Family::V6 => plus_v6(Ipv6Addr::new(0xfd00, 0x10, 0x128, 0, 0, 0, 0, 0), own),
        }
    }
}

/// A cluster, and what its names are shared through.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) cluster: Cluster,
    pub(crate) names: Interner,
}

/// The name of a service.
pub(crate) fn name(number: usize) -> String {
    format!("service-{number}")
}

fn plus_v4(base: Ipv4Addr, number: usize) -> IpAddr {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Ipv4Addr::from(u32::from(base).saturating_add(number)).into()
}

fn plus_v6(base: Ipv6Addr, number: usize) -> IpAddr {
    let number = u128::try_from(number).unwrap_or(u128::MAX);
    Ipv6Addr::from(u128::from(base).saturating_add(number)).into()
}
