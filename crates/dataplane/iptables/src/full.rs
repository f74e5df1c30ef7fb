//! What a full sync does beyond writing rules: reads the tables back, puts the jumps in place, keeps the canaries alive.

use std::io;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use portwarden_model::Family;
use portwarden_xtables::{Error, Programs, RestoreError, SavedTable, Table, Transaction};

use crate::draft::{Draft, Names, SavedTables};
use crate::jumps::{JUMPS, Jump};
use crate::monitor::Monitor;
use crate::names::{CANARY, FIREWALL, is_service_chain};
use crate::ruleset::Pending;

/// Tables without Services are read within this time, usually a tenth of it; if not, there are some, and reading them takes longer than
/// rendering.
const EMPTY_TABLES: Duration = Duration::from_millis(15);

/// What the tables need.
pub(crate) enum Needed {
    /// This change, or none.
    Change(Box<Transaction>),
    /// All rules: there is nothing of any Service.
    Everything(Everything),
}

/// Chains that are known by their names only.
pub(crate) struct Everything {
    names: Names,
    missing: Missing,
}

/// Reads the tables and tells everything that is not in them as it should be. `firewall_is_written`: the transaction itself makes the
/// chain that is shared with the kubelet.
pub(crate) fn look(
    programs: &Programs,
    family: Family,
    firewall_is_written: bool,
    pending: &Pending,
) -> Result<Needed, Error> {
    let start = Instant::now();
    let (drawn_up, mut saved) = thread::scope(|scope| {
        let read = |table| {
            let reading = thread::Builder::new().spawn_scoped(scope, move || read_table(programs, table));
            reading.inspect_err(|error| unreadable(table, error))
        };
        let (filter, nat) = (read(Table::Filter), read(Table::Nat));
        let is_reading = || nat.as_ref().is_ok_and(|nat| !nat.is_finished());
        let names = (!programs.splits_transactions()).then(|| Names::new(pending));
        while names.is_some() && is_reading() && start.elapsed() < EMPTY_TABLES {
            thread::sleep(EMPTY_TABLES / 100);
        }
        let draft = (names.is_none() || is_reading()).then(|| {
            let mut draft = Draft::new(pending, family);
            draft.foresee(is_reading);
            draft
        });
        ((names, draft), SavedTables { filter: what_was_read(filter), nat: what_was_read(nat) })
    });
    let has_firewall = saved.filter.as_ref().is_some_and(|filter| filter.has_chain(FIREWALL));
    if !has_firewall && !firewall_is_written {
        programs.create_chain(Table::Filter, FIREWALL)?;
    }
    let missing = Missing::from(programs, &saved, family)?;
    let draft = match drawn_up {
        (_, Some(draft)) => draft,
        (Some(names), None) if saved.nat.as_ref().is_some_and(|nat| names.are_new_to(nat)) => {
            return Ok(Needed::Everything(Everything { names, missing }));
        }
        _ => Draft::new(pending, family),
    };
    let mut transaction = draft.compare(&mut saved);
    missing.add_to(&mut transaction);
    Ok(Needed::Change(Box::new(transaction)))
}

impl Everything {
    /// Writes it. While the program makes the chains, their rules are rendered.
    pub(crate) fn restore(
        &self,
        programs: &Programs,
        family: Family,
        pending: &Pending,
    ) -> Result<Transaction, RestoreError> {
        let mut chains: Vec<&str> = self.names.iter().collect();
        if self.missing.canaries.contains(&Table::Nat) {
            chains.push(CANARY);
        }
        programs.restore_while_rendering(chains, || {
            let mut transaction = Draft::new(pending, family).compare(&mut SavedTables::default());
            self.missing.add_to(&mut transaction);
            transaction
        })
    }
}

/// What is missing in tables besides rules.
struct Missing {
    canaries: Vec<Table>,
    jumps: Vec<Jump>,
}

impl Missing {
    fn from(programs: &Programs, saved: &SavedTables, family: Family) -> Result<Missing, Error> {
        let has_canary = |table| saved.table(table).is_some_and(|saved| saved.has_chain(CANARY));
        let tables = [Table::Filter, Table::Nat].into_iter();
        let mut missing =
            Missing { canaries: tables.filter(|table| !has_canary(*table)).collect(), jumps: Vec::new() };
        for jump in JUMPS {
            if !has_jump(programs, saved, jump, family)? {
                missing.jumps.push(jump);
            }
        }
        Ok(missing)
    }

    fn add_to(&self, transaction: &mut Transaction) {
        self.canaries.iter().for_each(|table| transaction.section(*table).make_chain(CANARY));
        self.jumps.iter().for_each(|jump| transaction.section(jump.table).insert_rule(jump.insert_line()));
    }
}

/// Puts the last canary in place. Its failure is no reason to fail: the monitor will try again.
pub(crate) fn finish(programs: &Programs, monitor: &mut Monitor) {
    match programs.create_chain(Table::Mangle, CANARY) {
        Ok(_) => monitor.armed(),
        Err(error) => tracing::warn!(%error, "cannot make a canary chain; trying again later"),
    }
}

fn read_table(programs: &Programs, table: Table) -> Option<SavedTable> {
    programs.save(table, |chain| !is_service_chain(chain)).inspect_err(|error| unreadable(table, error)).ok()
}

fn what_was_read(reading: io::Result<ScopedJoinHandle<'_, Option<SavedTable>>>) -> Option<SavedTable> {
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
