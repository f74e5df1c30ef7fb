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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{node, strings};

    fn settled(change: impl FnOnce(&mut manifest::Node)) -> Node {
        Node::from_manifest(&node(change)).0
    }

    fn ips(addresses: &[(&str, &str)]) -> Vec<String> {
        let address = |(kind, ip): &(&str, &str)| manifest::NodeAddress {
            r#type: (*kind).to_owned(),
            address: (*ip).to_owned(),
        };
        let node = settled(|n| n.status.addresses = addresses.iter().map(address).collect());
        node.ips.iter().map(ToString::to_string).collect()
    }

    /// Section 5.2 of the model's rules.
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

    /// Section 8.2 of the model's rules.
    #[test]
    fn a_node_that_is_going_away_is_not_eligible() {
        assert!(settled(|_| {}).eligible);
        let taint = |key: &str| vec![manifest::Taint { key: key.to_owned() }];
        assert!(settled(|n| n.spec.taints = taint("node.kubernetes.io/not-ready")).eligible);
        assert!(!settled(|n| n.spec.taints = taint("ToBeDeletedByClusterAutoscaler")).eligible);
        assert!(!settled(|n| n.metadata.deletion_timestamp = Some(manifest::Time::default())).eligible);
    }

    #[test]
    fn bad_pod_ranges_are_reported_and_left_out() {
        let given = node(|n| n.spec.pod_cidrs = strings(&["bad", "10.1.0.0/24", "fd01::/64"]));
        let (node, problems) = Node::from_manifest(&given);
        assert_eq!(node.pod_cidrs.len(), 2);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].to_string(), "Node here: spec.podCIDRs[0]: \"bad\" is not a CIDR; left out");
    }

    /// Section 5.4: the label counts even when it is empty.
    #[test]
    fn the_zone_comes_from_the_label() {
        assert_eq!(settled(|_| {}).zone, None);
        let labelled = settled(|n| {
            n.metadata.labels.insert(LABEL_ZONE.to_owned(), String::new());
        });
        assert_eq!(labelled.zone, Some(Name::default()));
    }

    #[test]
    fn easy_to_miss_29_addresses_and_ranges_compare_in_order() {
        let plain = settled(|_| {});
        assert_ne!(plain.ips, settled(|n| n.status.addresses.reverse()).ips);
        let ranges = |texts: &[&str]| settled(|n| n.spec.pod_cidrs = strings(texts)).pod_cidrs;
        assert_ne!(ranges(&["10.1.0.0/24", "fd01::/64"]), ranges(&["fd01::/64", "10.1.0.0/24"]));
    }
}
