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

    /// Reads the rules of the kernel, with which the next [`write`](Self::write) compares.
    pub(crate) fn read(&self) -> Result<Present, Error> {
        let saved = self.programs.save_all(is_of_interest);
        let mut saved = saved.map_err(|source| Error::Rules { family: self.family, source })?;
        Ok(Present { nat: saved.take(Table::Nat), filter: saved.take(Table::Filter) })
    }

    /// Whether rules of iptables mode lead connections to endpoints. Only before the first write: later they are ours.
    pub(crate) fn iptables_mode_is_in_force(&self, present: &Present) -> bool {
        let leads = |rule: &str| rule.contains(" -j KUBE-SVC-") || rule.contains(" -j KUBE-NODEPORTS");
        self.installed.is_none() && present.nat.rules(crate::rules::SERVICES).lines().any(leads)
    }

    /// Brings the rules to `input`. Compares them with those that were read, or, if there are none, with those that were written last.
    /// Returns how many lines were written.
    pub(crate) fn write(&mut self, input: RuleInput, present: Option<Present>) -> Result<usize, Error> {
        let known = self.installed.take().filter(|_| present.is_none());
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
        let present = present.map_or_else(|| self.read(), Ok)?;
        let missing = JUMPS.iter().enumerate().filter(|(_, jump)| {
            let line = jump.saved_line();
            !present.table(jump.table).rules(jump.from).lines().any(|rule| rule == line)
        });
        let missing: HashSet<usize> = missing.map(|(index, _)| index).collect();
        let differs = |chain: &Chain| {
            let table = present.table(chain.table);
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
}

/// The rules that the kernel has.
#[derive(Debug)]
pub(crate) struct Present {
    nat: SavedTable,
    filter: SavedTable,
}

impl Present {
    fn table(&self, table: Table) -> &SavedTable {
        if table == Table::Nat { &self.nat } else { &self.filter }
    }
}

/// Built-in chains have our jumps. Of all others, those of iptables mode are far more than ours.
fn is_of_interest(chain: &str) -> bool {
    !chain.starts_with("KUBE-") || crate::cleanup::CHAINS.iter().any(|(_, name)| *name == chain)
}
