//! Kubernetes objects as the API or a file writes them, before any validation.
//!
//! Each type is at once a slim protobuf message and a JSON/YAML shape, holding only the fields that matter to a proxy; every
//! other field is skipped while decoding. [`crate::object`] parses them into the types that everything else uses.

use std::collections::BTreeMap;

use prost::Message;
use serde::{Deserialize, Deserializer, Serialize};

/// The label that assigns a Service to another proxy.
pub const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// The label of slices that belong to headless Services.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
/// The label that names a slice's Service.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label with a Node's zone.
pub const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// The annotation with the time of the change that led to a slice's content.
pub const ANNOTATION_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// `metadata` of any object.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The object's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The object's namespace; empty for cluster-wide objects.
    #[prost(string, tag = "3")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Distinguishes objects that had the same name one after another.
    #[prost(string, tag = "5")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The API server's version of this object.
    #[prost(string, tag = "6")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Present while the object is being deleted.
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// Several decide whether and how an object is used: see the constants above.
    #[prost(btree_map = "string, string", tag = "11")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Only [`ANNOTATION_TRIGGER_TIME`] is read.
    #[prost(btree_map = "string, string", tag = "12")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A point in time: seconds and nanoseconds in protobuf, RFC 3339 text in JSON.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Time {
    /// Seconds since the epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds within the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanos = self.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(self.nanos));
        serializer.collect_str(&crate::Timestamp::from_nanos(nanos))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let nanos = crate::Timestamp::parse(&text).map_or(0, crate::Timestamp::as_nanos);
        let subsecond = i32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or(0);
        Ok(Time { seconds: nanos.div_euclid(1_000_000_000), nanos: subsecond })
    }
}

/// A `v1` Service.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// Name, namespace and labels.
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// Addresses, ports and policies.
    #[prost(message, required, tag = "2")]
    pub spec: ServiceSpec,
    /// Addresses that the load balancer assigned.
    #[prost(message, required, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    pub status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// Each becomes one proxied port per family.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServicePort>,
    /// The address of the primary family, or `None`.
    #[prost(string, tag = "3")]
    #[serde(rename = "clusterIP", deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub cluster_ip: String,
    /// One address for each of `ip_families`.
    #[prost(string, repeated, tag = "18")]
    #[serde(rename = "clusterIPs", deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub cluster_ips: Vec<String>,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[prost(string, tag = "4")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub r#type: String,
    /// Further addresses of this Service; the cluster's administrator routes them to nodes.
    #[prost(string, repeated, tag = "5")]
    #[serde(rename = "externalIPs", deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<String>,
    /// `None` or `ClientIP`.
    #[prost(string, tag = "7")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub session_affinity: String,
    /// CIDRs of the clients that may use the load balancer's addresses.
    #[prost(string, repeated, tag = "9")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `Cluster` or `Local`, for all addresses except the cluster address.
    #[prost(string, tag = "11")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub external_traffic_policy: String,
    /// The port on which load balancers ask whether this node has endpoints.
    #[prost(int32, tag = "12")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_zero")]
    pub health_check_node_port: i32,
    /// The timeout of `session_affinity`.
    #[prost(message, optional, tag = "14")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// `IPv4`, `IPv6`, in the order of `cluster_ips`.
    #[prost(string, repeated, tag = "19")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub ip_families: Vec<String>,
    /// `Cluster` or `Local`, for the cluster address.
    #[prost(string, optional, tag = "22")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_traffic_policy: Option<String>,
}

/// One of a Service's ports.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Matches the name of a slice's port.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// The number on cluster, external and load-balancer addresses.
    #[prost(int32, tag = "3")]
    pub port: i32,
    /// The port on every node; 0 for none.
    #[prost(int32, tag = "5")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_zero")]
    pub node_port: i32,
}

/// `spec.sessionAffinityConfig` of a Service.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// Holds the timeout.
    #[prost(message, optional, tag = "1")]
    #[serde(rename = "clientIP", skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientIpConfig>,
}

/// Details of `ClientIP` affinity.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// For how long a client keeps its endpoint after its last connection.
    #[prost(int32, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

/// `status` of a Service.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Only set for type `LoadBalancer`.
    #[prost(message, required, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer` of a Service.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// One entry per address.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// One address of a load balancer.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// Empty if the load balancer has a host name only.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// `VIP` (the default) or `Proxy`.
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_mode: Option<String>,
}

/// A `discovery.k8s.io/v1` EndpointSlice.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Name and namespace, and the Service as a label.
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// Usually at most 100 per slice.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<Endpoint>,
    /// The ports that every endpoint has.
    #[prost(message, repeated, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
    /// `IPv4`, `IPv6` or `FQDN`.
    #[prost(string, tag = "4")]
    pub address_type: String,
}

/// One endpoint of a slice.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Only the first address is used.
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    /// Absent conditions have defaults.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<EndpointConditions>,
    /// The node it runs on.
    #[prost(string, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Topology hints.
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<EndpointHints>,
}

/// The conditions of an endpoint.
#[derive(Clone, Copy, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Accepts new connections; absent means yes.
    #[prost(bool, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Answers requests, possibly while terminating; absent means yes.
    #[prost(bool, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Being shut down; absent means no.
    #[prost(bool, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// Topology hints: which zones or nodes should use an endpoint.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// Zones whose nodes should use it.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub for_zones: Vec<Hint>,
    /// Nodes that should use it.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub for_nodes: Vec<Hint>,
}

/// A zone or node named in a hint.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Hint {
    /// The zone's or the node's name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// One port of a slice.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Matches the name of a Service's port.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// `TCP`, `UDP` or `SCTP`.
    #[prost(string, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The port number on the endpoints.
    #[prost(int32, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// A `v1` Node.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The name, and the zone as a label.
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// Taints and pod ranges.
    #[prost(message, required, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub spec: NodeSpec,
    /// The node's addresses.
    #[prost(message, required, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Only the cluster autoscaler's taint is used.
    #[prost(message, repeated, tag = "5")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// The ranges from which its pods get addresses.
    #[prost(string, repeated, tag = "7")]
    #[serde(rename = "podCIDRs", deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
}

/// A taint of a Node.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Value and effect are not read.
    #[prost(string, tag = "1")]
    pub key: String,
}

/// `status` of a Node.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// In the order of preference within a type.
    #[prost(message, repeated, tag = "5")]
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
}

/// One address of a Node.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname`, ...
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// An IP address or a host name, depending on the type.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// A `networking.k8s.io` ServiceCIDR.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Name, namespace and labels.
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// Holds nothing but the ranges.
    #[prost(message, required, tag = "2")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// The ranges from which Services get addresses.
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub cidrs: Vec<String>,
}

/// JSON writers may spell an absent field as `null`.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if hands out references")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}
