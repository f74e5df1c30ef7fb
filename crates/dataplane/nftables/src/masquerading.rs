//! Masquerading in the postrouting hook: connections that were marked for it, and endpoints that connect to themselves.

use std::net::IpAddr;

use portwarden_model::ProxiedPort;
use portwarden_netlink::nftables::Image;

use crate::chains::{Chains, RuleContext};
use crate::expressions::{
    clear_priority, flip_mark, in_set, mark_is_set, masquerade, priority_is, rule, translated,
};
use crate::route::MAGIC;
use crate::sets::SetId;
use crate::untracked_pods;

pub(crate) fn add_rules(context: &RuleContext<'_>, chains: &mut Chains) {
    let hairpin = rule![context.build().source_and_frontend(), in_set(SetId::Hairpin.name())];
    let mut rules = vec![
        // The route was a scratch value: a packet must not leave with it as its priority.
        rule![priority_is(MAGIC, MAGIC), translated(), clear_priority()],
        rule![mark_is_set(context.mark), flip_mark(context.mark), masquerade()],
        rule![translated(), hairpin, masquerade()],
    ];
    rules.extend(untracked_pods::masquerading(context));
    chains.set("masquerading", rules);
}

/// An endpoint of this node that can connect to itself: address, protocol, port.
pub(crate) type HairpinEndpoint = (IpAddr, u8, u16);

/// The endpoints of a port that run on this node.
pub(crate) fn hairpin_endpoints(port: &ProxiedPort) -> impl Iterator<Item = HairpinEndpoint> + '_ {
    let protocol = port.protocol().number();
    let local_only = port.local.iter().filter(|backend| !port.cluster.contains(backend.address()));
    let all = port.cluster.iter().filter(|backend| backend.local).chain(local_only);
    all.map(move |backend| (backend.ip, protocol, backend.port))
}

/// The key in the set of hairpin connections: the endpoint is source and destination.
pub(crate) fn hairpin_key((ip, protocol, port): HairpinEndpoint) -> Image {
    Image::new().address(ip).address(ip).protocol(protocol).port(port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::{Family, NamespacedName};
    use portwarden_testkit::build::port;

    #[test]
    fn only_endpoints_of_this_node_connect_to_themselves_here_and_each_counts_once() {
        let service =
            samples::dual_stack("web", 1).external_policy_local().external_ip("203.0.113.1").port(port(80));
        let mut objects = samples::endpoints("web", &[1, 2, 10]);
        objects.push(service.into());
        let cluster = samples::cluster(samples::settings(), objects);
        let desired = cluster.desired(Family::V4);
        let port = &desired.service(&NamespacedName::new("demo", "web")).unwrap().ports[0];
        let found: Vec<HairpinEndpoint> = hairpin_endpoints(port).collect();
        let expected = [1, 2].map(|number| (IpAddr::from([10, 244, 0, number]), 6, 8080));
        assert_eq!(found, expected);
    }
}
