//! How pod traffic is identified: by source address or by the interface on which it arrives.

use portwarden_model::PodTraffic;
use portwarden_netlink::nftables::Expr;

use crate::chains::RuleContext;
use crate::expressions::arrives_on;

/// Matches packets that come from pods; `None` if pod traffic cannot be identified.
pub(crate) fn from_pods(context: &RuleContext<'_>) -> Option<Vec<Expr>> {
    matches(context, true)
}

/// Matches packets that do not come from pods; `None` if pod traffic cannot be identified.
pub(crate) fn not_from_pods(context: &RuleContext<'_>) -> Option<Vec<Expr>> {
    matches(context, false)
}

fn matches(context: &RuleContext<'_>, from_pods: bool) -> Option<Vec<Expr>> {
    match &context.node.pod_traffic {
        PodTraffic::Unknown => None,
        PodTraffic::From(net) => Some(context.build().source_in(net, from_pods)),
        PodTraffic::Interface(name) => Some(arrives_on(name.as_str(), false, from_pods)),
        PodTraffic::InterfacePrefix(prefix) => Some(arrives_on(prefix.as_str(), true, from_pods)),
    }
}
