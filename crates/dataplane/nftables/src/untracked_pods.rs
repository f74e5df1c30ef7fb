//! Packets from pod to pod that leave connection tracking, where the operator asks for it.
//!
//! A connection that is translated must be tracked in both directions, and the replies to a pod's connection are packets from pod to pod. So
//! everything that is translated for pods is masqueraded here: its replies go to an address of the node, and those are always tracked.

use portwarden_netlink::nftables::{ChainKind, Expr, Hook};

use crate::chains::{BaseChain, Chains, RuleContext};
use crate::expressions::{masquerade, not_to_this_host, rule, translated};

/// Before the kernel looks for the connection of a packet. kube-proxy, when it takes over the table, empties and later removes chains that it
/// does not know if their names have a slash: without our masquerading, this rule must not stay.
pub(crate) const CHAIN: BaseChain = ("raw-prerouting/pods", ChainKind::Filter, Hook::Prerouting, -300);

pub(crate) fn add_rules(context: &RuleContext<'_>, chains: &mut Chains) {
    if context.untracked_pods {
        // The address of a bridge is often in the range of the pods.
        let rule = pod_to_pod(context).map(|pods| rule![pods, not_to_this_host(), Expr::Notrack]);
        chains.set(CHAIN.0, rule.into_iter().collect());
    }
}

/// Masquerades what is translated from pod to pod.
pub(crate) fn masquerading(context: &RuleContext<'_>) -> Option<Vec<Expr>> {
    Some(rule![translated(), pod_to_pod(context)?, masquerade()])
}

/// Matches packets from pod to pod, if they are not to be tracked and the range of the pods is known.
fn pod_to_pod(context: &RuleContext<'_>) -> Option<Vec<Expr>> {
    let pods = context.node.pod_range.filter(|_| context.untracked_pods)?;
    Some(rule![context.build().source_in(&pods, true), context.build().destination_in(&pods, true)])
}
