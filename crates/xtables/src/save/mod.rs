//! What `iptables-save` printed, and whether a chain in it is what we would write. Pure.
//!
//! The text is parsed while it is being printed. Where the caller needs no text, as for the chains of Services, which are nearly all of
//! it, only a fingerprint is kept.

mod printed_form;
mod tables;

use std::borrow::Cow;
use std::collections::HashMap;

use portwarden_model::Family;

use printed_form::FingerprintWriter;

pub use printed_form::{Fingerprint, PrintedForm};
pub use tables::SavedTables;
pub(crate) use tables::TablesReader;

/// The chains of one table.
#[derive(Debug, Default)]
pub struct SavedTable {
    chains: HashMap<Box<str>, Chain>,
}

#[derive(Debug, Default)]
struct Chain {
    fingerprint: Fingerprint,
    /// As printed; empty if the caller did not want it.
    rules: String,
    claimed: bool,
}

impl SavedTable {
    /// Parses the output of `iptables-save` for one table, and keeps all rules as text.
    pub fn parse(text: &str) -> Self {
        let mut reader = SaveReader::new(|_| true);
        reader.push(text.as_bytes());
        reader.finish()
    }

    /// Whether the chain exists.
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains.contains_key(name)
    }

    /// All chains, built-in ones included, in no particular order.
    pub fn chains(&self) -> impl Iterator<Item = &str> {
        self.chains.keys().map(|name| &**name)
    }

    /// Whether a rule, given as a line of `iptables-restore` with `-A`, is anywhere in a chain whose text was kept.
    pub fn has_rule(&self, chain: &str, rule: &str, family: Family) -> bool {
        let mut forms = PrintedForm::new(family);
        let printed = forms.printed(rule);
        self.chains.get(chain).is_some_and(|chain| chain.rules.lines().any(|line| line == printed))
    }

    /// The rules of a chain as printed, one per line; empty if the chain does not exist or its text was not kept.
    pub fn rules(&self, chain: &str) -> &str {
        self.chains.get(chain).map_or("", |chain| &chain.rules)
    }

    /// The fingerprint of a chain's rules, if it exists. Marks the chain as wanted: [`unclaimed`](Self::unclaimed) leaves it out.
    pub fn claim(&mut self, chain: &str) -> Option<Fingerprint> {
        let chain = self.chains.get_mut(chain)?;
        chain.claimed = true;
        Some(chain.fingerprint)
    }

    /// The chains that were not [claimed](Self::claim), in no particular order.
    pub fn unclaimed(&self) -> impl Iterator<Item = &str> {
        self.chains.iter().filter(|(_, chain)| !chain.claimed).map(|(name, _)| &**name)
    }
}

/// Parses the output of `iptables-save` for one table, in pieces that may end anywhere.
#[derive(Debug)]
pub(crate) struct SaveReader {
    keep_text: fn(&str) -> bool,
    saved: SavedTable,
    /// The beginning of a line.
    unread: Vec<u8>,
    /// The chain whose rules are being read: they stand together.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    name: Box<str>,
    fingerprint: FingerprintWriter,
    rules: Option<String>,
}

impl SaveReader {
    pub(crate) fn new(keep_text: fn(&str) -> bool) -> Self {
        SaveReader { keep_text, saved: SavedTable::default(), unread: Vec::new(), open: None }
    }

    pub(crate) fn push(&mut self, piece: &[u8]) {
        let mut text = std::mem::take(&mut self.unread);
        text.extend_from_slice(piece);
        if let Some(end) = text.iter().rposition(|byte| *byte == b'\n') {
            printable(&text[..end]).split('\n').for_each(|line| self.line(line));
            text.drain(..=end);
        }
        self.unread = text;
    }

    pub(crate) fn finish(mut self) -> SavedTable {
        let last = std::mem::take(&mut self.unread);
        self.line(&printable(&last));
        self.close();
        self.saved
    }

    fn line(&mut self, line: &str) {
        let chain = line.strip_prefix("-A ").map(first_word);
        if self.open.as_ref().is_some_and(|open| chain != Some(&*open.name)) {
            self.close();
        }
        if let Some(name) = chain {
            let keep_text = self.keep_text;
            self.open.get_or_insert_with(|| Open::new(name, keep_text(name))).rule(line);
        } else if let Some(declared) = line.strip_prefix(':') {
            self.saved.chains.entry(first_word(declared).into()).or_default();
        }
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let chain = self.saved.chains.entry(open.name).or_default();
        chain.fingerprint = open.fingerprint.finish();
        chain.rules = open.rules.unwrap_or_default();
    }
}

impl Open {
    fn new(name: &str, keep_text: bool) -> Self {
        let rules = keep_text.then(String::new);
        Open { name: name.into(), fingerprint: FingerprintWriter::default(), rules }
    }

    fn rule(&mut self, line: &str) {
        self.fingerprint.rule(line);
        if let Some(rules) = &mut self.rules {
            rules.push_str(line);
            rules.push('\n');
        }
    }
}

/// Valid text is not copied.
fn printable(bytes: &[u8]) -> Cow<'_, str> {
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# Generated by iptables-save
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SVC-B - [0:0]
-A PREROUTING -j KUBE-SVC-A
-A KUBE-SVC-A -s 10.0.0.1/32 -j KUBE-SVC-B
-A KUBE-SVC-A -j RETURN
COMMIT
# Completed
";

    fn matches(saved: &mut SavedTable, chain: &str, rules: &str) -> bool {
        saved.claim(chain) == Some(PrintedForm::new(Family::V4).fingerprint(rules))
    }

    #[test]
    fn chains_are_compared_rule_by_rule() {
        let mut saved = SavedTable::parse(TEXT);
        let right = "-A KUBE-SVC-A -s 10.0.0.1 -j KUBE-SVC-B\n-A KUBE-SVC-A -j RETURN\n";
        assert!(matches(&mut saved, "KUBE-SVC-A", right));
        for wrong in ["", "-A KUBE-SVC-A -j RETURN\n", &format!("{right}-A KUBE-SVC-A -j RETURN\n")] {
            assert!(!matches(&mut saved, "KUBE-SVC-A", wrong), "{wrong:?}");
        }
        assert!(matches(&mut saved, "KUBE-SVC-B", ""));
        assert_eq!(saved.claim("KUBE-SVC-C"), None);
        assert!(saved.has_rule("PREROUTING", "-A PREROUTING -j KUBE-SVC-A", Family::V4));
        assert!(!saved.has_rule("PREROUTING", "-A PREROUTING -j KUBE-SVC-B", Family::V4));
    }

    #[test]
    fn chains_without_rules_count_and_the_end_may_be_cut_off() {
        let saved = SavedTable::parse(TEXT);
        let mut names: Vec<_> = saved.chains().collect();
        names.sort_unstable();
        assert_eq!(names, ["KUBE-SVC-A", "KUBE-SVC-B", "PREROUTING"]);
        let mut cut_off = SavedTable::parse(":A - [0:0]\n-A A -j RETURN");
        assert!(matches(&mut cut_off, "A", "-A A -j RETURN\n"));
        assert_eq!(SavedTable::parse("").chains().count(), 0);
    }

    #[test]
    fn pieces_may_end_anywhere() {
        let right = "-A KUBE-SVC-A -s 10.0.0.1 -j KUBE-SVC-B\n-A KUBE-SVC-A -j RETURN\n";
        for length in 1..TEXT.len() {
            let mut reader = SaveReader::new(|_| true);
            TEXT.as_bytes().chunks(length).for_each(|piece| reader.push(piece));
            let mut saved = reader.finish();
            assert!(matches(&mut saved, "KUBE-SVC-A", right), "pieces of {length} bytes");
            assert!(saved.has_rule("PREROUTING", "-A PREROUTING -j KUBE-SVC-A", Family::V4));
            assert_eq!(saved.chains().count(), 3);
        }
    }

    #[test]
    fn unclaimed_chains_are_left() {
        let mut saved = SavedTable::parse(TEXT);
        saved.claim("KUBE-SVC-B");
        saved.claim("PREROUTING");
        assert_eq!(saved.unclaimed().collect::<Vec<_>>(), ["KUBE-SVC-A"]);
    }
}
