//! The Node that we run on.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::ip::{Family, parse_cidr, parse_ip};
use crate::manifest::{self, LABEL_ZONE};
use crate::name::Name;
use crate::problem::{Problem, Problems};

/// The taint by which the cluster autoscaler announces that it is about to remove a node.
const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Who it is.
    pub name: Name,
    /// Tells it from an earlier Node of the same name.
    pub uid: Name,
    /// Its zone, if it has the label (which may be empty).
    pub zone: Option<Name>,
    /// Its addresses: the first one, and the first one of the other family.
    pub ips: Vec<IpAddr>,
    /// The ranges of its pods, in order.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether load balancers should send new traffic: false while the node is going away.
    pub eligible: bool,
}

impl Node {
    /// Settles a Node; addresses and ranges that are none are left out.
    pub fn from_manifest(from: &manifest::Node) -> (Node, Vec<Problem>) {
        let mut problems = Problems::of("Node", &from.metadata.name);
        let mut pod_cidrs = Vec::with_capacity(from.spec.pod_cidrs.len());
        for (index, text) in from.spec.pod_cidrs.iter().enumerate() {
            match parse_cidr(text.trim()) {
                Some(net) => pod_cidrs.push(net),
                None => problems
                    .add(format!("spec.podCIDRs[{index}]"), format!("{text:?} is not a CIDR; left out")),
            }
        }
        let node = Node {
            name: Name::from(from.metadata.name.as_str()),
            uid: Name::from(from.metadata.uid.as_str()),
            zone: from.metadata.labels.get(LABEL_ZONE).map(|zone| Name::from(zone.as_str())),
            ips: addresses(&from.status.addresses),
            pod_cidrs,
            eligible: from.metadata.deletion_timestamp.is_none()
                && !from.spec.taints.iter().any(|taint| taint.key == TAINT_TO_BE_DELETED),
        };
        (node, problems.into_vec())
    }

    /// The node's address in one family.
    pub fn ip(&self, family: Family) -> Option<IpAddr> {
        self.ips.iter().copied().find(|ip| Family::of(*ip) == family)
    }
}

/// Internal addresses come before external ones; of these the first, and the first of the other family.
fn addresses(from: &[manifest::NodeAddress]) -> Vec<IpAddr> {
    let of_type = |kind: &'static str| {
        from.iter().filter(move |a| a.r#type == kind).filter_map(|a| parse_ip(&a.address))
    };
    let all: Vec<IpAddr> = of_type("InternalIP").chain(of_type("ExternalIP")).collect();
    let Some(first) = all.first().copied() else { return Vec::new() };
    let second = all.iter().copied().find(|ip| Family::of(*ip) != Family::of(first));
    [Some(first), second].into_iter().flatten().collect()
}
