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

/// Reads the tables and tells everything that is not in them as it should be. `firewall_is_written`: the transaction itself makes the
/// chain that is shared with the kubelet.
pub(crate) fn transaction(
    programs: &Programs,
    family: Family,
    firewall_is_written: bool,
    pending: &Pending,
) -> Result<Transaction, Error> {
    let [filter, nat] = [Table::Filter, Table::Nat].map(|table| read_table(programs, table));
    let saved =
        SavedTables { filter: filter.as_deref().map(Saved::parse), nat: nat.as_deref().map(Saved::parse) };
    let has_firewall = saved.filter.as_ref().is_some_and(|filter| filter.has_chain(FIREWALL));
    if !has_firewall && !firewall_is_written {
        programs.new_chain(Table::Filter, FIREWALL)?;
    }
    let mut transaction = diff::everything(pending, &saved, family);
    for table in [Table::Filter, Table::Nat] {
        if !saved.table(table).is_some_and(|saved| saved.has_chain(CANARY)) {
            transaction.section(table).make_chain(CANARY);
        }
    }
    for jump in JUMPS {
        if !has_jump(programs, &saved, jump, family)? {
            transaction.section(jump.table).insert_rule(jump.insert_line());
        }
    }
    Ok(transaction)
}

/// Puts the last canary in place. Its failure is no reason to fail: the monitor will try again.
pub(crate) fn finish(programs: &Programs, monitor: &mut Monitor) {
    match programs.new_chain(Table::Mangle, CANARY) {
        Ok(_) => monitor.armed(),
        Err(error) => tracing::warn!(%error, "cannot make a canary chain; trying again later"),
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
