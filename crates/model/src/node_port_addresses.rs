//! `nodePortAddresses`: on which of the node's addresses node ports answer, loopback addresses included.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;

use crate::ip::Family;

/// One entry of `nodePortAddresses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePortRange {
    /// Addresses in this range.
    Cidr(IpNet),
    /// `primary`: the Node's own addresses.
    Primary,
    /// Loopback addresses, in both families.
    Localhost,
    /// Every address, in both families.
    All,
}

/// The local addresses on which node ports answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Every local address, including loopback addresses where the dataplane can serve them.
    All,
    /// These, sorted. Loopback addresses are among them only if the operator gave a loopback range.
    Only(Box<[IpAddr]>),
}

/// What the operator's ranges for node ports say about loopback addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopbackNodePorts {
    /// No range contains loopback addresses.
    Excluded,
    /// No range is given, or a range contains loopback addresses among others.
    Included,
    /// One of the ranges is a loopback range itself.
    Named,
}

impl NodePortAddresses {
    /// Whether node ports answer on this local address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match self {
            NodePortAddresses::All => true,
            NodePortAddresses::Only(ips) => ips.contains(&ip),
        }
    }
}

/// What the ranges say about loopback addresses while the Node, and so `primary`, is unknown. `primary` never counts as loopback.
pub fn loopback_node_ports(family: Family, given: &[NodePortRange]) -> LoopbackNodePorts {
    let ranges = expand(family, given, family.loopback());
    if ranges.is_empty() && given.contains(&NodePortRange::Primary) {
        return LoopbackNodePorts::Excluded;
    }
    loopback_of_ranges(family, &ranges)
}

/// Where node ports answer in a family, and what that says about loopback addresses.
pub(crate) fn resolve(
    family: Family,
    given: &[NodePortRange],
    node_ip: IpAddr,
    host_addresses: &[IpAddr],
) -> (NodePortAddresses, LoopbackNodePorts) {
    let ranges = expand(family, given, node_ip);
    // Ranges of the other family alone do not restrict this one.
    let everywhere = ranges.is_empty() || ranges.iter().any(|range| range.prefix_len() == 0);
    let addresses =
        if everywhere { NodePortAddresses::All } else { addresses_within(family, &ranges, host_addresses) };
    (addresses, loopback_of_ranges(family, &ranges))
}

/// The ranges of this family, keywords expanded. `primary` is left out while the Node's address is unknown (a loopback address).
fn expand(family: Family, given: &[NodePortRange], node_ip: IpAddr) -> Vec<IpNet> {
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

fn loopback_of_ranges(family: Family, ranges: &[IpNet]) -> LoopbackNodePorts {
    if ranges.iter().any(|range| range.addr().is_loopback()) {
        LoopbackNodePorts::Named
    } else if ranges.is_empty() || ranges.iter().any(|range| includes_loopback(family, range)) {
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
