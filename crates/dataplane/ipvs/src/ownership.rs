//! Which virtual servers are ours, or a kube-proxy's before us. Pure.
//!
//! kube-proxy deletes every virtual server of the node that it did not create. Portwarden leaves those of other programs alone: ours are on an
//! address of our device, or are named in one of our sets.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use portwarden_netlink::ipset::Entry;
use portwarden_netlink::ipvs::ServerKey;

use crate::names::SetId;

/// What was found in the kernel before anything is written.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    /// The addresses of our device.
    pub(crate) bound: BTreeSet<IpAddr>,
    /// The entries of our sets.
    pub(crate) entries: HashSet<(SetId, Entry)>,
    /// The node's own addresses, on which node ports answer.
    pub(crate) node: BTreeSet<IpAddr>,
}

/// What one of our virtual servers is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// An address of a Service.
    ServiceAddress,
    /// A node port, on one of the node's addresses.
    NodePort,
}

impl Ownership {
    /// Whether a virtual server is ours.
    pub(crate) fn owns(&self, key: &ServerKey) -> bool {
        self.role(key).is_some()
    }

    /// What a virtual server is for; `None` if it is another program's.
    pub(crate) fn role(&self, key: &ServerKey) -> Option<Role> {
        let (ip, port) = (key.address.ip(), key.address.port());
        if self.bound.contains(&ip) {
            return Some(Role::ServiceAddress);
        }
        let protocol = u8::try_from(key.protocol).ok()?;
        let by_address = Entry::IpPort(ip, protocol, port);
        let address_sets = [SetId::ClusterIp, SetId::ExternalIp, SetId::ExternalIpLocal, SetId::LoadBalancer];
        if address_sets.iter().any(|set| self.entries.contains(&(*set, by_address))) {
            return Some(Role::ServiceAddress);
        }
        let node_port = match protocol {
            6 => (SetId::NodePortTcp, Entry::Port(port)),
            17 => (SetId::NodePortUdp, Entry::Port(port)),
            _ => (SetId::NodePortSctp, by_address),
        };
        (self.node.contains(&ip) && self.entries.contains(&node_port)).then_some(Role::NodePort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str, protocol: u16) -> ServerKey {
        ServerKey { address: text.parse().expect("an address"), protocol }
    }

    #[test]
    fn ours_are_on_the_device_or_in_a_set() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let ownership = Ownership {
            bound: [ip("10.96.0.10")].into(),
            entries: [
                (SetId::LoadBalancer, Entry::IpPort(ip("198.51.100.1"), 6, 80)),
                (SetId::NodePortTcp, Entry::Port(30_080)),
                (SetId::NodePortSctp, Entry::IpPort(ip("192.168.0.2"), 132, 30_132)),
            ]
            .into(),
            node: [ip("192.168.0.2")].into(),
        };
        for (text, protocol) in [
            ("10.96.0.10:80", 6),
            ("10.96.0.10:53", 17),
            ("198.51.100.1:80", 6),
            ("192.168.0.2:30080", 6),
            ("192.168.0.2:30132", 132),
        ] {
            let role = if text.ends_with("30080") || text.ends_with("30132") {
                Role::NodePort
            } else {
                Role::ServiceAddress
            };
            assert_eq!(ownership.role(&key(text, protocol)), Some(role), "{text}");
        }
        for (text, protocol) in [
            ("10.96.0.11:80", 6),
            ("198.51.100.1:81", 6),
            ("198.51.100.1:80", 17),
            ("192.168.0.2:30081", 6),
            ("192.168.0.2:30080", 17),
            ("172.16.0.1:30080", 6),
        ] {
            assert!(!ownership.owns(&key(text, protocol)), "{text}");
        }
    }
}
