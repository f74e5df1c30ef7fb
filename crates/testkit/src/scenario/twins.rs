//! One address for both families.
//!
//! Scenarios are written with IPv4 addresses. In IPv6 an address stands for its twin, which the topology's table of addresses puts
//! beside it: 10.244.0.12 and fd00:10:244::12. An IPv6 address stands for itself only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use ipnet::{IpNet, Ipv4Net};
use portwarden_model::Family;

use crate::topology::addresses::{
    CLIENTS, CLUSTER_CIDR, DualIp, DualNet, EVERYWHERE, EXTERNAL_IPS, NODE_B_PODS, NODE_PODS, NODE_SECONDARY,
    SERVICE_CIDR, UPLINK, VIPS,
};

/// The networks whose addresses have twins.
const NETWORKS: [DualNet; 7] = [UPLINK, CLIENTS, NODE_PODS, NODE_B_PODS, SERVICE_CIDR, VIPS, EXTERNAL_IPS];

/// What `ip` stands for in a family, if anything.
pub(super) fn ip_in(ip: IpAddr, family: Family) -> Result<Option<IpAddr>> {
    match (ip, family) {
        (IpAddr::V4(_), Family::V4) | (IpAddr::V6(_), Family::V6) => Ok(Some(ip)),
        (IpAddr::V6(_), Family::V4) => Ok(None),
        (IpAddr::V4(ip), Family::V6) => {
            let twin =
                twin(ip).with_context(|| format!("{ip} has no IPv6 twin; give the scenario one family"))?;
            Ok(Some(twin.into()))
        }
    }
}

/// An address and its twin.
pub(super) fn both(ip: Ipv4Addr) -> Result<DualIp> {
    let twin = twin(ip).with_context(|| format!("{ip} has no IPv6 twin"))?;
    Ok(DualIp { v4: ip, v6: twin })
}

/// What `net` stands for in a family, if anything.
pub(super) fn net_in(net: IpNet, family: Family) -> Result<Option<IpNet>> {
    match (net, family) {
        (IpNet::V4(_), Family::V4) | (IpNet::V6(_), Family::V6) => Ok(Some(net)),
        (IpNet::V6(_), Family::V4) => Ok(None),
        (IpNet::V4(net), Family::V6) => {
            let twin = net_twin(net).with_context(|| {
                format!("{net} has no IPv6 twin; give the scenario or the Service one family")
            })?;
            Ok(Some(twin))
        }
    }
}

fn twin(ip: Ipv4Addr) -> Option<Ipv6Addr> {
    let number = ip.octets()[3];
    let in_network = NETWORKS.into_iter().map(|net| net.host(number)).find(|twins| twins.v4 == ip);
    match in_network {
        Some(twins) => Some(twins.v6),
        None if ip == NODE_SECONDARY.v4 => Some(NODE_SECONDARY.v6),
        None if ip == Ipv4Addr::LOCALHOST => Some(Ipv6Addr::LOCALHOST),
        None => None,
    }
}

fn net_twin(net: Ipv4Net) -> Option<IpNet> {
    let mut whole = NETWORKS.into_iter().chain([CLUSTER_CIDR, EVERYWHERE]);
    match whole.find(|twins| twins.v4 == net) {
        Some(twins) => Some(twins.v6.into()),
        None if net.prefix_len() == 32 => Some(IpNet::from(IpAddr::from(twin(net.addr())?))),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twin_of(ip: &str) -> Option<String> {
        twin(ip.parse().unwrap()).map(|ip| ip.to_string())
    }

    #[test]
    fn addresses_of_the_topology_have_twins() {
        for (v4, v6) in [
            ("10.244.0.12", "fd00:10:244::12"),
            ("10.244.1.10", "fd00:10:244:1::10"),
            ("10.96.0.10", "fd00:10:96::10"),
            ("192.168.0.2", "fd00:192:168::2"),
            ("192.168.1.2", "fd00:192:168:1::2"),
            ("203.0.113.11", "2001:db8:113::11"),
            ("198.51.100.1", "2001:db8:100::1"),
            ("192.0.2.1", "2001:db8:2::1"),
            ("127.0.0.1", "::1"),
        ] {
            assert_eq!(twin_of(v4).as_deref(), Some(v6));
        }
        assert_eq!(twin_of("8.8.8.8"), None);
        assert_eq!(twin_of("10.96.1.10"), None);
    }

    #[test]
    fn whole_networks_and_single_addresses_have_twins_but_parts_have_not() {
        let twin_of = |net: &str| net_twin(net.parse().unwrap()).map(|net| net.to_string());
        assert_eq!(twin_of("10.244.0.0/16").as_deref(), Some("fd00:10:244::/56"));
        assert_eq!(twin_of("10.244.0.0/24").as_deref(), Some("fd00:10:244::/64"));
        assert_eq!(twin_of("0.0.0.0/0").as_deref(), Some("::/0"));
        assert_eq!(twin_of("203.0.113.10/32").as_deref(), Some("2001:db8:113::10/128"));
        assert_eq!(twin_of("203.0.113.0/28"), None);
    }

    #[test]
    fn an_ipv6_address_stands_for_itself_only() {
        let ip: IpAddr = "fd00::1".parse().unwrap();
        assert_eq!(ip_in(ip, Family::V6).unwrap(), Some(ip));
        assert_eq!(ip_in(ip, Family::V4).unwrap(), None);
    }
}
