//! Who has which address. Fixed, so that a scenario can name them and a reader can recognise them.
//!
//! | what | IPv4 | IPv6 |
//! |---|---|---|
//! | node `node-a`, primary | 192.168.0.2 | fd00:192:168::2 |
//! | node `node-a`, secondary | 192.168.1.2 | fd00:192:168:1::2 |
//! | second node `node-b` | 192.168.0.3 | fd00:192:168::3 |
//! | `outside`, as router of the uplink | 192.168.0.1 | fd00:192:168::1 |
//! | `outside`, as client | 203.0.113.10 to .13 | 2001:db8:113::10 to ::13 |
//! | all pods (cluster CIDR) | 10.244.0.0/16 | fd00:10:244::/56 |
//! | `pod-N` on `node-a` | 10.244.0.(10+N) | fd00:10:244::(10+N) |
//! | `remote-pod-N` on `node-b` | 10.244.1.(10+N) | fd00:10:244:1::(10+N) |
//! | cluster IPs (service CIDR) | 10.96.0.0/16 | fd00:10:96::/108 |
//! | load-balancer VIPs | 198.51.100.0/24 | 2001:db8:100::/64 |
//! | external IPs | 192.0.2.0/24 | 2001:db8:2::/64 |
//!
//! IPv6 groups repeat the decimal digits of the IPv4 octets: `10.244.0.12` goes with `fd00:10:244::12`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The two addresses of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DualIp {
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address.
    pub v6: Ipv6Addr,
}

impl DualIp {
    const fn new(v4: [u8; 4], v6: [u16; 8]) -> DualIp {
        let [a, b, c, d] = v4;
        let [e, f, g, h, i, j, k, l] = v6;
        DualIp { v4: Ipv4Addr::new(a, b, c, d), v6: Ipv6Addr::new(e, f, g, h, i, j, k, l) }
    }

    /// Both, IPv4 first.
    pub fn both(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }

    /// The one of the same family as `other`.
    pub fn like(self, other: IpAddr) -> IpAddr {
        if other.is_ipv4() { self.v4.into() } else { self.v6.into() }
    }
}

/// The two networks of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DualNet {
    /// The IPv4 network.
    pub v4: Ipv4Net,
    /// The IPv6 network.
    pub v6: Ipv6Net,
}

impl DualNet {
    const fn new(base: DualIp, v4_length: u8, v6_length: u8) -> DualNet {
        DualNet { v4: Ipv4Net::new_assert(base.v4, v4_length), v6: Ipv6Net::new_assert(base.v6, v6_length) }
    }

    /// Both, IPv4 first.
    pub fn both(self) -> [IpNet; 2] {
        [self.v4.into(), self.v6.into()]
    }

    /// Address number `number` of each network; in IPv6 the decimal digits are read as hexadecimal ones.
    pub fn host(self, number: u8) -> DualIp {
        let [a, b, c, _] = self.v4.addr().octets();
        let mut groups = self.v6.addr().segments();
        groups[7] = digits_as_hex(number);
        DualIp { v4: Ipv4Addr::new(a, b, c, number), v6: Ipv6Addr::from(groups) }
    }

    /// Whether `ip` lies in one of them.
    pub fn contains(self, ip: IpAddr) -> bool {
        self.both().iter().any(|net| net.contains(&ip))
    }
}

/// Everything: the default route.
pub const EVERYWHERE: DualNet = DualNet::new(DualIp::new([0; 4], [0; 8]), 0, 0);

/// The network that joins the nodes and the outside.
pub const UPLINK: DualNet =
    DualNet::new(DualIp::new([192, 168, 0, 0], [0xfd00, 0x192, 0x168, 0, 0, 0, 0, 0]), 24, 64);

/// The primary address of the node under test.
pub const NODE: DualIp = DualIp::new([192, 168, 0, 2], [0xfd00, 0x192, 0x168, 0, 0, 0, 0, 2]);

/// Its secondary address, in a network of its own.
pub const NODE_SECONDARY: DualIp = DualIp::new([192, 168, 1, 2], [0xfd00, 0x192, 0x168, 1, 0, 0, 0, 2]);

/// The second node.
pub const NODE_B: DualIp = DualIp::new([192, 168, 0, 3], [0xfd00, 0x192, 0x168, 0, 0, 0, 0, 3]);

/// The outside, as the router that both nodes send everything unknown to.
pub const ROUTER: DualIp = DualIp::new([192, 168, 0, 1], [0xfd00, 0x192, 0x168, 0, 0, 0, 0, 1]);

/// The network of the outside's clients.
pub const CLIENTS: DualNet =
    DualNet::new(DualIp::new([203, 0, 113, 0], [0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 0]), 24, 64);

/// How many client addresses the outside has, from number 10 on.
pub const CLIENT_COUNT: u8 = 4;

/// All pods of the cluster.
pub const CLUSTER_CIDR: DualNet =
    DualNet::new(DualIp::new([10, 244, 0, 0], [0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0]), 16, 56);

/// The pods of the node under test.
pub const NODE_PODS: DualNet =
    DualNet::new(DualIp::new([10, 244, 0, 0], [0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0]), 24, 64);

/// The bridge of the pods on the node under test, if they are on one: masquerading towards pods shows it.
pub const POD_BRIDGE: DualIp = DualIp::new([10, 244, 0, 1], [0xfd00, 0x10, 0x244, 0, 0, 0, 0, 1]);

/// The pods of the second node.
pub const NODE_B_PODS: DualNet =
    DualNet::new(DualIp::new([10, 244, 1, 0], [0xfd00, 0x10, 0x244, 1, 0, 0, 0, 0]), 24, 64);

/// Cluster IPs.
pub const SERVICE_CIDR: DualNet =
    DualNet::new(DualIp::new([10, 96, 0, 0], [0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0]), 16, 108);

/// Load-balancer VIPs; the outside routes them to the node under test.
pub const VIPS: DualNet =
    DualNet::new(DualIp::new([198, 51, 100, 0], [0x2001, 0xdb8, 0x100, 0, 0, 0, 0, 0]), 24, 64);

/// External IPs; the outside routes them to the node under test.
pub const EXTERNAL_IPS: DualNet =
    DualNet::new(DualIp::new([192, 0, 2, 0], [0x2001, 0xdb8, 2, 0, 0, 0, 0, 0]), 24, 64);

/// The first pod (and the first client) has this number in its network.
const FIRST: u8 = 10;

/// The gateway all pods have, an address no device bears: a permanent neighbour entry says where it is.
pub(super) const POD_GATEWAY: DualIp = DualIp::new([169, 254, 1, 1], [0xfe80, 0, 0, 0, 0, 0, 0, 1]);

/// Pod number `index` in the pod network of a node.
pub(crate) fn pod(network: DualNet, index: u8) -> DualIp {
    network.host(FIRST + index)
}

/// All client addresses of the outside, the default one first.
pub(super) fn clients() -> impl Iterator<Item = DualIp> {
    (0..CLIENT_COUNT).map(|index| CLIENTS.host(FIRST + index))
}

fn digits_as_hex(number: u8) -> u16 {
    let number = u16::from(number);
    (number / 100) << 8 | (number / 10 % 10) << 4 | (number % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_show_the_same_digits() {
        let pod = pod(NODE_B_PODS, 2);
        assert_eq!(pod.v4.to_string(), "10.244.1.12");
        assert_eq!(pod.v6.to_string(), "fd00:10:244:1::12");
        assert_eq!(NODE_PODS.host(213).v6.to_string(), "fd00:10:244::213");
    }

    #[test]
    fn pods_lie_in_the_cluster_cidr_and_nothing_else_does() {
        for ip in [pod(NODE_PODS, 0), pod(NODE_B_PODS, 200)].into_iter().flat_map(DualIp::both) {
            assert!(CLUSTER_CIDR.contains(ip), "{ip}");
        }
        for ip in [NODE, NODE_SECONDARY, NODE_B, ROUTER, VIPS.host(1), SERVICE_CIDR.host(1)] {
            assert!(!ip.both().into_iter().any(|ip| CLUSTER_CIDR.contains(ip)), "{ip:?}");
        }
    }
}
