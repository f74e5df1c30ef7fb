//! Writes the table: one transaction that replaces everything, or one that changes what differs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use portwarden_model::{Family, NamespacedName, NodeView};
use portwarden_netlink::Error as NetlinkError;
use portwarden_netlink::error::Rejected;
use portwarden_netlink::nftables::{Chain, Counter, Image, Name, Rule, Table, Transaction, Verdict};

use super::{FamilyTable, Wanted};
use crate::chains::{self, Chains, RuleContext};
use crate::error::Error;
use crate::installed::Installed;
use crate::kernel::Found;
use crate::plan::{ElementChanges, Plan};
use crate::route::class_bits;
use crate::session_affinity::{self, StickyClass};
use crate::sets::{SetId, Sets};
use crate::tampering::TamperMonitor;
use crate::{affinity_recovery, load_balancing, node_ports, source_ranges};

/// The elements of one transaction, where a transaction need not have all of them: ten to twenty milliseconds of work. What the kernel
/// works on in one call counts against the quota of the process at once, so that all of its threads stand still afterwards.
const PIECE: usize = 8192;

const TABLE_COMMENT: &str = "rules of Portwarden";

/// Why a write failed.
pub(super) enum WriteError {
    /// The kernel refused the transaction of this plan.
    Rejected(Box<Rejected>, Plan),
    /// A Service exceeds a limit of the layout.
    Unfit(NamespacedName, String),
    /// Nothing was tried, or the outcome is unknown.
    Fatal(Error),
}

impl WriteError {
    /// The reason alone, where the Service is known.
    pub(super) fn reason(&self) -> String {
        match self {
            WriteError::Rejected(rejected, _) => rejected.to_string(),
            WriteError::Unfit(_, reason) => reason.clone(),
            WriteError::Fatal(error) => error.to_string(),
        }
    }

    pub(super) fn into_error(self, family: Family) -> Error {
        match self {
            WriteError::Rejected(rejected, _) => {
                Error::Commit { family, source: NetlinkError::Rejected(*rejected) }
            }
            WriteError::Unfit(service, reason) => Error::Unfit { family, service, reason },
            WriteError::Fatal(error) => error,
        }
    }
}

impl FamilyTable {
    /// Replaces the whole table in one transaction. Session affinity survives if the table was of this layout.
    pub(super) fn write_all(
        &mut self,
        node: &NodeView,
        wanted: &Wanted<'_>,
        monitor: &TamperMonitor,
    ) -> Result<usize, WriteError> {
        let read = |source| WriteError::Fatal(Error::Read { family: self.family, source });
        let found = self.kernel.inspect(&self.sets).map_err(read)?;
        let mut fresh = if self.in_step || !matches!(found, Found::Ours { .. }) {
            self.installed.without_elements()
        } else {
            Installed::new(affinity_recovery::recover(&mut self.kernel).map_err(read)?)
        };
        let mut plan = self.large_plan(wanted);
        let mut transaction = Transaction::new();
        plan_services(&mut fresh, wanted, &mut plan)?;
        let mut chains = self.render(node, &fresh.sticky_classes());
        if plan.additions(SetId::Restricted) > 0 {
            source_ranges::add_hooks(&mut chains);
        }
        let addresses = node_ports::addresses(node);
        for ip in &addresses {
            plan.add(SetId::NodeAddresses, Image::new().address(*ip), Image::new());
        }
        let sets = self.sets.sized(|id| plan.additions(id));
        self.clear(&found, &chains, &mut transaction);
        self.write_static(&sets, &chains, &fresh, &mut transaction);
        let written = transaction.len() + plan.len();
        if matches!(found, Found::Nothing) && plan.len() > PIECE {
            let pieces = self.write_lists(&transaction, &mut plan, &sets, monitor);
            if let Err(error) = pieces {
                // With the table there, the next attempt is one transaction, whose answer identifies the Service.
                return match self.failed(error, plan) {
                    WriteError::Rejected(..) => self.write_all(node, wanted, monitor),
                    error => Err(error),
                };
            }
            transaction = Transaction::new();
        }
        plan.append_to(&mut transaction, &sets);
        match self.kernel.commit(&transaction, monitor) {
            Ok(()) => {
                fresh.commit();
                (self.installed, self.chains, self.node_addresses) = (fresh, chains, addresses);
                self.sets = sets;
                self.in_step = true;
                self.comparison = None;
                Ok(written)
            }
            Err(error) => Err(self.failed(error, plan)),
        }
    }

    /// Writes an empty table and the endpoint lists, piece by piece, so that the kernel works on none for long. No frontend leads to them yet: all
    /// Services appear in the last transaction, at once.
    fn write_lists(
        &mut self,
        empty: &Transaction,
        plan: &mut Plan,
        sets: &Sets,
        monitor: &TamperMonitor,
    ) -> portwarden_netlink::Result<()> {
        self.kernel.commit(empty, monitor)?;
        for id in [SetId::Endpoints, SetId::StickyEndpoints, SetId::StickySlots] {
            for group in plan.take_added(id).groups(PIECE) {
                let mut transaction = Transaction::new();
                transaction.add_elements(sets.get(id), group);
                self.kernel.commit(&transaction, monitor)?;
            }
        }
        Ok(())
    }

    fn render(&self, node: &NodeView, sticky: &BTreeSet<StickyClass>) -> Chains {
        let context = RuleContext {
            family: self.family,
            node,
            mark: self.mark,
            loopback_node_ports: self.loopback_node_ports,
            untracked_pods: self.untracked_pods,
        };
        Chains::render(&context, sticky)
    }

    /// An empty plan with memory reserved for the endpoints, which are nearly all of a full load.
    fn large_plan(&self, wanted: &Wanted<'_>) -> Plan {
        let ports = wanted.values().flatten().flat_map(|service| service.ports.iter());
        let endpoints = ports.map(|port| port.cluster.len() + port.local.len()).sum();
        let payload = match self.family {
            Family::V4 => 16,
            Family::V6 => 28,
        };
        let mut plan = Plan::new();
        plan.reserve(SetId::Endpoints, endpoints, payload);
        plan
    }

    /// Writes the Services that changed and, if given, the rules and addresses of the node.
    pub(super) fn write_changes(
        &mut self,
        node: Option<&NodeView>,
        wanted: &Wanted<'_>,
        monitor: &TamperMonitor,
    ) -> Result<usize, WriteError> {
        let mut plan = Plan::new();
        if let Err(failed) = plan_services(&mut self.installed, wanted, &mut plan) {
            self.installed.roll_back();
            return Err(failed);
        }
        let mut transaction = Transaction::new();
        let new_classes: Vec<(StickyClass, u8)> = self.installed.new_classes().collect();
        let had_source_ranges = source_ranges::has_hooks(&self.chains);
        let source_ranges = had_source_ranges || plan.additions(SetId::Restricted) > 0;
        let mut chains = None;
        let mut addresses = None;
        if let Some(node) = node {
            chains = Some(self.render(node, &self.installed.sticky_classes()));
            self.plan_addresses(&node_ports::addresses(node), &mut plan);
            addresses = Some(node_ports::addresses(node));
        } else if !new_classes.is_empty() || source_ranges != had_source_ranges {
            let mut rendered = self.chains.clone();
            session_affinity::add_rules(
                self.family,
                new_classes.iter().map(|(class, _)| *class),
                &mut rendered,
            );
            chains = Some(rendered);
        }
        if source_ranges && let Some(chains) = &mut chains {
            source_ranges::add_hooks(chains);
        }
        if let Some(chains) = &chains {
            self.write_chain_changes(chains, &mut transaction);
        }
        for (class, number) in new_classes {
            plan.add_class(class_bits(number), &Verdict::Goto(class.chain().into()));
        }
        plan.append_to(&mut transaction, &self.sets);
        let written = transaction.len().saturating_sub(plan.operation_count()) + plan.len();
        if transaction.is_empty() {
            self.installed.commit();
            return Ok(0);
        }
        match self.kernel.commit(&transaction, monitor) {
            Ok(()) => {
                self.installed.commit();
                self.chains = chains.unwrap_or_else(|| std::mem::take(&mut self.chains));
                self.node_addresses = addresses.unwrap_or_else(|| std::mem::take(&mut self.node_addresses));
                Ok(written)
            }
            Err(error) => {
                self.installed.roll_back();
                Err(self.failed(error, plan))
            }
        }
    }

    fn failed(&mut self, error: NetlinkError, plan: Plan) -> WriteError {
        match error {
            NetlinkError::Rejected(rejected) => WriteError::Rejected(Box::new(rejected), plan),
            source => {
                // The outcome is unknown: inspect the table before the next write.
                self.in_step = false;
                WriteError::Fatal(Error::Commit { family: self.family, source })
            }
        }
    }

    /// Removes everything except for the map of clients.
    fn clear(&self, found: &Found, chains: &Chains, transaction: &mut Transaction) {
        let table = self.kernel.table();
        match found {
            Found::Nothing => {}
            Found::Other => transaction.ensure_absent(table),
            Found::Ours { sets, chains: old_chains, counters } => {
                transaction.flush(Table::new(table));
                for set in sets.iter().filter(|set| set.name.as_ref() != SetId::Affinity.name()) {
                    transaction.delete(Arc::new(set.clone()));
                }
                for name in old_chains.iter().filter(|name| chains.rules(name).is_none()) {
                    transaction.delete(Chain::new(table, name.as_str()));
                }
                let used = chains.counters();
                for name in counters.iter().filter(|name| !used.contains(&Name::from(name.as_str()))) {
                    transaction.delete(Counter::new(table, name.as_str()));
                }
            }
        }
    }

    /// The table, its sets, chains and rules. Rules come before elements: binding a rule to a full map would walk the map.
    fn write_static(
        &self,
        sets: &Sets,
        chains: &Chains,
        installed: &Installed,
        transaction: &mut Transaction,
    ) {
        let table = self.kernel.table();
        transaction.add(Table::new(table).comment(TABLE_COMMENT));
        for id in SetId::ALL {
            transaction.add(sets.get(id));
        }
        for (name, _) in chains.iter() {
            transaction.add(chains::define(table, name));
        }
        for name in chains.counters() {
            transaction.add(Counter::new(table, name.clone()));
        }
        let mut fixed = Plan::new();
        load_balancing::add_classes(&mut fixed);
        for (class, number) in installed.sticky_class_numbers() {
            fixed.add_class(class_bits(number), &Verdict::Goto(class.chain().into()));
        }
        for (name, rules) in chains.iter() {
            chains::to_rules(table, name, rules).for_each(|rule: Rule| transaction.add(rule));
        }
        fixed.append_to(transaction, sets);
    }

    fn write_chain_changes(&self, chains: &Chains, transaction: &mut Transaction) {
        let table = self.kernel.table();
        let (used, used_before) = (chains.counters(), self.chains.counters());
        for name in used.difference(&used_before) {
            transaction.add(Counter::new(table, Name::clone(name)));
        }
        let changed: Vec<_> =
            chains.iter().filter(|(name, rules)| self.chains.rules(name) != Some(rules)).collect();
        for (name, _) in &changed {
            transaction.add(chains::define(table, name));
        }
        for (name, rules) in changed {
            if self.chains.rules(name).is_some() {
                transaction.flush(Chain::new(table, name.clone()));
            }
            chains::to_rules(table, name, rules).for_each(|rule: Rule| transaction.add(rule));
        }
        for name in used_before.difference(&used) {
            transaction.delete(Counter::new(table, Name::clone(name)));
        }
    }

    fn plan_addresses(&self, wanted: &BTreeSet<IpAddr>, plan: &mut Plan) {
        for ip in self.node_addresses.difference(wanted) {
            plan.delete(SetId::NodeAddresses, Image::new().address(*ip));
        }
        for ip in wanted.difference(&self.node_addresses) {
            plan.add(SetId::NodeAddresses, Image::new().address(*ip), Image::new());
        }
    }
}

fn plan_services(installed: &mut Installed, wanted: &Wanted<'_>, plan: &mut Plan) -> Result<(), WriteError> {
    for (name, service) in wanted {
        installed
            .plan(name, *service, plan)
            .map_err(|refusal| WriteError::Unfit((*name).clone(), refusal.to_string()))?;
    }
    installed.plan_shared(plan);
    Ok(())
}
