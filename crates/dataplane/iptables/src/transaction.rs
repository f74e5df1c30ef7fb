//! One call of `iptables-restore`, as a value.

use std::fmt;

use portwarden_model::NamespacedName;

use crate::table::Table;

/// What `iptables-restore` is to do: the filter table first, then nat. Each table changes in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Changes of the filter table.
    pub filter: Section,
    /// Changes of the nat table.
    pub nat: Section,
}

/// The changes of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    table: Table,
    /// `:NAME - [0:0]` for each chain that is made or emptied.
    chains: String,
    chain_lines: usize,
    rules: String,
    rule_lines: usize,
    /// From which of the rules on they belong to whom.
    owners: Vec<(usize, Option<NamespacedName>)>,
    /// Rules for built-in chains, each a whole line.
    inserts: Vec<String>,
    deletes: Vec<String>,
}

/// What a line of the input is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<'a> {
    /// A rule, of a Service or of nobody in particular.
    Rule {
        /// The rule.
        text: &'a str,
        /// Whose it is.
        owner: Option<&'a NamespacedName>,
    },
    /// The removal of a chain.
    Delete {
        /// The chain.
        chain: &'a str,
    },
    /// Making or emptying a chain, or the end of a table.
    Other {
        /// The line.
        text: &'a str,
    },
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Rule { text, .. } | Line::Other { text } => f.write_str(text),
            Line::Delete { chain } => write!(f, "-X {chain}"),
        }
    }
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

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.sections().next().is_none()
    }

    /// The input in pieces, which together are what [`fmt::Display`] prints.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        self.sections().flat_map(Section::pieces)
    }

    /// Rules and removals in the input.
    pub fn len(&self) -> usize {
        let lines = |section: &Section| section.rule_lines + section.inserts.len() + section.deletes.len();
        self.sections().map(lines).sum()
    }

    /// What the line with this number is about; the first line is 1, as in the messages of `iptables-restore`.
    pub fn line(&self, number: usize) -> Option<Line<'_>> {
        let mut number = number.checked_sub(1)?;
        for section in self.sections() {
            if number < section.lines() {
                return section.line(number);
            }
            number -= section.lines();
        }
        None
    }

    fn sections(&self) -> impl Iterator<Item = &Section> {
        [&self.filter, &self.nat].into_iter().filter(|section| !section.is_empty())
    }
}

impl Default for Transaction {
    fn default() -> Self {
        Transaction::new()
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces().try_for_each(|piece| f.write_str(piece))
    }
}

impl Section {
    /// Changes nothing yet.
    pub fn new(table: Table) -> Self {
        Section {
            table,
            chains: String::new(),
            chain_lines: 0,
            rules: String::new(),
            rule_lines: 0,
            owners: Vec::new(),
            inserts: Vec::new(),
            deletes: Vec::new(),
        }
    }

    /// Makes the chain, or empties it.
    pub fn make_chain(&mut self, name: &str) {
        self.chains.push(':');
        self.chains.push_str(name);
        self.chains.push_str(" - [0:0]\n");
        self.chain_lines += 1;
    }

    /// Appends rules, whole lines.
    pub fn push_rules(&mut self, rules: &str, owner: Option<&NamespacedName>) {
        if rules.is_empty() {
            return;
        }
        if self.owners.last().is_none_or(|(_, last)| last.as_ref() != owner) {
            self.owners.push((self.rule_lines, owner.cloned()));
        }
        self.rules.push_str(rules);
        self.rule_lines += rules.lines().count();
    }

    /// Appends the rules of another section.
    pub fn append_rules(&mut self, other: Section) {
        let before = self.rule_lines;
        self.owners.extend(other.owners.into_iter().map(|(first, owner)| (before + first, owner)));
        self.rules.push_str(&other.rules);
        self.rule_lines += other.rule_lines;
    }

    /// Puts a rule, a whole line with `-I`, at the front of a built-in chain.
    pub fn insert_rule(&mut self, line: String) {
        self.inserts.push(line);
    }

    /// The rules written so far.
    pub fn rules_text(&self) -> &str {
        &self.rules
    }

    /// Empties and removes a chain, if it exists: making it first covers both cases.
    pub fn delete_chain(&mut self, name: &str) {
        self.make_chain(name);
        self.deletes.push(name.to_owned());
    }

    /// Keeps a chain, emptied, that was to be removed.
    pub fn keep_chain(&mut self, name: &str) {
        self.deletes.retain(|deleted| deleted != name);
    }

    /// How many rules are written to our chains.
    pub fn rules(&self) -> usize {
        self.rule_lines
    }

    /// Whether nothing is done to this table.
    pub fn is_empty(&self) -> bool {
        self.chain_lines == 0 && self.rule_lines == 0 && self.inserts.is_empty()
    }

    fn pieces(&self) -> impl Iterator<Item = &str> {
        let head = match self.table {
            Table::Filter => "*filter\n",
            Table::Nat => "*nat\n",
            Table::Mangle => "*mangle\n",
        };
        let deletes = self.deletes.iter().flat_map(|chain| ["-X ", chain, "\n"]);
        let inserts = self.inserts.iter().map(String::as_str);
        [head, &self.chains, &self.rules].into_iter().chain(inserts).chain(deletes).chain(["COMMIT\n"])
    }

    fn lines(&self) -> usize {
        self.chain_lines + self.rule_lines + self.inserts.len() + self.deletes.len() + 2
    }

    fn line(&self, number: usize) -> Option<Line<'_>> {
        let Some(number) = number.checked_sub(1) else {
            return Some(Line::Other { text: self.table.as_str() });
        };
        if number < self.chain_lines {
            return Some(Line::Other { text: self.chains.lines().nth(number)? });
        }
        let number = number - self.chain_lines;
        if number < self.rule_lines {
            let run = self.owners.partition_point(|(first, _)| *first <= number).checked_sub(1)?;
            let owner = self.owners.get(run)?.1.as_ref();
            return Some(Line::Rule { text: self.rules.lines().nth(number)?, owner });
        }
        let number = number - self.rule_lines;
        if let Some(line) = self.inserts.get(number) {
            return Some(Line::Rule { text: line.trim_end(), owner: None });
        }
        match self.deletes.get(number - self.inserts.len()) {
            Some(chain) => Some(Line::Delete { chain }),
            None => Some(Line::Other { text: "COMMIT" }),
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
        nat.make_chain("KUBE-SERVICES");
        nat.push_rules("-A KUBE-SERVICES -j A\n-A KUBE-SERVICES -j B\n", Some(&web));
        nat.push_rules("-A KUBE-SERVICES -j C\n", None);
        nat.delete_chain("KUBE-SVC-OLD");
        nat.insert_rule("-I OUTPUT -j KUBE-SERVICES\n".to_owned());
        transaction
    }

    #[test]
    fn it_prints_as_iptables_restore_reads() {
        let expected = "\
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-OLD - [0:0]
-A KUBE-SERVICES -j A
-A KUBE-SERVICES -j B
-A KUBE-SERVICES -j C
-I OUTPUT -j KUBE-SERVICES
-X KUBE-SVC-OLD
COMMIT
";
        assert_eq!(example().to_string(), expected);
    }

    #[test]
    fn lines_are_found_by_the_number_in_an_error() {
        let transaction = example();
        let web = NamespacedName::new("demo", "web");
        let text = transaction.to_string();
        let printed = |number: usize| text.lines().nth(number - 1).unwrap();
        for number in [4, 5] {
            let expected = Line::Rule { text: printed(number), owner: Some(&web) };
            assert_eq!(transaction.line(number), Some(expected));
        }
        for number in [6, 7] {
            assert_eq!(transaction.line(number), Some(Line::Rule { text: printed(number), owner: None }));
        }
        assert_eq!(transaction.line(8), Some(Line::Delete { chain: "KUBE-SVC-OLD" }));
        assert_eq!(transaction.line(3), Some(Line::Other { text: printed(3) }));
        assert_eq!(transaction.line(9), Some(Line::Other { text: "COMMIT" }));
        assert_eq!(transaction.line(10), None);
        assert_eq!(transaction.line(0), None);
    }

    #[test]
    fn tables_without_changes_are_left_out() {
        assert!(Transaction::new().is_empty());
        assert_eq!(Transaction::new().to_string(), "");
        assert!(!example().is_empty());
        let mut both = example();
        both.section(Table::Filter).make_chain("KUBE-FORWARD");
        assert!(both.to_string().starts_with("*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n*nat\n"));
        assert_eq!(
            both.line(7),
            Some(Line::Rule {
                text: "-A KUBE-SERVICES -j A",
                owner: Some(&NamespacedName::new("demo", "web"))
            })
        );
    }
}
