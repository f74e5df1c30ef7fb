//! Manifests survive both encodings, and nothing that can be written in them makes us panic.

use std::fmt::Debug;

use portwarden_model::manifest::{self, LABEL_SERVICE_NAME};
use portwarden_model::{Cluster, Event, Interner, Settings, object};
use portwarden_testkit::strategies::{Object, Shape, objects};
use proptest::prelude::*;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::server::applied;

/// Through JSON and through protobuf.
fn round_trip<T: Message + Default + PartialEq + Debug + Serialize + DeserializeOwned>(given: &T) {
    let json = serde_json::to_string(given).expect("manifests can be written as JSON");
    let from_json: T = serde_json::from_str(&json).expect("what we wrote is JSON");
    assert_eq!(from_json, *given, "{json}");
    let from_protobuf = T::decode(given.encode_to_vec().as_slice()).expect("what we wrote is protobuf");
    assert_eq!(from_protobuf, *given);
}

/// Text as users write it by mistake, and worse.
fn texts() -> impl Strategy<Value = String> {
    let near = [
        "10.0.0.1",
        "fd00::1",
        "10.0.0.0/8",
        "::/0",
        "None",
        "IPv4",
        "IPv6",
        "Local",
        "TCP",
        "UDP",
        "ClientIP",
    ];
    prop_oneof![
        3 => proptest::sample::select(near.map(str::to_owned).to_vec()),
        1 => "[0-9a-f:./% ]{0,20}",
        1 => "\\PC{0,12}",
        1 => any::<String>(),
    ]
}

fn lists() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(texts(), 0..4)
}

fn any_service() -> impl Strategy<Value = manifest::Service> {
    let port =
        (texts(), texts(), any::<i32>(), any::<i32>()).prop_map(|(name, protocol, port, node_port)| {
            manifest::ServicePort { name, protocol, port, node_port }
        });
    let strings = (texts(), texts(), texts(), texts(), texts(), texts());
    let vectors = (lists(), lists(), lists(), lists(), prop::collection::vec(port, 0..4), lists());
    (strings, vectors, any::<Option<i32>>(), any::<i32>()).prop_map(|(strings, vectors, seconds, health)| {
        let (name, namespace, kind, cluster_ip, affinity, policy) = strings;
        let (cluster_ips, families, external_ips, ranges, ports, ingress) = vectors;
        let client_ip = Some(manifest::ClientIpConfig { timeout_seconds: seconds });
        let ingress = ingress.into_iter().map(|ip| manifest::LoadBalancerIngress { ip, ip_mode: None });
        manifest::Service {
            metadata: manifest::Metadata { name, namespace, ..Default::default() },
            spec: manifest::ServiceSpec {
                ports,
                cluster_ip,
                cluster_ips,
                r#type: kind,
                external_ips,
                session_affinity: affinity,
                load_balancer_source_ranges: ranges,
                external_traffic_policy: policy.clone(),
                health_check_node_port: health,
                session_affinity_config: Some(manifest::SessionAffinityConfig { client_ip }),
                ip_families: families,
                internal_traffic_policy: Some(policy),
            },
            status: manifest::ServiceStatus {
                load_balancer: manifest::LoadBalancerStatus { ingress: ingress.collect() },
            },
        }
    })
}

fn any_slice() -> impl Strategy<Value = manifest::EndpointSlice> {
    let hints = (lists(), lists()).prop_map(|(zones, nodes)| {
        let named = |names: Vec<String>| names.into_iter().map(|name| manifest::Hint { name }).collect();
        manifest::EndpointHints { for_zones: named(zones), for_nodes: named(nodes) }
    });
    let endpoint =
        (lists(), any::<[Option<bool>; 3]>(), proptest::option::of(texts()), proptest::option::of(hints))
            .prop_map(|(addresses, [ready, serving, terminating], node_name, hints)| manifest::Endpoint {
                addresses,
                conditions: Some(manifest::EndpointConditions { ready, serving, terminating }),
                node_name,
                hints,
            });
    let port = (proptest::option::of(texts()), proptest::option::of(texts()), any::<Option<i32>>())
        .prop_map(|(name, protocol, port)| manifest::EndpointPort { name, protocol, port });
    let fields = (
        [texts(), texts(), texts(), texts(), texts()],
        prop::collection::vec(endpoint, 0..4),
        prop::collection::vec(port, 0..3),
    );
    fields.prop_map(|([name, namespace, service, address_type, time], endpoints, ports)| {
        let mut metadata = manifest::Metadata { name, namespace, ..Default::default() };
        metadata.labels.insert(LABEL_SERVICE_NAME.to_owned(), service);
        metadata.annotations.insert(manifest::ANNOTATION_TRIGGER_TIME.to_owned(), time);
        manifest::EndpointSlice { metadata, endpoints, ports, address_type }
    })
}

proptest! {
    #[test]
    fn both_encodings_keep_every_field(object in objects(&Shape::default())) {
        match &object {
            Object::Service(service) => round_trip(service.as_ref()),
            Object::Slice(slice) => round_trip(slice),
            Object::Node(node) => round_trip(node),
            Object::ServiceCidr(cidr) => round_trip(cidr),
        }
    }

    #[test]
    fn both_encodings_keep_arbitrary_text(service in any_service(), slice in any_slice()) {
        round_trip(&service);
        round_trip(&slice);
    }

    /// Whatever an object contains, the rest of the cluster works.
    #[test]
    fn nothing_that_is_written_makes_us_panic(
        services in prop::collection::vec(any_service(), 0..4),
        slices in prop::collection::vec(any_slice(), 0..4),
        cidrs in lists(),
        addresses in prop::collection::vec((texts(), texts()), 0..4),
    ) {
        let mut cluster = Cluster::new(Settings::new("node-a"));
        let mut node = manifest::Node::default();
        node.metadata.name = "node-a".to_owned();
        node.spec.pod_cidrs = cidrs.clone();
        node.status.addresses =
            addresses.into_iter().map(|(kind, address)| manifest::NodeAddress { r#type: kind, address }).collect();
        let mut cidr = manifest::ServiceCidr::default();
        cidr.spec.cidrs = cidrs;
        cluster.apply(Event::NodeApplied(object::Node::from_manifest(&node).0));
        cluster.apply(Event::ServiceCidrApplied(object::ServiceCidr::from_manifest(&cidr).0));
        let names = &mut Interner::default();
        let settled_services = services.iter().filter_map(|s| object::Service::from_manifest(s, names).0);
        for service in settled_services.collect::<Vec<_>>() {
            cluster.apply(Event::ServiceApplied(service));
        }
        for slice in slices.iter().filter_map(|s| object::EndpointSlice::from_manifest(s, names).0) {
            cluster.apply(Event::SliceApplied(slice));
        }
        cluster.resolve();
    }

    /// Protobuf from anywhere: decoded, parsed and applied, or refused.
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut cluster = Cluster::new(Settings::new("node-a"));
        if let Ok(service) = manifest::Service::decode(bytes.as_slice()) {
            cluster.apply(applied(&Object::Service(Box::new(service))));
        }
        if let Ok(slice) = manifest::EndpointSlice::decode(bytes.as_slice()) {
            cluster.apply(applied(&Object::Slice(slice)));
        }
        if let Ok(node) = manifest::Node::decode(bytes.as_slice()) {
            cluster.apply(applied(&Object::Node(node)));
        }
        cluster.resolve();
    }
}
