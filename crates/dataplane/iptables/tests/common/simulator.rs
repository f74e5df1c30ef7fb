//! Tables that understand what `iptables-restore` reads, strictly: what it would refuse is refused here too.

use std::collections::BTreeMap;

/// The chains of a table with their rules.
type Chains = BTreeMap<String, Vec<String>>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Simulator {
    tables: BTreeMap<String, Chains>,
}

impl Simulator {
    /// Carries out a transaction.
    pub fn restore(&mut self, input: &str) -> Result<(), String> {
        let mut lines = input.lines();
        while let Some(head) = lines.next() {
            let table = head.strip_prefix('*').ok_or_else(|| format!("{head:?} outside of a table"))?;
            let mut chains = self.tables.get(table).cloned().unwrap_or_default();
            let body: Vec<_> = lines.by_ref().take_while(|line| *line != "COMMIT").collect();
            body.iter().try_for_each(|line| apply(&mut chains, line))?;
            check_targets(&chains)?;
            self.tables.insert(table.to_owned(), chains);
        }
        Ok(())
    }

    /// Whether a table has a chain.
    pub fn has_chain(&self, table: &str, chain: &str) -> bool {
        self.tables.get(table).is_some_and(|chains| chains.contains_key(chain))
    }
}

fn apply(chains: &mut Chains, line: &str) -> Result<(), String> {
    if let Some(declared) = line.strip_prefix(':') {
        let name = declared.strip_suffix(" - [0:0]").ok_or_else(|| format!("bad chain line {line:?}"))?;
        chains.insert(name.to_owned(), Vec::new());
    } else if let Some(rule) = line.strip_prefix("-A ") {
        let name = rule.split(' ').next().unwrap_or("");
        let rules = chains.get_mut(name).ok_or_else(|| format!("no chain for {line:?}"))?;
        rules.push(line.to_owned());
    } else if let Some(name) = line.strip_prefix("-X ") {
        let rules = chains.remove(name).ok_or_else(|| format!("no chain to delete: {line:?}"))?;
        if !rules.is_empty() || chains.values().flatten().any(|rule| rule.ends_with(&format!("-j {name}"))) {
            return Err(format!("chain in use: {line:?}"));
        }
    } else {
        return Err(format!("bad line {line:?}"));
    }
    Ok(())
}

fn check_targets(chains: &Chains) -> Result<(), String> {
    let targets = chains.values().flatten().filter_map(|rule| Some((rule, rule.split_once(" -j ")?.1)));
    for (rule, target) in targets {
        if target.starts_with("KUBE-") && !chains.contains_key(target) {
            return Err(format!("target of {rule:?} does not exist"));
        }
    }
    Ok(())
}
