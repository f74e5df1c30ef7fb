//! Many probes: a volley as fast as they go, or a steady load in the background.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Transport;
use super::client::Probe;
use super::dialogue::{self, Dialogue};
use super::outcome::Outcome;
use crate::wait;

/// Probes of a volley under way at a time.
const VOLLEY_WIDTH: usize = 64;

/// Probes of a load under way at a time: more than one that keeps its rate has while nothing answers, fewer than exhaust a machine.
const LOAD_WIDTH: usize = 512;

/// The longest wait of a load's loop, so that it notices when it is to stop.
const TICK: Duration = Duration::from_millis(20);

/// How many probes ended in which way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    answered_by: BTreeMap<String, u32>,
    sources: BTreeSet<IpAddr>,
    failures: BTreeMap<&'static str, u32>,
}

impl Tally {
    /// Answers by the name of the host that gave them.
    pub fn answered_by(&self) -> &BTreeMap<String, u32> {
        &self.answered_by
    }

    /// Source addresses that servers saw.
    pub fn sources(&self) -> &BTreeSet<IpAddr> {
        &self.sources
    }

    /// Failures by [`Outcome::kind`].
    pub fn failures(&self) -> &BTreeMap<&'static str, u32> {
        &self.failures
    }

    /// The number of answers.
    pub fn answered(&self) -> u32 {
        self.answered_by.values().sum()
    }

    /// The number of failures.
    pub fn failed(&self) -> u32 {
        self.failures.values().sum()
    }

    /// Counts one outcome.
    pub fn count(&mut self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Answered(answer) => {
                self.sources.insert(answer.source.ip());
                self.answered_by.entry(answer.host.clone()).or_default()
            }
            failure => self.failures.entry(failure.kind()).or_default(),
        };
        *counter += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} answered {:?}, {} failed {:?}",
            self.answered(),
            self.answered_by,
            self.failed(),
            self.failures
        )
    }
}

/// A probe that is over.
#[derive(Clone, Debug)]
pub struct Ended {
    /// When it was sent.
    pub started: Instant,
    /// When its outcome was known.
    pub ended: Instant,
    /// What became of it.
    pub outcome: Outcome,
    /// The address it was sent from, if it was sent.
    pub client: Option<SocketAddr>,
}

/// A finished probe of a load.
pub(super) type Listener = Box<dyn FnMut(&Ended) + Send>;

/// Sends `count` probes, a limited number at a time.
pub(super) fn volley(probe: &Probe, transport: Transport, target: SocketAddr, count: u32) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut under_way = UnderWay::default();
    let mut unsent = count;
    while unsent > 0 || !under_way.is_empty() {
        while unsent > 0 && under_way.len() < VOLLEY_WIDTH {
            under_way.push(Instant::now(), probe.start(transport, target)?);
            unsent -= 1;
        }
        under_way.advance(|ended| tally.count(&ended.outcome))?;
        under_way.wait(None)?;
    }
    Ok(tally)
}

/// A steady load in the background; it ends when dropped.
#[derive(Debug)]
pub struct Load {
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Result<()>>>>,
}

impl Load {
    pub(super) fn start(
        probe: Probe,
        transport: Transport,
        target: SocketAddr,
        interval: Duration,
        listener: Listener,
    ) -> Result<Load> {
        let (tally, stop) = (Arc::<Mutex<Tally>>::default(), Arc::<AtomicBool>::default());
        let (counted, stopped) = (Arc::clone(&tally), Arc::clone(&stop));
        let namespace = probe.namespace().clone();
        let mut listener = listener;
        let report = move |ended: Ended| {
            lock(&counted).count(&ended.outcome);
            listener(&ended);
        };
        let thread =
            namespace.spawn(move || steady(&probe, transport, target, interval, report, &stopped))?;
        Ok(Load { tally, stop, thread: Some(thread) })
    }

    /// How the probes that have ended so far ended.
    pub fn tally(&self) -> Tally {
        lock(&self.tally).clone()
    }

    /// Waits until the tally so far fulfils a condition, at most for `timeout`.
    pub fn wait_for(
        &self,
        timeout: Duration,
        what: &str,
        mut condition: impl FnMut(&Tally) -> bool,
    ) -> Result<Tally> {
        wait::until(timeout, what, || Some(self.tally()).filter(&mut condition))
            .with_context(|| format!("the load so far: {}", self.tally()))
    }

    /// Starts no more probes, waits for the pending ones, and returns the tally.
    pub fn stop(mut self) -> Result<Tally> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("stopped before")?;
        thread.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))??;
        Ok(self.tally())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The loop of a steady load. A loop that fell behind sends what is due as soon as it can, so that the number of probes is
/// right over any longer time. On a machine that cannot keep up it does not pile them up, though.
fn steady(
    probe: &Probe,
    transport: Transport,
    target: SocketAddr,
    interval: Duration,
    mut report: impl FnMut(Ended),
    stop: &AtomicBool,
) -> Result<()> {
    let mut under_way = UnderWay::default();
    let mut next = Instant::now();
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        if stopping && under_way.is_empty() {
            return Ok(());
        }
        while !stopping && next <= Instant::now() && under_way.len() < LOAD_WIDTH {
            under_way.push(Instant::now(), probe.start(transport, target)?);
            next += interval;
        }
        under_way.advance(&mut report)?;
        let tick = Instant::now() + TICK;
        let wake = if under_way.len() < LOAD_WIDTH { next.min(tick) } else { tick };
        under_way.wait((!stopping).then_some(wake))?;
    }
}

/// Probes that are not over yet.
#[derive(Default)]
struct UnderWay {
    dialogues: Vec<(Instant, Dialogue)>,
}

impl UnderWay {
    fn push(&mut self, started: Instant, dialogue: Dialogue) {
        self.dialogues.push((started, dialogue));
    }

    fn len(&self) -> usize {
        self.dialogues.len()
    }

    fn is_empty(&self) -> bool {
        self.dialogues.is_empty()
    }

    /// Advances all and hands over those that ended.
    fn advance(&mut self, mut report: impl FnMut(Ended)) -> Result<()> {
        let now = Instant::now();
        let mut index = 0;
        while let Some((started, dialogue)) = self.dialogues.get_mut(index) {
            match dialogue.advance(now)? {
                Some(outcome) => {
                    let client = dialogue.client();
                    report(Ended { started: *started, ended: Instant::now(), outcome, client });
                    self.dialogues.swap_remove(index);
                }
                None => index += 1,
            }
        }
        Ok(())
    }

    /// Waits until one can advance, or until `wake`.
    fn wait(&self, wake: Option<Instant>) -> Result<()> {
        let deadline = self.dialogues.iter().map(|(_, dialogue)| dialogue.deadline()).chain(wake).min();
        let Some(deadline) = deadline else { return Ok(()) };
        let mut sockets: Vec<_> = self.dialogues.iter().map(|(_, dialogue)| dialogue.interest()).collect();
        dialogue::wait(&mut sockets, deadline)
    }
}

/// A panic of the load's thread is reported where it is joined, not here.
fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}
