//! Node ports on loopback addresses are rejected and counted (feature gate `KubeProxyNFTablesLocalhostNodePorts`).
//!
//! Packets to loopback addresses are not translated: they could not leave the node. A proxy in user space may serve TCP. Everything it
//! does not serve is rejected here, so that clients do not wait for a timeout, and counted for operators.

use std::time::Duration;

use portwarden_model::{Family, LoopbackNodePorts, Protocol};
use portwarden_netlink::nftables::{Client, Expr, TableId};

use crate::chains::{Chains, RuleContext};
use crate::dataplane::TABLE;
use crate::error::Error;
use crate::expressions::{count, goto, in_set, jump, map, port, protocol_is, rule, set_priority};
use crate::kernel::kernel_family;
use crate::node_ports::loopback;
use crate::sets::SetId;

/// The chain that counts has the name of a chain that kube-proxy flushes first. With another name kube-proxy could not take over the
/// table: it removes counters that it does not need, and the kernel refuses that while a rule uses them.
const CHAIN: &str = "nodeport-endpoints-check";

/// The chain that packets to this host pass.
const INPUT: &str = "input-checks";

/// Rejects every protocol, or all but TCP where the proxy listens.
pub(crate) fn add_rules(context: &RuleContext<'_>, chains: &mut Chains) {
    let refused: &[Protocol] = match context.node.loopback_node_ports {
        LoopbackNodePorts::Named => &[Protocol::Udp, Protocol::Sctp],
        LoopbackNodePorts::Included | LoopbackNodePorts::Excluded => &Protocol::ALL,
    };
    let rules = refused.iter().flat_map(|protocol| reject(*protocol)).collect();
    chains.set(CHAIN, rules);
    let mut input = vec![rule![context.build().destination_in(&loopback(context.family), true), jump(CHAIN)]];
    input.extend(chains.rules(INPUT).into_iter().flatten().cloned());
    chains.set(INPUT, input);
}

/// How many packets were rejected, for each protocol that has a counter. Waits for the kernel until the timeout.
pub fn loopback_rejected_packets(family: Family, timeout: Duration) -> Result<Vec<(Protocol, u64)>, Error> {
    let mut client = Client::open().map_err(|source| Error::Open { family, source })?;
    let read = |source| Error::Read { family, source };
    client.set_timeout(timeout).map_err(read)?;
    let counters = match client.counters(&TableId::new(kernel_family(family), TABLE)) {
        Err(error) if error.is_not_found() => Vec::new(),
        counters => counters.map_err(read)?,
    };
    let packets = |protocol| {
        let named = counters.iter().find(|counter| *counter.object.name == *counter_name(protocol))?;
        Some((protocol, named.object.packets))
    };
    Ok(Protocol::ALL.into_iter().filter_map(packets).collect())
}

/// A node port is in one of two sets, or in both: one leads to endpoints, the other has node ports without endpoints.
fn reject(protocol: Protocol) -> [Vec<Expr>; 2] {
    let served = vec![map(SetId::NodePorts.name()), set_priority()];
    let unserved = vec![in_set(SetId::UnservedNodePorts.name())];
    [served, unserved].map(|lookup| {
        let counted = vec![count(&counter_name(protocol)), goto("refuse")];
        [protocol_is(protocol.number()), port(), lookup, counted].concat()
    })
}

/// The counter has kube-proxy's name.
fn counter_name(protocol: Protocol) -> String {
    format!("localhost-nodeport-rejected-{}", protocol.as_lower())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::NodePortRange;
    use std::collections::BTreeSet;

    /// The protocols that are rejected.
    fn rejected(ranges: &[NodePortRange], family: Family) -> Vec<Protocol> {
        let cluster = samples::cluster(samples::node_ports_on(ranges), Vec::new());
        let node = &cluster.desired(family).node;
        let context = RuleContext { loopback_node_ports: true, ..RuleContext::plain(family, node) };
        let text = Chains::render(&context, &BTreeSet::new()).text(family, CHAIN);
        Protocol::ALL.into_iter().filter(|protocol| text.contains(&counter_name(*protocol))).collect()
    }

    #[test]
    fn tcp_is_left_to_the_proxy_only_where_loopback_addresses_are_named() {
        for family in Family::BOTH {
            assert_eq!(rejected(&[], family), Protocol::ALL);
            assert_eq!(rejected(&[NodePortRange::All], family), Protocol::ALL);
            assert_eq!(rejected(&[NodePortRange::Localhost], family), [Protocol::Udp, Protocol::Sctp]);
        }
    }
}
