use super::*;
use crate::plan::PlannedServer;
use portwarden_model::{Backend, Protocol};
use proptest::prelude::*;

fn ip(number: u8) -> IpAddr {
    IpAddr::from([10, 96, 0, number])
}

fn key(number: u8) -> ServerKey {
    ServerKey { address: (ip(number), 80).into(), protocol: 6 }
}

fn pool(numbers: &BTreeSet<u8>) -> Pool {
    let backend = |number: &u8| Backend::new(([10, 244, 0, *number], 8080).into(), true);
    Pool::new(&numbers.iter().map(backend).collect::<Vec<_>>())
}

/// Plans that share addresses, entries and virtual servers with each other.
fn plans() -> impl Strategy<Value = ServicePlan> {
    let servers = prop::collection::btree_map(
        (0..4_u8, any::<bool>()),
        prop::collection::btree_set(1..5_u8, 0..3),
        0..3,
    );
    (servers, prop::collection::btree_set(0..4_u8, 0..3), any::<bool>()).prop_map(
        |(servers, numbers, drop)| ServicePlan {
            servers: servers
                .into_iter()
                .map(|((number, node_port), reals)| PlannedServer {
                    key: key(number),
                    node_port,
                    settings: ServerSettings { flags: 0, timeout: 0 },
                    reals: pool(&reals),
                })
                .collect(),
            entries: numbers
                .iter()
                .map(|number| (SetId::ClusterIp, Entry::IpPort(ip(*number), 6, 80)))
                .collect(),
            addresses: numbers.iter().map(|number| ip(*number)).collect(),
            source_drops: drop
                .then_some(SourceDrop { ip: ip(1), protocol: Protocol::Tcp, port: 80 })
                .into_iter()
                .collect(),
            cluster_ip_masquerade: None,
        },
    )
}

fn name(number: u8) -> NamespacedName {
    NamespacedName::new("demo", &format!("service-{number}"))
}

/// What is wanted of a virtual server: by which Service, and its real servers.
type WantedServer = (ServerKey, Option<(NamespacedName, Pool)>);

/// What the kernel lacks: entries, addresses, rules, virtual servers.
type Shown = (Vec<(SetId, Entry)>, Vec<IpAddr>, RuleInput, Vec<WantedServer>);

fn shown(wanted: &Wanted) -> Shown {
    let servers = wanted.servers.to_write();
    let claim = |key: ServerKey| {
        let claim = wanted.servers.get(&key).and_then(Server::claim);
        (key, claim.map(|claim| (claim.owner().clone(), claim.reals.clone())))
    };
    (
        wanted.entries.missing(),
        wanted.addresses.missing(),
        wanted.rule_input(&PodTraffic::Unknown),
        servers.into_iter().map(claim).collect(),
    )
}

proptest! {
    /// Whatever came before, only the last plan of each Service counts.
    #[test]
    fn changes_in_any_order_end_in_the_same_state(
        changes in prop::collection::vec((0..4_u8, prop::option::of(plans())), 0..30),
    ) {
        let mut wanted = Wanted::default();
        let mut last: BTreeMap<u8, Option<ServicePlan>> = BTreeMap::new();
        for (number, plan) in changes {
            wanted.set(&name(number), plan.clone());
            last.insert(number, plan);
        }
        let mut fresh = Wanted::default();
        for (number, plan) in last {
            fresh.set(&name(number), plan);
        }
        prop_assert_eq!(shown(&wanted), shown(&fresh));
    }

    /// What the kernel acknowledged is not written again; what nothing wants any more is removed.
    #[test]
    fn nothing_is_left_when_all_services_are_gone(
        changes in prop::collection::vec((0..4_u8, prop::option::of(plans())), 0..30),
    ) {
        let mut wanted = Wanted::default();
        for (number, plan) in changes {
            wanted.set(&name(number), plan);
            acknowledge(&mut wanted);
            prop_assert!(wanted.entries.missing().is_empty() && wanted.servers.to_write().is_empty());
        }
        for number in 0..4 {
            wanted.set(&name(number), None);
        }
        acknowledge(&mut wanted);
        prop_assert!(wanted.servers.installed().is_empty() && wanted.addresses.count_installed() == 0);
        prop_assert!(wanted.rule_input(&PodTraffic::Unknown).filled.is_empty());
        prop_assert!(wanted.rule_input(&PodTraffic::Unknown).source_drops.is_empty());
    }
}

/// The kernel does everything.
fn acknowledge(wanted: &mut Wanted) {
    for entry in wanted.entries.missing() {
        wanted.entries.acknowledge(entry, true);
    }
    for entry in wanted.entries.surplus() {
        wanted.entries.acknowledge(entry, false);
    }
    for ip in wanted.addresses.missing() {
        wanted.addresses.acknowledge(ip, true);
    }
    for ip in wanted.addresses.surplus() {
        wanted.addresses.acknowledge(ip, false);
    }
    for key in wanted.servers.to_write() {
        let claim = wanted.servers.get(&key).and_then(Server::claim).cloned();
        let installed =
            claim.map(|claim| Installed { settings: Some(claim.settings), reals: Some(claim.reals) });
        wanted.servers.acknowledge(key, installed);
    }
    for key in wanted.servers.to_delete() {
        wanted.servers.acknowledge(key, None);
    }
}

#[test]
fn the_api_server_comes_first() {
    let mut wanted = Wanted::default();
    let plan = |number| ServicePlan {
        servers: vec![PlannedServer {
            key: key(number),
            node_port: false,
            settings: ServerSettings { flags: 0, timeout: 0 },
            reals: Pool::default(),
        }]
        .into(),
        ..ServicePlan::default()
    };
    wanted.set(&NamespacedName::new("default", "a"), Some(plan(1)));
    wanted.set(&NamespacedName::new("default", "kubernetes"), Some(plan(9)));
    wanted.set(&NamespacedName::new("default", "z"), Some(plan(2)));
    assert_eq!(wanted.servers.to_write(), [key(9), key(1), key(2)]);
}

#[test]
fn a_service_address_wins_over_a_node_port() {
    let mut wanted = Wanted::default();
    let plan = |node_port, number: u8| ServicePlan {
        servers: vec![PlannedServer {
            key: key(1),
            node_port,
            settings: ServerSettings { flags: 0, timeout: 0 },
            reals: pool(&[number].into()),
        }]
        .into(),
        ..ServicePlan::default()
    };
    wanted.set(&name(1), Some(plan(true, 1)));
    wanted.set(&name(2), Some(plan(false, 2)));
    let owner = |wanted: &Wanted| {
        wanted.servers.get(&key(1)).and_then(Server::claim).map(|claim| claim.owner().clone())
    };
    assert_eq!(owner(&wanted), Some(name(2)));
    wanted.set(&name(2), None);
    assert_eq!(owner(&wanted), Some(name(1)));
}
