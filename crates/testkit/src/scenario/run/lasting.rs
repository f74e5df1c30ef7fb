//! Steps about connections and loads that go on while other things happen.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::super::format::{Connect, Exchange, LoadCheck, LoadStart};
use super::Play;

/// How long a load may take to be answered by somebody new.
const PATIENCE: Duration = Duration::from_secs(20);

impl Play {
    pub(super) fn connect(&mut self, connect: &Connect) -> Result<()> {
        let mut opened = Vec::new();
        for way in self.ways(&connect.from, &connect.to)? {
            let (connection, outcome) = way.probe.open(way.packet.transport, way.target())?;
            self.rig.oracle().expect(&way.packet).check(&outcome)?;
            let host = outcome.host().with_context(|| format!("no answer: {outcome}"))?.to_owned();
            ensure!(connect.answered_by.0.contains(&host), "{outcome}");
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
            let outcome = connection.exchange()?;
            let host = outcome.host().with_context(|| format!("{family}: no answer: {outcome}"))?;
            let expected = &exchange.answered_by.0;
            let right =
                if expected.is_empty() { host == first } else { expected.iter().any(|name| name == host) };
            ensure!(right, "{family}: {outcome}; first it was {first}");
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
            load.wait_for(PATIENCE, &what, |tally| {
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
