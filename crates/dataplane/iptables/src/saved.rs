//! What `iptables-save` printed, and whether a chain in it is what we would write. Pure.
//!
//! The tools print rules differently from how they read them. [`saved_form`] knows how, so that a full sync can leave chains alone
//! that are right already; a chain that a tool of another version prints in yet another way is merely written once more.

use std::collections::HashMap;
use std::sync::LazyLock;

use portwarden_model::Family;

/// The chains of one table with their rules, as printed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Saved<'a> {
    chains: HashMap<&'a str, &'a str>,
}

impl<'a> Saved<'a> {
    /// Reads the output of `iptables-save` for one table.
    pub fn parse(text: &'a str) -> Self {
        let mut chains = HashMap::new();
        // The rules of a chain stand together: its name, and where they begin.
        let mut block: Option<(&str, usize)> = None;
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let rule = line.strip_prefix("-A ").map(first_word);
            if let Some((name, from)) = block.filter(|(name, _)| rule != Some(name)) {
                chains.insert(name, &text[from..start]);
                block = None;
            }
            if let Some(name) = rule {
                block = block.or(Some((name, start)));
            } else if let Some(declared) = line.strip_prefix(':') {
                chains.entry(first_word(declared)).or_insert("");
            }
            start += line.len();
        }
        chains.extend(block.map(|(name, from)| (name, &text[from..])));
        Saved { chains }
    }

    /// Whether the chain exists.
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains.contains_key(name)
    }

    /// All chains, built-in ones included, in no particular order.
    pub fn chains(&self) -> impl Iterator<Item = &'a str> {
        self.chains.keys().copied()
    }

    /// Whether a rule, given as for `iptables-restore`, is anywhere in its chain.
    pub fn has_rule(&self, chain: &str, rule: &str, family: Family) -> bool {
        let mut form = String::new();
        saved_form(rule, family, &mut form);
        self.chains.get(chain).is_some_and(|rules| rules.lines().any(|line| line == form))
    }

    /// Whether the chain has exactly these rules, given as for `iptables-restore`.
    pub fn matches(&self, chain: &str, rules: &str, family: Family) -> bool {
        let Some(saved) = self.chains.get(chain) else { return false };
        let mut saved = saved.lines();
        let mut form = String::new();
        let mut matches = String::new();
        let same = rules.lines().all(|rule| {
            form.clear();
            matches.clear();
            write_saved_form(rule, family, &mut matches, &mut form);
            saved.next() == Some(form.as_str())
        });
        same && saved.next().is_none()
    }
}

fn first_word(text: &str) -> &str {
    word_end(text).map_or(text.trim_end(), |end| &text[..end])
}

/// Where the first space is.
fn word_end(text: &str) -> Option<usize> {
    text.bytes().position(|byte| byte == b' ')
}

/// Appends how `iptables-save` prints a rule that was given to `iptables-restore` in the form that this crate renders.
pub fn saved_form(rule: &str, family: Family, out: &mut String) {
    write_saved_form(rule, family, &mut String::new(), out);
}

/// The same with memory for the matches that can be used again.
fn write_saved_form(rule: &str, family: Family, matches: &mut String, out: &mut String) {
    let mut form = Form { family, chain: "", addresses: [None; 4], matches };
    form.read(&mut Words(rule));
    push(out, &["-A ", form.chain]);
    for (flag, address) in ADDRESSES.into_iter().zip(form.addresses) {
        let Some((negated, value)) = address else { continue };
        push(out, &[not(negated), " ", flag, " ", value]);
        if matches!(flag, "-s" | "-d") && !value.contains('/') {
            out.push_str(if family == Family::V4 { "/32" } else { "/128" });
        }
    }
    out.push_str(form.matches);
}

/// Printed before everything else, in this order.
const ADDRESSES: [&str; 4] = ["-s", "-d", "-i", "-p"];

/// A rule on its way from one form to the other.
struct Form<'a, 'm> {
    family: Family,
    chain: &'a str,
    /// The values of [`ADDRESSES`], each with whether it is negated.
    addresses: [Option<(bool, &'a str)>; 4],
    /// Matches and target, printed in the order given.
    matches: &'m mut String,
}

impl<'a> Form<'a, '_> {
    fn read(&mut self, words: &mut Words<'a>) {
        let mut negated = false;
        while let Some(word) = words.next() {
            match word {
                "!" => {
                    negated = true;
                    continue;
                }
                "-A" => self.chain = words.next().unwrap_or(""),
                "-m" => self.read_match(words),
                "-j" => self.read_target(words),
                _ => match ADDRESSES.iter().position(|flag| *flag == word) {
                    Some(index) => self.addresses[index] = words.next().map(|value| (negated, value)),
                    None => self.option(word, negated, words),
                },
            }
            negated = false;
        }
    }

    fn read_match(&mut self, words: &mut Words<'a>) {
        let name = words.next().unwrap_or("");
        push(self.matches, &[" -m ", name]);
        if name == "recent" {
            self.read_recent(words);
        }
    }

    /// `--name X` is printed last, with defaults that nobody gave.
    fn read_recent(&mut self, words: &mut Words<'a>) {
        let (_, name) = (words.next(), words.next().unwrap_or(""));
        while let Some(word) = words.peek().filter(|word| !matches!(*word, "-m" | "-j")) {
            words.next();
            push(self.matches, &[" ", word]);
        }
        let mask = match self.family {
            Family::V4 => "255.255.255.255",
            Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        push(self.matches, &[" --name ", name, " --mask ", mask, " --rsource"]);
    }

    fn read_target(&mut self, words: &mut Words<'a>) {
        let target = words.next().unwrap_or("");
        push(self.matches, &[" -j ", target]);
        if target == "REJECT" {
            let kind = if self.family == Family::V4 { "icmp" } else { "icmp6" };
            push(self.matches, &[" --reject-with ", kind, "-port-unreachable"]);
        }
    }

    fn option(&mut self, option: &str, negated: bool, words: &mut Words<'a>) {
        let value = words.peek().filter(|word| !word.starts_with('-'));
        if value.is_some() {
            words.next();
        }
        let value = value.unwrap_or("");
        let (out, not) = (&mut *self.matches, not(negated));
        match option {
            "--comment" => push(out, &[" --comment \"", value.trim_matches('"'), "\""]),
            "--mark" => {
                let (mark, mask) = value.split_once('/').unwrap_or((value, value));
                push(out, &[not, " --mark 0x", hex_digits(mark), "/0x", hex_digits(mask)]);
            }
            "--or-mark" => push(out, &[" --set-xmark 0x", hex_digits(value), "/0x", hex_digits(value)]),
            "--xor-mark" => push(out, &[" --set-xmark 0x", hex_digits(value), "/0x0"]),
            "--probability" => match PROBABILITIES.get(value) {
                Some(known) => push(out, &[" --probability ", known]),
                None => push(out, &[" --probability ", &stored_probability(value)]),
            },
            // The extension really prints two spaces.
            "--nfacct-name" => push(out, &[" --nfacct-name  ", value]),
            _ if value.is_empty() => push(out, &[not, " ", option]),
            _ => push(out, &[not, " ", option, " ", value]),
        }
    }
}

fn push(out: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| out.push_str(part));
}

fn not(negated: bool) -> &'static str {
    if negated { " !" } else { "" }
}

/// `0x00004000` as `4000`.
fn hex_digits(text: &str) -> &str {
    let digits = text.trim_start_matches("0x");
    match digits.trim_start_matches('0') {
        "" => "0",
        digits => digits,
    }
}

/// Those of the usual pools, by how they were given: working them out takes longer than the rest of their rules.
static PROBABILITIES: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let given = (2..100).map(|one_in| format!("{:.10}", 1.0 / f64::from(one_in)));
    given.map(|given| (given.clone(), stored_probability(&given))).collect()
});

/// The kernel keeps 31 bits of a probability.
fn stored_probability(text: &str) -> String {
    let scale = f64::from(1u32 << 31);
    let stored = (text.parse::<f64>().unwrap_or(0.0) * scale).round() / scale;
    format!("{stored:.11}")
}

/// Words separated by spaces; text in double quotes is one word, quotes included.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        Words(self.0).next()
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start_matches(' ');
        if text.is_empty() {
            return None;
        }
        let end = match text.strip_prefix('"') {
            Some(quoted) => quoted.find('"').map_or(text.len(), |end| end + 2),
            None => word_end(text).unwrap_or(text.len()),
        };
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(rule: &str, family: Family) -> String {
        let mut out = String::new();
        saved_form(rule, family, &mut out);
        out
    }

    /// Each pair was read back from iptables 1.8.9 (both variants).
    #[test]
    fn rules_are_printed_as_the_tools_print_them() {
        for (given, printed) in [
            (
                "-A KUBE-SERVICES -m comment --comment \"demo/web:http cluster IP\" -m tcp -p tcp -d 10.96.0.11 --dport 80 -j KUBE-SVC-X",
                "-A KUBE-SERVICES -d 10.96.0.11/32 -p tcp -m comment --comment \"demo/web:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-X",
            ),
            (
                "-A C -m comment --comment \"demo/np cluster IP\" -m tcp -p tcp -d 10.96.0.12 --dport 80 ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ",
                "-A C ! -s 10.244.0.0/16 -d 10.96.0.12/32 -p tcp -m comment --comment \"demo/np cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
            ),
            (
                "-A C -m comment --comment demo/np -m tcp -p tcp -d 127.0.0.0/8 --dport 30080 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j E",
                "-A C -d 127.0.0.0/8 -p tcp -m comment --comment \"demo/np\" -m tcp --dport 30080 -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j E",
            ),
            (
                "-A C -m recent --name KUBE-SEP-X --rcheck --seconds 600 --reap -j KUBE-SEP-X",
                "-A C -m recent --rcheck --seconds 600 --reap --name KUBE-SEP-X --mask 255.255.255.255 --rsource -j KUBE-SEP-X",
            ),
            (
                "-A S -m recent --name S --set -m tcp -p tcp -j DNAT --to-destination 10.0.0.1:80",
                "-A S -p tcp -m recent --set --name S --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.0.0.1:80",
            ),
            (
                "-A C -m statistic --mode random --probability 0.3333333333 -j S",
                "-A C -m statistic --mode random --probability 0.33333333349 -j S",
            ),
            (
                "-A C -m statistic --mode random --probability 0.5000000000 -j S",
                "-A C -m statistic --mode random --probability 0.50000000000 -j S",
            ),
            (
                "-A C -m tcp -p tcp -d 10.0.0.1 --dport 80 -j REJECT",
                "-A C -d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable",
            ),
            ("-A M -j MARK --or-mark 0x00004000", "-A M -j MARK --set-xmark 0x4000/0x4000"),
            ("-A P -j MARK --xor-mark 0x00000020", "-A P -j MARK --set-xmark 0x20/0x0"),
            (
                "-A P -m mark ! --mark 0x00004000/0x00004000 -j RETURN",
                "-A P -m mark ! --mark 0x4000/0x4000 -j RETURN",
            ),
            (
                "-A F -m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
                "-A F ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            ),
            ("-A X -m comment --comment \"only counts\"", "-A X -m comment --comment \"only counts\""),
            (
                "-A X -m comment --comment c ! -i veth+ -j Y",
                "-A X ! -i veth+ -m comment --comment \"c\" -j Y",
            ),
        ] {
            assert_eq!(form(given, Family::V4), printed);
        }
    }

    #[test]
    fn ipv6_has_other_lengths_masks_and_refusals() {
        assert_eq!(
            form("-A C -m tcp -p tcp -d fd00::1 --dport 80 -j REJECT", Family::V6),
            "-A C -d fd00::1/128 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp6-port-unreachable"
        );
        assert_eq!(
            form("-A C -m recent --name S --set -j S", Family::V6),
            "-A C -m recent --set --name S --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j S"
        );
    }

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

    #[test]
    fn chains_are_compared_rule_by_rule() {
        let saved = Saved::parse(TEXT);
        let right = "-A KUBE-SVC-A -s 10.0.0.1 -j KUBE-SVC-B\n-A KUBE-SVC-A -j RETURN\n";
        assert!(saved.matches("KUBE-SVC-A", right, Family::V4));
        for wrong in ["", "-A KUBE-SVC-A -j RETURN\n", &format!("{right}-A KUBE-SVC-A -j RETURN\n")] {
            assert!(!saved.matches("KUBE-SVC-A", wrong, Family::V4), "{wrong:?}");
        }
        assert!(saved.matches("KUBE-SVC-B", "", Family::V4));
        assert!(!saved.matches("KUBE-SVC-C", "", Family::V4));
        assert!(saved.has_rule("PREROUTING", "-A PREROUTING -j KUBE-SVC-A", Family::V4));
        assert!(!saved.has_rule("PREROUTING", "-A PREROUTING -j KUBE-SVC-B", Family::V4));
    }

    #[test]
    fn chains_without_rules_count_and_the_end_may_be_cut_off() {
        let saved = Saved::parse(TEXT);
        let mut names: Vec<_> = saved.chains().collect();
        names.sort_unstable();
        assert_eq!(names, ["KUBE-SVC-A", "KUBE-SVC-B", "PREROUTING"]);
        let cut_off = Saved::parse(":A - [0:0]\n-A A -j RETURN");
        assert!(cut_off.matches("A", "-A A -j RETURN\n", Family::V4));
        assert_eq!(Saved::parse("").chains().count(), 0);
    }
}
