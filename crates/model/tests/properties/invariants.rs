//! What every desired state promises to dataplanes.

use std::collections::{BTreeMap, HashSet};

use portwarden_model::{
    Cluster, Desired, EndpointExplanation, Explanation, Exposure, Family, Pool, PoolKind, ProxiedPort,
    Reason, Totals, Verdict,
};
use portwarden_testkit::strategies::{Shape, settings};
use proptest::prelude::*;

use crate::server::{Change, feed, histories};

/// Every address and port has exactly one owner.
fn check_claims(desired: &Desired) {
    let mut owners: BTreeMap<_, usize> = BTreeMap::new();
    for port in desired.ports() {
        for frontend in port.frontends.iter().filter(|frontend| frontend.is_allowed()) {
            let key = (frontend.ip, frontend.port, port.protocol());
            *owners.entry(key).or_default() += usize::from(frontend.is_active());
        }
    }
    for (place, count) in owners {
        assert_eq!(count, 1, "{place:?} has {count} owners");
    }
}

fn check_port(port: &ProxiedPort, family: Family) {
    let first = port.frontends.first().expect("there is always the cluster address");
    assert_eq!(first.exposure, Exposure::ClusterIp);
    for frontend in &port.frontends {
        assert_eq!(frontend.ip.is_none(), frontend.exposure == Exposure::NodePort);
        assert!(frontend.ip.is_none_or(|ip| Family::of(ip) == family));
        for verdict in [frontend.from_node, frontend.from_elsewhere] {
            match verdict {
                Verdict::Forward(kind) => assert!(!port.pool(kind).is_empty(), "{port:?}"),
                Verdict::Reject => assert!(!port.has_endpoints, "{port:?}"),
                Verdict::Drop => assert!(port.has_endpoints && port.local.is_empty(), "{port:?}"),
            }
        }
    }
    for pool in [&port.cluster, &port.local, &port.endpoints] {
        check_pool(pool, family);
    }
    assert!(port.local.iter().all(|backend| backend.local));
    let reachable: Vec<_> = port.reachable().iter().map(|backend| backend.address().to_string()).collect();
    let both: HashSet<_> =
        port.cluster.iter().chain(port.local.iter()).map(|b| b.address().to_string()).collect();
    assert!(reachable.is_sorted());
    assert_eq!(reachable.len(), both.len());
    assert!(reachable.iter().all(|address| both.contains(address)));
    assert!(both.iter().all(|address| port.endpoints.iter().any(|b| b.address().to_string() == *address)));
}

/// One family, in the order of the text, each endpoint once.
fn check_pool(pool: &Pool, family: Family) {
    let texts: Vec<String> = pool.iter().map(|backend| backend.address().to_string()).collect();
    assert!(texts.is_sorted_by(|a, b| a < b), "{pool:?}");
    assert!(pool.iter().all(|backend| Family::of(backend.ip) == family));
}

fn check_totals(desired: &Desired) {
    let mut totals = Totals::default();
    for port in desired.ports() {
        totals.endpoints += port.endpoints.len();
        totals.no_local_internal += usize::from(port.no_local_internal);
        totals.no_local_external += usize::from(port.no_local_external);
    }
    assert_eq!(desired.totals(), totals);
}

/// What is said to be used is what is in the pools.
fn check_explanation(explanation: &Explanation, ports: &[ProxiedPort]) {
    assert_eq!(explanation.ports.len(), ports.len());
    for (explained, port) in explanation.ports.iter().zip(ports) {
        let used = |pick: fn(&EndpointExplanation) -> Option<Reason>| -> Vec<_> {
            let used = explained.endpoints.iter().filter(|e| pick(e).is_some_and(Reason::used));
            used.map(|endpoint| endpoint.address).collect()
        };
        let pool = |kind| port.pool(kind).iter().map(|backend| backend.address()).collect::<Vec<_>>();
        assert_eq!(explained.name, port.name);
        assert_eq!(used(|e| e.cluster), pool(PoolKind::Cluster));
        assert_eq!(used(|e| e.local), pool(PoolKind::Local));
        assert!(explained.endpoints.is_empty() || explained.endpoints.len() == port.endpoints.len());
        assert!(explained.frontends.iter().map(|f| &f.frontend).eq(port.frontends.iter()));
    }
}

proptest! {
    #[test]
    fn desired_states_keep_their_promises(
        history in histories(&Shape::default()),
        settings in settings(&Shape::default()),
    ) {
        let mut cluster = Cluster::new(settings);
        feed(&mut cluster, history.iter().map(Change::event));
        for family in Family::BOTH {
            let desired = cluster.desired(family);
            check_claims(desired);
            check_totals(desired);
            for (name, service) in desired.services() {
                for port in &service.ports {
                    check_port(port, family);
                }
                let explanation = cluster.explain(name, family);
                check_explanation(&explanation.expect("what is proxied can be explained"), &service.ports);
            }
        }
    }
}
