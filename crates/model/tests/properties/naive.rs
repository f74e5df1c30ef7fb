//! The rules for endpoints once more, written down as plainly as possible and as slowly as needed, straight from manifests.

use std::collections::{BTreeMap, BTreeSet};

use portwarden_model::manifest::{self, LABEL_SERVICE_NAME, LABEL_ZONE};
use portwarden_model::{Cluster, Family, NamespacedName, Pool, ProxiedPort, Settings, parse_ip};
use portwarden_testkit::strategies::{Manifests, Object, Shape, clusters};
use proptest::prelude::*;

use crate::server::{applied, feed};

#[derive(Debug, Clone, Copy)]
struct State<'a> {
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
    zones: &'a [manifest::Hint],
    nodes: &'a [manifest::Hint],
}

#[derive(Debug, PartialEq, Eq)]
struct Choice {
    cluster: BTreeSet<String>,
    local: BTreeSet<String>,
    all: BTreeSet<String>,
    has_any: bool,
}

/// All endpoints of a service port by `ip:port`.
fn endpoints<'a>(
    slices: &'a [manifest::EndpointSlice],
    service: &str,
    port: &manifest::ServicePort,
    family: Family,
    node: &str,
) -> BTreeMap<String, State<'a>> {
    let mut sorted: Vec<_> = slices.iter().collect();
    sorted.sort_by_key(|slice| &slice.metadata.name);
    let mut found: BTreeMap<String, State<'a>> = BTreeMap::new();
    for slice in sorted {
        if slice.address_type != family.as_str() || slice.metadata.labels[LABEL_SERVICE_NAME] != service {
            continue;
        }
        for target in &slice.ports {
            if target.name.as_ref() != Some(&port.name) || target.protocol.as_ref() != Some(&port.protocol) {
                continue;
            }
            for endpoint in &slice.endpoints {
                let ip = parse_ip(&endpoint.addresses[0]).expect("an address");
                let number = u16::try_from(target.port.expect("a port")).expect("a port");
                let given = endpoint.conditions.unwrap_or_default();
                let state = State {
                    ready: given.ready.unwrap_or(true),
                    serving: given.serving.unwrap_or(true),
                    terminating: given.terminating.unwrap_or(false),
                    local: endpoint.node_name.as_deref() == Some(node),
                    zones: endpoint.hints.as_ref().map_or(&[], |hints| &hints.for_zones),
                    nodes: endpoint.hints.as_ref().map_or(&[], |hints| &hints.for_nodes),
                };
                let text = std::net::SocketAddr::new(ip, number).to_string();
                let rank = |state: &State<'_>| (!state.terminating, state.ready, state.serving);
                let better = found.get(&text).is_none_or(|known| match rank(&state).cmp(&rank(known)) {
                    std::cmp::Ordering::Equal => !state.terminating,
                    order => order.is_gt(),
                });
                if better {
                    found.insert(text, state);
                }
            }
        }
    }
    found
}

fn names_us(hints: &[manifest::Hint], us: &str) -> bool {
    !us.is_empty() && hints.iter().any(|hint| hint.name == us)
}

fn choose(
    all: &BTreeMap<String, State<'_>>,
    uses_cluster: bool,
    uses_local: bool,
    node: &str,
    zone: &str,
) -> Choice {
    let pick = |test: &dyn Fn(&State<'_>) -> bool| -> BTreeSet<String> {
        all.iter().filter(|(_, state)| test(state)).map(|(text, _)| text.clone()).collect()
    };
    let ready: Vec<&State<'_>> = all.values().filter(|state| state.ready).collect();
    let by_node = ready.iter().all(|s| !s.nodes.is_empty()) && ready.iter().any(|s| names_us(s.nodes, node));
    let by_zone = ready.iter().all(|s| !s.zones.is_empty()) && ready.iter().any(|s| names_us(s.zones, zone));
    let mut choice =
        Choice { cluster: BTreeSet::new(), local: BTreeSet::new(), all: BTreeSet::new(), has_any: false };
    if uses_cluster {
        choice.cluster = pick(&|state| {
            let hinted = if by_node {
                names_us(state.nodes, node)
            } else if by_zone {
                names_us(state.zones, zone)
            } else {
                true
            };
            state.ready && hinted
        });
        if choice.cluster.is_empty() {
            choice.cluster = pick(&|state| state.serving && state.terminating);
        }
        choice.has_any = !choice.cluster.is_empty();
    }
    if uses_local {
        choice.has_any |= all.values().any(|state| state.ready || (state.serving && state.terminating));
        choice.local = pick(&|state| state.ready && state.local);
        if choice.local.is_empty() {
            choice.local = pick(&|state| state.serving && state.terminating && state.local);
        }
    }
    choice.all = choice.cluster.union(&choice.local).cloned().collect();
    choice
}

fn texts(pool: &Pool) -> BTreeSet<String> {
    pool.iter().map(|backend| backend.address().to_string()).collect()
}

fn found(port: &ProxiedPort) -> Choice {
    Choice {
        cluster: texts(&port.cluster),
        local: texts(&port.local),
        all: port.reachable().iter().map(|backend| backend.address().to_string()).collect(),
        has_any: port.has_endpoints,
    }
}

/// What the rules say for one port of a Service.
fn expected(
    manifests: &Manifests,
    service: &manifest::Service,
    port: &manifest::ServicePort,
    family: Family,
    node: &str,
) -> Choice {
    let spec = &service.spec;
    let of_family = |text: &str| parse_ip(text).is_some_and(|ip| Family::of(ip) == family);
    let is_ours = |ingress: &&manifest::LoadBalancerIngress| {
        of_family(&ingress.ip) && matches!(ingress.ip_mode.as_deref(), None | Some("VIP"))
    };
    let external = port.node_port != 0
        || spec.external_ips.iter().any(|ip| of_family(ip))
        || service.status.load_balancer.ingress.iter().any(|ingress| is_ours(&ingress));
    let internal_local = spec.internal_traffic_policy.as_deref() == Some("Local");
    let external_local = spec.external_traffic_policy == "Local"
        && (matches!(spec.r#type.as_str(), "LoadBalancer" | "NodePort") || !spec.external_ips.is_empty());
    let zone = manifests.node.as_ref().and_then(|node| node.metadata.labels.get(LABEL_ZONE));
    let all = endpoints(&manifests.slices, &service.metadata.name, port, family, node);
    choose(
        &all,
        !internal_local || external,
        internal_local || (external_local && external),
        node,
        zone.map_or("", String::as_str),
    )
}

proptest! {
    #[test]
    fn pools_are_what_the_rules_say(manifests in clusters(&Shape { invalid: false, ..Shape::default() })) {
        let node = Shape::default().node;
        let mut cluster = Cluster::new(Settings::new(&node));
        let services = manifests.services.iter().map(|s| Object::Service(Box::new(s.clone())));
        let slices = manifests.slices.iter().cloned().map(Object::Slice);
        let nodes = manifests.node.iter().cloned().map(Object::Node);
        feed(&mut cluster, services.chain(slices).chain(nodes).map(|object| applied(&object)));
        for service in &manifests.services {
            let name = NamespacedName::new("demo", &service.metadata.name);
            for family in Family::BOTH {
                let Some(proxied) = cluster.desired(family).service(&name) else { continue };
                // Of two ports with one name and protocol the last counts, in the place of the first.
                let last: BTreeMap<_, _> =
                    service.spec.ports.iter().map(|port| ((&port.name, &port.protocol), port)).collect();
                prop_assert_eq!(proxied.ports.len(), last.len());
                for port in &proxied.ports {
                    let key = (&port.name.port.to_string(), &port.protocol().to_string());
                    let given = last[&key];
                    let expected = expected(&manifests, service, given, family, &node);
                    prop_assert_eq!(found(port), expected, "{} {:?}", name, family);
                }
            }
        }
    }

    /// Which Services are proxied, and in which family.
    #[test]
    fn services_are_proxied_where_they_have_an_address(
        manifests in clusters(&Shape { invalid: false, ..Shape::default() }),
    ) {
        let mut cluster = Cluster::new(Settings::new("node-a"));
        let services = manifests.services.iter().map(|s| applied(&Object::Service(Box::new(s.clone()))));
        feed(&mut cluster, services.collect::<Vec<_>>());
        for family in Family::BOTH {
            let proxied: BTreeSet<String> =
                cluster.desired(family).services().map(|(name, _)| name.name().to_owned()).collect();
            let expected: BTreeSet<String> = manifests
                .services
                .iter()
                .filter(|service| {
                    let spec = &service.spec;
                    let plural = spec.ip_families.iter().zip(&spec.cluster_ips);
                    let own = plural.filter(|(of, _)| *of == family.as_str()).map(|(_, ip)| ip).next();
                    let single = parse_ip(&spec.cluster_ip).is_some_and(|ip| Family::of(ip) == family);
                    let has_address = if spec.ip_families.is_empty() { single } else { own.is_some() };
                    has_address && spec.cluster_ip != "None" && spec.r#type != "ExternalName"
                })
                .map(|service| service.metadata.name.clone())
                .collect();
            prop_assert_eq!(proxied, expected);
        }
    }
}
