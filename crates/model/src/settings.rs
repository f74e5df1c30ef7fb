//! The operator's settings that the desired state depends on.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::name::Name;
use crate::node_port_addresses::NodePortRange;
use crate::timestamp::Timestamp;

/// `detectLocalMode`: how traffic from pods of this node (or cluster) is identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectLocal {
    /// By source address within the cluster's pod ranges; the first of each family counts.
    ClusterCidr(Vec<IpNet>),
    /// By source address within the Node's `spec.podCIDRs`; the first of each family counts.
    NodeCidr,
    /// By arrival on this bridge.
    BridgeInterface(Name),
    /// By arrival on an interface whose name has this prefix.
    InterfaceNamePrefix(Name),
    /// Not at all.
    Off,
}

/// The settings that endpoint selection and frontends depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The name of the Node we run on.
    pub node_name: Name,
    /// How pod traffic is identified.
    pub detect_local: DetectLocal,
    /// The ranges that hold the addresses of all pods in the cluster, as far as they are configured.
    pub pod_ranges: Vec<IpNet>,
    /// Masquerade all traffic to cluster addresses.
    pub masquerade_all: bool,
    /// Node addresses on which node ports answer; empty means all.
    pub node_port_addresses: Vec<NodePortRange>,
    /// Whether `spec.externalIPs` count.
    pub allow_external_ips: bool,
    /// The TCP ports of Portwarden's own servers. A node port with one of these numbers is not served.
    pub reserved_ports: Vec<u16>,
    /// An explicit address of this node, which replaces the Node's address of its family.
    pub bind_address: Option<IpAddr>,
    /// When the process started. Changes with an older trigger time are not measured.
    pub started: Timestamp,
}

impl Settings {
    /// Settings for a node of this name with everything else at its default.
    pub fn new(node_name: &str) -> Self {
        Settings {
            node_name: Name::from(node_name),
            detect_local: DetectLocal::Off,
            pod_ranges: Vec::new(),
            masquerade_all: false,
            node_port_addresses: Vec::new(),
            allow_external_ips: true,
            reserved_ports: Vec::new(),
            bind_address: None,
            started: Timestamp::from_nanos(0),
        }
    }
}
