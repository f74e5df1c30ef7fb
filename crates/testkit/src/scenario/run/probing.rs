//! Steps that send packets and look at what becomes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portwarden_model::Family;

use super::super::format::{Clients, Failure, Forget, Probe, Sender, SourceContent};
use super::{Play, Way, address_in};
use crate::oracle::Expected;
use crate::probe::{Outcome, Tally, uniformity};
use crate::topology::addresses::NODE;

/// Probes that must all be answered by one host.
const FEW: u32 = 8;
/// Enough that each of a few hosts is chosen at least once: one of five is missed less than once in a million times.
const MANY: u32 = 96;
/// Probes for each host, to check for even distribution.
const PER_HOST: u32 = 120;
/// How often a client that was forgotten may end up with its old endpoint by chance.
const CHANCES: u32 = 12;
/// What is added to an affinity's timeout to be sure that it is over.
const GRACE: Duration = Duration::from_millis(300);

impl Play {
    pub(super) fn probe(&mut self, probe: &Probe) -> Result<()> {
        let mut remembered = Vec::new();
        let families = probe.family.map(Family::from);
        let ways = self.ways(&probe.from, &probe.to)?;
        for way in ways.into_iter().filter(|way| families.is_none_or(|family| family == way.family)) {
            let expected = self.rig.oracle().expect(&way.packet);
            let checked = match (probe.expect, probe.answered_by.0.is_empty()) {
                (Some(failure), true) => check_failure(&way, failure, &expected).map(|()| None),
                (None, false) => self.check_answers(&way, probe, &expected),
                _ => bail!("a probe has either answeredBy or expect"),
            };
            let host = checked.with_context(|| format!("from {} to {}", way.packet.source, way.target()))?;
            remembered.extend(probe.sticky.clone().zip(host).map(|(word, host)| ((word, way.family), host)));
        }
        self.sticky.extend(remembered);
        Ok(())
    }

    /// Returns the host that answered, if the scenario needs it later.
    fn check_answers(&self, way: &Way<'_>, probe: &Probe, expected: &Expected) -> Result<Option<String>> {
        let hosts: BTreeSet<&str> = probe.answered_by.0.iter().map(String::as_str).collect();
        for host in &hosts {
            self.rig.host(host)?;
        }
        let agrees = if expected.contested {
            hosts.is_subset(&expected.hosts())
        } else {
            expected.hosts() == hosts && !expected.refused && !expected.dropped
        };
        ensure!(agrees, "the oracle says otherwise: {expected}");
        let tally = match probe.sticky {
            Some(_) => sticky_volley(way)?,
            None => way.probe.volley(way.packet.transport, way.target(), count(&hosts, probe.evenly))?,
        };
        ensure!(tally.failed() == 0, "{tally}");
        let answered: BTreeSet<&str> = tally.answered_by().keys().map(String::as_str).collect();
        self.check_sources(way, probe, expected, &tally)?;
        if let Some(word) = &probe.sticky {
            let host = the_one(&answered).with_context(|| format!("not sticky: {tally}"))?;
            ensure!(hosts.contains(host), "{tally}");
            let before = self.sticky.get(&(word.clone(), way.family));
            ensure!(before.is_none_or(|before| before == host), "{host} answers, earlier {before:?}");
            return Ok(Some(host.to_owned()));
        }
        ensure!(answered == hosts, "{tally}; expected answers of {hosts:?}");
        if probe.evenly {
            let counts: Vec<u32> = tally.answered_by().values().copied().collect();
            ensure!(uniformity::is_uniform(&counts), "unevenly: {tally}");
        }
        Ok(None)
    }

    fn check_sources(&self, way: &Way<'_>, probe: &Probe, expected: &Expected, tally: &Tally) -> Result<()> {
        let seen = tally.sources();
        let foretold = expected.sources();
        ensure!(seen.is_subset(&foretold), "endpoints saw {seen:?}, the oracle says {foretold:?}");
        // Some modes show another address by design; the oracle has checked which.
        let decided = self.rig.oracle().decides_source(&way.packet);
        let Some(source) = probe.source.filter(|_| !decided) else { return Ok(()) };
        let source: IpAddr = match source {
            SourceContent::Client => way.packet.source,
            SourceContent::Node => NODE.like(way.packet.source),
            SourceContent::Address(ip) => address_in(ip, way.family)?,
        };
        ensure!(*seen == BTreeSet::from([source]), "endpoints saw {seen:?}, expected {source}");
        Ok(())
    }

    /// Every pod is one client.
    pub(super) fn clients(&mut self, clients: &Clients) -> Result<()> {
        let mut tallies: BTreeMap<Family, Tally> = BTreeMap::new();
        for pod in self.rig.topology().pods() {
            let sender = Sender { host: pod.name().to_owned(), ip: None };
            for way in self.ways(&sender, &clients.to)? {
                let outcome = way.probe.send(way.packet.transport, way.target())?;
                self.rig.oracle().expect(&way.packet).check(&outcome)?;
                tallies.entry(way.family).or_default().count(&outcome);
            }
        }
        let hosts: BTreeSet<&String> = clients.answered_by.0.iter().collect();
        for (family, tally) in tallies {
            let counts: Vec<u32> = tally.answered_by().values().copied().collect();
            let answered: BTreeSet<&String> = tally.answered_by().keys().collect();
            ensure!(answered == hosts && uniformity::is_uniform(&counts), "{family}: {tally}");
        }
        Ok(())
    }

    /// A client pauses until its affinity is over, and then gets another endpoint sooner or later.
    pub(super) fn forget(&mut self, forget: &Forget) -> Result<()> {
        let mut ways = Vec::new();
        for sender in self.identities(&forget.from)? {
            ways.extend(self.ways(&sender, &forget.to)?);
        }
        let mut homes = Vec::new();
        for way in &ways {
            homes.push(answering_host(way)?);
        }
        let mut moved: BTreeMap<Family, bool> = ways.iter().map(|way| (way.family, false)).collect();
        for _ in 0..CHANCES {
            thread::sleep(Duration::from_secs(forget.seconds.into()) + GRACE);
            for (way, home) in ways.iter().zip(&mut homes) {
                let now = answering_host(way)?;
                *moved.entry(way.family).or_default() |= now != *home;
                *home = now;
            }
            if moved.values().all(|moved| *moved) {
                return Ok(());
            }
        }
        bail!("after {CHANCES} pauses of {} s each client still has its endpoint: {moved:?}", forget.seconds);
    }

    /// The clients that a host can be: one for each of its addresses, unless one is named.
    fn identities(&self, sender: &Sender) -> Result<Vec<Sender>> {
        if sender.ip.is_some() {
            return Ok(vec![sender.clone()]);
        }
        let with = |ip: IpAddr| Sender { ip: Some(ip), ..sender.clone() };
        Ok(self.rig.host(&sender.host)?.addresses().iter().map(|ip| with(ip.v4.into())).collect())
    }
}

impl Failure {
    /// Whether it is what happened.
    pub(super) fn is(self, outcome: &Outcome) -> bool {
        match self {
            Failure::Refused => outcome.is_refused(),
            Failure::Dropped => *outcome == Outcome::Dropped,
        }
    }
}

fn check_failure(way: &Way<'_>, failure: Failure, expected: &Expected) -> Result<()> {
    let (probe, foretold) = match failure {
        Failure::Refused => (way.probe.clone(), Expected { refused: true, ..Expected::default() }),
        Failure::Dropped => {
            (way.probe.clone().short_timeout(), Expected { dropped: true, ..Expected::default() })
        }
    };
    let outcome = probe.send(way.packet.transport, way.target())?;
    ensure!(failure.is(&outcome), "{outcome}; expected: {foretold}");
    ensure!(*expected == foretold, "the oracle says otherwise: {expected}");
    Ok(())
}

fn count(hosts: &BTreeSet<&str>, evenly: bool) -> u32 {
    match hosts.len() {
        _ if evenly => PER_HOST * u32::try_from(hosts.len()).unwrap_or(u32::MAX),
        1 => FEW,
        _ => MANY,
    }
}

/// One probe that may make an entry, and then those that must find it.
fn sticky_volley(way: &Way<'_>) -> Result<Tally> {
    let first = way.probe.send(way.packet.transport, way.target())?;
    let mut tally = way.probe.volley(way.packet.transport, way.target(), FEW)?;
    tally.count(&first);
    Ok(tally)
}

fn answering_host(way: &Way<'_>) -> Result<String> {
    let outcome = way.probe.send(way.packet.transport, way.target())?;
    outcome.host().map(str::to_owned).with_context(|| format!("no answer: {outcome}"))
}

fn the_one<'a>(hosts: &BTreeSet<&'a str>) -> Option<&'a str> {
    let mut all = hosts.iter();
    all.next().filter(|_| all.next().is_none()).copied()
}
