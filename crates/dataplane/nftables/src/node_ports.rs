//! The addresses on which node ports answer. Loopback addresses never do: a packet that was translated there could not leave the node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use portwarden_model::{Family, NodePortAddresses, NodeView};
use portwarden_netlink::nftables::Expr;

use crate::chains::RuleContext;
use crate::expressions::{in_set, rule, to_this_host};
use crate::sets::SetId;

/// Matches packets to an address with node ports, in hooks that all packets pass.
pub(crate) fn before_routing(context: &RuleContext<'_>) -> Vec<Expr> {
    match &context.node.node_ports {
        NodePortAddresses::All => rule![to_this_host(), in_input_hook(context)],
        NodePortAddresses::Only(_) => in_input_hook(context),
    }
}

/// Matches packets to an address with node ports in the input hook, which only packets to this host pass.
pub(crate) fn in_input_hook(context: &RuleContext<'_>) -> Vec<Expr> {
    let build = context.build();
    match &context.node.node_ports {
        NodePortAddresses::All => build.destination_in(&loopback(context.family), false),
        NodePortAddresses::Only(_) => rule![build.destination(0), in_set(SetId::NodeAddresses.name())],
    }
}

/// The addresses of [`SetId::NodeAddresses`].
pub(crate) fn addresses(node: &NodeView) -> BTreeSet<IpAddr> {
    match &node.node_ports {
        NodePortAddresses::All => BTreeSet::new(),
        NodePortAddresses::Only(ips) => ips.iter().copied().filter(|ip| !ip.is_loopback()).collect(),
    }
}

/// All loopback addresses of a family.
pub(crate) fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
        Family::V6 => IpNet::from(family.loopback()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::NodePortRange;

    fn of(ranges: &[NodePortRange], family: Family) -> Vec<String> {
        let cluster = samples::cluster(samples::node_ports_on(ranges), Vec::new());
        addresses(&cluster.desired(family).node).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_set_is_needed_only_for_a_choice_of_addresses() {
        assert_eq!(of(&[], Family::V4), [""; 0]);
        assert_eq!(of(&[NodePortRange::Primary], Family::V4), ["192.0.2.1"]);
        assert_eq!(of(&[NodePortRange::Primary], Family::V6), ["2001:db8::1"]);
    }

    #[test]
    fn loopback_addresses_are_left_out_even_if_they_are_named() {
        assert_eq!(of(&[NodePortRange::Primary, NodePortRange::Localhost], Family::V4), ["192.0.2.1"]);
    }
}
