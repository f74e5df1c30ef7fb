//! The text that `iptables-restore` reads.
//!
//! Usually each table changes in one step. The nft variant of the program, however, looks for chains in a sorted list, one by
//! one: 1,000 Services with 10 endpoints take it seconds, 5,000 take minutes. So a large change goes in several steps there, in an
//! order in which every step leaves the table whole: endpoints first, what leads to them after, and deletions last.

use std::cmp::Reverse;
use std::io::{self, Write};
use std::sync::OnceLock;

use portwarden_model::NamespacedName;

use super::transaction::{Section, Transaction};
use crate::table::Table;

/// A transaction as text.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    transaction: &'a Transaction,
    split: Split,
    nat_first: bool,
    /// Computed when a line is asked for.
    steps: OnceLock<Vec<Step<'a>>>,
}

/// How a section is cut into steps.
#[derive(Debug, Clone, Copy)]
struct Split {
    chains_per_step: usize,
    level: Option<fn(&str) -> u8>,
}

/// What is committed at once.
#[derive(Debug)]
struct Step<'a> {
    section: &'a Section,
    /// Chains that are made or emptied, by index.
    chains: Vec<usize>,
    /// The section's rules for chains that it does not make come with this step.
    inserts: &'a [(String, Option<NamespacedName>)],
    /// Chains that are removed.
    deletes: Vec<&'a str>,
}

/// What a line is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A rule, of a Service or not.
    Rule { text: &'a str, owner: Option<&'a NamespacedName> },
    /// The deletion of a chain.
    Delete { chain: &'a str },
    /// Making or emptying a chain.
    Chain { name: &'a str },
    /// The beginning or end of a table.
    Frame,
}

impl<'a> Input<'a> {
    /// The text of a transaction, with at most so many chains in one step; `level` orders them.
    pub(crate) fn new(
        transaction: &'a Transaction,
        chains_per_step: usize,
        level: Option<fn(&str) -> u8>,
    ) -> Self {
        let split = Split { chains_per_step: chains_per_step.max(1), level };
        Input { transaction, split, nat_first: false, steps: OnceLock::new() }
    }

    /// The text of a transaction whose chains of the nat table were [announced](announce) before.
    pub(crate) fn announced(transaction: &'a Transaction) -> Self {
        Input { nat_first: true, ..Input::new(transaction, usize::MAX, None) }
    }

    /// Writes it, one table after the other: the program works on the first while the second is put in order.
    pub(crate) fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        for section in self.sections() {
            steps(section, self.split).iter().try_for_each(|step| step.write_to(out))?;
            out.flush()?;
        }
        Ok(())
    }

    /// Writes what was not announced.
    pub(crate) fn write_rest(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut steps = self.sections().flat_map(|section| steps(section, self.split));
        if let Some(nat) = steps.next() {
            nat.write_body(out)?;
        }
        steps.try_for_each(|step| step.write_to(out))
    }

    fn sections(&self) -> impl Iterator<Item = &'a Section> + use<'a> {
        let mut sections: Vec<_> = self.transaction.sections().collect();
        if self.nat_first {
            sections.sort_by_key(|section| section.table() != Table::Nat);
        }
        sections.into_iter()
    }

    /// What the line with this number is about, and whether earlier steps had been committed when it was read. The first line is 1,
    /// as in the messages of `iptables-restore`.
    pub(super) fn line(&self, number: usize) -> Option<(Line<'a>, bool)> {
        let mut number = number.checked_sub(1)?;
        let steps = self
            .steps
            .get_or_init(|| self.sections().flat_map(|section| steps(section, self.split)).collect());
        for (index, step) in steps.iter().enumerate() {
            if number < step.lines() {
                return Some((step.line(number), index > 0));
            }
            number -= step.lines();
        }
        None
    }
}

/// Writes the beginning of a change of the nat table: these chains are made. Their rules can follow when they are rendered.
pub(crate) fn announce(names: &mut [&str], out: &mut dyn Write) -> io::Result<()> {
    names.sort_by_cached_key(|name| Reverse(sort_key(name)));
    write_head(Table::Nat, names.iter().copied(), out)?;
    out.flush()
}

fn write_head<'a>(table: Table, names: impl Iterator<Item = &'a str>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "*{table}")?;
    for name in names {
        for part in [":", name, " - [0:0]\n"] {
            out.write_all(part.as_bytes())?;
        }
    }
    Ok(())
}

/// Cuts a section into steps.
fn steps(section: &Section, split: Split) -> Vec<Step<'_>> {
    let limit = split.chains_per_step;
    let height = |name: &str| split.level.map_or(0, |level| level(name));
    let mut chains: Vec<usize> = (0..section.chains()).collect();
    let mut deletes: Vec<&str> = section.deletes().iter().map(String::as_str).collect();
    if chains.len() + deletes.len() > limit {
        chains.sort_by_cached_key(|index| height(section.chain_name(*index)));
        deletes.sort_by_cached_key(|name| Reverse(height(name)));
    }
    let mut steps: Vec<Step<'_>> = Vec::new();
    let step =
        |chains: &[usize]| Step { section, chains: chains.to_vec(), inserts: &[], deletes: Vec::new() };
    steps.extend(chains.chunks(limit).map(step));
    if steps.is_empty() {
        steps.push(step(&[]));
    }
    // The last of them holds the chains to which built-in chains jump.
    if let Some(last) = steps.last_mut() {
        last.inserts = section.inserts();
    }
    let room = |steps: &[Step<'_>]| {
        steps.last().map_or(0, |last| limit.saturating_sub(last.chains.len() + last.deletes.len()))
    };
    for name in deletes {
        if room(&steps) == 0 {
            steps.push(step(&[]));
        }
        if let Some(last) = steps.last_mut() {
            last.deletes.push(name);
        }
    }
    steps.iter_mut().for_each(Step::sort);
    steps
}

/// Orders names nearly alphabetically, much faster: only the speed of the program depends on it.
fn sort_key(name: &str) -> u128 {
    let mut key = [0; 16];
    let bytes = name.trim_start_matches("KUBE-").as_bytes();
    key.iter_mut().zip(bytes).for_each(|(key, byte)| *key = *byte);
    u128::from_be_bytes(key)
}

impl<'a> Step<'a> {
    /// From Z to A: the program's list is sorted, so each name goes to its front without any search.
    fn sort(&mut self) {
        let section = self.section;
        self.chains.sort_by_cached_key(|index| Reverse(sort_key(section.chain_name(*index))));
        self.deletes.sort_by(|a, b| b.cmp(a));
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        write_head(self.section.table(), self.chain_names(), out)?;
        self.write_body(out)
    }

    fn write_body(&self, out: &mut dyn Write) -> io::Result<()> {
        for chain in &self.chains {
            out.write_all(self.section.chain_rules(*chain).as_bytes())?;
        }
        for (line, _) in self.inserts {
            out.write_all(line.as_bytes())?;
        }
        for chain in &self.deletes {
            writeln!(out, "-X {chain}")?;
        }
        out.write_all(b"COMMIT\n")
    }

    /// A chain that is removed must be emptied first.
    fn chain_names(&self) -> impl Iterator<Item = &'a str> {
        let section = self.section;
        self.chains.iter().map(|index| section.chain_name(*index)).chain(self.deletes.iter().copied())
    }

    fn lines(&self) -> usize {
        let rules: usize = self.chains.iter().map(|chain| self.section.chain_lines(*chain)).sum();
        1 + self.chains.len() + self.deletes.len() + rules + self.inserts.len() + self.deletes.len() + 1
    }

    fn line(&self, number: usize) -> Line<'a> {
        let Some(mut number) = number.checked_sub(1) else { return Line::Frame };
        if let Some(name) = self.chain_names().nth(number) {
            return Line::Chain { name };
        }
        number -= self.chains.len() + self.deletes.len();
        for chain in &self.chains {
            let lines = self.section.chain_lines(*chain);
            if number < lines {
                let text = self.section.chain_rules(*chain).lines().nth(number).unwrap_or("");
                return Line::Rule { text, owner: self.section.owner(*chain, number) };
            }
            number -= lines;
        }
        if let Some((line, owner)) = self.inserts.get(number) {
            return Line::Rule { text: line.trim_end(), owner: owner.as_ref() };
        }
        match self.deletes.get(number - self.inserts.len()) {
            Some(chain) => Line::Delete { chain },
            None => Line::Frame,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Transaction {
        let web = NamespacedName::new("demo", "web");
        let mut transaction = Transaction::new();
        let nat = transaction.section(Table::Nat);
        nat.make_chain("KUBE-MARK-MASQ");
        nat.push_rules("-A KUBE-MARK-MASQ -j MARK\n", None);
        nat.make_chain("KUBE-SERVICES");
        nat.push_rules("-A KUBE-SERVICES -j A\n-A KUBE-SERVICES -j B\n", Some(&web));
        nat.push_rules("-A KUBE-SERVICES -j C\n", None);
        nat.make_chain("KUBE-SVC-A");
        nat.push_rules("-A KUBE-SVC-A -j KUBE-SEP-A\n", Some(&web));
        nat.make_chain("KUBE-SEP-A");
        nat.push_rules("-A KUBE-SEP-A -j DNAT\n", Some(&web));
        nat.delete_chain("KUBE-SEP-OLD");
        nat.delete_chain("KUBE-SVC-OLD");
        nat.insert_rule("-I OUTPUT -j KUBE-SERVICES\n".to_owned());
        transaction
    }

    fn level(chain: &str) -> u8 {
        match chain {
            "KUBE-SERVICES" => 6,
            _ if chain.starts_with("KUBE-SVC-") => 2,
            _ if chain.starts_with("KUBE-SEP-") => 1,
            _ => 0,
        }
    }

    fn text(transaction: &Transaction, limit: usize) -> String {
        let mut text = Vec::new();
        Input::new(transaction, limit, Some(level)).write_to(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn chains_come_before_rules_and_removals_last() {
        let expected = "\
*nat
:KUBE-SVC-A - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-OLD - [0:0]
:KUBE-SEP-OLD - [0:0]
-A KUBE-SVC-A -j KUBE-SEP-A
-A KUBE-SERVICES -j A
-A KUBE-SERVICES -j B
-A KUBE-SERVICES -j C
-A KUBE-SEP-A -j DNAT
-A KUBE-MARK-MASQ -j MARK
-I OUTPUT -j KUBE-SERVICES
-X KUBE-SVC-OLD
-X KUBE-SEP-OLD
COMMIT
";
        assert_eq!(example().to_string(), expected);
        assert_eq!(text(&example(), 6), expected);
    }

    #[test]
    fn many_chains_go_in_steps_from_endpoints_to_services() {
        let expected = "\
*nat
:KUBE-SEP-A - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-SEP-A -j DNAT
-A KUBE-MARK-MASQ -j MARK
COMMIT
*nat
:KUBE-SVC-A - [0:0]
:KUBE-SERVICES - [0:0]
-A KUBE-SVC-A -j KUBE-SEP-A
-A KUBE-SERVICES -j A
-A KUBE-SERVICES -j B
-A KUBE-SERVICES -j C
-I OUTPUT -j KUBE-SERVICES
COMMIT
*nat
:KUBE-SVC-OLD - [0:0]
:KUBE-SEP-OLD - [0:0]
-X KUBE-SVC-OLD
-X KUBE-SEP-OLD
COMMIT
";
        assert_eq!(text(&example(), 2), expected);
        // Whatever uses a chain is gone before the chain goes.
        let singly = text(&example(), 1);
        assert!(singly.find("-X KUBE-SVC-OLD").unwrap() < singly.find("-X KUBE-SEP-OLD").unwrap());
    }

    #[test]
    fn lines_are_found_by_the_number_in_an_error() {
        let transaction = example();
        let web = NamespacedName::new("demo", "web");
        for limit in [1, 2, 3, 6] {
            let input = Input::new(&transaction, limit, Some(level));
            let text = text(&transaction, limit);
            for (index, printed) in text.lines().enumerate() {
                let (line, _) = input.line(index + 1).unwrap();
                let owner =
                    (printed.contains("-j A") || printed.contains("-j B") || printed.contains("SEP-A"))
                        .then_some(&web);
                let expected =
                    match printed.split_once(' ').map_or((printed, ""), |(first, rest)| (first, rest)) {
                        ("-A" | "-I", _) => Line::Rule { text: printed, owner },
                        ("-X", chain) => Line::Delete { chain },
                        (name, _) if name.starts_with(':') => Line::Chain { name: &name[1..] },
                        _ => Line::Frame,
                    };
                assert_eq!(line, expected, "line {} of {limit} chains per step", index + 1);
            }
            assert_eq!(input.line(text.lines().count() + 1), None);
            assert_eq!(input.line(0), None);
        }
    }

    #[test]
    fn what_was_announced_goes_on_with_the_rules() {
        let mut transaction = Transaction::new();
        for name in ["KUBE-SERVICES", "KUBE-SVC-A", "KUBE-SEP-A"] {
            transaction.nat.make_chain(name);
            transaction.nat.push_rules(&format!("-A {name} -j B\n"), None);
        }
        let nat = transaction.to_string();
        transaction.filter.make_chain("KUBE-FORWARD");
        let mut whole = Vec::new();
        announce(&mut ["KUBE-SEP-A", "KUBE-SVC-A", "KUBE-SERVICES"], &mut whole).unwrap();
        let input = Input::announced(&transaction);
        input.write_rest(&mut whole).unwrap();
        let whole = String::from_utf8(whole).unwrap();
        assert_eq!(whole, format!("{nat}*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n"));
        assert_eq!(input.line(5), Some((Line::Rule { text: "-A KUBE-SVC-A -j B", owner: None }, false)));
        assert_eq!(input.line(10), Some((Line::Chain { name: "KUBE-FORWARD" }, true)));
    }

    #[test]
    fn it_is_known_whether_earlier_steps_took_effect() {
        let mut transaction = example();
        assert_eq!(
            Input::new(&transaction, 2, Some(level)).line(2).map(|(_, committed)| committed),
            Some(false)
        );
        assert_eq!(
            Input::new(&transaction, 2, Some(level)).line(8).map(|(_, committed)| committed),
            Some(true)
        );
        transaction.section(Table::Filter).make_chain("KUBE-FORWARD");
        let input = Input::new(&transaction, usize::MAX, None);
        assert_eq!(input.line(2), Some((Line::Chain { name: "KUBE-FORWARD" }, false)));
        assert_eq!(input.line(5), Some((Line::Chain { name: "KUBE-SVC-A" }, true)));
    }

    #[test]
    fn the_filter_table_gets_rules_first_and_loses_them_last() {
        let web = NamespacedName::new("demo", "web");
        let mut transaction = Transaction::new();
        transaction.filter.append_rule("-A KUBE-SERVICES new", Some(&web));
        transaction.nat.make_chain("KUBE-SVC-A");
        transaction.filter_last.make_chain("KUBE-SERVICES");
        transaction.filter_last.push_rules("-A KUBE-SERVICES new\n", Some(&web));
        let expected = "\
*filter
-A KUBE-SERVICES new
COMMIT
*nat
:KUBE-SVC-A - [0:0]
COMMIT
*filter
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES new
COMMIT
";
        assert_eq!(transaction.to_string(), expected);
        let input = Input::new(&transaction, usize::MAX, None);
        let rule = Line::Rule { text: "-A KUBE-SERVICES new", owner: Some(&web) };
        assert_eq!(input.line(2), Some((rule.clone(), false)));
        assert_eq!(input.line(9), Some((rule, true)));
    }

    #[test]
    fn a_chain_is_moved_with_its_rules() {
        let mut transaction = example();
        let mut last = Transaction::new().nat;
        transaction.nat.move_chain(1, &mut last);
        assert_eq!((last.chains(), last.chain_name(0), last.rules()), (1, "KUBE-SERVICES", 3));
        assert_eq!(last.owner(0, 1), Some(&NamespacedName::new("demo", "web")));
        assert!(!transaction.to_string().contains("-A KUBE-SERVICES"));
    }

    #[test]
    fn tables_without_changes_are_left_out() {
        assert!(Transaction::new().is_empty());
        assert_eq!(Transaction::new().to_string(), "");
        let mut filter = Transaction::new();
        filter.section(Table::Filter).make_chain("KUBE-FORWARD");
        assert_eq!(filter.to_string(), "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n");
        let mut jump = Transaction::new();
        jump.section(Table::Nat).insert_rule("-I OUTPUT -j KUBE-SERVICES\n".to_owned());
        assert_eq!(jump.to_string(), "*nat\n-I OUTPUT -j KUBE-SERVICES\nCOMMIT\n");
    }

    #[test]
    fn a_chain_that_cannot_be_removed_is_emptied() {
        let mut transaction = Transaction::new();
        transaction.nat.delete_chain("KUBE-SVC-OLD");
        transaction.nat.keep_chain("KUBE-SVC-OLD");
        transaction.nat.keep_chain("KUBE-SVC-UNKNOWN");
        assert_eq!(transaction.to_string(), "*nat\n:KUBE-SVC-OLD - [0:0]\nCOMMIT\n");
    }
}
