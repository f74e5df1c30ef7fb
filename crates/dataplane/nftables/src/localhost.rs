//! Node ports on loopback addresses, while the operator wants them (kube-proxy's gate `KubeProxyNFTablesLocalhostNodePorts`).
//!
//! Packets to loopback addresses are not translated: they could not leave from there. A proxy in user space may answer for TCP. What it
//! does not answer for is refused here, and counted, so that clients need not wait and operators can see them.

use std::time::Duration;

use ipnet::IpNet;
use portwarden_model::{Family, LoopbackNodePorts, NodeView, Protocol};
use portwarden_netlink::nftables::{Client, Expr, TableId};

use crate::chains::Chains;
use crate::dataplane::TABLE;
use crate::error::Error;
use crate::kernel::kernel_family;
use crate::phrase::{Phrases, count, goto, in_set, jump, map, port, protocol_is, set_priority};
use crate::sets::SetId;

/// The chain that counts has the name of one that kube-proxy empties first of all. If it had another, kube-proxy could not take the table
/// over: it removes counters that it does not need, and the kernel refuses that while a rule uses them.
const CHAIN: &str = "nodeport-endpoints-check";

/// The chain from which packets to this host come.
const INPUT: &str = "input-checks";

/// Adds the rules that refuse what nobody answers for: TCP only where the proxy does not listen.
pub(crate) fn add(chains: &mut Chains, family: Family, node: &NodeView) {
    let refused: &[Protocol] = match node.loopback_node_ports {
        LoopbackNodePorts::Named => &[Protocol::Udp, Protocol::Sctp],
        LoopbackNodePorts::Included | LoopbackNodePorts::Excluded => &Protocol::ALL,
    };
    let rules = refused.iter().flat_map(|protocol| refuse(*protocol)).collect();
    chains.chain(CHAIN, rules);
    let mut input = vec![Phrases::new(family).destination_in(&loopback(family), true)];
    input[0].push(jump(CHAIN));
    input.extend(chains.rules(INPUT).into_iter().flatten().cloned());
    chains.chain(INPUT, input);
}

/// How many packets were refused, by protocol, as far as there are counters. Waits no longer than this for the kernel.
pub fn localhost_rejected_packets(family: Family, patience: Duration) -> Result<Vec<(Protocol, u64)>, Error> {
    let mut client = Client::open().map_err(|source| Error::Open { family, source })?;
    let read = |source| Error::Read { family, source };
    client.set_timeout(patience).map_err(read)?;
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

/// A node port is in one of two sets, or in both: one leads to endpoints, the other has those without.
fn refuse(protocol: Protocol) -> [Vec<Expr>; 2] {
    let served = vec![map(SetId::NodePorts.name()), set_priority()];
    let unserved = vec![in_set(SetId::UnservedNodePorts.name())];
    [served, unserved].map(|lookup| {
        let counted = vec![count(&counter_name(protocol)), goto("refuse")];
        [protocol_is(protocol.number()), port(), lookup, counted].concat()
    })
}

/// kube-proxy's name for it.
fn counter_name(protocol: Protocol) -> String {
    format!("localhost-nodeport-rejected-{}", protocol.as_lower())
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
        Family::V6 => IpNet::from(family.loopback()),
    }
}
