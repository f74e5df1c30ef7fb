//! What `iptables-save` printed, and whether a chain in it is what we would write. Pure.
//!
//! The text is read while it is being printed. Of Services' chains, which are nearly all of it, only a fingerprint is kept.

mod form;

use std::borrow::Cow;
use std::collections::HashMap;

use portwarden_model::Family;

use crate::names::is_service_chain;
use crate::table::Table;
use form::FingerprintWriter;

pub use form::{Fingerprint, Forms};

/// What the tables have now; `None` where that could not be read.
#[derive(Debug, Default)]
pub struct SavedTables {
    /// The filter table.
    pub filter: Option<Saved>,
    /// The nat table.
    pub nat: Option<Saved>,
}

impl SavedTables {
    /// One of them.
    pub fn table(&self, table: Table) -> Option<&Saved> {
        match table {
            Table::Filter => self.filter.as_ref(),
            Table::Nat => self.nat.as_ref(),
            Table::Mangle => None,
        }
    }
}

/// The chains of one table.
#[derive(Debug, Default)]
pub struct Saved {
    chains: HashMap<Box<str>, Chain>,
}

#[derive(Debug, Default)]
struct Chain {
    fingerprint: Fingerprint,
    /// As printed; not kept for Services' chains.
    rules: String,
    claimed: bool,
}

impl Saved {
    /// Reads the output of `iptables-save` for one table.
    pub fn parse(text: &str) -> Self {
        let mut reader = Reader::default();
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

    /// Whether a rule, given as for `iptables-restore`, is anywhere in a chain, which is none of a Service.
    pub fn has_rule(&self, chain: &str, rule: &str, family: Family) -> bool {
        let mut forms = Forms::new(family);
        let printed = forms.printed(rule);
        self.chains.get(chain).is_some_and(|chain| chain.rules.lines().any(|line| line == printed))
    }

    /// What stands for the rules of a chain, if it exists. The chain is one of those that are wanted from now on.
    pub fn claim(&mut self, chain: &str) -> Option<Fingerprint> {
        let chain = self.chains.get_mut(chain)?;
        chain.claimed = true;
        Some(chain.fingerprint)
    }

    /// The chains that nobody [claimed](Self::claim), in no particular order.
    pub fn unclaimed(&self) -> impl Iterator<Item = &str> {
        self.chains.iter().filter(|(_, chain)| !chain.claimed).map(|(name, _)| &**name)
    }
}

/// Reads the output of `iptables-save` for one table, in pieces that may end anywhere.
#[derive(Debug, Default)]
pub struct Reader {
    saved: Saved,
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

impl Reader {
    /// Reads on.
    pub fn push(&mut self, piece: &[u8]) {
        let mut text = std::mem::take(&mut self.unread);
        text.extend_from_slice(piece);
        if let Some(end) = text.iter().rposition(|byte| *byte == b'\n') {
            printable(&text[..end]).split('\n').for_each(|line| self.line(line));
            text.drain(..=end);
        }
        self.unread = text;
    }

    /// What was read in all.
    pub fn finish(mut self) -> Saved {
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
            self.open.get_or_insert_with(|| Open::new(name)).rule(line);
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
    fn new(name: &str) -> Self {
        let rules = (!is_service_chain(name)).then(String::new);
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

/// Valid text takes the short way.
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

    fn matches(saved: &mut Saved, chain: &str, rules: &str) -> bool {
        saved.claim(chain) == Some(Forms::new(Family::V4).fingerprint(rules))
    }

    #[test]
    fn chains_are_compared_rule_by_rule() {
        let mut saved = Saved::parse(TEXT);
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
        let saved = Saved::parse(TEXT);
        let mut names: Vec<_> = saved.chains().collect();
        names.sort_unstable();
        assert_eq!(names, ["KUBE-SVC-A", "KUBE-SVC-B", "PREROUTING"]);
        let mut cut_off = Saved::parse(":A - [0:0]\n-A A -j RETURN");
        assert!(matches(&mut cut_off, "A", "-A A -j RETURN\n"));
        assert_eq!(Saved::parse("").chains().count(), 0);
    }

    #[test]
    fn pieces_may_end_anywhere() {
        let right = "-A KUBE-SVC-A -s 10.0.0.1 -j KUBE-SVC-B\n-A KUBE-SVC-A -j RETURN\n";
        for length in 1..TEXT.len() {
            let mut reader = Reader::default();
            TEXT.as_bytes().chunks(length).for_each(|piece| reader.push(piece));
            let mut saved = reader.finish();
            assert!(matches(&mut saved, "KUBE-SVC-A", right), "pieces of {length} bytes");
            assert!(saved.has_rule("PREROUTING", "-A PREROUTING -j KUBE-SVC-A", Family::V4));
            assert_eq!(saved.chains().count(), 3);
        }
    }

    #[test]
    fn what_nobody_claimed_is_left() {
        let mut saved = Saved::parse(TEXT);
        saved.claim("KUBE-SVC-B");
        saved.claim("PREROUTING");
        assert_eq!(saved.unclaimed().collect::<Vec<_>>(), ["KUBE-SVC-A"]);
    }
}
