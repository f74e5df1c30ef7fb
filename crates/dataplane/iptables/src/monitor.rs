//! Notices when somebody flushes or changes our rules.
//!
//! An empty chain, the canary, stands in each table. When the one in mangle is gone (that table is the smallest, so looking is cheap),
//! whoever flushes is given a moment to finish with the other tables before everything is written anew. Where the kernel tells of
//! changes ([`ChangeNotices`]), others' changes to our chains are noticed too, and at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use portwarden_xtables::{ChangeNotices, Presence, Programs, Table};

use crate::error::Error;
use crate::names::{CANARY, is_ours};

/// Time between two looks at the other canaries once one is gone.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// How long a flush may take before we no longer wait for its end.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// How long changes of our rules are gathered before they are told: a flush is many changes.
const GATHER: Duration = Duration::from_millis(100);

/// Watches the canaries and, where possible, all our rules. Its descriptor says when there is something to do.
#[derive(Debug)]
pub(crate) struct Monitor {
    timer: TimerFd,
    watch: Option<ChangeNotices>,
    /// Both of them in one descriptor.
    either: Epoll,
    period: Duration,
    state: State,
    /// What others changed, and since when that is known.
    changed: Option<(String, Instant)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There may be no canaries.
    Unarmed,
    /// The canaries are there.
    Watching,
    /// The first canary was seen to be gone at this time.
    Flushed(Instant),
}

impl Monitor {
    /// Watches with this period, from now on.
    pub(crate) fn new(period: Duration, watch: Option<ChangeNotices>) -> Result<Self, Error> {
        let failed = |source: nix::Error| Error::Timer { source: source.into() };
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        either.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        if let Some(watch) = &watch {
            either.add(watch.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        }
        let monitor = Monitor { timer, watch, either, period, state: State::Unarmed, changed: None };
        monitor.look_after(Duration::from_nanos(1)).map_err(|source| Error::Timer { source })?;
        Ok(monitor)
    }

    /// Readable when it is time to [`check`](Self::check).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }

    /// Looks, if it is time to. `Some` tells what others did.
    pub(crate) fn check(&mut self, programs: &Programs, now: Instant) -> Option<String> {
        self.listen(programs, now);
        // Nothing to read means that the time has not come.
        self.timer.wait().ok()?;
        if let Some((text, _)) = self.changed.take_if(|(_, since)| now.duration_since(*since) >= GATHER) {
            self.set_timer(self.period);
            return Some(text);
        }
        let (flushed, next) = self.step(programs, now);
        self.set_timer(if self.changed.is_some() { GATHER } else { next });
        flushed
    }

    /// What others changed is put right: it was before a full sync.
    pub(crate) fn forget(&mut self) {
        self.changed = None;
    }

    /// Does not listen while `work` is done, if that is possible. Says whether it was.
    pub(crate) fn deaf<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        match &self.watch {
            Some(watch) => (watch.with_notifications_paused(work), true),
            None => (work(), false),
        }
    }

    /// Reads what the kernel told, and sets the timer if that matters.
    pub(crate) fn listen(&mut self, programs: &Programs, now: Instant) {
        let Some(text) = self.watch.as_mut().and_then(|watch| watch.read(programs, is_ours)) else { return };
        if self.changed.is_none() {
            self.changed = Some((text, now));
            self.set_timer(GATHER);
        }
    }

    /// Tells that the canaries were put in place.
    pub(crate) fn armed(&mut self) {
        self.state = State::Watching;
    }

    /// One look; also tells when the next one is due.
    fn step(&mut self, programs: &Programs, now: Instant) -> (Option<String>, Duration) {
        match self.state {
            State::Unarmed => match arm(programs) {
                Ok(()) => self.state = State::Watching,
                Err(error) => tracing::warn!(%error, "cannot make the canary chains; trying again later"),
            },
            State::Watching => {
                if presence(programs, Table::Mangle) == Presence::Absent {
                    self.state = State::Flushed(now);
                    return (None, FLUSH_INTERVAL);
                }
            }
            State::Flushed(since) => {
                let going = |table| presence(programs, table) != Presence::Absent;
                if now.duration_since(since) < FLUSH_LIMIT && (going(Table::Nat) || going(Table::Filter)) {
                    return (None, FLUSH_INTERVAL);
                }
                self.state = State::Unarmed;
                let text = format!(
                    "chain {CANARY} is gone from table {}: somebody flushed the rules",
                    Table::Mangle
                );
                return (Some(text), self.period);
            }
        }
        (None, self.period)
    }

    fn set_timer(&self, time: Duration) {
        if let Err(error) = self.look_after(time) {
            tracing::warn!(%error, "cannot set the timer of the rules monitor; flushed rules are only noticed by full syncs");
        }
    }

    fn look_after(&self, time: Duration) -> io::Result<()> {
        let expiration = Expiration::OneShot(TimeSpec::from_duration(time));
        Ok(self.timer.set(expiration, TimerSetTimeFlags::empty())?)
    }
}

/// Makes the canaries that are not there.
fn arm(programs: &Programs) -> Result<(), portwarden_xtables::Error> {
    for table in [Table::Mangle, Table::Nat, Table::Filter] {
        programs.create_chain(table, CANARY)?;
    }
    Ok(())
}

fn presence(programs: &Programs, table: Table) -> Presence {
    programs.has_chain(table, CANARY).unwrap_or_else(|error| {
        tracing::warn!(%error, %table, "cannot look for the canary chain; trying again later");
        Presence::Unknown
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_model::Family;
    use portwarden_testkit::Namespace;
    use portwarden_xtables::Variant;

    fn run(programs: &Programs, work: impl FnOnce(&mut Monitor) + Send) {
        let namespace = Namespace::new("monitor").unwrap();
        let mut monitor = Monitor::new(Duration::from_secs(30), None).unwrap();
        namespace
            .run(|| {
                programs.check().unwrap();
                monitor.step(programs, Instant::now());
                assert_eq!(monitor.state, State::Watching);
                work(&mut monitor);
                Ok(())
            })
            .unwrap();
    }

    fn programs() -> Programs {
        Programs::new(Family::V4, Variant::Nft)
    }

    #[test]
    fn nothing_happens_while_the_canaries_live() {
        let programs = programs();
        run(&programs, |monitor| {
            assert_eq!(monitor.step(&programs, Instant::now()), (None, Duration::from_secs(30)));
            assert_eq!(monitor.state, State::Watching);
        });
    }

    #[test]
    fn a_flush_is_told_once_all_tables_are_flushed() {
        let programs = programs();
        run(&programs, |monitor| {
            let start = Instant::now();
            programs.delete_chain(Table::Mangle, CANARY).unwrap();
            assert_eq!(monitor.step(&programs, start), (None, FLUSH_INTERVAL));
            programs.delete_chain(Table::Nat, CANARY).unwrap();
            assert_eq!(monitor.step(&programs, start + FLUSH_INTERVAL), (None, FLUSH_INTERVAL));
            programs.delete_chain(Table::Filter, CANARY).unwrap();
            let (flushed, _) = monitor.step(&programs, start + 2 * FLUSH_INTERVAL);
            assert!(flushed.unwrap().contains("KUBE-PROXY-CANARY"));
            assert_eq!(monitor.state, State::Unarmed);
        });
    }

    #[test]
    fn a_flush_of_one_table_is_told_after_a_while() {
        let programs = programs();
        run(&programs, |monitor| {
            let start = Instant::now();
            programs.delete_chain(Table::Mangle, CANARY).unwrap();
            assert_eq!(monitor.step(&programs, start).0, None);
            assert_eq!(monitor.step(&programs, start + FLUSH_LIMIT - FLUSH_INTERVAL).0, None);
            assert!(monitor.step(&programs, start + FLUSH_LIMIT).0.is_some());
        });
    }
}
