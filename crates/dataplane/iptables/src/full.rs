//! What a full sync does beyond writing rules: reads the tables back, puts the jumps in place, keeps the canaries alive.

use portwarden_model::Family;

use crate::command::Programs;
use crate::diff::{self, SavedTables};
use crate::error::Error;
use crate::jumps::{JUMPS, Jump};
use crate::monitor::Monitor;
use crate::names::{CANARY, FIREWALL};
use crate::ruleset::Pending;
use crate::saved::Saved;
use crate::table::Table;
use crate::transaction::Transaction;

/// One full sync, after everything was looked at and before anything is written.
pub(crate) struct FullSync {
    family: Family,
    filter: Option<String>,
    nat: Option<String>,
    missing_jumps: Vec<Jump>,
}

impl FullSync {
    /// Looks at the tables. `firewall_is_written`: the transaction itself makes the chain that is shared with the kubelet.
    pub(crate) fn prepare(
        programs: &Programs,
        family: Family,
        firewall_is_written: bool,
    ) -> Result<Self, Error> {
        let mut full = FullSync {
            family,
            filter: read_table(programs, Table::Filter),
            nat: read_table(programs, Table::Nat),
            missing_jumps: Vec::new(),
        };
        let saved = full.saved();
        let has_firewall = saved.filter.as_ref().is_some_and(|filter| filter.has_chain(FIREWALL));
        if !has_firewall && !firewall_is_written {
            programs.new_chain(Table::Filter, FIREWALL)?;
        }
        let mut missing = Vec::new();
        for jump in JUMPS {
            if !has_jump(programs, &saved, jump, family)? {
                missing.push(jump);
            }
        }
        full.missing_jumps = missing;
        Ok(full)
    }

    /// What the tables have.
    fn saved(&self) -> SavedTables<'_> {
        SavedTables {
            filter: self.filter.as_deref().map(Saved::parse),
            nat: self.nat.as_deref().map(Saved::parse),
        }
    }

    /// Everything that is not in the tables as it should be.
    pub(crate) fn transaction(&self, pending: &Pending) -> Transaction {
        let saved = self.saved();
        let mut transaction = diff::everything(pending, &saved, self.family);
        for table in [Table::Filter, Table::Nat] {
            if !saved.table(table).is_some_and(|saved| saved.has_chain(CANARY)) {
                transaction.section(table).make_chain(CANARY);
            }
        }
        for jump in &self.missing_jumps {
            transaction.section(jump.table).insert_rule(jump.insert_line());
        }
        transaction
    }

    /// Puts the last canary in place. Its failure is no reason to fail: the monitor will try again.
    pub(crate) fn finish(&self, programs: &Programs, monitor: &mut Monitor) {
        match programs.new_chain(Table::Mangle, CANARY) {
            Ok(_) => monitor.armed(),
            Err(error) => tracing::warn!(%error, "cannot make a canary chain; trying again later"),
        }
    }
}

fn read_table(programs: &Programs, table: Table) -> Option<String> {
    programs
        .save(table)
        .inspect_err(|error| tracing::warn!(%error, %table, "cannot read the rules back: everything is written, stale chains stay"))
        .ok()
}

/// Looking into what was read is much cheaper than a process per jump, but only the programs know all spellings of a rule.
fn has_jump(programs: &Programs, saved: &SavedTables<'_>, jump: Jump, family: Family) -> Result<bool, Error> {
    if let Some(saved) = saved.table(jump.table) {
        if !saved.has_chain(jump.to) {
            return Ok(false);
        }
        if saved.has_rule(jump.from, &jump.append_line(), family) {
            return Ok(true);
        }
    }
    programs.has_rule(jump.table, jump.from, &jump.arguments())
}
