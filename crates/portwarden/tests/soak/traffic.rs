//! Steady TCP and UDP from everywhere: new connections all the time, and sockets that are kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use portwarden_testkit::probe::{Load, Probe};
use portwarden_testkit::{Outcome, Topology, Transport};

use crate::ledger::{Request, Target};

/// Time between two new connections to a target, at the usual rate.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between two questions on a kept socket, at the usual rate.
const PAUSE: Duration = Duration::from_millis(40);
/// How often the watch for stalls looks at the clock.
const TICK: Duration = Duration::from_millis(40);

/// A thread that sleeps longer than this, although it asked for a moment, was not scheduled.
const STALL: Duration = Duration::from_secs(1);
/// After a stall the traffic that should have been sent meanwhile comes all at once.
const AFTERMATH: Duration = Duration::from_secs(10);

/// How fast traffic and changes come. A slower machine gets fewer of both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Requests per second.
    rate: u32,
}

impl Pace {
    /// 24 targets with 10 connections per second each, and 6 kept sockets with 25 requests.
    const USUAL: u32 = 390;

    /// So many requests per second, or the usual number.
    pub(crate) fn new(rate: Option<u32>) -> Result<Pace> {
        let rate = rate.unwrap_or(Pace::USUAL);
        ensure!(rate > 0, "RATE: at least one request per second");
        Ok(Pace { rate })
    }

    /// A time at the usual rate, at this one.
    pub(crate) fn stretch(self, time: Duration) -> Duration {
        time * Pace::USUAL / self.rate
    }

    /// The time between two changes, at this rate. There is less traffic between them before they become rare.
    pub(crate) fn between_changes(self, usual: Duration) -> Duration {
        self.stretch(usual).min(usual * 4)
    }
}

/// All traffic; it ends with this value.
pub(crate) struct Traffic {
    loads: Vec<Load>,
    requests: Receiver<Request>,
    kept: Vec<JoinHandle<Result<()>>>,
    stalls: Receiver<(Instant, Instant)>,
    stop: Arc<AtomicBool>,
    epoch: Arc<AtomicU64>,
}

impl Traffic {
    /// Starts asking all targets, one after the other, and keeps sockets to the first `kept` ones.
    pub(crate) fn start(topology: &Topology, targets: &[Target], kept: usize, pace: Pace) -> Result<Traffic> {
        let interval = pace.stretch(INTERVAL);
        let (sender, requests) = channel();
        let (stop, epoch) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let stalls = watch_for_stalls(stop.clone())?;
        let mut traffic = Traffic { loads: Vec::new(), requests, kept: Vec::new(), stalls, stop, epoch };
        for (index, target) in targets.iter().enumerate() {
            let host = topology.host(target.client).context("no such host")?;
            let sender = sender.clone();
            let load =
                host.probe().load_observed(target.transport, target.address, interval, move |ended| {
                    let request = Request {
                        target: index,
                        started: ended.started,
                        ended: ended.ended,
                        outcome: ended.outcome.clone(),
                        client: ended.client,
                        kept: false,
                    };
                    // The receiver is gone when the soak is over.
                    let _ = sender.send(request);
                })?;
            traffic.loads.push(load);
            // Otherwise all of them would ask in the same instant, every time.
            thread::sleep(interval / u32::try_from(targets.len())?);
        }
        for (index, target) in targets.iter().enumerate().take(kept) {
            let host = topology.host(target.client).context("no such host")?;
            let keeper = Keeper {
                probe: host.probe(),
                target: target.clone(),
                index,
                pause: pace.stretch(PAUSE),
                sender: sender.clone(),
                stop: traffic.stop.clone(),
                epoch: traffic.epoch.clone(),
            };
            let thread = thread::Builder::new().name(format!("kept-{index}"));
            traffic.kept.push(thread.spawn(move || keeper.run()).context("cannot start a thread")?);
        }
        Ok(traffic)
    }

    /// Requests that ended since the last call.
    pub(crate) fn ended(&self) -> impl Iterator<Item = Request> {
        self.requests.try_iter()
    }

    /// Periods since the last call in which this machine stalled or had to catch up.
    pub(crate) fn stalls(&self) -> impl Iterator<Item = (Instant, Instant)> {
        self.stalls.try_iter()
    }

    /// Opens kept sockets again: damaged rules may have let replies through untranslated, which ends connections.
    pub(crate) fn renew(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends all traffic; [`ended`](Self::ended) then has the rest.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for load in self.loads.drain(..) {
            load.stop()?;
        }
        for thread in self.kept.drain(..) {
            thread.join().map_err(|_| anyhow!("a thread that keeps a socket panicked"))??;
        }
        Ok(())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Notices when threads of this process do not get to run.
fn watch_for_stalls(stop: Arc<AtomicBool>) -> Result<Receiver<(Instant, Instant)>> {
    let (sender, stalls) = channel();
    let watch = move || {
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            thread::sleep(TICK);
            if start.elapsed() > STALL && sender.send((start, Instant::now() + AFTERMATH)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("stalls".into()).spawn(watch).context("cannot start a thread")?;
    Ok(stalls)
}

/// Keeps one socket.
struct Keeper {
    probe: Probe,
    target: Target,
    index: usize,
    pause: Duration,
    sender: Sender<Request>,
    stop: Arc<AtomicBool>,
    epoch: Arc<AtomicU64>,
}

impl Keeper {
    fn run(&self) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let epoch = self.epoch.load(Ordering::Relaxed);
            let started = Instant::now();
            let (mut connection, outcome) = self.probe.open(self.target.transport, self.target.address)?;
            let client = connection.client();
            let mut alive = self.report(started, outcome, client, false);
            while alive {
                thread::sleep(self.pause);
                // The order matters: a question after damaged rules were repaired is never asked on a socket from before.
                let mut started = Instant::now();
                if self.stop.load(Ordering::Relaxed) || self.epoch.load(Ordering::Relaxed) != epoch {
                    break;
                }
                let mut outcome = connection.exchange()?;
                // Mode ebpf ends a connected socket whose endpoint has left, and a program opens another one.
                if self.target.transport == Transport::Udp && matches!(outcome, Outcome::Reset) {
                    break;
                }
                // A datagram may be under way when the flow is sent to another endpoint; the next one must not be.
                if self.target.transport == Transport::Udp && !outcome.is_answered() {
                    started = Instant::now();
                    outcome = connection.exchange()?;
                }
                alive = self.report(started, outcome, client, true);
            }
            thread::sleep(self.pause);
        }
        Ok(())
    }

    fn report(&self, started: Instant, outcome: Outcome, client: Option<SocketAddr>, kept: bool) -> bool {
        let answered = outcome.is_answered();
        let request = Request { target: self.index, started, ended: Instant::now(), outcome, client, kept };
        self.sender.send(request).is_ok() && answered
    }
}
