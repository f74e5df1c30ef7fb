//! What an API server would say, and a source that sends it: each change, or everything after a time without a connection.

use std::collections::BTreeMap;

use portwarden_model::build::{self, ToEvent, endpoint, port};
use portwarden_model::{Cluster, Event, Family, Kind, Settings, manifest};

/// The node that the engine runs on.
pub(crate) const NODE: &str = "here";

/// The objects that exist.
#[derive(Debug, Default)]
pub(crate) struct Api {
    services: BTreeMap<u8, manifest::Service>,
    slices: BTreeMap<u8, manifest::EndpointSlice>,
    node: Option<manifest::Node>,
    service_cidr: Option<manifest::ServiceCidr>,
    /// Not an object, but listed with them when the process starts.
    host_addresses: u8,
}

impl Api {
    pub(crate) fn put_service(&mut self, service: u8, shape: u8) -> Event {
        let object = service_of(service, shape);
        let event = object.event();
        self.services.insert(service, object);
        event
    }

    pub(crate) fn delete_service(&mut self, service: u8) -> Option<Event> {
        self.services.remove(&service).map(|object| object.deletion())
    }

    pub(crate) fn put_slice(&mut self, slice: u8, service: u8, endpoints: u8, state: u8) -> Event {
        let object = slice_of(slice, service, endpoints, state);
        let event = object.event();
        self.slices.insert(slice, object);
        event
    }

    pub(crate) fn delete_slice(&mut self, slice: u8) -> Option<Event> {
        self.slices.remove(&slice).map(|object| object.deletion())
    }

    pub(crate) fn put_node(&mut self, shape: u8) -> Event {
        let mut node = build::node(NODE).ip(format!("192.168.0.{}", shape % 2)).pod_cidr("10.1.0.0/24");
        if shape & 2 != 0 {
            node = node.ip("fd00:1::2");
        }
        if shape & 4 != 0 {
            node = node.zone("a");
        }
        let node = node.build();
        let event = node.event();
        self.node = Some(node);
        event
    }

    pub(crate) fn delete_node(&mut self) -> Option<Event> {
        self.node.take().map(|node| node.deletion())
    }

    pub(crate) fn put_service_cidr(&mut self, shape: u8) -> Event {
        let cidr = build::service_cidr("cluster", [format!("10.96.0.0/{}", 16 - u16::from(shape % 4))]);
        let event = cidr.event();
        self.service_cidr = Some(cidr);
        event
    }

    pub(crate) fn set_host_addresses(&mut self, shape: u8) -> Event {
        self.host_addresses = shape;
        self.host_addresses()
    }

    pub(crate) fn host_addresses(&self) -> Event {
        let ips = (0..self.host_addresses % 4).map(|last| [192, 168, 0, last].into());
        Event::HostAddresses(ips.collect())
    }

    /// All objects of a kind, as a list has them.
    pub(crate) fn objects(&self, kind: Kind) -> Vec<Event> {
        match kind {
            Kind::Service => self.services.values().map(ToEvent::event).collect(),
            Kind::EndpointSlice => self.slices.values().map(ToEvent::event).collect(),
            Kind::Node => self.node.iter().map(ToEvent::event).collect(),
            Kind::ServiceCidr => self.service_cidr.iter().map(ToEvent::event).collect(),
        }
    }

    /// A complete list of a kind.
    pub(crate) fn list(&self, kind: Kind) -> Vec<Event> {
        let mut events = vec![Event::ListStarted(kind)];
        events.extend(self.objects(kind));
        events.push(Event::ListDone(kind));
        events
    }

    /// What an engine must want that knows all of this, computed from nothing in one pass. A Node that it knew before the deletion keeps its
    /// addresses.
    pub(crate) fn cluster(&self, settings: Settings, known_node: Option<&manifest::Node>) -> Cluster {
        let mut cluster = Cluster::new(settings);
        cluster.apply(self.host_addresses());
        for kind in Kind::ALL {
            for event in self.list(kind) {
                cluster.apply(event);
            }
        }
        if self.node.is_none()
            && let Some(node) = known_node
        {
            cluster.apply(node.event());
            cluster.apply(node.deletion());
        }
        cluster.resolve();
        cluster
    }

    /// The Node that exists.
    pub(crate) fn node(&self) -> Option<&manifest::Node> {
        self.node.as_ref()
    }
}

/// The name of a Service.
pub(crate) fn service_name(service: u8) -> String {
    format!("s{service}")
}

fn service_of(service: u8, shape: u8) -> manifest::Service {
    let bit = |number: u8| shape & (1 << number) != 0;
    let mut object = build::service(&service_name(service));
    let moved = u8::from(bit(7));
    if bit(1) || !bit(2) {
        object = object.cluster_ip(format!("10.96.{moved}.{service}"));
    }
    if bit(2) {
        object = object.cluster_ip(format!("fd00:96::{moved}:{service}"));
    }
    let mut first = port(53).name("p").protocol(if bit(0) { "UDP" } else { "TCP" });
    if bit(3) {
        // Two Services with one external address.
        object = object.external_ip("203.0.113.1").external_ip("2001:db8::1");
    }
    if bit(4) {
        first = first.node_port(30_000 + u16::from(service % 2));
        object = object.of_type("NodePort");
    }
    if bit(5) {
        object = object.of_type("LoadBalancer").vip("203.0.113.2").external_policy_local();
        object = object.health_check_node_port(31_000 + u16::from(service)).source_range("10.0.0.0/8");
    }
    if bit(6) {
        object = object.internal_policy_local().affinity(10);
    }
    object.port(first).build()
}

fn slice_of(slice: u8, service: u8, endpoints: u8, state: u8) -> manifest::EndpointSlice {
    let family = Family::BOTH[usize::from(slice % 2)];
    let mut object = build::slice(&service_name(service), &format!("slice{slice}")).family(family);
    for protocol in ["TCP", "UDP"] {
        object = object.port(port(5353).name("p").protocol(protocol));
    }
    for number in (0..4).filter(|number| endpoints & (1 << number) != 0) {
        let bit = |number: u8| state.rotate_left(u32::from(number)) & 1 != 0;
        let last = 10 * u16::from(service) + number;
        let number = u8::try_from(number).expect("below four");
        let mut one = match family {
            Family::V4 => endpoint(format!("10.1.0.{last}")),
            Family::V6 => endpoint(format!("fd00:1::{last}")),
        };
        one = one.on(if bit(number) { NODE } else { "there" });
        if bit(number + 2) && bit(number + 3) {
            one = one.ready(false).serving(bit(number + 4)).terminating(bit(number + 5));
        }
        if bit(6) {
            one = one.for_zone(if bit(number + 1) { "a" } else { "b" });
        }
        object = object.endpoint(one);
    }
    object.build()
}
