//! Random clusters for property tests, as manifests.
//!
//! They are about the hosts and addresses of the [topology](crate::topology), so that a property can be tried on the kernel as well
//! as on the model. Names and addresses come from small sets: Services collide, endpoints are in several slices, hints miss.

use std::fmt;

use ipnet::IpNet;
use portwarden_model::{DetectLocal, Family, Name, NodePortRange, Settings};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::build::{EndpointBuilder, PortBuilder, endpoint, port, service, slice};
use crate::rig::{Object, Rig};
use crate::topology::addresses::{
    self, CLIENTS, CLUSTER_CIDR, DualNet, EVERYWHERE, EXTERNAL_IPS, NODE, NODE_B, NODE_B_PODS, NODE_PODS,
    NODE_SECONDARY, SERVICE_CIDR, UPLINK, VIPS,
};

/// How many Services there can be.
const SERVICES: u8 = 5;
/// How many slices each of them can have in a family.
const SLICES: u8 = 2;
/// How many pods the node under test must have.
pub const PODS: u8 = 3;
/// How many pods the second node must have.
pub const REMOTE_POD_COUNT: u8 = 2;
/// The ports on which endpoints are: every host must answer there, over TCP and UDP.
pub const TARGET_PORTS: [u16; 3] = [8080, 8081, 8082];
/// The ports of Services: name, whether it is UDP, number.
const PORTS: [(&str, bool, u16); 4] =
    [("web", false, 80), ("dns", true, 53), ("dns", false, 53), ("", false, 81)];

/// One thing that changes.
#[derive(Clone, PartialEq)]
pub enum Change {
    /// An object comes or is another now.
    Apply(Object),
    /// An object goes, if it is there.
    Delete(Object),
}

/// A node with its surroundings: how it is set up, what there is, and what changes, step by step.
#[derive(Clone, Debug)]
pub struct History {
    /// Whether pods are on a bridge.
    pub bridge: bool,
    /// What the operator set.
    pub operator: Operator,
    /// What changes; the first step brings most of the objects.
    pub steps: Vec<Vec<Change>>,
}

/// What the operator set.
#[derive(Clone, Debug)]
pub struct Operator {
    /// How pod traffic is identified.
    pub detect_local: DetectLocal,
    /// Whether all traffic to cluster addresses is masqueraded.
    pub masquerade_all: bool,
    /// Where node ports answer; the dataplane's default if not given.
    pub node_port_addresses: Option<Vec<NodePortRange>>,
    /// Whether external addresses count.
    pub allow_external_ips: bool,
}

impl Operator {
    /// These settings, on top of others.
    pub fn settings(&self, usual: Settings) -> Settings {
        Settings {
            detect_local: self.detect_local.clone(),
            masquerade_all: self.masquerade_all,
            node_port_addresses: self
                .node_port_addresses
                .clone()
                .unwrap_or(usual.node_port_addresses.clone()),
            allow_external_ips: self.allow_external_ips,
            ..usual
        }
    }
}

/// A cluster, and so many changes to it.
pub fn history(changes: usize) -> impl Strategy<Value = History> {
    let later = vec(vec(change(), 1..6), changes);
    (any::<bool>(), operator(), objects(), later).prop_map(|(bridge, operator, objects, later)| {
        let first = objects.into_iter().map(Change::Apply).collect();
        History { bridge, operator, steps: std::iter::once(first).chain(later).collect() }
    })
}

/// Services with their slices, and the Node.
pub fn objects() -> impl Strategy<Value = Vec<Object>> {
    let parts: Vec<BoxedStrategy<Vec<Object>>> =
        (0..SERVICES).map(|number| with_slices(number).boxed()).collect();
    (parts, node_object()).prop_map(|(parts, node)| parts.into_iter().flatten().chain([node]).collect())
}

/// One change to a cluster.
pub fn change() -> impl Strategy<Value = Change> {
    let object = prop_oneof![
        4 => (0..SERVICES).prop_flat_map(service_object),
        8 => (0..SERVICES, 0..SLICES, families()).prop_flat_map(|(number, index, family)| {
            slice_object(number, index, family)
        }),
        1 => node_object(),
    ];
    (object, prop::bool::weighted(0.25)).prop_map(|(object, gone)| match object {
        // The Node stays: without it the process would end.
        Object::Node(_) => Change::Apply(object),
        _ if gone => Change::Delete(object),
        _ => Change::Apply(object),
    })
}

/// What an operator may set.
pub fn operator() -> impl Strategy<Value = Operator> {
    let detect_local = prop_oneof![
        3 => Just(DetectLocal::ClusterCidr(CLUSTER_CIDR.both().into())),
        1 => Just(DetectLocal::NodeCidr),
        1 => Just(DetectLocal::BridgeInterface(Name::from("cni0"))),
        1 => Just(DetectLocal::InterfaceNamePrefix(Name::from("veth"))),
        1 => Just(DetectLocal::Off),
    ];
    let secondary = NODE_SECONDARY.both().map(|ip| NodePortRange::Cidr(IpNet::from(ip)));
    let ranges = prop_oneof![
        Just(vec![]),
        Just(vec![NodePortRange::Primary]),
        Just(vec![NodePortRange::All]),
        Just(vec![NodePortRange::Localhost, NodePortRange::Primary]),
        Just(secondary.to_vec()),
        Just(vec![NodePortRange::Cidr(UPLINK.v4.into())]),
    ];
    (detect_local, prop::bool::weighted(0.2), option::of(ranges), prop::bool::weighted(0.9)).prop_map(
        |(detect_local, masquerade_all, node_port_addresses, allow_external_ips)| Operator {
            detect_local,
            masquerade_all,
            node_port_addresses,
            allow_external_ips,
        },
    )
}

fn families() -> impl Strategy<Value = Family> {
    select(Family::BOTH.to_vec())
}

/// A Service and all its slices; sometimes only one of both.
fn with_slices(number: u8) -> impl Strategy<Value = Vec<Object>> {
    let slices: Vec<_> = (0..SLICES)
        .flat_map(|index| Family::BOTH.map(|family| (index, family)))
        .map(|(index, family)| option::weighted(0.6, slice_object(number, index, family)))
        .collect();
    (option::weighted(0.9, service_object(number)), slices)
        .prop_map(|(service, slices)| service.into_iter().chain(slices.into_iter().flatten()).collect())
}

fn service_object(number: u8) -> impl Strategy<Value = Object> {
    let families = prop_oneof![
        4 => Just(Family::BOTH.to_vec()),
        1 => Just(vec![Family::V6, Family::V4]),
        1 => Just(vec![Family::V4]),
        1 => Just(vec![Family::V6]),
    ];
    let kind = select(vec!["ClusterIP", "NodePort", "LoadBalancer"]);
    let ports = subsequence((0..PORTS.len()).collect::<Vec<_>>(), 1..=3);
    let node_ports = vec(option::weighted(0.6, 0u16..6), PORTS.len());
    let policies = (prop::bool::weighted(0.4), prop::bool::weighted(0.3));
    let affinity = prop::bool::weighted(0.25);
    let parts = (families, kind, ports, node_ports, external(), policies, affinity);
    parts.prop_map(
        move |(families, kind, ports, node_ports, external, (external_local, internal_local), sticky)| {
            let mut built = service(&service_name(number))
                .of_type(kind)
                .health_check_node_port(32000 + u16::from(number));
            for family in families {
                built = built.cluster_ip(SERVICE_CIDR.host(10 + number).like(family.loopback()));
            }
            for index in ports {
                let mut port = service_port(index);
                if let Some(node_port) = node_ports[index] {
                    port = port.node_port(30000 + node_port);
                }
                built = built.port(port);
            }
            let External { ips, vips, ranges } = external;
            for ip in ips.iter().flat_map(|number| EXTERNAL_IPS.host(*number).both()) {
                built = built.external_ip(ip);
            }
            for (number, mode) in vips {
                built = VIPS.host(number).both().into_iter().fold(built, |built, ip| built.ingress(ip, mode));
            }
            for range in ranges {
                built = built.source_range(range);
            }
            if external_local {
                built = built.external_policy_local();
            }
            if internal_local {
                built = built.internal_policy_local();
            }
            if sticky { built.affinity(3600) } else { built }.into()
        },
    )
}

/// Addresses by which a Service is reached from outside, and who may come by them.
#[derive(Debug, Clone)]
struct External {
    ips: Vec<u8>,
    vips: Vec<(u8, Option<&'static str>)>,
    ranges: Vec<IpNet>,
}

fn external() -> impl Strategy<Value = External> {
    let ips = subsequence(vec![1, 2, 3], 0..=2);
    let mode = select(vec![None, None, Some("VIP"), Some("Proxy")]);
    let vips = vec((1u8..4, mode), 0..=2);
    let single = |net: DualNet, number| net.host(number).both().map(IpNet::from);
    let choices: Vec<[IpNet; 2]> = vec![
        single(CLIENTS, 10),
        single(CLIENTS, 11),
        CLIENTS.both(),
        CLUSTER_CIDR.both(),
        NODE_PODS.both(),
        UPLINK.both(),
        EVERYWHERE.both(),
    ];
    let range = (select(choices), 0usize..3).prop_map(|(both, part)| match part {
        2 => both.to_vec(),
        one => vec![both[one]],
    });
    let ranges = prop_oneof![2 => Just(vec![]), 2 => vec(range, 1..3)];
    (ips, vips, ranges).prop_map(|(ips, vips, ranges)| External { ips, vips, ranges: ranges.concat() })
}

fn slice_object(number: u8, index: u8, family: Family) -> impl Strategy<Value = Object> {
    let ports = vec(option::weighted(0.8, select(TARGET_PORTS.to_vec())), PORTS.len());
    (ports, vec(endpoint_builder(family), 0..4)).prop_map(move |(ports, endpoints)| {
        let name = format!("{}-{}-{index}", service_name(number), family.as_str().to_lowercase());
        let mut built = slice(&service_name(number), &name).family(family);
        for (index, target) in ports.into_iter().enumerate().filter_map(|(index, port)| Some((index, port?)))
        {
            built = built.port(slice_port(index, target));
        }
        endpoints.into_iter().fold(built, |built, endpoint| built.endpoint(endpoint)).into()
    })
}

fn endpoint_builder(family: Family) -> impl Strategy<Value = EndpointBuilder> {
    let pods = (0..PODS).map(|index| (addresses::pod(NODE_PODS, index), "node-a"));
    let remote = (0..REMOTE_POD_COUNT).map(|index| (addresses::pod(NODE_B_PODS, index), "node-b"));
    let nodes = [(NODE, "node-a"), (NODE_B, "node-b")];
    let hosts: Vec<_> = pods.chain(remote).chain(nodes).collect();
    // Ready, serving, terminating; ready ones are the rule.
    let conditions = prop_oneof![
        6 => Just((None, None, None)),
        1 => Just((Some(true), Some(true), Some(true))),
        1 => Just((Some(false), Some(true), Some(true))),
        1 => Just((Some(false), None, Some(true))),
        1 => Just((Some(false), Some(true), Some(false))),
        1 => Just((Some(false), Some(false), Some(true))),
        1 => Just((Some(false), Some(false), Some(false))),
    ];
    let zones = option::weighted(0.5, subsequence(vec!["a", "b"], 1..=2));
    let nodes = option::weighted(0.3, subsequence(vec!["node-a", "node-b"], 1..=2));
    (select(hosts), conditions, zones, nodes).prop_map(
        move |((ip, node), (ready, serving, terminating), zones, nodes)| {
            let mut built = endpoint(ip.like(family.loopback())).on(node);
            built = ready.into_iter().fold(built, EndpointBuilder::ready);
            built = serving.into_iter().fold(built, EndpointBuilder::serving);
            built = terminating.into_iter().fold(built, EndpointBuilder::terminating);
            built = zones.into_iter().flatten().fold(built, EndpointBuilder::for_zone);
            nodes.into_iter().flatten().fold(built, EndpointBuilder::for_node)
        },
    )
}

fn node_object() -> impl Strategy<Value = Object> {
    option::of(select(vec!["a", "b"]))
        .prop_map(|zone| zone.into_iter().fold(Rig::node(), |node, zone| node.zone(zone)).into())
}

fn service_name(number: u8) -> String {
    format!("service-{number}")
}

fn service_port(index: usize) -> PortBuilder {
    let (name, udp, number) = PORTS[index];
    named(port(number), name, udp)
}

fn slice_port(index: usize, target: u16) -> PortBuilder {
    let (name, udp, _) = PORTS[index];
    named(port(target), name, udp)
}

fn named(port: PortBuilder, name: &str, udp: bool) -> PortBuilder {
    let port = port.name(name);
    if udp { port.udp() } else { port }
}

/// As JSON, which is what one would write to try it again.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, object) = match self {
            Change::Apply(object) => ("apply", object),
            Change::Delete(object) => ("delete", object),
        };
        let json = match object {
            Object::Service(service) => serde_json::to_string(service),
            Object::Slice(slice) => serde_json::to_string(slice),
            Object::Node(node) => serde_json::to_string(node),
            Object::ServiceCidr(cidr) => serde_json::to_string(cidr),
        };
        write!(f, "{verb} {}", json.map_err(|_| fmt::Error)?)
    }
}
