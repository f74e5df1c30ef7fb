//! What holds for the node as a whole: its address, its pods' traffic, where node ports answer.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;

use crate::desired::{LoopbackNodePorts, NodePortAddresses, NodeView, PodTraffic};
use crate::ip::Family;
use crate::object::Node;
use crate::settings::{DetectLocal, NodePortRange, Settings};

/// The view of one family.
pub(crate) fn node_view<'a>(
    family: Family,
    settings: &Settings,
    node: Option<&Node>,
    host_addresses: &[IpAddr],
    service_cidrs: impl Iterator<Item = &'a IpNet>,
) -> NodeView {
    let ip = node_ip(family, settings, node);
    let given = node_port_ranges(family, &settings.node_port_addresses, ip);
    // No range of this family, even with some of the other, and a range of everything both mean everywhere.
    let everywhere = given.is_empty() || given.iter().any(|range| range.prefix_len() == 0);
    let mut service_cidrs: Vec<IpNet> =
        service_cidrs.filter(|net| Family::of_net(net) == family).copied().collect();
    service_cidrs.sort();
    service_cidrs.dedup();
    NodeView {
        name: settings.node_name.clone(),
        ip,
        pod_traffic: pod_traffic(family, settings, node),
        node_ports: if everywhere {
            NodePortAddresses::All
        } else {
            addresses_within(family, &given, host_addresses)
        },
        loopback_node_ports: loopback_of_ranges(family, &given),
        service_cidrs: service_cidrs.into(),
    }
}

/// What the operator's ranges for node ports say about loopback addresses while the Node is not known. Its address counts as no loopback address.
pub fn loopback_node_ports(family: Family, given: &[NodePortRange]) -> LoopbackNodePorts {
    let ranges = node_port_ranges(family, given, family.loopback());
    if ranges.is_empty() && given.contains(&NodePortRange::Primary) {
        return LoopbackNodePorts::Excluded;
    }
    loopback_of_ranges(family, &ranges)
}

/// The family that the node itself prefers: that of an explicit bind address, else of its first address.
pub(crate) fn primary_family(settings: &Settings, node: Option<&Node>) -> Family {
    let explicit = settings.bind_address.filter(|ip| !ip.is_unspecified());
    let first = node.and_then(|node| node.ips.first().copied());
    explicit.or(first).map_or(Family::V4, Family::of)
}

fn node_ip(family: Family, settings: &Settings, node: Option<&Node>) -> IpAddr {
    let explicit = settings.bind_address.filter(|ip| !ip.is_unspecified() && Family::of(*ip) == family);
    explicit.or_else(|| node?.ip(family)).unwrap_or(family.loopback())
}

fn pod_traffic(family: Family, settings: &Settings, node: Option<&Node>) -> PodTraffic {
    let first = |nets: &[IpNet]| {
        let net = nets.iter().find(|net| Family::of_net(net) == family);
        net.map_or(PodTraffic::Unknown, |net| PodTraffic::From(*net))
    };
    match &settings.detect_local {
        DetectLocal::ClusterCidr(nets) => first(nets),
        DetectLocal::NodeCidr => node.map_or(PodTraffic::Unknown, |node| first(&node.pod_cidrs)),
        DetectLocal::BridgeInterface(name) => PodTraffic::Interface(name.clone()),
        DetectLocal::InterfaceNamePrefix(prefix) => PodTraffic::InterfacePrefix(prefix.clone()),
        DetectLocal::Off => PodTraffic::Unknown,
    }
}

/// The ranges of this family, keywords expanded.
fn node_port_ranges(family: Family, given: &[NodePortRange], node_ip: IpAddr) -> Vec<IpNet> {
    let loopback = match family {
        Family::V4 => IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8),
        Family::V6 => IpNet::from(family.loopback()),
    };
    given
        .iter()
        .filter_map(|range| match range {
            NodePortRange::Cidr(net) => (Family::of_net(net) == family).then_some(*net),
            NodePortRange::Primary => (!node_ip.is_loopback()).then(|| IpNet::from(node_ip)),
            NodePortRange::Localhost => Some(loopback),
            NodePortRange::All => Some(all_of(family)),
        })
        .collect()
}

fn all_of(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(ipnet::Ipv4Net::default()),
        Family::V6 => IpNet::V6(ipnet::Ipv6Net::default()),
    }
}

fn addresses_within(family: Family, ranges: &[IpNet], host_addresses: &[IpAddr]) -> NodePortAddresses {
    let mut ips: Vec<IpAddr> = host_addresses
        .iter()
        .copied()
        .filter(|ip| Family::of(*ip) == family && ranges.iter().any(|range| range.contains(ip)))
        .collect();
    ips.sort_unstable();
    ips.dedup();
    NodePortAddresses::Only(ips.into())
}

fn loopback_of_ranges(family: Family, given: &[IpNet]) -> LoopbackNodePorts {
    if given.iter().any(|range| range.addr().is_loopback()) {
        LoopbackNodePorts::Named
    } else if given.is_empty() || given.iter().any(|range| includes_loopback(family, range)) {
        LoopbackNodePorts::Included
    } else {
        LoopbackNodePorts::Excluded
    }
}

fn includes_loopback(family: Family, range: &IpNet) -> bool {
    match family {
        Family::V4 => range.addr().is_loopback() || range.contains(&IpAddr::from([127, 0, 0, 0])),
        Family::V6 => range.contains(&family.loopback()),
    }
}
