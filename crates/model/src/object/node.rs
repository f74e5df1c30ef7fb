//! The Node that Portwarden runs on.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::ip::{Family, parse_cidr, parse_ip};
use crate::manifest::{self, LABEL_ZONE};
use crate::name::Name;
use crate::problem::{Problem, Problems};

/// The taint that the cluster autoscaler sets before it removes a node.
const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A Node: its addresses, zone and pod ranges, and whether it takes new traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`; only the Node of our own name is used.
    pub name: Name,
    /// Differs from that of an earlier Node of the same name.
    pub uid: Name,
    /// The zone label, which may be empty.
    pub zone: Option<Name>,
    /// The first address, and the first one of the other family.
    pub ips: Vec<IpAddr>,
    /// `spec.podCIDRs`, in order.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether load balancers should send new traffic: false while the node is being removed.
    pub eligible: bool,
}

impl Node {
    /// Parses a Node. Invalid addresses and ranges are left out.
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

    /// The address that represents the node in one family.
    pub fn ip(&self, family: Family) -> Option<IpAddr> {
        self.ips.iter().copied().find(|ip| Family::of(*ip) == family)
    }
}

/// Internal addresses before external ones: the first address, and the first one of the other family.
fn addresses(from: &[manifest::NodeAddress]) -> Vec<IpAddr> {
    let of_type = |kind: &'static str| {
        from.iter().filter(move |a| a.r#type == kind).filter_map(|a| parse_ip(&a.address))
    };
    let all: Vec<IpAddr> = of_type("InternalIP").chain(of_type("ExternalIP")).collect();
    let Some(first) = all.first().copied() else { return Vec::new() };
    let second = all.iter().copied().find(|ip| Family::of(*ip) != Family::of(first));
    [Some(first), second].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{node, strings};

    fn parsed(change: impl FnOnce(&mut manifest::Node)) -> Node {
        Node::from_manifest(&node(change)).0
    }

    fn ips(addresses: &[(&str, &str)]) -> Vec<String> {
        let address = |(kind, ip): &(&str, &str)| manifest::NodeAddress {
            r#type: (*kind).to_owned(),
            address: (*ip).to_owned(),
        };
        let node = parsed(|n| n.status.addresses = addresses.iter().map(address).collect());
        node.ips.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn internal_addresses_come_before_external_ones() {
        assert_eq!(ips(&[("ExternalIP", "203.0.113.1"), ("InternalIP", "10.0.0.1")]), ["10.0.0.1"]);
        assert_eq!(
            ips(&[("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2"), ("ExternalIP", "2001:db8::1")]),
            ["10.0.0.1", "2001:db8::1"]
        );
        assert_eq!(ips(&[("InternalIP", "fd00::1"), ("InternalIP", "10.0.0.1")]), ["fd00::1", "10.0.0.1"]);
        assert_eq!(
            ips(&[("Hostname", "10.0.0.9"), ("InternalIP", "bad"), ("ExternalIP", "1.2.3.4")]),
            ["1.2.3.4"]
        );
        assert_eq!(ips(&[]), [""; 0]);
    }

    #[test]
    fn a_node_that_is_going_away_is_not_eligible() {
        assert!(parsed(|_| {}).eligible);
        let taint = |key: &str| vec![manifest::Taint { key: key.to_owned() }];
        assert!(parsed(|n| n.spec.taints = taint("node.kubernetes.io/not-ready")).eligible);
        assert!(!parsed(|n| n.spec.taints = taint("ToBeDeletedByClusterAutoscaler")).eligible);
        assert!(!parsed(|n| n.metadata.deletion_timestamp = Some(manifest::Time::default())).eligible);
    }

    #[test]
    fn bad_pod_ranges_are_reported_and_left_out() {
        let given = node(|n| n.spec.pod_cidrs = strings(&["bad", "10.1.0.0/24", "fd01::/64"]));
        let (node, problems) = Node::from_manifest(&given);
        assert_eq!(node.pod_cidrs.len(), 2);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].to_string(), "Node here: spec.podCIDRs[0]: \"bad\" is not a CIDR; left out");
    }

    /// The label counts even when it is empty.
    #[test]
    fn the_zone_comes_from_the_label() {
        assert_eq!(parsed(|_| {}).zone, None);
        let labelled = parsed(|n| {
            n.metadata.labels.insert(LABEL_ZONE.to_owned(), String::new());
        });
        assert_eq!(labelled.zone, Some(Name::default()));
    }

    #[test]
    fn easy_to_miss_29_addresses_and_ranges_compare_in_order() {
        let plain = parsed(|_| {});
        assert_ne!(plain.ips, parsed(|n| n.status.addresses.reverse()).ips);
        let ranges = |texts: &[&str]| parsed(|n| n.spec.pod_cidrs = strings(texts)).pod_cidrs;
        assert_ne!(ranges(&["10.1.0.0/24", "fd01::/64"]), ranges(&["fd01::/64", "10.1.0.0/24"]));
    }
}
