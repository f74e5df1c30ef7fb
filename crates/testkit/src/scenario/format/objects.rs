//! Objects in short form.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::FamilyName;
use super::text::Range;

/// Objects in short form.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Objects {
    /// Services by name.
    pub services: BTreeMap<String, ServiceContent>,
    /// Other endpoints for Services that are there already, by the Service's name.
    pub endpoints: BTreeMap<String, Vec<EndpointContent>>,
    /// Slices beside those that follow from a Service's `endpoints`, by name.
    pub slices: BTreeMap<String, SliceContent>,
    /// The Node.
    pub node: Option<NodeContent>,
    /// Ranges of ServiceCIDRs by name; there is one called `kubernetes` for all cluster addresses.
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: BTreeMap<String, Vec<Range>>,
}

/// A Service. Fields mean what they mean in Kubernetes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceContent {
    /// Its families, the primary one first; those of the scenario by default.
    pub families: Option<Vec<FamilyName>>,
    /// An IPv4 address also stands for its IPv6 twin.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// `spec.type`; ClusterIP by default.
    #[serde(default)]
    pub r#type: ServiceType,
    /// By default one TCP port, 80 to 8080.
    #[serde(default = "default_ports")]
    pub ports: Vec<PortContent>,
    /// External addresses.
    #[serde(rename = "externalIPs", default)]
    pub external_ips: Vec<IpAddr>,
    /// Addresses of the load balancer.
    #[serde(default)]
    pub ingress: Vec<IngressContent>,
    /// The clients that may use the load-balancer addresses.
    #[serde(default)]
    pub load_balancer_source_ranges: Vec<Range>,
    /// Where external traffic may go.
    #[serde(default)]
    pub external_traffic_policy: Policy,
    /// Where internal traffic may go.
    #[serde(default)]
    pub internal_traffic_policy: Policy,
    /// Session affinity: for how many seconds a client keeps its endpoint.
    #[serde(rename = "clientIPAffinity")]
    pub client_ip_affinity: Option<u16>,
    /// The port on which load balancers ask for this node's endpoints.
    pub health_check_node_port: Option<u16>,
    /// Added to the Service's metadata.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its endpoints; without this key its slices are left as they are.
    pub endpoints: Option<Vec<EndpointContent>>,
}

/// The type of a Service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    #[default]
    ClusterIP,
    /// Also on a port of every node.
    NodePort,
    /// Also through a load balancer.
    LoadBalancer,
    /// A name for something outside.
    ExternalName,
}

/// A traffic policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Policy {
    /// To all endpoints.
    #[default]
    Cluster,
    /// To those on this node.
    Local,
}

/// A port of a Service, or of a slice (which has no node port, and whose `port` is that of the endpoints).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortContent {
    /// Matches the name of a slice's port.
    #[serde(default)]
    pub name: String,
    /// TCP by default.
    #[serde(default)]
    pub protocol: ProtocolName,
    /// The Service's port; in a slice, that of the endpoints.
    pub port: u16,
    /// The number on endpoints; the same by default.
    pub target_port: Option<u16>,
    /// The number on every node.
    pub node_port: Option<u16>,
}

/// A protocol that probes speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum ProtocolName {
    /// TCP.
    #[default]
    TCP,
    /// UDP.
    UDP,
    /// SCTP.
    SCTP,
}

fn default_ports() -> Vec<PortContent> {
    let (name, protocol) = (String::new(), ProtocolName::TCP);
    vec![PortContent { name, protocol, port: 80, target_port: Some(8080), node_port: None }]
}

/// An address of a load balancer: `198.51.100.1`, or `{ ip: 198.51.100.1, ipMode: Proxy }`.
#[derive(Debug, Clone)]
pub struct IngressContent {
    /// The load-balancer address.
    pub ip: IpAddr,
    /// How it is used.
    pub ip_mode: Option<String>,
}

/// An EndpointSlice, for Services with more than one.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SliceContent {
    /// The Service it belongs to.
    pub service: String,
    /// Its families: one slice is made for each; those of the scenario by default.
    pub families: Option<Vec<FamilyName>>,
    /// The ports that every endpoint of the slice has.
    pub ports: Vec<PortContent>,
    /// Hosts or addresses.
    pub endpoints: Vec<EndpointContent>,
}

/// An endpoint: `pod-0`, or `{ host: pod-0, ready: false }`, or `{ address: 10.244.0.99 }`.
#[derive(Debug, Clone, Default)]
pub struct EndpointContent(pub EndpointFields);

/// An endpoint in its long form.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EndpointFields {
    /// The host it runs on, which will answer at its port.
    pub host: Option<String>,
    /// Its address, if no host answers there.
    pub address: Option<IpAddr>,
    /// The node it runs on; that of the host by default.
    pub node: Option<String>,
    /// Takes traffic.
    pub ready: Option<bool>,
    /// Answers.
    pub serving: Option<bool>,
    /// Is going away.
    pub terminating: Option<bool>,
    /// Zones that should use it.
    pub for_zones: Vec<String>,
    /// Nodes that should use it.
    pub for_nodes: Vec<String>,
}

/// The Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeContent {
    /// The zone label; none by default.
    pub zone: Option<String>,
}

impl<'de> Deserialize<'de> for EndpointContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HostOrFields;
        impl<'de> Visitor<'de> for HostOrFields {
            type Value = EndpointContent;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a host, or the fields of an endpoint")
            }
            fn visit_str<E: de::Error>(self, host: &str) -> Result<EndpointContent, E> {
                let host = Some(host.to_owned());
                Ok(EndpointContent(EndpointFields { host, ..EndpointFields::default() }))
            }
            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<EndpointContent, A::Error> {
                EndpointFields::deserialize(MapAccessDeserializer::new(fields)).map(EndpointContent)
            }
        }
        deserializer.deserialize_any(HostOrFields)
    }
}

impl<'de> Deserialize<'de> for IngressContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Fields {
            ip: IpAddr,
            ip_mode: Option<String>,
        }
        struct AddressOrFields;
        impl<'de> Visitor<'de> for AddressOrFields {
            type Value = IngressContent;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or ip and ipMode")
            }
            fn visit_str<E: de::Error>(self, ip: &str) -> Result<IngressContent, E> {
                let ip = ip.parse().map_err(|_| E::custom(format!("{ip:?} is not an address")))?;
                Ok(IngressContent { ip, ip_mode: None })
            }
            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<IngressContent, A::Error> {
                let Fields { ip, ip_mode } = Fields::deserialize(MapAccessDeserializer::new(fields))?;
                Ok(IngressContent { ip, ip_mode })
            }
        }
        deserializer.deserialize_any(AddressOrFields)
    }
}
