//! A small cluster for unit tests, with every kind of frontend that the rules and sets have to express.

use portwarden_model::{
    Cluster, DetectLocal, Event, Family, Interner, Kind, NodePortRange, PerFamily, Settings, parse_cidr,
};
use portwarden_testkit::build::{
    EndpointBuilder, ServiceBuilder, endpoint, node, port, service, service_cidr, slice,
};
use portwarden_testkit::rig::Object;

const HERE: &str = "node-a";

/// Pods by address range, ServiceCIDRs known, node ports on all addresses.
pub(crate) fn settings() -> Settings {
    let pods = ["10.244.0.0/16", "fd00:10:244::/56"];
    Settings {
        detect_local: DetectLocal::ClusterCidr(pods.iter().filter_map(|net| parse_cidr(net)).collect()),
        ..Settings::new(HERE)
    }
}

/// The same with node ports on the addresses of these ranges only.
pub(crate) fn node_ports_on(ranges: &[NodePortRange]) -> Settings {
    Settings { node_port_addresses: ranges.to_vec(), ..settings() }
}

/// A node at 192.0.2.1 and 2001:db8::1 in a cluster with these objects.
pub(crate) fn cluster(settings: Settings, objects: Vec<Object>) -> Cluster {
    let mut names = Interner::default();
    let mut cluster = Cluster::new(settings);
    let own = ["127.0.0.1", "192.0.2.1", "198.51.100.1", "::1", "2001:db8::1"];
    cluster.apply(Event::HostAddresses(own.iter().map(|ip| ip.parse().expect("an address")).collect()));
    let node = Object::from(node(HERE).ip("192.0.2.1").ip("2001:db8::1"));
    let cidrs = Object::from(service_cidr("kubernetes", ["10.96.0.0/16", "fd00:10:96::/112"]));
    for object in [node, cidrs].into_iter().chain(objects) {
        let event = object.event(&mut names);
        cluster.apply(event);
    }
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
    cluster
}

/// `demo/NAME` of both families, with cluster addresses that end in `number`.
pub(crate) fn dual_stack(name: &str, number: u8) -> ServiceBuilder {
    let (v4, v6) = (format!("10.96.0.{number}"), format!("fd00:10:96::{number}"));
    service(name).cluster_ip(v4).cluster_ip(v6)
}

/// Slices of both families for `demo/NAME`, TCP port 8080. Endpoints 1 to 9 run on this node, others elsewhere.
pub(crate) fn endpoints(name: &str, numbers: &[u8]) -> Vec<Object> {
    let place = |number: u8| if number < 10 { HERE } else { "node-b" };
    let add = |family: Family, address: fn(u8) -> String| {
        let slice = slice(name, &format!("{name}-{}", family.as_str())).family(family).port(port(8080));
        let slice = numbers.iter().fold(slice, |slice, number| {
            let endpoint: EndpointBuilder = endpoint(address(*number)).on(place(*number));
            slice.endpoint(endpoint)
        });
        Object::from(slice)
    };
    let addresses: PerFamily<fn(u8) -> String> = PerFamily {
        v4: |number| format!("10.244.0.{number}"),
        v6: |number| format!("fd00:10:244::{number}"),
    };
    Family::BOTH.into_iter().map(|family| add(family, addresses[family])).collect()
}

/// One Service for each thing that can be said about one.
pub(crate) fn every_kind() -> Vec<Object> {
    let services = [
        dual_stack("cluster-ip", 1).port(port(80)),
        dual_stack("everywhere", 2)
            .of_type("LoadBalancer")
            .external_ip("203.0.113.2")
            .external_ip("2001:db8:113::2")
            .vip("203.0.113.102")
            .vip("2001:db8:113::102")
            .port(port(80).node_port(30002)),
        dual_stack("policy-local", 3)
            .of_type("LoadBalancer")
            .external_policy_local()
            .vip("203.0.113.103")
            .vip("2001:db8:113::103")
            .port(port(80).node_port(30003)),
        dual_stack("no-local-endpoints", 4)
            .of_type("NodePort")
            .external_policy_local()
            .internal_policy_local()
            .port(port(80).node_port(30004)),
        dual_stack("no-endpoints", 5).of_type("NodePort").port(port(80).node_port(30005)),
        dual_stack("source-ranges", 6)
            .of_type("LoadBalancer")
            .vip("203.0.113.106")
            .vip("2001:db8:113::106")
            .source_range("192.0.2.0/25")
            .source_range("192.0.2.128/25")
            .source_range("198.51.100.7/32")
            .source_range("2001:db8::/64")
            .port(port(80)),
        dual_stack("affinity", 7).affinity(600).port(port(80)),
        dual_stack("affinity-policy-local", 8)
            .affinity(600)
            .external_policy_local()
            .external_ip("203.0.113.8")
            .external_ip("2001:db8:113::8")
            .port(port(80)),
    ];
    let mut objects: Vec<Object> = services.into_iter().map(Object::from).collect();
    for (name, numbers) in [
        ("cluster-ip", &[1, 11][..]),
        ("everywhere", &[2, 12]),
        ("policy-local", &[3, 13]),
        ("no-local-endpoints", &[14]),
        ("source-ranges", &[16]),
        ("affinity", &[7, 17]),
        ("affinity-policy-local", &[8, 18]),
    ] {
        objects.extend(endpoints(name, numbers));
    }
    objects
}
