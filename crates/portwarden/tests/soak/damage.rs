//! Another process changes the node's rules.

use anyhow::Result;
use portwarden_testkit::Host;

use crate::actions::Damage;

/// Damages the rules of a node. There may be nothing to damage: the process may be just about to start.
pub(crate) fn inflict(node: &Host, damage: Damage) -> Result<()> {
    let nft = |words: &[&str]| node.command("nft").args(words).run();
    match damage {
        Damage::Ruleset => drop(nft(&["flush", "ruleset"])?),
        Damage::Table { v6 } => {
            if tables(&nft(&["list", "tables"])?).contains(&family(v6)) {
                nft(&["delete", "table", family(v6), TABLE])?;
            }
        }
        Damage::Chain { v6, number } => {
            let listing = nft(&["-t", "list", "ruleset", family(v6)])?;
            if let Some((_, name)) = choose(&listing, &["chain"], number) {
                nft(&["flush", "chain", family(v6), TABLE, name])?;
            }
        }
        Damage::Set { v6, number } => {
            let listing = nft(&["-t", "list", "ruleset", family(v6)])?;
            if let Some((kind, name)) = choose(&listing, &["set", "map"], number) {
                nft(&["flush", kind, family(v6), TABLE, name])?;
            }
        }
    }
    Ok(())
}

const TABLE: &str = "kube-proxy";

fn family(v6: bool) -> &'static str {
    if v6 { "ip6" } else { "ip" }
}

/// The families in which there is a table of ours.
fn tables(listing: &str) -> Vec<&str> {
    let ours = listing.lines().filter_map(|line| line.strip_prefix("table ")?.split_once(' '));
    ours.filter(|(_, name)| *name == TABLE).map(|(family, _)| family).collect()
}

/// One object of these kinds in our table.
fn choose<'a>(listing: &'a str, kinds: &[&str], number: u64) -> Option<(&'a str, &'a str)> {
    let start = listing.find(&format!(" {TABLE} {{"))?;
    let table = listing[start..].split("\n}").next()?;
    let objects: Vec<(&str, &str)> = table
        .lines()
        .filter_map(|line| line.trim().strip_suffix(" {")?.split_once(' '))
        .filter(|(kind, _)| kinds.contains(kind))
        .collect();
    let index = usize::try_from(number % (objects.len() as u64).max(1)).ok()?;
    objects.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_our_table_are_found() {
        let listing = "table ip other {\n\tchain no {\n\t}\n}\ntable ip kube-proxy {\n\tmap one {\n\t\ttype mark : verdict\n\t}\n\n\tchain two {\n\t\tmark set 1\n\t}\n}\ntable ip nat {\n\tchain no {\n\t}\n}\n";
        assert_eq!(choose(listing, &["chain"], 7), Some(("chain", "two")));
        assert_eq!(choose(listing, &["set", "map"], 0), Some(("map", "one")));
        assert_eq!(choose("", &["chain"], 0), None);
        assert_eq!(tables("table ip nat\ntable ip6 kube-proxy\n"), ["ip6"]);
    }
}
