//! Random clusters that change step by step.

use portwarden_model::{Event, Family, NamespacedName, manifest};
use portwarden_testkit::build::{self, ToEvent, port};
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
    /// The event of a source for it.
    pub fn event(&self) -> Event {
        match self {
            Step::Service(number, spec) => spec.build(*number).event(),
            Step::NoService(number) => {
                Event::ServiceDeleted(NamespacedName::new("demo", &service_name(*number)))
            }
            Step::Slice(service, number, endpoints) => slice(*service, *number, endpoints).event(),
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

impl Spec {
    fn build(&self, number: u8) -> manifest::Service {
        let mut service = build::service(&service_name(number))
            .of_type(["ClusterIP", "NodePort", "LoadBalancer"][usize::from(self.kind)])
            .cluster_ip(format!("10.96.0.{}", number + 10));
        if self.dual_stack {
            service = service.cluster_ip(format!("fd00:96::{number}"));
        }
        for i in 0..self.external_ips {
            service = service.external_ip(format!("192.0.2.{}", number * 4 + i));
        }
        for i in 0..if self.kind == 2 { self.load_balancer_ips } else { 0 } {
            service = service.vip(format!("198.51.100.{}", number * 4 + i));
            service = service.vip(format!("2001:db8::{number}:{i}"));
        }
        for range in ["203.0.113.0/24", "192.168.0.0/24"].iter().take(usize::from(self.source_ranges)) {
            service = service.source_range(range);
        }
        if self.sticky {
            service = service.affinity(10_800);
        }
        if self.internal_local {
            service = service.internal_policy_local();
        }
        if self.kind != 0 && self.external_local {
            service = service.external_policy_local();
        }
        if self.kind == 2 && self.external_local {
            service = service.health_check_node_port(31900 + u16::from(number));
        }
        self.ports(number).into_iter().fold(service, build::ServiceBuilder::port).build()
    }

    fn ports(&self, number: u8) -> Vec<build::PortBuilder> {
        let exposed = |port: build::PortBuilder, base: u16| {
            if self.kind == 0 { port } else { port.node_port(base + u16::from(number)) }
        };
        let first = port(80).protocol(if self.udp { "UDP" } else { "TCP" });
        if self.two_ports {
            vec![exposed(first.name("web"), 30000), exposed(port(81).name("more"), 31000)]
        } else {
            vec![exposed(first, 30000)]
        }
    }
}

fn slice(service: u8, slice: u8, endpoints: &[Endpoint]) -> manifest::EndpointSlice {
    // One of the two slices of each Service is of the other family, every other time.
    let family = if slice == 1 && service % 2 == 1 { Family::V6 } else { Family::V4 };
    let slice = build::slice(&service_name(service), &slice_name(service, slice)).family(family);
    let slice = slice
        .port(port(8080))
        .port(port(8080).udp())
        .port(port(8080).name("web"))
        .port(port(8080).name("web").udp())
        .port(port(8081).name("more"));
    endpoints.iter().fold(slice, |slice, endpoint| slice.endpoint(endpoint.build(family))).build()
}

impl Endpoint {
    fn build(self, family: Family) -> build::EndpointBuilder {
        let ip = match family {
            Family::V4 => format!("10.244.0.{}", self.address),
            Family::V6 => format!("fd00:244::{}", self.address),
        };
        let (ready, serving, terminating) = match self.state {
            0 | 1 => (true, true, false),
            2 => (false, true, true),
            _ => (false, false, false),
        };
        let node = if self.here { "node-a" } else { "node-b" };
        build::endpoint(ip).on(node).ready(ready).serving(serving).terminating(terminating)
    }
}
