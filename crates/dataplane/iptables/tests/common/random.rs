//! Random clusters that change step by step.

use portwarden_model::object::{EndpointSlice, Service};
use portwarden_model::{Event, Interner, NamespacedName, manifest};
use proptest::prelude::*;

/// One step in the life of a small cluster.
#[derive(Debug, Clone)]
pub enum Step {
    Service(u8, Spec),
    NoService(u8),
    Slice(u8, u8, Vec<Endpoint>),
    NoSlice(u8, u8),
    HostAddress(u8),
}

/// What a Service may be.
#[derive(Debug, Clone)]
pub struct Spec {
    kind: u8,
    two_ports: bool,
    udp: bool,
    sticky: bool,
    internal_local: bool,
    external_local: bool,
    external_ips: u8,
    load_balancer_ips: u8,
    source_ranges: u8,
    dual_stack: bool,
}

/// An endpoint in one of its states.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    address: u8,
    here: bool,
    state: u8,
}

pub fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..=length)
}

fn step() -> impl Strategy<Value = Step> {
    let service = 0..5u8;
    prop_oneof![
        3 => (service.clone(), spec()).prop_map(|(service, spec)| Step::Service(service, spec)),
        1 => service.clone().prop_map(Step::NoService),
        5 => (service.clone(), 0..2u8, prop::collection::vec(endpoint(), 0..4))
            .prop_map(|(service, slice, endpoints)| Step::Slice(service, slice, endpoints)),
        1 => (service, 0..2u8).prop_map(|(service, slice)| Step::NoSlice(service, slice)),
        1 => (2..5u8).prop_map(Step::HostAddress),
    ]
}

fn spec() -> impl Strategy<Value = Spec> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    ((0..3u8, 0..3u8, 0..3u8, 0..3u8), flags).prop_map(
        |((kind, external_ips, load_balancer_ips, source_ranges), flags)| {
            let (two_ports, udp, sticky, internal_local, external_local, dual_stack) = flags;
            Spec {
                kind,
                two_ports,
                udp,
                sticky,
                internal_local,
                external_local,
                external_ips,
                load_balancer_ips,
                source_ranges,
                dual_stack,
            }
        },
    )
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    (1..12u8, any::<bool>(), 0..4u8).prop_map(|(address, here, state)| Endpoint { address, here, state })
}

impl Step {
    /// The event that a source would send.
    pub fn event(&self) -> Event {
        match self {
            Step::Service(number, spec) => {
                let service = Service::from_manifest(&spec.manifest(*number), &mut Interner::default()).0;
                Event::ServiceApplied(service.expect("the manifest is of a Service that is proxied"))
            }
            Step::NoService(number) => {
                Event::ServiceDeleted(NamespacedName::new("demo", &service_name(*number)))
            }
            Step::Slice(service, slice, endpoints) => {
                let slice = slice_manifest(*service, *slice, endpoints);
                let slice = EndpointSlice::from_manifest(&slice, &mut Interner::default()).0;
                Event::SliceApplied(slice.expect("the manifest is of a slice that is used"))
            }
            Step::NoSlice(service, slice) => {
                Event::SliceDeleted(NamespacedName::new("demo", &slice_name(*service, *slice)))
            }
            Step::HostAddress(last) => {
                let ips = [format!("192.168.0.{last}"), "127.0.0.1".to_owned(), format!("fd00:200::{last}")];
                Event::HostAddresses(ips.iter().map(|ip| ip.parse().unwrap()).collect())
            }
        }
    }
}

fn service_name(number: u8) -> String {
    format!("service-{number}")
}

fn slice_name(service: u8, slice: u8) -> String {
    format!("{}-{slice}", service_name(service))
}

fn metadata(name: String) -> manifest::Metadata {
    manifest::Metadata { name, namespace: "demo".to_owned(), ..Default::default() }
}

fn policy(local: bool) -> String {
    if local { "Local" } else { "Cluster" }.to_owned()
}

impl Spec {
    fn manifest(&self, number: u8) -> manifest::Service {
        let exposed = self.kind != 0;
        let mut ips = vec![format!("10.96.0.{}", number + 10)];
        if self.dual_stack {
            ips.push(format!("fd00:96::{number}"));
        }
        let families = ["IPv4", "IPv6"].map(str::to_owned);
        let balanced = if self.kind == 2 { self.load_balancer_ips } else { 0 };
        let ingress = (0..balanced)
            .flat_map(|i| [format!("198.51.100.{}", number * 4 + i), format!("2001:db8::{number}:{i}")]);
        let ingress = ingress.map(|ip| manifest::LoadBalancerIngress { ip, ..Default::default() });
        let ranges = ["203.0.113.0/24", "192.168.0.0/24"].into_iter().take(usize::from(self.source_ranges));
        manifest::Service {
            metadata: metadata(service_name(number)),
            spec: manifest::ServiceSpec {
                ports: self.ports(number),
                cluster_ip: ips[0].clone(),
                ip_families: families[..ips.len()].to_vec(),
                cluster_ips: ips,
                r#type: ["ClusterIP", "NodePort", "LoadBalancer"][usize::from(self.kind)].to_owned(),
                external_ips: (0..self.external_ips).map(|i| format!("192.0.2.{}", number * 4 + i)).collect(),
                session_affinity: if self.sticky { "ClientIP" } else { "None" }.to_owned(),
                load_balancer_source_ranges: ranges.map(str::to_owned).collect(),
                external_traffic_policy: if exposed { policy(self.external_local) } else { String::new() },
                health_check_node_port: i32::from(self.kind == 2 && self.external_local)
                    * (31900 + i32::from(number)),
                internal_traffic_policy: Some(policy(self.internal_local)),
                ..Default::default()
            },
            status: manifest::ServiceStatus {
                load_balancer: manifest::LoadBalancerStatus { ingress: ingress.collect() },
            },
        }
    }

    fn ports(&self, number: u8) -> Vec<manifest::ServicePort> {
        let node_port = |base: i32| if self.kind == 0 { 0 } else { base + i32::from(number) };
        let protocol = if self.udp { "UDP" } else { "TCP" }.to_owned();
        let mut ports = vec![manifest::ServicePort {
            name: if self.two_ports { "web" } else { "" }.to_owned(),
            protocol,
            port: 80,
            node_port: node_port(30000),
        }];
        if self.two_ports {
            let protocol = "TCP".to_owned();
            ports.push(manifest::ServicePort {
                name: "more".to_owned(),
                protocol,
                port: 81,
                node_port: node_port(31000),
            });
        }
        ports
    }
}

fn slice_manifest(service: u8, slice: u8, endpoints: &[Endpoint]) -> manifest::EndpointSlice {
    let port = |name: &str, protocol: &str, port| manifest::EndpointPort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_owned()),
        port: Some(port),
    };
    let mut metadata = metadata(slice_name(service, slice));
    metadata.labels.insert(manifest::LABEL_SERVICE_NAME.to_owned(), service_name(service));
    // One of the two slices of each Service is of the other family, every other time.
    let six = slice == 1 && service % 2 == 1;
    manifest::EndpointSlice {
        metadata,
        endpoints: endpoints.iter().map(|endpoint| endpoint.manifest(six)).collect(),
        ports: vec![
            port("", "TCP", 8080),
            port("", "UDP", 8080),
            port("web", "TCP", 8080),
            port("web", "UDP", 8080),
            port("more", "TCP", 8081),
        ],
        address_type: if six { "IPv6" } else { "IPv4" }.to_owned(),
    }
}

impl Endpoint {
    fn manifest(self, six: bool) -> manifest::Endpoint {
        let ip =
            if six { format!("fd00:244::{}", self.address) } else { format!("10.244.0.{}", self.address) };
        let (ready, serving, terminating) = match self.state {
            0 | 1 => (true, true, false),
            2 => (false, true, true),
            _ => (false, false, false),
        };
        manifest::Endpoint {
            addresses: vec![ip],
            conditions: Some(manifest::EndpointConditions {
                ready: Some(ready),
                serving: Some(serving),
                terminating: Some(terminating),
            }),
            node_name: Some(if self.here { "node-a" } else { "node-b" }.to_owned()),
            ..Default::default()
        }
    }
}
