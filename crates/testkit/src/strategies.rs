//! Any cluster at random, as manifests, for tests of pure code.
//!
//! Names, addresses and ports come from small supplies, so that Services claim the same addresses, slices repeat endpoints and hints sometimes
//! name this node; some values are invalid. A [`Shape`] holds the supplies. For clusters that packets can be sent through, see
//! [`crate::random`].
//!
//! ```
//! use portwarden_testkit::strategies::{Shape, clusters};
//! use proptest::prelude::*;
//!
//! proptest!(|(cluster in clusters(&Shape::default()))| {
//!     prop_assert!(cluster.services.len() <= Shape::default().services);
//! });
//! ```

use std::net::IpAddr;

use portwarden_model::manifest::{self, LABEL_SERVICE_NAME, LABEL_ZONE};
use portwarden_model::{DetectLocal, Family, Name, NodePortRange, Settings, parse_cidr};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// What random clusters are made of.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The node under test; every Node manifest has this name.
    pub node: String,
    /// Names of nodes that endpoints run on and hints name.
    pub nodes: Vec<String>,
    /// Zones that nodes are in and hints name.
    pub zones: Vec<String>,
    /// At most so many Services.
    pub services: usize,
    /// At most so many slices.
    pub slices: usize,
    /// At most so many endpoints in a slice.
    pub endpoints: usize,
    /// Addresses of endpoints, both families.
    pub endpoint_ips: Vec<IpAddr>,
    /// Ports of endpoints.
    pub endpoint_ports: Vec<u16>,
    /// Cluster addresses, both families.
    pub cluster_ips: Vec<IpAddr>,
    /// Addresses outside of the cluster that Services use, both families.
    pub external_ips: Vec<IpAddr>,
    /// Ports of Services.
    pub ports: Vec<u16>,
    /// Node ports.
    pub node_ports: Vec<u16>,
    /// Ranges of clients, both families.
    pub source_ranges: Vec<String>,
    /// Transport protocols; one that is there more often is chosen more often.
    pub protocols: Vec<&'static str>,
    /// Whether some values are invalid, such as no API server would accept.
    pub invalid: bool,
}

impl Default for Shape {
    fn default() -> Self {
        let ips = |v4: [u8; 3], v6: u16, count: u8| {
            let [a, b, c] = v4;
            let v4 = (1..=count).map(move |n| IpAddr::from([a, b, c, n]));
            v4.chain((1..=count).map(move |n| IpAddr::from([0xfd00, v6, 0, 0, 0, 0, 0, u16::from(n)])))
                .collect()
        };
        Shape {
            node: "node-a".to_owned(),
            nodes: strings(&["node-a", "node-b", "node-c"]),
            zones: strings(&["zone-a", "zone-b"]),
            services: 4,
            slices: 8,
            endpoints: 5,
            // 10 and 11 as well, whose order as text is not that of their numbers.
            endpoint_ips: ips([10, 244, 0], 0x244, 11),
            endpoint_ports: vec![8080, 9090, 53],
            cluster_ips: ips([10, 96, 0], 0x96, 5),
            external_ips: ips([198, 51, 100], 0x51, 3),
            ports: vec![80, 443, 53],
            node_ports: vec![30080, 30443, 30053],
            source_ranges: strings(&[
                "10.0.0.0/8",
                "192.0.2.0/24",
                "0.0.0.0/0",
                "fd00::/16",
                "2001:db8::/32",
            ]),
            protocols: vec!["TCP", "TCP", "TCP", "UDP", "UDP", "SCTP"],
            invalid: true,
        }
    }
}

/// A cluster as manifests. Names are unique within a kind.
#[derive(Debug, Clone, Default)]
pub struct Manifests {
    /// Services.
    pub services: Vec<manifest::Service>,
    /// EndpointSlices, of these Services and others.
    pub slices: Vec<manifest::EndpointSlice>,
    /// The node under test.
    pub node: Option<manifest::Node>,
    /// ServiceCIDRs.
    pub service_cidrs: Vec<manifest::ServiceCidr>,
}

/// One object of any kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A Service.
    Service(Box<manifest::Service>),
    /// An EndpointSlice.
    Slice(manifest::EndpointSlice),
    /// The node under test.
    Node(manifest::Node),
    /// A ServiceCIDR.
    ServiceCidr(manifest::ServiceCidr),
}

/// Whole clusters.
pub fn clusters(shape: &Shape) -> impl Strategy<Value = Manifests> + use<> {
    let objects = (
        prop::collection::vec(services(shape), 0..=shape.services),
        prop::collection::vec(slices(shape), 0..=shape.slices),
        option::of(nodes(shape)),
        prop::collection::vec(service_cidrs(), 0..3),
    );
    objects.prop_map(|(services, slices, node, service_cidrs)| Manifests {
        services: unique(services, |service| &service.metadata),
        slices: unique(slices, |slice| &slice.metadata),
        node,
        service_cidrs: unique(service_cidrs, |cidr| &cidr.metadata),
    })
}

/// One object of any kind, most often a Service or a slice.
pub fn objects(shape: &Shape) -> impl Strategy<Value = Object> + use<> {
    prop_oneof![
        3 => services(shape).prop_map(|service| Object::Service(Box::new(service))),
        5 => slices(shape).prop_map(Object::Slice),
        1 => nodes(shape).prop_map(Object::Node),
        1 => service_cidrs().prop_map(Object::ServiceCidr),
    ]
}

/// Services.
pub fn services(shape: &Shape) -> impl Strategy<Value = manifest::Service> + use<> {
    let fields = (
        (0..shape.services.max(1)).prop_map(|n| metadata(&format!("service-{n}"))),
        weighted(&[(4, "ClusterIP"), (3, "NodePort"), (3, "LoadBalancer"), (1, "ExternalName"), (1, "")]),
        cluster_addresses(shape),
        prop::collection::vec(service_ports(shape), 0..4),
        weighted(&[(2, ""), (2, "Cluster"), (3, "Local")]),
        option::of(weighted(&[(2, "Cluster"), (2, "Local")])),
        external_addresses(shape),
        affinities(),
    );
    fields.prop_map(|(metadata, kind, cluster, ports, external, internal, addresses, affinity)| {
        let mut service = manifest::Service { metadata, ..Default::default() };
        let spec = &mut service.spec;
        (spec.cluster_ip, spec.cluster_ips, spec.ip_families) = cluster;
        spec.r#type = kind;
        spec.ports = ports;
        spec.external_traffic_policy = external;
        spec.internal_traffic_policy = internal;
        (spec.session_affinity, spec.session_affinity_config) = affinity;
        spec.health_check_node_port = if spec.r#type == "LoadBalancer" { 32000 } else { 0 };
        spec.external_ips = addresses.external_ips;
        spec.load_balancer_source_ranges = addresses.source_ranges;
        service.status.load_balancer.ingress = addresses.ingress;
        service
    })
}

/// EndpointSlices: their names do not depend on their Service, so that a later version can move to another one.
pub fn slices(shape: &Shape) -> impl Strategy<Value = manifest::EndpointSlice> + use<> {
    let names = (0..shape.slices.max(1), 0..shape.services.max(1));
    let family = prop_oneof![3 => Just(Family::V4), 2 => Just(Family::V6)];
    let shape = shape.clone();
    (names, family, slice_times()).prop_flat_map(move |((number, service), family, time)| {
        let ports = prop::collection::vec(slice_ports(&shape), 1..3);
        // Hints count only where all endpoints have them.
        let endpoints = prop_oneof![
            prop::collection::vec(endpoints(&shape, family, 0.02), 0..=shape.endpoints),
            prop::collection::vec(endpoints(&shape, family, 0.5), 0..=shape.endpoints),
            prop::collection::vec(endpoints(&shape, family, 0.98), 0..=shape.endpoints),
        ];
        let address_type = prop_oneof![
            30 => Just(family.as_str().to_owned()),
            odd(&shape) => select(strings(&["FQDN", "", "IPv5"])),
        ];
        (ports, endpoints, address_type).prop_map(move |(ports, endpoints, address_type)| {
            let mut slice = manifest::EndpointSlice {
                metadata: metadata(&format!("slice-{number}")),
                endpoints,
                ports,
                address_type,
            };
            slice.metadata.labels.insert(LABEL_SERVICE_NAME.to_owned(), format!("service-{service}"));
            slice.metadata.annotations.extend(time.clone());
            slice
        })
    })
}

/// The node under test.
pub fn nodes(shape: &Shape) -> impl Strategy<Value = manifest::Node> + use<> {
    let zones = shape.zones.iter().cloned().chain([String::new()]).collect::<Vec<_>>();
    let address = (
        weighted(&[(3, "InternalIP"), (1, "ExternalIP"), (1, "Hostname")]),
        select(strings(&["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "node-a.example"])),
    );
    let address = address.prop_map(|(kind, address)| manifest::NodeAddress { r#type: kind, address });
    let cidrs = strings(&["10.244.0.0/24", "fd00:244::/64", "bad"]);
    // A real node changes its addresses less often than anything else.
    let fields = (
        option::weighted(0.8, select(zones)),
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(address, 1..4)],
        prop_oneof![3 => Just(Vec::new()), 1 => subsequence(cidrs, 1..=2)],
        any::<bool>(),
    );
    let name = shape.node.clone();
    fields.prop_map(move |(zone, addresses, pod_cidrs, going)| {
        let mut node = manifest::Node { metadata: metadata(&name), ..Default::default() };
        node.metadata.namespace.clear();
        node.metadata.labels.extend(zone.map(|zone| (LABEL_ZONE.to_owned(), zone)));
        node.metadata.deletion_timestamp = going.then(manifest::Time::default);
        node.status.addresses = addresses;
        node.spec.pod_cidrs = pod_cidrs;
        node
    })
}

/// ServiceCIDRs.
pub fn service_cidrs() -> impl Strategy<Value = manifest::ServiceCidr> {
    let cidrs = strings(&["10.96.0.0/16", "10.97.0.0/16", "fd00:96::/108"]);
    (0..3, subsequence(cidrs, 0..=3)).prop_map(|(number, cidrs)| {
        let metadata = metadata(&format!("range-{number}"));
        let mut cidr = manifest::ServiceCidr { metadata, ..Default::default() };
        cidr.metadata.namespace.clear();
        cidr.spec.cidrs = cidrs;
        cidr
    })
}

/// Settings for the node of a shape.
pub fn settings(shape: &Shape) -> impl Strategy<Value = Settings> + use<> {
    let cidrs = |texts: &[&str]| texts.iter().filter_map(|text| parse_cidr(text)).collect::<Vec<_>>();
    let detect_local = prop_oneof![
        Just(DetectLocal::Off),
        Just(DetectLocal::NodeCidr),
        Just(DetectLocal::ClusterCidr(cidrs(&["10.244.0.0/16", "fd00:244::/64"]))),
        Just(DetectLocal::ClusterCidr(cidrs(&["10.244.0.0/16"]))),
        Just(DetectLocal::BridgeInterface(Name::from("cni0"))),
        Just(DetectLocal::InterfaceNamePrefix(Name::from("veth"))),
    ];
    let ranges: Vec<NodePortRange> = cidrs(&["192.0.2.0/24", "127.0.0.0/8", "2001:db8::/64"])
        .into_iter()
        .map(NodePortRange::Cidr)
        .chain([NodePortRange::Primary, NodePortRange::Localhost, NodePortRange::All])
        .collect();
    let node_name = shape.node.clone();
    let fields = (detect_local, any::<bool>(), subsequence(ranges, 0..=3), any::<bool>());
    fields.prop_map(move |(detect_local, masquerade_all, node_port_addresses, allow_external_ips)| Settings {
        detect_local,
        masquerade_all,
        node_port_addresses,
        allow_external_ips,
        ..Settings::new(&node_name)
    })
}

/// Addresses of the host, loopback ones included.
pub fn host_addresses() -> impl Strategy<Value = Vec<IpAddr>> {
    let all = ["127.0.0.1", "192.0.2.1", "192.0.2.9", "::1", "2001:db8::1", "fe80::1"];
    subsequence(all.iter().filter_map(|ip| ip.parse().ok()).collect::<Vec<IpAddr>>(), 0..=6)
}

type ClusterAddresses = (String, Vec<String>, Vec<String>);

/// `clusterIP`, `clusterIPs` and `ipFamilies`: one family or two in either order, headless, or without the plural fields.
fn cluster_addresses(shape: &Shape) -> impl Strategy<Value = ClusterAddresses> + use<> {
    use Family::{V4, V6};
    let of = |family| {
        let ips: Vec<IpAddr> =
            shape.cluster_ips.iter().copied().filter(|ip| Family::of(*ip) == family).collect();
        select(ips).prop_map(|ip| ip.to_string())
    };
    let plural = |ips: Vec<(String, Family)>| {
        let families = ips.iter().map(|(_, family)| family.as_str().to_owned()).collect();
        let ips: Vec<String> = ips.into_iter().map(|(ip, _)| ip).collect();
        (ips[0].clone(), ips, families)
    };
    let odd = odd(shape);
    prop_oneof![
        8 => of(V4).prop_map(move |ip| plural(vec![(ip, V4)])),
        4 => of(V6).prop_map(move |ip| plural(vec![(ip, V6)])),
        6 => (of(V4), of(V6)).prop_map(move |(v4, v6)| plural(vec![(v4, V4), (v6, V6)])),
        3 => (of(V6), of(V4)).prop_map(move |(v6, v4)| plural(vec![(v6, V6), (v4, V4)])),
        2 => of(V4).prop_map(|ip| (ip, vec![], vec![])),
        2 => Just(("None".to_owned(), strings(&["None"]), strings(&["IPv4"]))),
        odd => Just(("bad".to_owned(), vec![], vec![])),
        odd => of(V4).prop_map(|ip| (ip.clone(), vec![ip], strings(&["IPv6", "IPv4"]))),
    ]
}

/// What a Service can have beside its cluster address.
#[derive(Debug)]
struct ExternalAddresses {
    external_ips: Vec<String>,
    source_ranges: Vec<String>,
    ingress: Vec<manifest::LoadBalancerIngress>,
}

fn external_addresses(shape: &Shape) -> impl Strategy<Value = ExternalAddresses> + use<> {
    // A cluster address among the external ones is a conflict that occurs in practice.
    let ips: Vec<IpAddr> = shape.external_ips.iter().chain(shape.cluster_ips.first()).copied().collect();
    let odd = odd(shape);
    let text = prop_oneof![
        12 => select(ips).prop_map(|ip| ip.to_string()),
        odd => select(strings(&["", " ", "bad", " 198.51.100.1", "::ffff:198.51.100.2", "198.051.100.003"])),
    ];
    let text = text.boxed();
    let mode = prop_oneof![4 => Just(None), 2 => Just(Some("VIP")), 1 => Just(Some("Proxy")), odd => Just(Some("?"))];
    let ingress = (text.clone(), mode)
        .prop_map(|(ip, mode)| manifest::LoadBalancerIngress { ip, ip_mode: mode.map(str::to_owned) });
    let fields = (
        few(text),
        subsequence(shape.source_ranges.clone(), 0..=shape.source_ranges.len().min(2)),
        few(ingress),
    );
    fields.prop_map(|(external_ips, source_ranges, ingress)| ExternalAddresses {
        external_ips,
        source_ranges,
        ingress,
    })
}

fn service_ports(shape: &Shape) -> impl Strategy<Value = manifest::ServicePort> + use<> {
    let numbers: Vec<i32> = shape.ports.iter().map(|port| i32::from(*port)).collect();
    let node_ports: Vec<i32> = shape.node_ports.iter().map(|port| i32::from(*port)).collect();
    let odd = odd(shape);
    let fields = (
        port_names(),
        prop_oneof![40 => select(shape.protocols.clone()), odd => select(vec!["", "ICMP"])],
        prop_oneof![40 => select(numbers), odd => select(vec![0, -1, 65_536])],
        prop_oneof![30 => Just(0), 20 => select(node_ports), odd => Just(70_000)],
    );
    fields.prop_map(|(name, protocol, port, node_port)| manifest::ServicePort {
        name,
        protocol: protocol.to_owned(),
        port,
        node_port,
    })
}

fn slice_ports(shape: &Shape) -> impl Strategy<Value = manifest::EndpointPort> + use<> {
    let numbers: Vec<i32> = shape.endpoint_ports.iter().map(|port| i32::from(*port)).collect();
    let odd = odd(shape);
    let fields = (
        prop_oneof![40 => port_names().prop_map(Some), odd => Just(None)],
        prop_oneof![40 => select(shape.protocols.clone()).prop_map(Some), odd => select(vec![None, Some("ICMP")])],
        prop_oneof![40 => select(numbers).prop_map(Some), odd => select(vec![None, Some(0), Some(-1)])],
    );
    fields.prop_map(|(name, protocol, port)| manifest::EndpointPort {
        name,
        protocol: protocol.map(str::to_owned),
        port,
    })
}

fn port_names() -> impl Strategy<Value = String> {
    weighted(&[(6, "http"), (1, "https"), (1, "")])
}

/// Endpoints, so many of which have hints.
fn endpoints(
    shape: &Shape,
    family: Family,
    hinted: f64,
) -> impl Strategy<Value = manifest::Endpoint> + use<> {
    let ips: Vec<IpAddr> =
        shape.endpoint_ips.iter().copied().filter(|ip| Family::of(*ip) == family).collect();
    let fields = (
        prop_oneof![
            40 => prop::collection::vec(select(ips).prop_map(|ip| ip.to_string()), 1..=2),
            odd(shape) => select(vec![vec![], strings(&["bad"]), strings(&["198.51.100.1"])]),
        ],
        option::weighted(0.9, conditions()),
        option::weighted(0.9, select(shape.nodes.clone())),
        option::weighted(hinted, hints(shape)),
    );
    fields.prop_map(|(addresses, conditions, node_name, hints)| manifest::Endpoint {
        addresses,
        conditions,
        node_name,
        hints,
    })
}

/// Every combination, but ready endpoints most often.
fn conditions() -> impl Strategy<Value = manifest::EndpointConditions> {
    let ready = prop_oneof![3 => Just(Some(true)), 2 => Just(Some(false)), 1 => Just(None)];
    let terminating = prop_oneof![2 => Just(Some(false)), 1 => Just(Some(true)), 1 => Just(None)];
    (ready, any::<Option<bool>>(), terminating).prop_map(|(ready, serving, terminating)| {
        manifest::EndpointConditions { ready, serving, terminating }
    })
}

fn hints(shape: &Shape) -> impl Strategy<Value = manifest::EndpointHints> + use<> {
    let named = |names: &[String]| -> Vec<manifest::Hint> {
        names.iter().map(|name| manifest::Hint { name: name.clone() }).collect()
    };
    let (zones, nodes) = (named(&shape.zones), named(&shape.nodes));
    let (most_zones, most_nodes) = (zones.len(), nodes.len());
    (subsequence(zones, 1..=most_zones), subsequence(nodes, 0..=most_nodes))
        .prop_map(|(for_zones, for_nodes)| manifest::EndpointHints { for_zones, for_nodes })
}

type Affinity = (String, Option<manifest::SessionAffinityConfig>);

fn affinities() -> impl Strategy<Value = Affinity> {
    let seconds = select(vec![None, Some(60), Some(10_800)]);
    let sticky = seconds.prop_map(|timeout_seconds| {
        let client_ip = Some(manifest::ClientIpConfig { timeout_seconds });
        ("ClientIP".to_owned(), Some(manifest::SessionAffinityConfig { client_ip }))
    });
    prop_oneof![3 => Just(("None".to_owned(), None)), 1 => sticky, 1 => Just(("ClientIP".to_owned(), None))]
}

/// The annotation with the time of a change, or none.
fn slice_times() -> impl Strategy<Value = Option<(String, String)>> {
    let time = select(strings(&["2026-01-02T03:04:05Z", "2026-01-02T03:04:06.5Z", "soon"]));
    option::weighted(0.5, time.prop_map(|time| (manifest::ANNOTATION_TRIGGER_TIME.to_owned(), time)))
}

/// Most often none.
fn few<T: Clone + std::fmt::Debug + 'static>(
    of: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![3 => Just(Vec::new()), 2 => prop::collection::vec(of, 1..3)]
}

/// How often an invalid value is chosen.
fn odd(shape: &Shape) -> u32 {
    u32::from(shape.invalid)
}

fn weighted(values: &[(u32, &'static str)]) -> impl Strategy<Value = String> + use<> {
    let arms: Vec<_> = values.iter().map(|(weight, text)| (*weight, Just((*text).to_owned()))).collect();
    prop::strategy::Union::new_weighted(arms)
}

/// Of several objects with one name the first.
fn unique<T>(mut all: Vec<T>, metadata: impl Fn(&T) -> &manifest::Metadata) -> Vec<T> {
    let mut seen = std::collections::HashSet::new();
    all.retain(|object| seen.insert(metadata(object).name.clone()));
    all
}

fn metadata(name: &str) -> manifest::Metadata {
    manifest::Metadata { name: name.to_owned(), namespace: "demo".to_owned(), ..Default::default() }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
