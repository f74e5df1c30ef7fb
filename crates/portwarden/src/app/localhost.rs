//! Node ports on 127.0.0.1: mode iptables offers them, and needs the kernel's `route_localnet` for it.

use std::net::{IpAddr, Ipv4Addr};

use portwarden_model::{Family, NodePortRange};
use tracing::info;

use crate::config::{Mode, Settled};

/// Whether a configuration asks for them, as far as it can be told without the Node.
pub(super) fn wanted(settled: &Settled) -> bool {
    allowed(settled) && on_loopback(&settled.node_port_addresses)
}

/// Whether they are not switched off altogether.
pub(super) fn allowed(settled: &Settled) -> bool {
    settled.mode == Mode::Iptables && settled.localhost_node_ports
}

/// Says what is about to be set. It opens the host a little, so nobody should have to find out by himself.
pub(super) fn tell() {
    info!(
        "Setting route_localnet=1 to allow node-ports on localhost; to prevent this, set --iptables-localhost-nodeports=false, or leave \
         loopback addresses out of --nodeport-addresses"
    );
}

/// Whether node ports answer on IPv4 loopback addresses. Without a range of the family they answer everywhere; the Node's own addresses,
/// which are not known here, are no loopback addresses.
fn on_loopback(ranges: &[NodePortRange]) -> bool {
    let includes = |range: &NodePortRange| match range {
        NodePortRange::Localhost | NodePortRange::All => Some(true),
        NodePortRange::Primary => Some(false),
        NodePortRange::Cidr(net) if Family::of_net(net) == Family::V4 => {
            Some(net.addr().is_loopback() || net.contains(&IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0))))
        }
        NodePortRange::Cidr(_) => None,
    };
    let mut of_family = ranges.iter().filter_map(includes).peekable();
    of_family.peek().is_none() || of_family.any(|includes| includes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_decide_whether_loopback_is_among_them() {
        let cidr = |text: &str| NodePortRange::Cidr(text.parse().expect("a range"));
        for (ranges, expected) in [
            (vec![], true),
            (vec![NodePortRange::All], true),
            (vec![NodePortRange::Localhost], true),
            (vec![NodePortRange::Primary], false),
            (vec![NodePortRange::Primary, NodePortRange::Localhost], true),
            (vec![cidr("10.0.0.0/8")], false),
            (vec![cidr("0.0.0.0/0")], true),
            (vec![cidr("127.0.0.1/32")], true),
            (vec![cidr("126.0.0.0/7")], true),
            (vec![cidr("fd00::/8")], true),
            (vec![cidr("fd00::/8"), cidr("10.0.0.0/8")], false),
        ] {
            assert_eq!(on_loopback(&ranges), expected, "{ranges:?}");
        }
    }
}
