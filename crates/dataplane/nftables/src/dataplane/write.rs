//! Writing: one transaction that replaces the table, or one that changes what differs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use portwarden_model::{Family, NamespacedName, NodePortAddresses, NodeView};
use portwarden_netlink::Error as NetlinkError;
use portwarden_netlink::error::Rejected;
use portwarden_netlink::nftables::{Chain, Counter, Image, Name, Rule, Table, Transaction, Verdict};

use super::{Nftables, TABLE_COMMENT, Wanted};
use crate::chains::{self, Chains, StickyClass, draw_chain, redraw_chain};
use crate::error::Error;
use crate::installed::Installed;
use crate::kernel::{Found, number_key};
use crate::localhost;
use crate::plan::{ElementChanges, Plan};
use crate::route::{Draw, class_bits};
use crate::sets::{SetId, Sets};

/// Why an attempt to commit failed.
pub(super) enum Failed {
    /// The kernel refused the transaction of this plan.
    Rejected(Box<Rejected>, Plan),
    /// A Service cannot be expressed.
    Refused(NamespacedName, String),
    /// Nothing was tried, or the outcome is unknown.
    Fatal(Error),
}

impl Nftables {
    /// Replaces the whole table in one transaction. Session affinity survives if the table was of this layout.
    pub(super) fn write_all(&mut self, node: &NodeView, wanted: &Wanted<'_>) -> Result<usize, Failed> {
        let read = |source| Failed::Fatal(Error::Read { family: self.family, source });
        let found = self.kernel.look(&self.sets).map_err(read)?;
        let mut fresh = if self.in_step || !matches!(found, Found::Ours { .. }) {
            self.installed.forget()
        } else {
            Installed::new(self.kernel.recover().map_err(read)?)
        };
        let mut plan = self.large_plan(wanted);
        let mut transaction = Transaction::new();
        plan_services(&mut fresh, wanted, &mut plan)?;
        let mut chains = self.render(node, &fresh.sticky_classes());
        if plan.additions(SetId::Restricted) > 0 {
            chains.add_firewall();
        }
        let addresses = node_addresses(node);
        for ip in &addresses {
            plan.add(SetId::NodeAddresses, Image::new().address(*ip), Image::new());
        }
        let sets = self.sets.sized(|id| plan.additions(id));
        self.clear(&found, &chains, &mut transaction);
        self.write_static(&sets, &chains, &fresh, &mut transaction);
        plan.append_to(&mut transaction, &sets);
        let written = transaction.len() + plan.len();
        match self.kernel.commit(&transaction) {
            Ok(()) => {
                fresh.commit();
                (self.installed, self.chains, self.node_addresses) = (fresh, chains, addresses);
                self.sets = sets;
                self.in_step = true;
                Ok(written)
            }
            Err(error) => Err(self.failed(error, plan)),
        }
    }

    /// The rules for a node with these properties.
    fn render(&self, node: &NodeView, sticky: &BTreeSet<StickyClass>) -> Chains {
        let mut chains = Chains::render(self.family, node, self.mark, sticky);
        if self.localhost_node_ports {
            localhost::add(&mut chains, self.family, node);
        }
        chains
    }

    /// An empty plan with room for all endpoints, which are nearly all there is.
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

    /// Writes the Services that changed and, if given, what follows from the node.
    pub(super) fn write_changes(
        &mut self,
        node: Option<&NodeView>,
        wanted: &Wanted<'_>,
    ) -> Result<usize, Failed> {
        let mut plan = Plan::new();
        if let Err(failed) = plan_services(&mut self.installed, wanted, &mut plan) {
            self.installed.roll_back();
            return Err(failed);
        }
        let mut transaction = Transaction::new();
        let new_classes: Vec<(StickyClass, u8)> = self.installed.new_classes().collect();
        let firewall = self.chains.has_firewall() || plan.additions(SetId::Restricted) > 0;
        let mut chains = None;
        let mut addresses = None;
        if let Some(node) = node {
            chains = Some(self.render(node, &self.installed.sticky_classes()));
            self.plan_addresses(&node_addresses(node), &mut plan);
            addresses = Some(node_addresses(node));
        } else if !new_classes.is_empty() || firewall != self.chains.has_firewall() {
            let mut rendered = self.chains.clone();
            rendered.add_sticky(self.family, new_classes.iter().map(|(class, _)| *class));
            chains = Some(rendered);
        }
        if firewall && let Some(chains) = &mut chains {
            chains.add_firewall();
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
        match self.kernel.commit(&transaction) {
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

    fn failed(&mut self, error: NetlinkError, plan: Plan) -> Failed {
        match error {
            NetlinkError::Rejected(rejected) => Failed::Rejected(Box::new(rejected), plan),
            source => {
                // Whether the kernel took it is unknown: look again before the next write.
                self.in_step = false;
                Failed::Fatal(Error::Commit { family: self.family, source })
            }
        }
    }

    /// Removes what is there, except for the memory of clients.
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
        for draw in Draw::all() {
            let bits = class_bits(draw.class());
            fixed.add_class(bits, &Verdict::Jump(draw_chain(draw.modulus()).into()));
            fixed.add_verdict(SetId::Redraws, number_key(bits), &Verdict::Goto(redraw_chain(draw).into()));
        }
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

fn plan_services(installed: &mut Installed, wanted: &Wanted<'_>, plan: &mut Plan) -> Result<(), Failed> {
    for (name, service) in wanted {
        installed
            .plan(name, *service, plan)
            .map_err(|refusal| Failed::Refused((*name).clone(), refusal.to_string()))?;
    }
    installed.plan_shared(plan);
    Ok(())
}

/// Addresses with node ports; loopback ones never, since a translated packet cannot leave from there.
fn node_addresses(node: &NodeView) -> BTreeSet<IpAddr> {
    match &node.node_ports {
        NodePortAddresses::All => BTreeSet::new(),
        NodePortAddresses::Only(ips) => ips.iter().copied().filter(|ip| !ip.is_loopback()).collect(),
    }
}
