//! What holds for the node as a whole: its address, how pod traffic is identified, the ranges of cluster addresses.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;

use crate::desired::{NodeView, PodTraffic};
use crate::ip::Family;
use crate::node_port_addresses;
use crate::object::Node;
use crate::settings::{DetectLocal, Settings};

/// The view of the node in one family.
pub(crate) fn node_view<'a>(
    family: Family,
    settings: &Settings,
    node: Option<&Node>,
    host_addresses: &[IpAddr],
    service_cidrs: impl Iterator<Item = &'a IpNet>,
) -> NodeView {
    let ip = node_ip(family, settings, node);
    let (node_ports, loopback_node_ports) =
        node_port_addresses::resolve(family, &settings.node_port_addresses, ip, host_addresses);
    let mut service_cidrs: Vec<IpNet> =
        service_cidrs.filter(|net| Family::of_net(net) == family).copied().collect();
    service_cidrs.sort();
    service_cidrs.dedup();
    let pod_range = settings.pod_ranges.iter().find(|net| Family::of_net(net) == family).copied();
    NodeView {
        name: settings.node_name.clone(),
        ip,
        pod_traffic: pod_traffic(family, settings, node),
        pod_range,
        own_in_pod_range: own_within(pod_range, host_addresses),
        node_ports,
        loopback_node_ports,
        service_cidrs: service_cidrs.into(),
    }
}

/// The host's addresses in a range. A host without any address has not been asked yet.
fn own_within(range: Option<IpNet>, host_addresses: &[IpAddr]) -> Option<Box<[IpAddr]>> {
    if host_addresses.is_empty() {
        return None;
    }
    let inside = |ip: &IpAddr| range.is_some_and(|range| range.contains(ip));
    let mut own: Vec<IpAddr> = host_addresses.iter().copied().filter(inside).collect();
    own.sort_unstable();
    own.dedup();
    Some(own.into())
}

/// The node's primary family: that of an explicit bind address, otherwise of its first address.
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
