//! What is to change in the tables, as a value.

use std::fmt;
use std::io;

use portwarden_model::NamespacedName;

use super::input::{Input, announce};
use crate::table::Table;

/// Changes of the tables, committed table by table in the order of the fields. `Display` prints what `iptables-restore` reads.
///
/// Packets meet what is committed between two tables. Rules of the filter table that refuse what the nat table does not redirect must be there
/// before the redirection goes, and may go only when it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the tables have iptables' own names")]
pub struct Transaction {
    pub filter: Section,
    pub nat: Section,
    pub mangle: Section,
    /// Chains of the filter table that lose rules.
    pub filter_last: Section,
}

/// Changes of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    table: Table,
    chains: Vec<Chain>,
    /// The names of all chains, one after the other.
    names: String,
    /// The rules of all chains, one after the other.
    rules: String,
    rule_lines: usize,
    /// The line of `rules` from which on they belong to this Service.
    owners: Vec<(usize, Option<NamespacedName>)>,
    /// Rules for chains that are not made here, each a whole line with `-I` or `-A`, and the Service it belongs to.
    inserts: Vec<(String, Option<NamespacedName>)>,
    deletes: Vec<String>,
}

/// A chain that is made or emptied, and then filled.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chain {
    /// Where its name ends in the text of all names; it starts where that of the chain before ends.
    name_end: usize,
    /// Where its rules start in the text of all rules.
    start: usize,
    first_line: usize,
}

impl Transaction {
    /// A transaction that changes nothing yet.
    pub fn new() -> Self {
        Transaction {
            filter: Section::new(Table::Filter),
            nat: Section::new(Table::Nat),
            mangle: Section::new(Table::Mangle),
            filter_last: Section::new(Table::Filter),
        }
    }

    /// The changes of one table, for the filter table those that come first.
    pub fn section(&mut self, table: Table) -> &mut Section {
        match table {
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
            Table::Mangle => &mut self.mangle,
        }
    }

    /// The parts that change something, in the order in which they are committed.
    pub(super) fn sections(&self) -> impl Iterator<Item = &Section> {
        let all = [&self.filter, &self.nat, &self.mangle, &self.filter_last];
        all.into_iter().filter(|section| !section.is_empty())
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.sections().next().is_none()
    }

    /// The number of rules written and chains deleted.
    pub fn len(&self) -> usize {
        self.sections()
            .map(|section| section.rule_lines + section.inserts.len() + section.deletes.len())
            .sum()
    }
}

/// What `iptables-restore` reads, in its other forms.
impl Transaction {
    /// In steps of at most so many chains, as [`Programs::split_by_level`](crate::Programs::split_by_level) has it.
    pub fn text_in_steps(&self, chains_per_step: usize, level: fn(&str) -> u8) -> String {
        text(|out| Input::new(self, chains_per_step, Some(level)).write_to(out))
    }

    /// With all chains of the nat table first, as
    /// [`Programs::restore_while_rendering`](crate::Programs::restore_while_rendering) has it.
    pub fn text_after_chains(&self, mut chains: Vec<&str>) -> String {
        text(|out| {
            announce(&mut chains, out)?;
            Input::announced(self).write_rest(out)
        })
    }
}

fn text(write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut text = Vec::new();
    write(&mut text).expect("writing to memory does not fail");
    String::from_utf8(text).expect("rules and names are text")
}

impl Default for Transaction {
    fn default() -> Self {
        Transaction::new()
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(|out| Input::new(self, usize::MAX, None).write_to(out)))
    }
}

impl Section {
    fn new(table: Table) -> Self {
        Section {
            table,
            chains: Vec::new(),
            names: String::new(),
            rules: String::new(),
            rule_lines: 0,
            owners: Vec::new(),
            inserts: Vec::new(),
            deletes: Vec::new(),
        }
    }

    /// Creates the chain, or empties it. Rules that are pushed next belong to it.
    pub fn make_chain(&mut self, name: &str) {
        self.names.push_str(name);
        self.chains.push(Chain {
            name_end: self.names.len(),
            start: self.rules.len(),
            first_line: self.rule_lines,
        });
    }

    /// Appends rules to the chain made last: whole lines with `-A`. `owner` is the Service to leave out if one is rejected.
    pub fn push_rules(&mut self, rules: &str, owner: Option<&NamespacedName>) {
        self.push_counted(rules, count_lines(rules), owner);
    }

    /// The same for a caller that has counted the rules.
    pub fn push_counted(&mut self, rules: &str, count: usize, owner: Option<&NamespacedName>) {
        if rules.is_empty() {
            return;
        }
        if self.owners.last().is_none_or(|(_, last)| last.as_ref() != owner) {
            self.owners.push((self.rule_lines, owner.cloned()));
        }
        self.rules.push_str(rules);
        self.rule_lines += count;
    }

    /// Leaves out the chains that are not wanted, with their rules. `wanted` gets a chain's index, name and rules.
    pub fn retain_chains(&mut self, mut wanted: impl FnMut(usize, &str, &str) -> bool) {
        let all = 0..self.chains.len();
        let kept: Vec<usize> =
            all.filter(|index| wanted(*index, self.chain_name(*index), self.chain_rules(*index))).collect();
        if kept.len() == self.chains.len() {
            return;
        }
        let mut section = Section::new(self.table);
        kept.into_iter().for_each(|index| section.copy_chain(self, index));
        section.inserts = std::mem::take(&mut self.inserts);
        section.deletes = std::mem::take(&mut self.deletes);
        *self = section;
    }

    fn copy_chain(&mut self, from: &Section, index: usize) {
        self.make_chain(from.chain_name(index));
        let first = from.first_line(index);
        let end = from.first_line(index + 1);
        if first == end {
            return;
        }
        let run = from.owners.partition_point(|(start, _)| *start <= first).saturating_sub(1);
        for (start, owner) in from.owners.iter().skip(run).take_while(|(start, _)| *start < end) {
            if self.owners.last().is_none_or(|(_, last)| last != owner) {
                self.owners.push((self.rule_lines + start.saturating_sub(first), owner.clone()));
            }
        }
        self.rules.push_str(from.chain_rules(index));
        self.rule_lines += end - first;
    }

    /// Adds a rule to a chain that is not made here: a whole line with `-I` or `-A`.
    pub fn insert_rule(&mut self, line: String) {
        self.inserts.push((line, None));
    }

    /// Appends a rule to a chain that exists and is not made here: a whole line with `-A`.
    pub fn append_rule(&mut self, line: &str, owner: Option<&NamespacedName>) {
        self.inserts.push((format!("{}\n", line.trim_end()), owner.cloned()));
    }

    /// Moves a chain with its rules to another section of the same table.
    pub fn move_chain(&mut self, index: usize, to: &mut Section) {
        to.copy_chain(self, index);
        self.retain_chains(|other, _, _| other != index);
    }

    /// Empties and deletes a chain, whether it exists or not.
    pub fn delete_chain(&mut self, name: &str) {
        self.deletes.push(name.to_owned());
    }

    /// Only empties a chain that was to be deleted.
    pub fn keep_chain(&mut self, name: &str) {
        if let Some(index) = self.deletes.iter().position(|deleted| deleted == name) {
            self.deletes.swap_remove(index);
            self.make_chain(name);
        }
    }

    /// Whether this table does not change.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.inserts.is_empty() && self.deletes.is_empty()
    }

    pub(super) fn table(&self) -> Table {
        self.table
    }

    /// How many rules are written to our chains.
    pub fn rules(&self) -> usize {
        self.rule_lines
    }

    /// How many chains are made or emptied; their indices are below this.
    pub fn chains(&self) -> usize {
        self.chains.len()
    }

    /// The name of the chain with this index.
    pub fn chain_name(&self, index: usize) -> &str {
        let end = |index: usize| self.chains.get(index).map_or(self.names.len(), |chain| chain.name_end);
        let start = index.checked_sub(1).map_or(0, end);
        &self.names[start..end(index)]
    }

    /// The rules of the chain with this index: whole lines.
    pub fn chain_rules(&self, index: usize) -> &str {
        let start = self.chains.get(index).map_or(self.rules.len(), |chain| chain.start);
        let end = self.chains.get(index + 1).map_or(self.rules.len(), |next| next.start);
        &self.rules[start..end]
    }

    pub(super) fn chain_lines(&self, index: usize) -> usize {
        self.first_line(index + 1) - self.first_line(index)
    }

    /// The number of a chain's first rule among all.
    fn first_line(&self, index: usize) -> usize {
        self.chains.get(index).map_or(self.rule_lines, |chain| chain.first_line)
    }

    /// The Service to which the rule at this position of a chain belongs.
    pub fn owner(&self, index: usize, position: usize) -> Option<&NamespacedName> {
        let line = self.chains.get(index)?.first_line + position;
        let run = self.owners.partition_point(|(first, _)| *first <= line).checked_sub(1)?;
        self.owners.get(run)?.1.as_ref()
    }

    pub(super) fn inserts(&self) -> &[(String, Option<NamespacedName>)] {
        &self.inserts
    }

    /// The chains that are deleted.
    pub fn deletes(&self) -> &[String] {
        &self.deletes
    }
}

/// How many lines a text has, each with its end. In pieces whose count fits a byte, for which the compiler has wide instructions.
pub fn count_lines(text: &str) -> usize {
    let ends = |piece: &[u8]| piece.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>();
    text.as_bytes().chunks(128).map(|piece| usize::from(ends(piece))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(services: &[&str]) -> Section {
        let mut section = Section::new(Table::Nat);
        section.make_chain("KUBE-SERVICES");
        for service in services {
            section.push_rules(&format!("-A KUBE-SERVICES {service}\n"), Some(&name(service)));
        }
        section.push_rules("-A KUBE-SERVICES last\n", None);
        section.make_chain("KUBE-PROXY-CANARY");
        for service in services {
            section.make_chain(service);
            section.push_rules(&format!("-A {service} 1\n-A {service} 2\n"), Some(&name(service)));
        }
        section
    }

    fn name(service: &str) -> NamespacedName {
        NamespacedName::new("demo", service)
    }

    /// A chain's name, its rules and their owners.
    type Shown<'a> = (&'a str, Vec<(&'a str, Option<&'a NamespacedName>)>);

    fn chains(section: &Section) -> Vec<Shown<'_>> {
        let rules = |index| {
            let lines = section.chain_rules(index).lines().enumerate();
            lines.map(|(position, rule)| (rule, section.owner(index, position))).collect()
        };
        (0..section.chains()).map(|index| (section.chain_name(index), rules(index))).collect()
    }

    #[test]
    fn chains_that_stay_keep_their_rules_and_their_owners() {
        let all = section(&["A", "B", "C"]);
        for wanted in 0..1 << all.chains() {
            let is_wanted = |index: usize| wanted & (1 << index) != 0;
            let mut some = all.clone();
            some.delete_chain("OLD");
            some.retain_chains(|index, _, _| is_wanted(index));
            let expected: Vec<_> =
                chains(&all).into_iter().enumerate().filter(|(i, _)| is_wanted(*i)).collect();
            assert_eq!(chains(&some), expected.into_iter().map(|(_, chain)| chain).collect::<Vec<_>>());
            assert_eq!(some.rules(), chains(&some).iter().map(|(_, rules)| rules.len()).sum::<usize>());
            assert_eq!(some.deletes(), ["OLD"]);
        }
    }
}
