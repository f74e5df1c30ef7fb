//! Builders for manifests in tests: complete objects, changed only where a test needs it.
//!
//! ```
//! use portwarden_model::build::{endpoint, port, service, slice};
//!
//! let web = service("web").cluster_ip("10.96.0.10").port(port(80).name("http").node_port(30080));
//! let pods = slice("web", "web-1").port(port(8080).name("http")).endpoint(endpoint("10.244.0.10").on("node-a"));
//! # let _ = (web.build(), pods.build());
//! ```

use std::fmt::Display;

use crate::event::Event;
use crate::ip::{Family, parse_ip};
use crate::manifest::{
    self, ClientIpConfig, Hint, LABEL_SERVICE_NAME, LABEL_ZONE, LoadBalancerIngress, Metadata,
    SessionAffinityConfig,
};
use crate::name::{Interner, Name, NamespacedName};
use crate::object::{EndpointSlice, Node, Service, ServiceCidr};

/// The namespace of everything that is built here.
pub const NAMESPACE: &str = "demo";

/// A Service `demo/name` without address and ports.
pub fn service(name: &str) -> ServiceBuilder {
    let mut service = manifest::Service { metadata: metadata(name, NAMESPACE), ..Default::default() };
    service.spec.r#type = "ClusterIP".to_owned();
    ServiceBuilder(service)
}

/// A port of a Service or a slice: TCP, without name.
pub fn port(number: u16) -> PortBuilder {
    PortBuilder { name: String::new(), protocol: "TCP", number: number.into(), node_port: 0 }
}

/// An IPv4 slice `demo/name` of the Service `demo/service`, without ports and endpoints.
pub fn slice(service: &str, name: &str) -> SliceBuilder {
    let mut slice = manifest::EndpointSlice { metadata: metadata(name, NAMESPACE), ..Default::default() };
    slice.metadata.labels.insert(LABEL_SERVICE_NAME.to_owned(), service.to_owned());
    slice.address_type = Family::V4.as_str().to_owned();
    SliceBuilder(slice)
}

/// A ready endpoint on no particular node.
pub fn endpoint(ip: impl Display) -> EndpointBuilder {
    EndpointBuilder(manifest::Endpoint { addresses: vec![ip.to_string()], ..Default::default() })
}

/// A Node without addresses.
pub fn node(name: &str) -> NodeBuilder {
    NodeBuilder(manifest::Node { metadata: metadata(name, ""), ..Default::default() })
}

/// A ServiceCIDR with these ranges.
pub fn service_cidr(name: &str, cidrs: impl IntoIterator<Item: Display>) -> manifest::ServiceCidr {
    let mut cidr = manifest::ServiceCidr { metadata: metadata(name, ""), ..Default::default() };
    cidr.spec.cidrs = cidrs.into_iter().map(|net| net.to_string()).collect();
    cidr
}

/// Builds a Service.
#[derive(Debug, Clone)]
pub struct ServiceBuilder(manifest::Service);

impl ServiceBuilder {
    /// Adds a cluster address; the first is the primary one.
    pub fn cluster_ip(mut self, ip: impl Display) -> Self {
        let (spec, ip) = (&mut self.0.spec, ip.to_string());
        if spec.cluster_ip.is_empty() {
            spec.cluster_ip.clone_from(&ip);
        }
        let family = parse_ip(&ip).map_or(Family::V4, Family::of);
        spec.ip_families.push(family.as_str().to_owned());
        spec.cluster_ips.push(ip);
        self
    }

    /// Sets the type: `NodePort`, `LoadBalancer`, ...
    pub fn of_type(mut self, kind: &str) -> Self {
        self.0.spec.r#type = kind.to_owned();
        self
    }

    /// Adds a port.
    pub fn port(mut self, port: PortBuilder) -> Self {
        self.0.spec.ports.push(manifest::ServicePort {
            name: port.name,
            protocol: port.protocol.to_owned(),
            port: port.number,
            node_port: port.node_port,
        });
        self
    }

    /// Adds an external address.
    pub fn external_ip(mut self, ip: impl Display) -> Self {
        self.0.spec.external_ips.push(ip.to_string());
        self
    }

    /// Adds an address of the load balancer without a mode.
    pub fn vip(self, ip: impl Display) -> Self {
        self.ingress(ip, None)
    }

    /// Adds an address of the load balancer with its mode, `VIP` or `Proxy`.
    pub fn ingress(mut self, ip: impl Display, mode: Option<&str>) -> Self {
        let ingress = LoadBalancerIngress { ip: ip.to_string(), ip_mode: mode.map(str::to_owned) };
        self.0.status.load_balancer.ingress.push(ingress);
        self
    }

    /// Adds a range of clients that may use the addresses of the load balancer.
    pub fn source_range(mut self, range: impl Display) -> Self {
        self.0.spec.load_balancer_source_ranges.push(range.to_string());
        self
    }

    /// Sets `externalTrafficPolicy: Local`.
    pub fn external_policy_local(mut self) -> Self {
        self.0.spec.external_traffic_policy = "Local".to_owned();
        self
    }

    /// Sets `internalTrafficPolicy: Local`.
    pub fn internal_policy_local(mut self) -> Self {
        self.0.spec.internal_traffic_policy = Some("Local".to_owned());
        self
    }

    /// Sets session affinity with this timeout in seconds.
    pub fn affinity(mut self, seconds: u16) -> Self {
        self.0.spec.session_affinity = "ClientIP".to_owned();
        let client_ip = ClientIpConfig { timeout_seconds: Some(seconds.into()) };
        self.0.spec.session_affinity_config = Some(SessionAffinityConfig { client_ip: Some(client_ip) });
        self
    }

    /// Sets `healthCheckNodePort`.
    pub fn health_check_node_port(mut self, port: u16) -> Self {
        self.0.spec.health_check_node_port = port.into();
        self
    }

    /// Adds a label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Returns the manifest that was built.
    pub fn build(self) -> manifest::Service {
        self.0
    }
}

/// Builds a port of a Service or a slice.
#[derive(Debug, Clone)]
pub struct PortBuilder {
    name: String,
    protocol: &'static str,
    number: i32,
    node_port: i32,
}

impl PortBuilder {
    /// Sets the name.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Sets the protocol; TCP by default.
    pub fn protocol(mut self, protocol: &'static str) -> Self {
        self.protocol = protocol;
        self
    }

    /// Makes it UDP.
    pub fn udp(self) -> Self {
        self.protocol("UDP")
    }

    /// Makes it SCTP.
    pub fn sctp(mut self) -> Self {
        self.protocol = "SCTP";
        self
    }

    /// Gives it a node port; slices have none.
    pub fn node_port(mut self, port: u16) -> Self {
        self.node_port = port.into();
        self
    }
}

/// Builds an EndpointSlice.
#[derive(Debug, Clone)]
pub struct SliceBuilder(manifest::EndpointSlice);

impl SliceBuilder {
    /// Sets the family of its endpoints; IPv4 by default.
    pub fn family(mut self, family: Family) -> Self {
        self.0.address_type = family.as_str().to_owned();
        self
    }

    /// Adds a port that every endpoint has.
    pub fn port(mut self, port: PortBuilder) -> Self {
        self.0.ports.push(manifest::EndpointPort {
            name: Some(port.name),
            protocol: Some(port.protocol.to_owned()),
            port: Some(port.number),
        });
        self
    }

    /// Adds an endpoint.
    pub fn endpoint(mut self, endpoint: EndpointBuilder) -> Self {
        self.0.endpoints.push(endpoint.0);
        self
    }

    /// Returns the manifest that was built.
    pub fn build(self) -> manifest::EndpointSlice {
        self.0
    }
}

/// Builds an endpoint.
#[derive(Debug, Clone)]
pub struct EndpointBuilder(manifest::Endpoint);

impl EndpointBuilder {
    /// Sets the node that it runs on.
    pub fn on(mut self, node: &str) -> Self {
        self.0.node_name = Some(node.to_owned());
        self
    }

    /// Sets the condition `ready`.
    pub fn ready(mut self, ready: bool) -> Self {
        self.0.conditions.get_or_insert_default().ready = Some(ready);
        self
    }

    /// Sets the condition `serving`.
    pub fn serving(mut self, serving: bool) -> Self {
        self.0.conditions.get_or_insert_default().serving = Some(serving);
        self
    }

    /// Sets the condition `terminating`.
    pub fn terminating(mut self, terminating: bool) -> Self {
        self.0.conditions.get_or_insert_default().terminating = Some(terminating);
        self
    }

    /// Adds a hint for a zone.
    pub fn for_zone(mut self, zone: &str) -> Self {
        self.0.hints.get_or_insert_default().for_zones.push(Hint { name: zone.to_owned() });
        self
    }

    /// Adds a hint for a node.
    pub fn for_node(mut self, node: &str) -> Self {
        self.0.hints.get_or_insert_default().for_nodes.push(Hint { name: node.to_owned() });
        self
    }

    /// The manifest.
    pub fn build(self) -> manifest::Endpoint {
        self.0
    }
}

/// Builds a Node.
#[derive(Debug, Clone)]
pub struct NodeBuilder(manifest::Node);

impl NodeBuilder {
    /// Adds an internal address.
    pub fn ip(mut self, ip: impl Display) -> Self {
        let address = manifest::NodeAddress { r#type: "InternalIP".to_owned(), address: ip.to_string() };
        self.0.status.addresses.push(address);
        self
    }

    /// Sets its zone.
    pub fn zone(mut self, zone: &str) -> Self {
        self.0.metadata.labels.insert(LABEL_ZONE.to_owned(), zone.to_owned());
        self
    }

    /// Adds a taint.
    pub fn taint(mut self, key: &str) -> Self {
        self.0.spec.taints.push(manifest::Taint { key: key.to_owned() });
        self
    }

    /// Adds a range of its pods.
    pub fn pod_cidr(mut self, cidr: impl Display) -> Self {
        self.0.spec.pod_cidrs.push(cidr.to_string());
        self
    }

    /// Returns the manifest that was built.
    pub fn build(self) -> manifest::Node {
        self.0
    }
}

/// The events that a source sends for an object.
pub trait ToEvent {
    /// The event for a new or changed object; a Service or a slice that is not proxied counts as deleted.
    fn event_with(&self, names: &mut Interner) -> Event;

    /// The event for the deletion of the object.
    fn deletion(&self) -> Event;

    /// The same as [`ToEvent::event_with`], with names of its own.
    fn event(&self) -> Event {
        self.event_with(&mut Interner::default())
    }
}

impl ToEvent for manifest::Service {
    fn event_with(&self, names: &mut Interner) -> Event {
        Service::from_manifest(self, names).0.map_or_else(|| self.deletion(), Event::ServiceApplied)
    }

    fn deletion(&self) -> Event {
        Event::ServiceDeleted(full_name(&self.metadata))
    }
}

impl ToEvent for manifest::EndpointSlice {
    fn event_with(&self, names: &mut Interner) -> Event {
        EndpointSlice::from_manifest(self, names).0.map_or_else(|| self.deletion(), Event::SliceApplied)
    }

    fn deletion(&self) -> Event {
        Event::SliceDeleted(full_name(&self.metadata))
    }
}

impl ToEvent for manifest::Node {
    fn event_with(&self, _: &mut Interner) -> Event {
        Event::NodeApplied(Node::from_manifest(self).0)
    }

    fn deletion(&self) -> Event {
        Event::NodeDeleted(Name::from(self.metadata.name.as_str()))
    }
}

impl ToEvent for manifest::ServiceCidr {
    fn event_with(&self, _: &mut Interner) -> Event {
        Event::ServiceCidrApplied(ServiceCidr::from_manifest(self).0)
    }

    fn deletion(&self) -> Event {
        Event::ServiceCidrDeleted(Name::from(self.metadata.name.as_str()))
    }
}

fn full_name(metadata: &Metadata) -> NamespacedName {
    NamespacedName::new(&metadata.namespace, &metadata.name)
}

fn metadata(name: &str, namespace: &str) -> Metadata {
    Metadata { name: name.to_owned(), namespace: namespace.to_owned(), ..Default::default() }
}
