//! What a full sync does beyond writing rules: reads the tables back, puts the jumps in place, keeps the canaries alive.

use std::io;
use std::thread::{self, ScopedJoinHandle};

use portwarden_model::Family;

use crate::command::Programs;
use crate::draft::Draft;
use crate::error::Error;
use crate::jumps::{JUMPS, Jump};
use crate::monitor::Monitor;
use crate::names::{CANARY, FIREWALL};
use crate::ruleset::Pending;
use crate::saved::{Saved, SavedTables};
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
    let (draft, mut saved) = thread::scope(|scope| {
        let read = |table| {
            let reading = thread::Builder::new().spawn_scoped(scope, move || read_table(programs, table));
            reading.inspect_err(|error| unreadable(table, error))
        };
        let (filter, nat) = (read(Table::Filter), read(Table::Nat));
        let mut draft = Draft::new(pending, family);
        draft.foresee(|| nat.as_ref().is_ok_and(|nat| !nat.is_finished()));
        (draft, SavedTables { filter: what_was_read(filter), nat: what_was_read(nat) })
    });
    let has_firewall = saved.filter.as_ref().is_some_and(|filter| filter.has_chain(FIREWALL));
    if !has_firewall && !firewall_is_written {
        programs.new_chain(Table::Filter, FIREWALL)?;
    }
    let mut transaction = draft.compare(&mut saved);
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

fn read_table(programs: &Programs, table: Table) -> Option<Saved> {
    programs.read(table).inspect_err(|error| unreadable(table, error)).ok()
}

fn what_was_read(reading: io::Result<ScopedJoinHandle<'_, Option<Saved>>>) -> Option<Saved> {
    reading.ok()?.join().ok()?
}

fn unreadable(table: Table, error: &dyn std::error::Error) {
    tracing::warn!(%error, %table, "cannot read the rules back: everything is written, stale chains stay");
}

/// Looking into what was read is much cheaper than a process per jump, but only the programs know all spellings of a rule.
fn has_jump(programs: &Programs, saved: &SavedTables, jump: Jump, family: Family) -> Result<bool, Error> {
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
