//! All rules, compared with what the kernel's tables have. Pure.
//!
//! Reading the tables back takes `iptables-save` a while. All that can be done without its answer is a [`Draft`], made meanwhile.

use std::collections::HashSet;

use portwarden_model::Family;
use portwarden_xtables::{Fingerprint, PrintedForm, SavedTable, Section, Table, Transaction};

use crate::diff::write_shared;
use crate::names::{ServiceChain, is_service_chain};
use crate::render::{OwnChains, SharedChain};
use crate::ruleset::{Pending, Ruleset};

/// What the tables have now; `None` where that could not be read.
#[derive(Debug, Default)]
pub(crate) struct SavedTables {
    pub(crate) filter: Option<SavedTable>,
    pub(crate) nat: Option<SavedTable>,
}

impl SavedTables {
    pub(crate) fn table(&self, table: Table) -> Option<&SavedTable> {
        match table {
            Table::Filter => self.filter.as_ref(),
            Table::Nat => self.nat.as_ref(),
            Table::Mangle => None,
        }
    }
}

/// All rules, as if the tables were empty.
#[derive(Debug)]
pub(crate) struct Draft {
    transaction: Transaction,
    forms: PrintedForm,
    /// Fingerprints of the first chains of the nat table.
    fingerprints: Vec<Fingerprint>,
}

/// The names of all chains that a [`Draft`] has in the nat table. They take a fraction of the time that their rules take.
#[derive(Debug)]
pub(crate) struct Names {
    own: Vec<ServiceChain>,
    others: Vec<&'static str>,
}

impl Names {
    /// `pending` must hold every Service.
    pub(crate) fn new(pending: &Pending) -> Names {
        let mut own = Vec::new();
        pending.services.values().flatten().for_each(|entry| entry.own_names(&mut own));
        let fixed = pending.fixed.chains().map(|(table, chain, _)| (table, chain));
        let shared = SharedChain::ALL.into_iter().map(|chain| (chain.table(), chain.name()));
        let others = fixed.chain(shared).filter(|(table, _)| *table == Table::Nat).map(|(_, name)| name);
        Names { own, others: others.collect() }
    }

    /// Whether there are Services to write, and the table has nothing of any.
    pub(crate) fn table_has_no_services(&self, saved: &SavedTable) -> bool {
        !self.own.is_empty() && !saved.chains().any(is_service_chain)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.own.iter().map(ServiceChain::as_str).chain(self.others.iter().copied())
    }
}

impl Draft {
    /// Renders everything. `pending` must hold every Service.
    pub(crate) fn new(pending: &Pending, family: Family) -> Draft {
        let mut transaction = Transaction::new();
        for (table, chain, rules) in pending.fixed.chains() {
            let section = transaction.section(table);
            section.make_chain(chain);
            section.push_rules(rules, None);
        }
        let nothing = Ruleset::default();
        for chain in SharedChain::ALL {
            let section = transaction.section(chain.table());
            section.make_chain(chain.name());
            write_shared(chain, &nothing, pending, section);
        }
        write_own(pending, &mut transaction.nat);
        Draft { transaction, forms: PrintedForm::new(family), fingerprints: Vec::new() }
    }

    /// Computes the fingerprints of as many chains as there is time for. The comparison does the rest.
    pub(crate) fn precompute_fingerprints(&mut self, is_time: impl Fn() -> bool) {
        let nat = &self.transaction.nat;
        while self.fingerprints.len() < nat.chains() && is_time() {
            let rules = nat.chain_rules(self.fingerprints.len());
            self.fingerprints.push(self.forms.fingerprint(rules));
        }
    }

    /// Leaves out the chains that are right already, and removes those of Services that are no longer wanted.
    pub(crate) fn compare(self, saved: &mut SavedTables) -> Transaction {
        let Draft { mut transaction, mut forms, fingerprints } = self;
        if let Some(saved) = &mut saved.filter {
            transaction.filter.retain_chains(|_, name, rules| {
                saved.claim(name).is_none_or(|printed| printed != forms.fingerprint(rules))
            });
        }
        if let Some(saved) = &mut saved.nat {
            transaction.nat.retain_chains(|index, name, rules| {
                saved.claim(name).is_none_or(|printed| {
                    let ours = fingerprints.get(index).copied();
                    printed != ours.unwrap_or_else(|| forms.fingerprint(rules))
                })
            });
            let mut stale: Vec<_> = saved.unclaimed().filter(|name| is_service_chain(name)).collect();
            stale.sort_unstable();
            stale.into_iter().for_each(|name| transaction.nat.delete_chain(name));
        }
        transaction
    }
}

/// Lets chains of the filter table lose rules only after the nat table has changed, as [`changes`](crate::diff::changes) does.
pub(crate) fn lose_rules_last(transaction: &mut Transaction, filter: &SavedTable, family: Family) {
    let mut forms = PrintedForm::new(family);
    let Transaction { filter: first, filter_last: last, .. } = transaction;
    for chain in SharedChain::ALL.into_iter().filter(|chain| chain.table() == Table::Filter) {
        let Some(index) = (0..first.chains()).find(|index| first.chain_name(*index) == chain.name()) else {
            continue;
        };
        let old: HashSet<&str> = filter.rules(chain.name()).lines().collect();
        let (mut kept, mut new) = (HashSet::new(), Vec::new());
        for (position, line) in first.chain_rules(index).lines().enumerate() {
            match old.get(forms.printed(line)) {
                Some(line) => drop(kept.insert(*line)),
                None => new.push((line.to_owned(), first.owner(index, position).cloned())),
            }
        }
        if kept.len() < old.len() {
            first.move_chain(index, last);
            new.iter().for_each(|(line, owner)| first.append_rule(line, owner.as_ref()));
        }
    }
}

fn write_own(pending: &Pending, nat: &mut Section) {
    let mut own = OwnChains::default();
    for (name, entry) in &pending.services {
        let Some(entry) = entry else { continue };
        entry.render_own(&mut own);
        for (chain, rules, count) in own.counted() {
            nat.make_chain(chain.as_str());
            nat.push_counted(rules, count, Some(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use crate::render::{FixedRules, InvalidPackets, Mark};
    use portwarden_model::NodePortAddresses;

    fn pending() -> Pending {
        let fixed = FixedRules::render(
            Family::V4,
            Mark(1 << 14),
            InvalidPackets::Drop,
            true,
            &NodePortAddresses::All,
        );
        Pending { services: BTreeMap::new(), fixed }
    }

    fn saved() -> SavedTables {
        let nat = "*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SVC-OLD - [0:0]\n:KUBE-SEP-OLD - [0:0]\n:OTHERS - [0:0]\n\
                   -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";
        SavedTables { filter: None, nat: Some(SavedTable::parse(nat)) }
    }

    #[test]
    fn what_is_right_stays_and_what_is_stale_goes() {
        let everything = Draft::new(&pending(), Family::V4).compare(&mut SavedTables::default());
        assert!(everything.nat.deletes().is_empty());
        let transaction = Draft::new(&pending(), Family::V4).compare(&mut saved());
        assert_eq!(transaction.filter, everything.filter);
        assert_eq!(transaction.nat.chains(), everything.nat.chains() - 1);
        assert!(!transaction.to_string().contains(":KUBE-MARK-MASQ"));
        assert_eq!(transaction.nat.deletes(), ["KUBE-SEP-OLD", "KUBE-SVC-OLD"]);
    }

    #[test]
    fn it_does_not_matter_how_much_was_precomputed() {
        let expected = Draft::new(&pending(), Family::V4).compare(&mut saved());
        for chains in 0..10usize {
            let mut draft = Draft::new(&pending(), Family::V4);
            let left = Cell::new(chains);
            draft.precompute_fingerprints(|| left.replace(left.get().saturating_sub(1)) > 0);
            assert_eq!(draft.compare(&mut saved()), expected, "with {chains} chains precomputed");
        }
    }
}
