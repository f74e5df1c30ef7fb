//! `loadBalancerSourceRanges`: the clients that may use a load-balancer address. They are checked before translation, and also if the
//! Service has no endpoints.

use ipnet::IpNet;
use portwarden_model::{Exposure, Frontend, ProxiedPort};

use crate::chains::{Chains, RuleContext};
use crate::expressions::{back, drop, goto, in_set, jump, new_connection, rule};
use crate::port_elements::{PortElement, frontend_key};
use crate::sets::SetId;

/// The base chains that check source ranges. They exist only while a Service has source ranges: every packet of the node would pass
/// these hooks.
const HOOKS: [&str; 2] = ["filter-prerouting-pre-dnat", "filter-output-pre-dnat"];

pub(crate) fn add_rules(context: &RuleContext<'_>, chains: &mut Chains) {
    let build = context.build();
    chains
        .set("firewall", vec![rule![build.frontend(), in_set(SetId::Restricted.name()), goto("restricted")]]);
    chains.set(
        "restricted",
        vec![rule![build.frontend_and_source(), in_set(SetId::AllowedSources.name()), back()], rule![drop()]],
    );
}

/// Sends new connections through the source ranges.
pub(crate) fn add_hooks(chains: &mut Chains) {
    for name in HOOKS {
        chains.set(name, vec![rule![new_connection(), jump("firewall")]]);
    }
}

/// Whether new connections pass the source ranges.
pub(crate) fn has_hooks(chains: &Chains) -> bool {
    HOOKS.iter().any(|name| chains.rules(name).is_some())
}

/// The elements of a frontend. Ranges that touch or overlap are joined: the kernel refuses overlaps.
pub(crate) fn elements(port: &ProxiedPort, frontend: &Frontend) -> Vec<PortElement> {
    let (Exposure::LoadBalancerIp, Some(allowed)) = (frontend.exposure, &port.source_ranges) else {
        return Vec::new();
    };
    let mut ranges: Vec<IpNet> = allowed.ranges.to_vec();
    if allowed.frontends_too {
        let addresses =
            port.frontends.iter().filter(|f| f.exposure == Exposure::LoadBalancerIp).filter_map(|f| f.ip);
        ranges.extend(addresses.map(IpNet::from));
    }
    let key = frontend_key(port, frontend);
    let mut elements = vec![PortElement::of_set(SetId::Restricted, key)];
    elements.extend(IpNet::aggregate(&ranges).into_iter().map(|range| PortElement {
        end: Some(key.address(range.broadcast())),
        ..PortElement::of_set(SetId::AllowedSources, key.address(range.network()))
    }));
    elements
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::{Family, NamespacedName};
    use portwarden_testkit::build::port;

    /// How many addresses are restricted, and how many ranges are allowed.
    fn counts(ranges: &[&str]) -> (usize, usize) {
        let service =
            samples::dual_stack("web", 1).vip("203.0.113.1").external_ip("203.0.113.2").port(port(80));
        let service = ranges.iter().fold(service, |service, range| service.source_range(range));
        let cluster = samples::cluster(samples::settings(), vec![service.into()]);
        let desired = cluster.desired(Family::V4);
        let port = &desired.service(&NamespacedName::new("demo", "web")).unwrap().ports[0];
        let all = port.frontends.iter().flat_map(|frontend| elements(port, frontend));
        let (restricted, allowed): (Vec<_>, Vec<_>) =
            all.partition(|element| element.set == SetId::Restricted);
        (restricted.len(), allowed.len())
    }

    #[test]
    fn only_load_balancer_addresses_with_ranges_are_restricted() {
        assert_eq!(counts(&[]), (0, 0));
        assert_eq!(counts(&["198.51.100.0/24"]), (1, 1));
    }

    #[test]
    fn overlapping_and_adjacent_ranges_are_joined() {
        assert_eq!(counts(&["198.51.100.0/25", "198.51.100.128/25", "198.51.100.7/32"]), (1, 1));
    }

    /// A process of the node that connects to a load-balancer address bound there has that address as its source.
    #[test]
    fn a_range_with_the_node_address_allows_the_load_balancer_address_too() {
        assert_eq!(counts(&["192.0.2.0/24"]), (1, 2));
    }

    #[test]
    fn hooks_exist_only_after_they_were_added() {
        let mut chains = Chains::default();
        assert!(!has_hooks(&chains));
        add_hooks(&mut chains);
        assert!(has_hooks(&chains));
    }
}
