//! From what the kernel has to what it is to have: the smallest transaction, in whole chains. Pure.

use std::collections::{BTreeMap, BTreeSet};

use portwarden_model::{Family, NamespacedName};

use crate::names::is_service_chain;
use crate::render::{FixedRules, OwnChains, SharedChain};
use crate::ruleset::{Entry, Pending, Ruleset};
use crate::saved::Saved;
use crate::table::Table;
use crate::transaction::{Section, Transaction};

/// What differs between the acknowledged rules and the pending ones.
pub fn changes(installed: &Ruleset, pending: &Pending) -> Transaction {
    let mut transaction = Transaction::new();
    fixed_changes(installed.fixed(), &pending.fixed, &mut transaction);
    for chain in SharedChain::ALL {
        if shared_differs(chain, installed, pending) {
            let section = transaction.section(chain.table());
            section.make_chain(chain.name());
            write_shared(chain, installed, pending, section);
        }
    }
    for (name, entry) in &pending.services {
        own_changes(name, installed.service(name), entry.as_ref(), &mut transaction.nat);
    }
    transaction
}

/// What the tables have now; `None` where that could not be read.
#[derive(Debug, Default)]
pub struct SavedTables<'a> {
    /// The filter table.
    pub filter: Option<Saved<'a>>,
    /// The nat table.
    pub nat: Option<Saved<'a>>,
}

impl SavedTables<'_> {
    /// One of them.
    pub fn table(&self, table: Table) -> Option<&Saved<'_>> {
        match table {
            Table::Filter => self.filter.as_ref(),
            Table::Nat => self.nat.as_ref(),
            Table::Mangle => None,
        }
    }

    fn matches(&self, table: Table, chain: &str, rules: &str, family: Family) -> bool {
        self.table(table).is_some_and(|saved| saved.matches(chain, rules, family))
    }
}

/// All that `pending` holds, apart from chains that are right already, and the removal of Services' chains that it does not hold.
/// `pending` must tell about every Service.
pub fn everything(pending: &Pending, saved: &SavedTables<'_>, family: Family) -> Transaction {
    let nothing = Ruleset::default();
    let mut transaction = Transaction::new();
    for (table, chain, rules) in pending.fixed.chains() {
        if !saved.matches(table, chain, rules, family) {
            let section = transaction.section(table);
            section.make_chain(chain);
            section.push_rules(rules, None);
        }
    }
    for chain in SharedChain::ALL {
        let mut lines = Section::new(chain.table());
        write_shared(chain, &nothing, pending, &mut lines);
        if !saved.matches(chain.table(), chain.name(), lines.rules_text(), family) {
            let section = transaction.section(chain.table());
            section.make_chain(chain.name());
            section.append_rules(lines);
        }
    }
    write_own(pending, saved, family, &mut transaction.nat);
    transaction
}

fn fixed_changes(old: &FixedRules, new: &FixedRules, transaction: &mut Transaction) {
    for (table, chain, rules) in new.chains() {
        let same = |(t, c, r): (Table, &str, &str)| (t, c, r) == (table, chain, rules);
        if !old.chains().any(same) {
            let section = transaction.section(table);
            section.make_chain(chain);
            section.push_rules(rules, None);
        }
    }
}

/// Whether the lines of any pending Service in a shared chain are new; the node-port rules end one of them.
fn shared_differs(chain: SharedChain, installed: &Ruleset, pending: &Pending) -> bool {
    let tail = chain == SharedChain::NatServices
        && installed.fixed().to_node_ports() != pending.fixed.to_node_ports();
    tail || pending
        .services
        .iter()
        .any(|(name, new)| shared_lines(installed.service(name), chain) != shared_lines(new.as_ref(), chain))
}

fn shared_lines(entry: Option<&Entry>, chain: SharedChain) -> &str {
    entry.map_or("", |entry| entry.shared().in_chain(chain))
}

fn write_shared(chain: SharedChain, installed: &Ruleset, pending: &Pending, section: &mut Section) {
    for (name, entry) in pending.entries(installed) {
        section.push_rules(entry.shared().in_chain(chain), Some(name));
    }
    if chain == SharedChain::NatServices {
        section.push_rules(pending.fixed.to_node_ports(), None);
    }
}

fn own_changes(name: &NamespacedName, old: Option<&Entry>, new: Option<&Entry>, nat: &mut Section) {
    let (old, new) = (old.map(Entry::own), new.map(Entry::own));
    let mut gone: BTreeMap<_, _> = old.iter().flat_map(|own| own.iter()).collect();
    for (chain, rules) in new.iter().flat_map(|own| own.iter()) {
        if gone.remove(&chain) != Some(rules) {
            nat.make_chain(chain.as_str());
            nat.push_rules(rules, Some(name));
        }
    }
    for chain in gone.into_keys() {
        nat.delete_chain(chain.as_str());
    }
}

fn write_own(pending: &Pending, saved: &SavedTables<'_>, family: Family, nat: &mut Section) {
    let saved = saved.nat.as_ref();
    let mut stale: BTreeSet<&str> =
        saved.iter().flat_map(|saved| saved.chains()).filter(|name| is_service_chain(name)).collect();
    let mut own = OwnChains::default();
    for (name, entry) in &pending.services {
        let Some(entry) = entry else { continue };
        entry.render_own(&mut own);
        for (chain, rules, count) in own.counted() {
            stale.remove(chain.as_str());
            if saved.is_some_and(|saved| saved.matches(chain.as_str(), rules, family)) {
                continue;
            }
            nat.make_chain(chain.as_str());
            nat.push_counted(rules, count, Some(name));
        }
    }
    for chain in stale {
        nat.delete_chain(chain);
    }
}
