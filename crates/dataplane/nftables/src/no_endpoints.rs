//! Connections to a service address that were not translated: there is no endpoint, or no such port. TCP is reset and everything else
//! rejected at once; where endpoints exist on other nodes only (policy Local) packets are dropped, so that load balancers try another node.

use portwarden_model::{Frontend, ProxiedPort, Verdict};

use crate::chains::{Chains, RuleContext};
use crate::expressions::{drop, goto, in_set, port, protocol_is, reset, rule};
use crate::node_ports;
use crate::port_elements::{PortElement, frontend_key};
use crate::sets::SetId;

const TCP: u8 = 6;

pub(crate) fn add_rules(context: &RuleContext<'_>, chains: &mut Chains) {
    let build = context.build();
    let unserved_port =
        rule![node_ports::in_input_hook(context), port(), in_set(SetId::UnservedNodePorts.name())];
    let unserved = || rule![build.frontend(), in_set(SetId::Unserved.name()), goto("unserved")];
    chains.set("input-checks", vec![rule![unserved_port, goto("unserved-node-port")], unserved()]);
    chains.set(
        "unserved-node-port",
        vec![rule![port(), in_set(SetId::DroppedNodePorts.name()), drop()], rule![goto("refuse")]],
    );
    chains.set(
        "unserved",
        vec![rule![build.frontend(), in_set(SetId::Dropped.name()), drop()], rule![goto("refuse")]],
    );
    let mut checks =
        vec![unserved(), rule![build.destination(0), in_set(SetId::ClusterAddresses.name()), goto("refuse")]];
    // An address in a ServiceCIDR that no Service has.
    checks
        .extend(context.node.service_cidrs.iter().map(|net| rule![build.destination_in(net, true), drop()]));
    chains.set("checks", checks);
    // An ICMP error for TCP would be rate-limited, and a client that misses it waits a second.
    chains.set("refuse", vec![rule![protocol_is(TCP), reset()], rule![build.reject()]]);
}

/// The elements of a frontend to which nothing can be sent.
pub(crate) fn elements(port: &ProxiedPort, frontend: &Frontend) -> impl Iterator<Item = PortElement> {
    let [unserved, dropped] = match frontend.ip {
        Some(_) => [SetId::Unserved, SetId::Dropped],
        None => [SetId::UnservedNodePorts, SetId::DroppedNodePorts],
    };
    let sets = match frontend.from_elsewhere {
        Verdict::Forward(_) => [None, None],
        Verdict::Reject => [Some(unserved), None],
        Verdict::Drop => [Some(unserved), Some(dropped)],
    };
    let key = frontend_key(port, frontend);
    sets.into_iter().flatten().map(move |set| PortElement::of_set(set, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use portwarden_model::{Family, NamespacedName};
    use portwarden_testkit::build::port;

    /// The sets that hold the frontends of a Service with a node port and policy Local.
    fn sets(endpoints: &[u8]) -> Vec<SetId> {
        let service = samples::dual_stack("web", 1)
            .of_type("NodePort")
            .external_policy_local()
            .port(port(80).node_port(30080));
        let mut objects = samples::endpoints("web", endpoints);
        objects.push(service.into());
        let cluster = samples::cluster(samples::settings(), objects);
        let desired = cluster.desired(Family::V4);
        let port = &desired.service(&NamespacedName::new("demo", "web")).unwrap().ports[0];
        port.frontends
            .iter()
            .flat_map(|frontend| elements(port, frontend))
            .map(|element| element.set)
            .collect()
    }

    #[test]
    fn without_endpoints_every_frontend_rejects() {
        assert_eq!(sets(&[]), [SetId::Unserved, SetId::UnservedNodePorts]);
    }

    #[test]
    fn policy_local_drops_where_endpoints_are_elsewhere() {
        assert_eq!(sets(&[10]), [SetId::UnservedNodePorts, SetId::DroppedNodePorts]);
        assert_eq!(sets(&[1, 10]), []);
    }
}
