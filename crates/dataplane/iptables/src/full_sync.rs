//! A full sync reads the tables back, writes what differs, puts the jumps in place, and keeps the canaries alive.

use std::io;
use std::sync::mpsc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use portwarden_model::Family;
use portwarden_xtables::{Error, Programs, RestoreError, SavedTable, Table, Transaction};

use crate::draft::{Draft, Names, SavedTables, lose_rules_last};
use crate::jumps::{JUMPS, Jump};
use crate::names::{CANARY, FIREWALL, is_service_chain};
use crate::ruleset::Pending;
use crate::tampering::TamperWatch;

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

/// Reads the tables and finds everything in them that is not as it should be. `writes_firewall`: the transaction itself creates the
/// chain that is shared with the kubelet.
pub(crate) fn compare(
    programs: &Programs,
    writes_firewall: bool,
    pending: &Pending,
) -> Result<Needed, Error> {
    let family = programs.family();
    let (drawn_up, mut saved) = thread::scope(|scope| {
        let read = |table, was_read: mpsc::Sender<()>| {
            let read = move || {
                let saved = read_table(programs, table);
                drop(was_read);
                saved
            };
            let reading = thread::Builder::new().spawn_scoped(scope, read);
            reading.inspect_err(|error| unreadable(table, error))
        };
        let (was_read, nat_was_read) = mpsc::channel();
        let (filter, nat) = (read(Table::Filter, mpsc::channel().0), read(Table::Nat, was_read));
        let is_reading = || nat.as_ref().is_ok_and(|nat| !nat.is_finished());
        let names = (!programs.splits_transactions()).then(|| Names::new(pending));
        if names.is_some() && nat.is_ok() {
            // Whether it has been read by then or not, both are fine.
            let _ = nat_was_read.recv_timeout(EMPTY_TABLES);
        }
        let draft = (names.is_none() || is_reading()).then(|| {
            let mut draft = Draft::new(pending, family);
            draft.precompute_fingerprints(is_reading);
            draft
        });
        ((names, draft), SavedTables { filter: what_was_read(filter), nat: what_was_read(nat) })
    });
    let has_firewall = saved.filter.as_ref().is_some_and(|filter| filter.has_chain(FIREWALL));
    if !has_firewall && !writes_firewall {
        programs.create_chain(Table::Filter, FIREWALL)?;
    }
    let missing = Missing::from(programs, &saved, family)?;
    let draft = match drawn_up {
        (_, Some(draft)) => draft,
        (Some(names), None) if saved.nat.as_ref().is_some_and(|nat| names.table_has_no_services(nat)) => {
            return Ok(Needed::Everything(Everything { names, missing }));
        }
        _ => Draft::new(pending, family),
    };
    let mut transaction = draft.compare(&mut saved);
    if let Some(filter) = &saved.filter {
        lose_rules_last(&mut transaction, filter, family);
    }
    missing.add_to(&mut transaction);
    Ok(Needed::Change(Box::new(transaction)))
}

impl Everything {
    /// Writes it. While the program makes the chains, their rules are rendered.
    pub(crate) fn restore(
        &self,
        programs: &Programs,
        pending: &Pending,
    ) -> Result<Transaction, RestoreError> {
        let mut chains: Vec<&str> = self.names.iter().collect();
        if self.missing.canaries.contains(&Table::Nat) {
            chains.push(CANARY);
        }
        programs.restore_while_rendering(chains, || {
            let mut transaction = Draft::new(pending, programs.family()).compare(&mut SavedTables::default());
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

/// Puts the last canary in place. Its failure is no reason to fail: the next look at the canaries creates it.
pub(crate) fn finish(programs: &Programs, tampering: &mut TamperWatch) {
    match programs.create_chain(Table::Mangle, CANARY) {
        Ok(_) => tampering.canaries_created(),
        Err(error) => tracing::warn!(%error, "cannot create a canary chain; trying again later"),
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
