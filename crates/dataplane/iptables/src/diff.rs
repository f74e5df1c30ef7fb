//! From what the kernel has acknowledged to what it is to have: the smallest transaction, in whole chains. Pure.
//!
//! The tables are committed one after the other, and packets arrive in between. The first packet of a connection that is neither redirected (nat)
//! nor refused (filter) makes conntrack remember the connection as not redirected, for two minutes: its retransmissions are lost, and so is a new
//! connection from the same port. So the filter table refuses before the nat table stops to redirect, and until it redirects.

use std::collections::BTreeMap;

use portwarden_model::NamespacedName;
use portwarden_xtables::{Section, Table, Transaction};

use crate::render::{FixedRules, SharedChain};
use crate::ruleset::{Entry, Pending, Ruleset};

/// What differs between the acknowledged rules and the pending ones.
pub(crate) fn changes(installed: &Ruleset, pending: &Pending) -> Transaction {
    let mut transaction = Transaction::new();
    fixed_changes(installed.fixed(), &pending.fixed, &mut transaction);
    for chain in SharedChain::ALL {
        if !shared_differs(chain, installed, pending) {
            continue;
        }
        let section = if chain.table() == Table::Filter && loses_lines(chain, installed, pending) {
            append_new_lines(chain, installed, pending, &mut transaction.filter);
            &mut transaction.filter_last
        } else {
            transaction.section(chain.table())
        };
        section.make_chain(chain.name());
        write_shared(chain, installed, pending, section);
    }
    for (name, entry) in &pending.services {
        own_changes(name, installed.service(name), entry.as_ref(), &mut transaction.nat);
    }
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

/// Whether any pending Service has fewer lines in a shared chain than before.
fn loses_lines(chain: SharedChain, installed: &Ruleset, pending: &Pending) -> bool {
    pending.services.iter().any(|(name, new)| {
        let (old, new) = (shared_lines(installed.service(name), chain), shared_lines(new.as_ref(), chain));
        old.lines().any(|line| new.lines().all(|other| other != line))
    })
}

/// Appends the lines that a shared chain gets to those that it has.
fn append_new_lines(chain: SharedChain, installed: &Ruleset, pending: &Pending, section: &mut Section) {
    for (name, new) in &pending.services {
        let (old, new) = (shared_lines(installed.service(name), chain), shared_lines(new.as_ref(), chain));
        let is_new = |line: &&str| old.lines().all(|other| other != *line);
        new.lines().filter(is_new).for_each(|line| section.append_rule(line, Some(name)));
    }
}

fn shared_lines(entry: Option<&Entry>, chain: SharedChain) -> &str {
    entry.map_or("", |entry| entry.shared().in_chain(chain))
}

/// Writes the lines of all Services in a shared chain.
pub(crate) fn write_shared(
    chain: SharedChain,
    installed: &Ruleset,
    pending: &Pending,
    section: &mut Section,
) {
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
