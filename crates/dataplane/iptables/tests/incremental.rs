//! Many small steps lead to the same rules as one big one: first in strict simulated tables, then in the kernel.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::sync::Arc;

use common::random::{Step, steps};
use common::simulator::Simulator;
use common::{Tables, VARIANTS, assert_same, sync};
use portwarden_iptables::Options;
use portwarden_iptables::diff;
use portwarden_iptables::draft::{Draft, Names, SavedTables};
use portwarden_iptables::names::chain_level;
use portwarden_iptables::plan::Plan;
use portwarden_iptables::render::{Context, FixedRules, InvalidPackets, Mark, pod_match};
use portwarden_iptables::ruleset::Ruleset;
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

/// The pure part of a dataplane on simulated tables.
struct Pure {
    family: Family,
    installed: Ruleset,
    tables: Simulator,
    chains_per_step: usize,
}

impl Pure {
    fn new(family: Family, chains_per_step: usize) -> Pure {
        Pure { family, installed: Ruleset::default(), tables: Simulator::default(), chains_per_step }
    }

    fn context(&self, desired: &Desired) -> Arc<Context> {
        let pods = pod_match(&desired.node.pod_traffic);
        Arc::new(Context {
            family: self.family,
            pods,
            count_localhost: self.family == Family::V4,
            large: false,
        })
    }

    fn fixed(&self, desired: &Desired) -> FixedRules {
        let localhost = self.family == Family::V4;
        FixedRules::render(
            self.family,
            Mark(1 << 14),
            InvalidPackets::Drop,
            localhost,
            &desired.node.node_ports,
        )
    }

    fn sync_fully(&mut self, desired: &Desired) {
        let plan = Plan::everything(&self.installed, desired, &self.context(desired), self.fixed(desired));
        let transaction = Draft::new(&plan.pending, self.family).compare(&mut SavedTables::default());
        self.restore(&transaction);
        self.restore_announced(&Names::new(&plan.pending), &transaction);
        self.installed.acknowledge(plan.pending);
    }

    /// The same once more, as it is given to a program that starts before the rules are known: nothing changes.
    fn restore_announced(&mut self, names: &Names, transaction: &Transaction) {
        let before = self.tables.clone();
        let text = transaction.text_after_chains(names.iter().collect());
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
        let (context, fixed) = (self.context(desired), self.fixed(desired));
        let plan = Plan::changes(&self.installed, desired, changes, false, &context, fixed);
        let transaction = diff::changes(&self.installed, &plan.pending);
        self.restore(&transaction);
        self.installed.acknowledge(plan.pending);
        let plan = Plan::changes(&self.installed, desired, changes, false, &context, self.fixed(desired));
        assert!(diff::changes(&self.installed, &plan.pending).is_empty(), "the same again writes nothing");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn incremental_equals_full_in_simulated_tables(steps in steps(25), per_step in 1..40usize) {
        let mut cluster = Cluster::new(settings());
        let mut incremental = Family::BOTH.map(|family| Pure::new(family, per_step));
        incremental.iter_mut().for_each(|pure| pure.sync_fully(cluster.desired(pure.family)));
        for step in &steps {
            cluster.apply(step.event());
            let changes = cluster.resolve();
            for pure in &mut incremental {
                pure.sync_changes(cluster.desired(pure.family), &changes[pure.family]);
            }
        }
        for pure in &incremental {
            let mut full = Pure::new(pure.family, usize::MAX);
            full.sync_fully(cluster.desired(pure.family));
            prop_assert_eq!(&pure.tables, &full.tables);
            for table in [Table::Filter, Table::Nat] {
                prop_assert_eq!(pure.installed.rules(table), full.installed.rules(table));
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
