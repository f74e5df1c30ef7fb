//! Writes the static iptables rules of a family.

use std::collections::HashSet;

use portwarden_model::Family;
use portwarden_xtables::{Programs, RestoreError, SavedTable, Table, Transaction};

use crate::error::Error;
use crate::rules::{Chain, JUMPS, RuleInput, render};

/// The rules of a family, with those that the kernel acknowledged.
#[derive(Debug)]
pub(crate) struct StaticRules {
    family: Family,
    mark: u32,
    programs: Programs,
    /// What the kernel has; `None` until it has been read.
    installed: Option<(RuleInput, Vec<Chain>)>,
}

impl StaticRules {
    pub(crate) fn new(family: Family, mark: u32, programs: Programs) -> Self {
        StaticRules { family, mark, programs, installed: None }
    }

    /// Whether rules of iptables mode lead connections to endpoints. Only asked before the first write: later they are ours.
    pub(crate) fn iptables_mode_is_in_force(&self) -> Result<bool, Error> {
        if self.installed.is_some() {
            return Ok(false);
        }
        let nat = self.save(Table::Nat)?;
        let leads = |rule: &str| rule.contains(" -j KUBE-SVC-") || rule.contains(" -j KUBE-NODEPORTS");
        Ok(nat.rules(crate::rules::SERVICES).lines().any(leads))
    }

    /// Brings the rules to `input`. Compares them with the kernel if `compare` says so or nothing is known. Returns how many lines were
    /// written.
    pub(crate) fn write(&mut self, input: RuleInput, compare: bool) -> Result<usize, Error> {
        let known = self.installed.take().filter(|_| !compare);
        if let Some((installed, chains)) = known {
            if installed == input {
                self.installed = Some((installed, chains));
                return Ok(0);
            }
            let wanted = render(self.family, self.mark, &input);
            let differs = |chain: &Chain| !chains.contains(chain);
            return self.commit(input, wanted, differs, &HashSet::new());
        }
        let wanted = render(self.family, self.mark, &input);
        let nat = self.save(Table::Nat)?;
        let filter = self.save(Table::Filter)?;
        let saved = |table: Table| if table == Table::Nat { &nat } else { &filter };
        let missing = JUMPS.iter().enumerate().filter(|(_, jump)| {
            let line = jump.saved_line();
            !saved(jump.table).rules(jump.from).lines().any(|rule| rule == line)
        });
        let missing: HashSet<usize> = missing.map(|(index, _)| index).collect();
        let differs = |chain: &Chain| {
            let table = saved(chain.table);
            !table.has_chain(chain.name) || table.rules(chain.name) != chain.rules
        };
        self.commit(input, wanted, differs, &missing)
    }

    fn commit(
        &mut self,
        input: RuleInput,
        wanted: Vec<Chain>,
        differs: impl Fn(&Chain) -> bool,
        missing_jumps: &HashSet<usize>,
    ) -> Result<usize, Error> {
        let mut transaction = Transaction::new();
        for chain in wanted.iter().filter(|chain| differs(chain)) {
            let section = transaction.section(chain.table);
            section.make_chain(chain.name);
            section.push_rules(&chain.rules, None);
        }
        for (_, jump) in JUMPS.iter().enumerate().filter(|(index, _)| missing_jumps.contains(index)) {
            transaction.section(jump.table).insert_rule(jump.insert_line());
        }
        let written = transaction.len();
        let failed = |source| Error::Rules { family: self.family, source };
        match self.programs.restore(&transaction) {
            Ok(()) => {}
            Err(RestoreError::Other(source)) => return Err(failed(source)),
            Err(RestoreError::Lines(lines)) => return Err(failed(self.programs.rejection(&lines))),
        }
        self.installed = Some((input, wanted));
        Ok(written)
    }

    fn save(&self, table: Table) -> Result<SavedTable, Error> {
        self.programs
            .save(table, is_of_interest)
            .map_err(|source| Error::Rules { family: self.family, source })
    }
}

/// Built-in chains have our jumps. Of all others, those of iptables mode are far more than ours.
fn is_of_interest(chain: &str) -> bool {
    !chain.starts_with("KUBE-") || crate::cleanup::CHAINS.iter().any(|(_, name)| *name == chain)
}
