//! What `iptables-save` prints, in a form in which two rule sets can be compared.

use std::collections::BTreeMap;

/// Rules in an order that does not depend on chance: tables by name; in the chains that all Services share, the lines of a service
/// port together, by its name. Counters and comments of the tools are left out.
pub fn canonical(saved: &str) -> String {
    let mut tables: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut table = "";
    for line in saved.lines().filter(|line| !line.starts_with('#') && *line != "COMMIT") {
        match line.strip_prefix('*') {
            Some(name) => table = name,
            None => tables.entry(table).or_default().push(without_counters(line)),
        }
    }
    let mut out = String::new();
    for (name, mut lines) in tables {
        lines.sort_by_key(|line| sort_key(line));
        out.push_str(&format!("*{name}\n{}\n", lines.join("\n")));
    }
    out
}

fn without_counters(line: &str) -> String {
    match line.split_once(" [") {
        Some((chain, _)) if line.starts_with(':') => chain.to_owned(),
        _ => line.to_owned(),
    }
}

/// Chains, then rules by chain; the sort keeps the order of equal keys.
fn sort_key(line: &str) -> (u8, String, String) {
    let Some(rule) = line.strip_prefix("-A ") else { return (0, line.to_owned(), String::new()) };
    let chain = rule.split(' ').next().unwrap_or_default();
    let shared = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"];
    if !shared.contains(&chain) {
        return (1, chain.to_owned(), String::new());
    }
    let comment = rule.split('"').nth(1).unwrap_or_default();
    let port = comment.split(' ').next().unwrap_or_default();
    // The way to the node ports must be last, in whatever order its addresses are.
    let key = if port == "kubernetes" { format!("~{rule}") } else { port.to_owned() };
    (1, chain.to_owned(), key)
}

/// Fails with the lines that differ.
pub fn assert_same(actual: &str, expected: &str, what: &str) {
    if actual == expected {
        return;
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (ours, theirs) = (lines(actual), lines(expected));
    let only = |a: &[String], b: &[String]| {
        a.iter().filter(|line| !b.contains(line)).cloned().collect::<Vec<_>>().join("\n  ")
    };
    panic!(
        "{what}: rules differ\nonly ours:\n  {}\nonly expected:\n  {}\nfirst difference: {:?}",
        only(&ours, &theirs),
        only(&theirs, &ours),
        ours.iter().zip(&theirs).find(|(a, b)| a != b)
    );
}
