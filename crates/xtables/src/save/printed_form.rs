//! How `iptables-save` prints a rule that was written with `iptables-restore`. Pure.
//!
//! The tools print rules differently from how they read them. A chain that a tool of another version prints in yet another way is
//! merely written once more.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use portwarden_model::Family;

/// A 64-bit hash of a chain's rules as they are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    /// The fingerprint of a chain without rules.
    fn default() -> Self {
        FingerprintWriter::default().finish()
    }
}

/// Makes a fingerprint, rule by rule.
#[derive(Debug, Clone, Default)]
pub(super) struct FingerprintWriter(DefaultHasher);

impl FingerprintWriter {
    /// Adds a rule in its printed form, without the end of the line.
    pub(super) fn rule(&mut self, printed: &str) {
        self.0.write(printed.as_bytes());
        self.0.write_u8(b'\n');
    }

    pub(super) fn finish(&self) -> Fingerprint {
        Fingerprint(self.0.finish())
    }
}

/// Turns rules as given to `iptables-restore` into their printed form, with one buffer for all of them.
#[derive(Debug)]
pub struct PrintedForm {
    family: Family,
    form: String,
    matches: String,
}

impl PrintedForm {
    /// For rules of this family.
    pub fn new(family: Family) -> Self {
        PrintedForm { family, form: String::new(), matches: String::new() }
    }

    /// The printed form of one rule.
    pub fn printed(&mut self, rule: &str) -> &str {
        self.form.clear();
        self.matches.clear();
        write_form(rule, self.family, &mut self.matches, &mut self.form);
        &self.form
    }

    /// The fingerprint of a chain's rules, given as whole lines.
    pub fn fingerprint(&mut self, rules: &str) -> Fingerprint {
        let mut fingerprint = FingerprintWriter::default();
        rules.lines().for_each(|rule| fingerprint.rule(self.printed(rule)));
        fingerprint.finish()
    }
}

/// Appends the printed form of a rule to `out`. `matches` lends its memory.
fn write_form(rule: &str, family: Family, matches: &mut String, out: &mut String) {
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

/// Where a flag stands in [`ADDRESSES`]; a match of constants is much faster than a search for what most words are not.
fn address_index(word: &str) -> Option<usize> {
    match word {
        "-s" => Some(0),
        "-d" => Some(1),
        "-i" => Some(2),
        "-p" => Some(3),
        _ => None,
    }
}

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
                _ => match address_index(word) {
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

    /// `--name X` is printed last, with the defaults spelled out.
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

/// Where the first space is.
fn word_end(text: &str) -> Option<usize> {
    text.bytes().position(|byte| byte == b' ')
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
        PrintedForm::new(family).printed(rule).to_owned()
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
}
