//! Many small steps lead to the same rules as one big one: first in strict simulated tables, then in the kernel.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use common::random::{Step, steps};
use common::simulator::Simulator;
use common::{Tables, VARIANTS, assert_same, sync};
use portwarden_iptables::{DryRun, Options, chain_level};
use portwarden_model::{Changes, Cluster, Desired, DetectLocal, Family, NodePortRange, Settings};
use portwarden_xtables::{Table, Transaction, Variant};
use proptest::prelude::*;

fn settings() -> Settings {
    let ranges = ["10.244.0.0/16", "fd00:244::/32"].map(|range| range.parse().unwrap());
    let node_ports =
        ["192.168.0.0/24", "127.0.0.0/8"].map(|range| NodePortRange::Cidr(range.parse().unwrap()));
    Settings {
        detect_local: DetectLocal::ClusterCidr(ranges.into()),
        node_port_addresses: node_ports.into(),
        ..Settings::new("node-a")
    }
}

/// Syncs on simulated tables.
struct Simulated {
    family: Family,
    syncs: DryRun,
    tables: Simulator,
    chains_per_step: usize,
}

impl Simulated {
    fn new(family: Family, chains_per_step: usize) -> Simulated {
        let syncs = DryRun::new(family, &Options::default()).unwrap();
        Simulated { family, syncs, tables: Simulator::default(), chains_per_step }
    }

    fn sync_fully(&mut self, desired: &Desired) {
        let chains = self.syncs.announced_chains(desired);
        let transaction = self.syncs.sync(desired, &Changes::everything());
        self.restore(&transaction);
        self.restore_announced(&chains, &transaction);
    }

    /// The same once more, in the form for a program that starts before the rules are known: nothing changes.
    fn restore_announced(&mut self, chains: &[String], transaction: &Transaction) {
        let before = self.tables.clone();
        let text = transaction.text_after_chains(chains.iter().map(String::as_str).collect());
        self.tables.restore(&text).unwrap();
        assert_eq!(self.tables, before);
        let count = text.lines().filter(|line| line.starts_with(':')).count();
        assert_eq!(
            count,
            transaction.nat.chains() + transaction.filter.chains(),
            "each chain is announced once"
        );
    }

    /// In one step or several: each of them must leave the tables whole.
    fn restore(&mut self, transaction: &Transaction) {
        self.tables.restore(&transaction.text_in_steps(self.chains_per_step, chain_level)).unwrap();
    }

    fn sync_changes(&mut self, desired: &Desired, changes: &Changes) {
        let transaction = self.syncs.sync(desired, changes);
        self.restore(&transaction);
        assert!(self.syncs.sync(desired, changes).is_empty(), "the same again writes nothing");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn incremental_equals_full_in_simulated_tables(steps in steps(25), per_step in 1..40usize) {
        let mut cluster = Cluster::new(settings());
        let mut incremental = Family::BOTH.map(|family| Simulated::new(family, per_step));
        incremental.iter_mut().for_each(|one| one.sync_fully(cluster.desired(one.family)));
        for step in &steps {
            cluster.apply(step.event());
            let changes = cluster.resolve();
            for one in &mut incremental {
                one.sync_changes(cluster.desired(one.family), &changes[one.family]);
            }
        }
        for one in &incremental {
            let mut full = Simulated::new(one.family, usize::MAX);
            full.sync_fully(cluster.desired(one.family));
            prop_assert_eq!(&one.tables, &full.tables);
            for table in [Table::Filter, Table::Nat] {
                prop_assert_eq!(one.syncs.rules(table), full.syncs.rules(table));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn incremental_equals_full_in_the_kernel(steps in steps(12)) {
        for variant in VARIANTS {
            for family in Family::BOTH {
                compare_in_the_kernel(variant, family, &steps);
            }
        }
    }
}

fn compare_in_the_kernel(variant: Variant, family: Family, steps: &[Step]) {
    let mut cluster = Cluster::new(settings());
    let tables = Tables::new("incremental", variant);
    let mut dataplane = tables.dataplane(family, &Options::default());
    let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
    assert!(report.full);
    for step in steps {
        cluster.apply(step.event());
        let changes = cluster.resolve();
        let report = sync(&mut dataplane, &tables, &cluster, &changes[family]).unwrap();
        assert!(!report.full && report.refused.is_empty(), "{report:?}");
    }
    let fresh = Tables::new("full", variant);
    sync(&mut fresh.dataplane(family, &Options::default()), &fresh, &cluster, &Changes::everything())
        .unwrap();
    // Not even in canonical order: our own order does not depend on chance.
    assert_same(&tables.rules(family), &fresh.rules(family), "incremental and full");
    // And what a full sync reads back is what it would write: nothing is left to do.
    let report = sync(&mut dataplane, &tables, &cluster, &Changes::everything()).unwrap();
    assert_eq!(report.written, 0, "a full sync of right rules writes nothing");
}
