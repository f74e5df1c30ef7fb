//! From the destination of a packet to a route, and from the route to the endpoints: service addresses, node ports, traffic policies.

use portwarden_model::{Frontend, Masquerade, PoolKind, ProxiedPort, Verdict};
use portwarden_netlink::nftables::{Expr, Image};

use crate::chains::{Chains, RuleContext};
use crate::endpoint_list::EndpointList;
use crate::expressions::{
    from_this_host, goto, load_priority, map, mask_priority, port, priority_is, rule, set_mark, set_priority,
};
use crate::load_balancing::pick_endpoint;
use crate::port_elements::{PortElement, frontend_key};
use crate::port_lists::PortLists;
use crate::route::{KIND_MASK, Kind, LIST_MASK};
use crate::sets::SetId;
use crate::{node_ports, pod_traffic};

pub(crate) fn add_rules(context: &RuleContext<'_>, chains: &mut Chains) {
    let find = |key: Vec<Expr>, set: SetId| rule![key, map(set.name()), set_priority(), goto("route")];
    let node_ports = rule![node_ports::before_routing(context), find(port(), SetId::NodePorts)];
    chains.set("services", vec![find(context.build().frontend(), SetId::Frontends), node_ports]);
    chains.set("route", route(context));
    chains.set("external-local", external_local(context));
    let mut all_endpoints = vec![
        mask_priority(LIST_MASK),
        rule![load_priority(0), map(SetId::NodeRoutes.name()), set_priority()],
    ];
    all_endpoints.extend(pick_endpoint());
    chains.set("external-from-node", all_endpoints);
}

fn route(context: &RuleContext<'_>) -> Vec<Vec<Expr>> {
    let kind = |kind: Kind| priority_is(KIND_MASK, kind as u32);
    let mut rules = Vec::new();
    if let Some(others) = pod_traffic::not_from_pods(context) {
        rules.push(rule![kind(Kind::MasqueradeOthers), others, set_mark(context.mark)]);
    }
    rules.push(rule![kind(Kind::MasqueradeAll), set_mark(context.mark)]);
    rules.push(rule![kind(Kind::SplitByOrigin), goto("external-local")]);
    rules.extend(pick_endpoint());
    rules
}

/// Policy Local does not apply to traffic that starts on this node: it goes to all endpoints. That of host processes is masqueraded.
fn external_local(context: &RuleContext<'_>) -> Vec<Vec<Expr>> {
    let mut rules = Vec::new();
    if let Some(pods) = pod_traffic::from_pods(context) {
        rules.push(rule![pods, goto("external-from-node")]);
    }
    rules.push(rule![from_this_host(), set_mark(context.mark), goto("external-from-node")]);
    rules.extend(pick_endpoint());
    rules
}

/// Whether traffic that starts on this node has other endpoints than the rest: external policy Local.
pub(crate) fn is_split(frontend: &Frontend) -> bool {
    frontend.from_node != frontend.from_elsewhere
}

fn kind(frontend: &Frontend) -> Kind {
    match frontend.masquerade {
        Masquerade::FromHost => Kind::SplitByOrigin,
        Masquerade::Always => Kind::MasqueradeAll,
        Masquerade::NotFromPods => Kind::MasqueradeOthers,
        Masquerade::Never => Kind::MasqueradeNone,
    }
}

/// The element that leads from a frontend to its list; `None` if the frontend has no endpoints. `route` gives the route into a list.
pub(crate) fn element(
    port: &ProxiedPort,
    frontend: &Frontend,
    lists: &PortLists,
    route: &impl Fn(&EndpointList, Kind) -> Image,
) -> Option<PortElement> {
    let pool = match frontend.from_elsewhere {
        _ if is_split(frontend) => PoolKind::Local,
        Verdict::Forward(pool) => pool,
        Verdict::Reject | Verdict::Drop => return None,
    };
    let list = lists.get(pool)?;
    let set = if frontend.ip.is_some() { SetId::Frontends } else { SetId::NodePorts };
    Some(PortElement::new(set, frontend_key(port, frontend), route(list, kind(frontend))))
}

/// The element that leads from the list of local endpoints to all endpoints, for traffic that starts on this node. No rule reads the
/// kind of this route.
pub(crate) fn node_route(
    port: &ProxiedPort,
    lists: &PortLists,
    route: &impl Fn(&EndpointList, Kind) -> Image,
) -> Option<PortElement> {
    let (local, cluster) = (lists.local.as_ref()?, lists.cluster.as_ref()?);
    let key = Image::new().number(local.id.key());
    let element = PortElement::new(SetId::NodeRoutes, key, route(cluster, Kind::MasqueradeOthers));
    port.active_frontends().any(is_split).then_some(element)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::{DetectLocal, Family, NamespacedName, Settings};
    use portwarden_testkit::build::port;

    /// The kind of each frontend (cluster address, external address) with these settings.
    fn kinds(settings: Settings, external_local: bool) -> Vec<Kind> {
        let mut service = samples::dual_stack("web", 1).external_ip("203.0.113.1").port(port(80));
        if external_local {
            service = service.external_policy_local();
        }
        let mut objects = samples::endpoints("web", &[1, 10]);
        objects.push(service.into());
        let cluster = samples::cluster(settings, objects);
        let desired = cluster.desired(Family::V4);
        let port = &desired.service(&NamespacedName::new("demo", "web")).unwrap().ports[0];
        port.frontends.iter().map(kind).collect()
    }

    #[test]
    fn the_kind_follows_from_the_masquerading_that_the_frontend_states() {
        assert_eq!(kinds(samples::settings(), false), [Kind::MasqueradeOthers, Kind::MasqueradeAll]);
        assert_eq!(kinds(samples::settings(), true), [Kind::MasqueradeOthers, Kind::SplitByOrigin]);
        let all = Settings { masquerade_all: true, ..samples::settings() };
        assert_eq!(kinds(all, true), [Kind::MasqueradeAll, Kind::SplitByOrigin]);
        let unknown = Settings { detect_local: DetectLocal::Off, ..samples::settings() };
        assert_eq!(kinds(unknown, false), [Kind::MasqueradeNone, Kind::MasqueradeAll]);
    }
}
