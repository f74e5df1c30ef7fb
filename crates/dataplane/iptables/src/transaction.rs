//! What is to change in the tables, as a value.

use std::fmt;

use portwarden_model::NamespacedName;

use crate::input::Input;
use crate::render::count_lines;
use crate::table::Table;

/// Changes of both tables. [`Input`] is its text form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Changes of the filter table.
    pub filter: Section,
    /// Changes of the nat table.
    pub nat: Section,
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
    /// From which line of `rules` on they belong to whom.
    owners: Vec<(usize, Option<NamespacedName>)>,
    /// Rules for built-in chains, each a whole line.
    inserts: Vec<String>,
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
    /// Changes nothing yet.
    pub fn new() -> Self {
        Transaction { filter: Section::new(Table::Filter), nat: Section::new(Table::Nat) }
    }

    /// The part for a table that holds Services' chains.
    pub fn section(&mut self, table: Table) -> &mut Section {
        if table == Table::Nat { &mut self.nat } else { &mut self.filter }
    }

    /// The parts that change something, in the order in which they are committed.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        [&self.filter, &self.nat].into_iter().filter(|section| !section.is_empty())
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.sections().next().is_none()
    }

    /// Rules and removals.
    pub fn len(&self) -> usize {
        self.sections()
            .map(|section| section.rule_lines + section.inserts.len() + section.deletes.len())
            .sum()
    }
}

impl Default for Transaction {
    fn default() -> Self {
        Transaction::new()
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        Input::new(self, usize::MAX).write_to(&mut text).map_err(|_| fmt::Error)?;
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

impl Section {
    /// Changes nothing yet.
    pub fn new(table: Table) -> Self {
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

    /// Makes the chain, or empties it. Rules that are pushed next are its.
    pub fn make_chain(&mut self, name: &str) {
        self.names.push_str(name);
        self.chains.push(Chain {
            name_end: self.names.len(),
            start: self.rules.len(),
            first_line: self.rule_lines,
        });
    }

    /// Appends rules, whole lines.
    pub fn push_rules(&mut self, rules: &str, owner: Option<&NamespacedName>) {
        self.push_counted(rules, count_lines(rules), owner);
    }

    /// Appends so many rules.
    pub(crate) fn push_counted(&mut self, rules: &str, count: usize, owner: Option<&NamespacedName>) {
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
    pub(crate) fn retain_chains(&mut self, mut wanted: impl FnMut(usize, &str, &str) -> bool) {
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

    /// Puts a rule, a whole line with `-I`, at the front of a built-in chain.
    pub fn insert_rule(&mut self, line: String) {
        self.inserts.push(line);
    }

    /// Empties and removes a chain, whether it exists or not.
    pub fn delete_chain(&mut self, name: &str) {
        self.deletes.push(name.to_owned());
    }

    /// Empties a chain that was to be removed.
    pub fn keep_chain(&mut self, name: &str) {
        if let Some(index) = self.deletes.iter().position(|deleted| deleted == name) {
            self.deletes.swap_remove(index);
            self.make_chain(name);
        }
    }

    /// Whether nothing is done to this table.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.inserts.is_empty() && self.deletes.is_empty()
    }

    /// Its table.
    pub fn table(&self) -> Table {
        self.table
    }

    /// How many rules are written to our chains.
    pub fn rules(&self) -> usize {
        self.rule_lines
    }

    /// How many chains are made or emptied; they have indices below.
    pub fn chains(&self) -> usize {
        self.chains.len()
    }

    /// A chain's name.
    pub fn chain_name(&self, index: usize) -> &str {
        let end = |index: usize| self.chains.get(index).map_or(self.names.len(), |chain| chain.name_end);
        let start = index.checked_sub(1).map_or(0, end);
        &self.names[start..end(index)]
    }

    /// A chain's rules.
    pub fn chain_rules(&self, index: usize) -> &str {
        let start = self.chains.get(index).map_or(self.rules.len(), |chain| chain.start);
        let end = self.chains.get(index + 1).map_or(self.rules.len(), |next| next.start);
        &self.rules[start..end]
    }

    /// How many rules a chain has.
    pub fn chain_lines(&self, index: usize) -> usize {
        self.first_line(index + 1) - self.first_line(index)
    }

    /// The number of a chain's first rule among all.
    fn first_line(&self, index: usize) -> usize {
        self.chains.get(index).map_or(self.rule_lines, |chain| chain.first_line)
    }

    /// Whose the rule of a chain with this position is.
    pub fn owner(&self, index: usize, position: usize) -> Option<&NamespacedName> {
        let line = self.chains.get(index)?.first_line + position;
        let run = self.owners.partition_point(|(first, _)| *first <= line).checked_sub(1)?;
        self.owners.get(run)?.1.as_ref()
    }

    /// Rules for built-in chains.
    pub fn inserts(&self) -> &[String] {
        &self.inserts
    }

    /// Chains that are removed.
    pub fn deletes(&self) -> &[String] {
        &self.deletes
    }
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
