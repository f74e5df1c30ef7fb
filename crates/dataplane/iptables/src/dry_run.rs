//! What syncs would write, without any program or kernel.

use std::sync::Arc;

use portwarden_model::{Changes, Desired, Family, LoopbackNodePorts};
use portwarden_xtables::{Programs, Table, Transaction};

use crate::diff;
use crate::draft::{Draft, Names, SavedTables};
use crate::family_rules::is_large;
use crate::options::Options;
use crate::plan::Plan;
use crate::render::{Context, FixedRules, InvalidPackets, Mark, pod_match};
use crate::rule_difference::RuleDifference;
use crate::ruleset::Ruleset;

/// The rules of one family on a node that starts empty. Each sync is taken for successful, and the kernel for one with all features.
#[derive(Debug)]
pub struct DryRun {
    family: Family,
    mark: Mark,
    loopback_node_ports: bool,
    installed: Ruleset,
    context: Option<Arc<Context>>,
    invalid: InvalidPackets,
}

impl DryRun {
    /// Fails if the options make no sense.
    pub fn new(family: Family, options: &Options) -> Result<Self, crate::Error> {
        Ok(DryRun {
            family,
            mark: options.mark()?,
            loopback_node_ports: options.loopback_node_ports,
            installed: Ruleset::default(),
            context: None,
            invalid: InvalidPackets::DropAndCount,
        })
    }

    /// With the features of this node's kernel instead of all.
    pub fn on_this_node(mut self) -> Self {
        let counts = crate::PACKET_COUNTERS.iter().all(|counter| counter.read().is_ok());
        self.invalid = match (crate::sysctl::tcp_is_liberal(), counts) {
            (true, _) => InvalidPackets::Pass,
            (false, false) => InvalidPackets::Drop,
            (false, true) => InvalidPackets::DropAndCount,
        };
        self
    }

    /// What a sync would write.
    pub fn sync(&mut self, desired: &Desired, changes: &Changes) -> Transaction {
        let (plan, context) = self.plan(desired, changes);
        let transaction = if changes.full {
            Draft::new(&plan.pending, self.family).compare(&mut SavedTables::default())
        } else {
            diff::changes(&self.installed, &plan.pending)
        };
        self.installed.acknowledge(plan.pending);
        self.context = Some(context);
        transaction
    }

    /// What a full sync would change on this node, rule by rule. Reads the tables and changes nothing.
    pub fn difference(&self, desired: &Desired, programs: &Programs) -> Result<RuleDifference, crate::Error> {
        let (plan, _) = self.plan(desired, &Changes::everything());
        let save = |table| programs.save(table, |_| true);
        let mut saved = SavedTables { filter: Some(save(Table::Filter)?), nat: Some(save(Table::Nat)?) };
        let transaction = Draft::new(&plan.pending, self.family).compare(&mut saved);
        Ok(RuleDifference::new(&transaction, &saved, self.family))
    }

    /// The chains of the nat table that a full sync of an empty node names before it renders their rules.
    pub fn announced_chains(&self, desired: &Desired) -> Vec<String> {
        let (plan, _) = self.plan(desired, &Changes::everything());
        Names::new(&plan.pending).iter().map(str::to_owned).collect()
    }

    /// How many rules of ours a table has by now.
    pub fn rules(&self, table: Table) -> usize {
        self.installed.rules(table)
    }

    fn plan(&self, desired: &Desired, changes: &Changes) -> (Plan, Arc<Context>) {
        let loopback = self.family == Family::V4
            && self.loopback_node_ports
            && desired.node.loopback_node_ports != LoopbackNodePorts::Excluded;
        let context = Context {
            family: self.family,
            pods: pod_match(&desired.node.pod_traffic),
            count_loopback: loopback && self.invalid != InvalidPackets::Drop,
            large: is_large(desired),
        };
        let same = self.context.as_ref().filter(|old| ***old == context);
        let context = same.cloned().unwrap_or_else(|| Arc::new(context));
        let fixed =
            FixedRules::render(self.family, self.mark, self.invalid, loopback, &desired.node.node_ports);
        let plan = if changes.full {
            Plan::everything(&self.installed, desired, &context, fixed)
        } else {
            let all = self.context.as_ref().is_some_and(|old| old.differs_for_all(&context));
            Plan::changes(&self.installed, desired, changes, all, &context, fixed)
        };
        (plan, context)
    }
}
