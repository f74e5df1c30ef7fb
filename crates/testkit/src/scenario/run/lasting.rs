//! Steps about connections and loads that go on while other things happen.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::super::format::{Connect, Exchange, Failure, LoadCheck, LoadStart};
use super::Play;
use crate::probe::{Outcome, Probe};

/// How long silence must last to be believed.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);
/// How long it may take until another host answers a load.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Play {
    pub(super) fn connect(&mut self, connect: &Connect) -> Result<()> {
        let mut opened = Vec::new();
        for way in self.ways(&connect.from, &connect.to)? {
            let probe = with_patience(way.probe.clone(), connect.expect);
            let (connection, outcome) = probe.open(way.packet.transport, way.target())?;
            self.rig.oracle().expect(&way.packet).check(&outcome)?;
            check(&outcome, &connect.answered_by.0, connect.expect)?;
            let host = outcome.host().map(str::to_owned);
            opened.push(((connect.name.clone(), way.family), (connection, host)));
        }
        self.connections.extend(opened);
        Ok(())
    }

    pub(super) fn exchange(&mut self, exchange: &Exchange) -> Result<()> {
        let named = self.connections.iter_mut().filter(|((name, _), _)| *name == exchange.over);
        let mut found = false;
        for ((_, family), (connection, first)) in named {
            found = true;
            connection.set_timeout(if exchange.expect.is_some() { SHORT_TIMEOUT } else { TIMEOUT });
            let outcome = connection.exchange()?;
            let expected = &exchange.answered_by.0;
            let same = first.clone().into_iter().collect::<Vec<_>>();
            let hosts = if expected.is_empty() { &same } else { expected };
            check(&outcome, hosts, exchange.expect).with_context(|| format!("{family}, first {first:?}"))?;
        }
        ensure!(found, "there is no connection called {}", exchange.over);
        Ok(())
    }

    pub(super) fn start_load(&mut self, start: &LoadStart) -> Result<()> {
        let mut started = Vec::new();
        for way in self.ways(&start.from, &start.to)? {
            let load = way.probe.load(way.packet.transport, way.target(), start.per_second)?;
            started.push(((start.name.clone(), way.family), load));
        }
        self.loads.extend(started);
        Ok(())
    }

    pub(super) fn await_load(&mut self, check: &LoadCheck) -> Result<()> {
        let mut found = false;
        for ((_, family), load) in self.loads.iter().filter(|((name, _), _)| *name == check.name) {
            found = true;
            let what = format!("{family}: answers of {:?}", check.answered_by.0);
            load.wait_for(TIMEOUT, &what, |tally| {
                check.answered_by.0.iter().all(|host| tally.answered_by().contains_key(host))
            })?;
        }
        ensure!(found, "there is no load called {}", check.name);
        Ok(())
    }

    pub(super) fn end_load(&mut self, check: &LoadCheck) -> Result<()> {
        let expected: BTreeSet<&String> = check.answered_by.0.iter().collect();
        let ended: Vec<_> = self.loads.extract_if(.., |(name, _), _| *name == check.name).collect();
        if ended.is_empty() {
            bail!("there is no load called {}", check.name);
        }
        for ((_, family), load) in ended {
            let tally = load.stop()?;
            let answered: BTreeSet<&String> = tally.answered_by().keys().collect();
            ensure!(
                tally.failed() == 0 && answered == expected,
                "{family}: {tally}; expected answers of {expected:?}"
            );
        }
        Ok(())
    }
}

/// A client that expects nothing need not wait for long.
fn with_patience(probe: Probe, expect: Option<Failure>) -> Probe {
    if expect == Some(Failure::Dropped) { probe.short_timeout() } else { probe }
}

fn check(outcome: &Outcome, hosts: &[String], expect: Option<Failure>) -> Result<()> {
    let right = match expect {
        Some(failure) => failure.is(outcome),
        None => outcome.host().is_some_and(|host| hosts.iter().any(|name| name == host)),
    };
    ensure!(right, "{outcome}; expected {expect:?} or answers of {hosts:?}");
    Ok(())
}
