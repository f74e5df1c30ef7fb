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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chains::Chains;
    use crate::samples;
    use portwarden_model::{DetectLocal, Family, Name, Settings};

    /// The matches for packets from pods and for all other packets.
    fn texts(detect_local: DetectLocal) -> Option<(String, String)> {
        let settings = Settings { detect_local, ..samples::settings() };
        let cluster = samples::cluster(settings, Vec::new());
        let node = &cluster.desired(Family::V4).node;
        let context = RuleContext::plain(Family::V4, node);
        let mut chains = Chains::default();
        chains.set("pods", vec![from_pods(&context)?]);
        chains.set("others", vec![not_from_pods(&context)?]);
        let text = |chain| chains.text(Family::V4, chain).trim_end().to_owned();
        Some((text("pods"), text("others")))
    }

    #[test]
    fn both_directions_use_the_same_property() {
        for (detect_local, property, opposite) in [
            (samples::settings().detect_local, "ip saddr 10.244.0.0/16", "ip saddr != 10.244.0.0/16"),
            (DetectLocal::BridgeInterface(Name::from("cni0")), "iifname \"cni0\"", "iifname != \"cni0\""),
            (
                DetectLocal::InterfaceNamePrefix(Name::from("veth")),
                "iifname \"veth*\"",
                "iifname != \"veth*\"",
            ),
        ] {
            assert_eq!(texts(detect_local), Some((property.to_owned(), opposite.to_owned())));
        }
        assert_eq!(texts(DetectLocal::Off), None);
    }
}
