//! Redirection by the iptables programs, for kernels without nf_tables. Each table changes in one step. The filter table gets rules before the
//! nat table changes and loses them after it, so that a connection is redirected or refused at every moment: conntrack would remember for two
//! minutes that one was neither. A change of a Service inserts and deletes its own rules only.

mod rules;

use std::collections::BTreeSet;

use portwarden_model::{Family, PerFamily, Protocol};
use portwarden_xtables::{Error, Programs, RestoreError, SavedTable, Section, Table, Transaction, Variant};

use super::ledger::{Difference, Ledger};
use super::{Origin, Recovered, RedirectError, Settings, Wanted, Written};
use rules::{Chain, Frame, Rule};

/// The rules of both families.
#[derive(Debug)]
pub(crate) struct Iptables {
    settings: Settings,
    programs: PerFamily<Programs>,
    tables: PerFamily<Installed>,
}

/// What the kernel has acknowledged in one family.
#[derive(Debug)]
struct Installed {
    frame: Frame,
    ledger: Ledger<Rule>,
    /// Whether all of this is what the kernel has.
    in_step: bool,
}

/// The rules of a family as the kernel has them.
struct Saved {
    nat: SavedTable,
    filter: SavedTable,
}

impl Iptables {
    /// Nothing changes.
    pub(crate) fn new(settings: Settings, programs: PerFamily<Programs>) -> Self {
        let installed = |_| Installed { frame: Frame::default(), ledger: Ledger::new(), in_step: false };
        Iptables { settings, programs, tables: PerFamily::from_fn(installed) }
    }

    /// Whether the programs work for these families.
    pub(crate) fn check(&self, families: &[Family]) -> Result<(), Error> {
        families.iter().try_for_each(|family| self.programs[*family].check())
    }

    /// Reads which sockets an earlier process used.
    pub(crate) fn recover(&self, family: Family) -> Result<Recovered, Error> {
        let nat = self.programs[family].save(Table::Nat, is_of_interest)?;
        let mut recovered = Recovered::default();
        for origin in Origin::BOTH {
            for node_port in [false, true] {
                let chain = Chain::redirections(origin, node_port);
                for (place, socket) in nat.rules(chain.name()).lines().filter_map(rules::parse_redirection) {
                    match place.protocol {
                        Protocol::Tcp => recovered.tcp.insert(origin, socket.port()),
                        _ => recovered.udp.insert((origin, place), socket.port()),
                    };
                }
            }
        }
        Ok(recovered)
    }

    /// Writes the rules of Services and of the node. A full write compares with the kernel first.
    pub(crate) fn write(&mut self, wanted: &Wanted<'_>) -> Result<Written, RedirectError> {
        let family = wanted.family;
        let programs = &self.programs[family];
        let installed = &mut self.tables[family];
        let frame = Frame::render(family, wanted.node, self.settings);
        let draft = wanted.draft(|rules| rules::rules(family, rules), []);
        let full = wanted.full || !installed.in_step;
        let (transaction, difference) = if full {
            let difference = Ledger::everything(&draft);
            (repair(&Saved::read(programs)?, &frame, &difference), difference)
        } else {
            let difference = installed.ledger.difference(&draft);
            (installed.changes(&frame, &difference), difference)
        };
        let objects = transaction.len();
        match programs.restore(&transaction) {
            Ok(()) => {}
            Err(error) => {
                // A table may have changed although the other one did not.
                installed.in_step = false;
                return Err(match error {
                    RestoreError::Other(error) => error.into(),
                    RestoreError::Lines(lines) => programs.rejection(&lines).into(),
                });
            }
        }
        installed.ledger.accept(draft, difference);
        (installed.frame, installed.in_step) = (frame, true);
        Ok(Written { objects, full, missed_notifications: false })
    }

    /// Whether the rules of a family can be changed one by one.
    pub(crate) fn in_step(&self, family: Family) -> bool {
        self.tables[family].in_step
    }
}

impl Installed {
    /// Deletes and inserts rules. A chain whose frame differs is written anew.
    fn changes(&self, frame: &Frame, difference: &Difference<Rule>) -> Transaction {
        let mut transaction = Transaction::new();
        for chain in Chain::ALL {
            let (head, tail) = frame.around(chain);
            let added = difference.added.iter().filter(|rule| rule.chain == chain);
            if self.frame.around(chain) != (head, tail) {
                let rules = self.ledger.after(difference).filter(|rule| rule.chain == chain);
                rewrite_chain(&mut transaction, chain, added, (head, rules, tail));
                continue;
            }
            let section = section_of_losses(&mut transaction, chain);
            for rule in difference.gone.iter().filter(|rule| rule.chain == chain) {
                section.insert_rule(format!("-D {} {}\n", chain.name(), rule.text));
            }
            let (section, place) = (transaction.section(chain.table()), head.len() + 1);
            for rule in added {
                section.insert_rule(format!("-I {} {place} {}\n", chain.name(), rule.text));
            }
        }
        for jump in self.frame.jumps.iter().filter(|jump| !frame.jumps.contains(jump)) {
            transaction.section(jump.table).insert_rule(format!("-D {}\n", jump.text));
        }
        for jump in frame.jumps.iter().filter(|jump| !self.frame.jumps.contains(jump)) {
            transaction.section(jump.table).insert_rule(add(jump));
        }
        transaction
    }
}

/// Writes chains that differ from what the kernel has, and corrects what leads to them.
fn repair(saved: &Saved, frame: &Frame, difference: &Difference<Rule>) -> Transaction {
    let mut transaction = Transaction::new();
    for chain in Chain::ALL {
        let (head, tail) = frame.around(chain);
        let wanted: Vec<&Rule> = difference.added.iter().filter(|rule| rule.chain == chain).collect();
        if saved.has(chain, head, &wanted, tail) {
            continue;
        }
        let table = saved.table(chain.table());
        if table.has_chain(chain.name()) {
            let prefix = format!("-A {} ", chain.name());
            let known: BTreeSet<&str> =
                table.rules(chain.name()).lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
            let added = wanted.iter().copied().filter(|rule| !known.contains(rule.text.as_str()));
            rewrite_chain(&mut transaction, chain, added, (head, wanted.iter().copied(), tail));
        } else {
            write_chain(transaction.section(chain.table()), chain, (head, wanted.into_iter(), tail));
        }
    }
    for table in [Table::Nat, Table::Filter] {
        let found: Vec<&str> = saved.jumps(table).collect();
        for text in found.iter().filter(|text| !frame.jumps.iter().any(|jump| is(jump, table, text))) {
            transaction.section(table).insert_rule(format!("-D {text}\n"));
        }
        let missing = frame.jumps.iter().filter(|jump| jump.table == table);
        for jump in missing.filter(|jump| !found.iter().any(|text| is(jump, table, text))) {
            transaction.section(table).insert_rule(add(jump));
        }
    }
    transaction
}

fn is(jump: &rules::Jump, table: Table, text: &str) -> bool {
    jump.table == table && jump.text == text
}

fn add(jump: &rules::Jump) -> String {
    let how = if jump.last { "-A" } else { "-I" };
    format!("{how} {}\n", jump.text)
}

/// Where a chain loses rules.
fn section_of_losses(transaction: &mut Transaction, chain: Chain) -> &mut Section {
    match chain.table() {
        Table::Filter => &mut transaction.filter_last,
        table => transaction.section(table),
    }
}

/// Writes a chain that exists anew. In the filter table, the rules that it gets come first, before everything that it has.
fn rewrite_chain<'a>(
    transaction: &mut Transaction,
    chain: Chain,
    added: impl Iterator<Item = &'a Rule>,
    content: (&[String], impl Iterator<Item = &'a Rule>, &[String]),
) {
    if chain.table() == Table::Filter {
        for rule in added {
            transaction.filter.insert_rule(format!("-I {} {}\n", chain.name(), rule.text));
        }
    }
    write_chain(section_of_losses(transaction, chain), chain, content);
}

fn write_chain<'a>(
    section: &mut Section,
    chain: Chain,
    (head, rules, tail): (&[String], impl Iterator<Item = &'a Rule>, &[String]),
) {
    section.make_chain(chain.name());
    let all = head.iter().chain(rules.map(|rule| &rule.text)).chain(tail);
    for text in all {
        section.push_rules(&format!("-A {} {text}\n", chain.name()), None);
    }
}

impl Saved {
    fn read(programs: &Programs) -> Result<Saved, Error> {
        let nat = programs.save(Table::Nat, is_of_interest)?;
        Ok(Saved { nat, filter: programs.save(Table::Filter, is_of_interest)? })
    }

    fn table(&self, table: Table) -> &SavedTable {
        match table {
            Table::Nat => &self.nat,
            _ => &self.filter,
        }
    }

    /// Whether a chain has these rules. Those of Services may stand in any order.
    fn has(&self, chain: Chain, head: &[String], rules: &[&Rule], tail: &[String]) -> bool {
        let table = self.table(chain.table());
        let prefix = format!("-A {} ", chain.name());
        let lines: Option<Vec<&str>> =
            table.rules(chain.name()).lines().map(|line| line.strip_prefix(&prefix)).collect();
        let Some(lines) = lines.filter(|lines| lines.len() == head.len() + rules.len() + tail.len()) else {
            return false;
        };
        let (first, rest) = lines.split_at(head.len());
        let (middle, last) = rest.split_at(rules.len());
        let mut middle = middle.to_vec();
        middle.sort_unstable();
        // Rules of one chain are sorted by their text.
        table.has_chain(chain.name())
            && first == head
            && last == tail
            && middle.iter().zip(rules).all(|(line, rule)| *line == rule.text)
    }

    /// Rules of built-in chains that lead to chains of ours, without `-A`.
    fn jumps(&self, table: Table) -> impl Iterator<Item = &str> {
        let saved = self.table(table);
        let built_in = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"].into_iter();
        let lines = built_in.flat_map(move |chain| saved.rules(chain).lines());
        let leads_to_ours = |text: &&str| {
            let target = text.rsplit_once(" -j ").map(|(_, target)| target);
            target.is_some_and(|target| Chain::ALL.iter().any(|chain| chain.name() == target))
        };
        lines.filter_map(|line| line.strip_prefix("-A ")).filter(leads_to_ours)
    }
}

/// Built-in chains have our jumps.
fn is_of_interest(chain: &str) -> bool {
    !chain.starts_with("KUBE-") || Chain::ALL.iter().any(|own| own.name() == chain)
}

/// Removes the chains of a family, also those that kube-proxy's userspace mode left. Returns whether there were any.
pub(crate) fn cleanup(family: Family) -> Result<bool, Error> {
    let programs = Programs::new(family, Variant::Installed);
    // Without the programs or the tables there is nothing to remove.
    let Ok(saved) = Saved::read(&programs) else { return Ok(false) };
    let mut transaction = Transaction::new();
    for table in [Table::Nat, Table::Filter] {
        let section = transaction.section(table);
        for text in saved.jumps(table) {
            section.insert_rule(format!("-D {text}\n"));
        }
        let ours = Chain::ALL.into_iter().filter(|chain| chain.table() == table);
        for chain in ours.filter(|chain| saved.table(table).has_chain(chain.name())) {
            section.delete_chain(chain.name());
        }
    }
    if transaction.is_empty() {
        return Ok(false);
    }
    match programs.restore(&transaction) {
        Ok(()) => Ok(true),
        Err(RestoreError::Other(error)) => Err(error),
        Err(RestoreError::Lines(lines)) => Err(programs.rejection(&lines)),
    }
}
