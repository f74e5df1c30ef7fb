//! Detects that another process flushed or changed our rules.
//!
//! An empty chain, the canary, stands in each table. When the one in mangle is gone (that table is the smallest, so looking is cheap),
//! the flush is given a moment to reach the other tables before everything is written again. Where the kernel sends notifications
//! ([`ChangeNotices`]), every change of our chains is detected, and at once.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use portwarden_xtables::{ChangeNotices, Error, Presence, Programs, Table};

use crate::earlier_restores::EarlierRestores;
use crate::names::{CANARY, is_ours};

/// Time between two looks at the other canaries once one is gone.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// How long a flush may take before we no longer wait for its end.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// How long changes of our rules are gathered before they are reported: a flush is many changes.
const GATHER: Duration = Duration::from_millis(100);

/// Time between two looks at restores that were running before us.
const EARLIER_RESTORES_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the canaries, the notifications and earlier restores of one family.
#[derive(Debug)]
pub(crate) struct TamperWatch {
    notices: Option<ChangeNotices>,
    period: Duration,
    canaries: Canaries,
    /// When to look at the canaries; `None` before the first sync, which creates them.
    next_check: Option<Instant>,
    /// What another process changed, and when that was noticed.
    changed: Option<(String, Instant)>,
    earlier: EarlierRestores,
    next_look_at_earlier: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Canaries {
    /// There may be none.
    Missing,
    InPlace,
    /// The first one was seen to be gone at this time.
    Flushed(Instant),
}

/// What a look at the canaries found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) flushed: Option<String>,
    /// How long until the next look.
    pub(crate) again: Duration,
}

impl TamperWatch {
    /// Looks at the canaries with this period, from the first sync on.
    pub(crate) fn new(period: Duration, notices: Option<ChangeNotices>, earlier: EarlierRestores) -> Self {
        TamperWatch {
            notices,
            period,
            canaries: Canaries::Missing,
            next_check: None,
            changed: None,
            earlier,
            next_look_at_earlier: None,
        }
    }

    /// Readable when there are notifications.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.notices.as_ref().map(ChangeNotices::fd)
    }

    /// A sync begins: from now on there is something to watch.
    pub(crate) fn sync_begins(&mut self, programs: &Programs, now: Instant) {
        self.read_notices(programs, now);
        self.next_check.get_or_insert(now + self.period);
        if !self.earlier.is_empty() {
            self.next_look_at_earlier.get_or_insert(now + EARLIER_RESTORES_INTERVAL);
        }
    }

    /// Everything was compared and written. What was noticed before that has been repaired.
    pub(crate) fn repaired(&mut self) {
        self.changed = None;
    }

    /// The canaries were created.
    pub(crate) fn canaries_created(&mut self) {
        self.canaries = Canaries::InPlace;
    }

    pub(crate) fn read_notices(&mut self, programs: &Programs, now: Instant) {
        let Some(text) = self.notices.as_mut().and_then(|notices| notices.read(programs, is_ours)) else {
            return;
        };
        self.changed.get_or_insert((text, now));
    }

    /// Runs `work` without notifications, if there are any. Returns whether some may have been missed.
    pub(crate) fn with_notifications_paused<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        match &self.notices {
            Some(notices) => (notices.with_notifications_paused(work), true),
            None => (work(), false),
        }
    }

    /// When there is something to report or to look at.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let gathered = self.changed.as_ref().map(|(_, since)| *since + GATHER);
        [gathered, self.next_check, self.next_look_at_earlier].into_iter().flatten().min()
    }

    /// What another process changed, once enough has been gathered; or that a restore which was running before us has ended.
    pub(crate) fn due(&mut self, now: Instant) -> Option<String> {
        if let Some((text, _)) = self.changed.take_if(|(_, since)| now.duration_since(*since) >= GATHER) {
            return Some(text);
        }
        self.next_look_at_earlier.filter(|at| *at <= now)?;
        let ended = self.earlier.take_ended();
        self.next_look_at_earlier = (!self.earlier.is_empty()).then_some(now + EARLIER_RESTORES_INTERVAL);
        ended.first().map(|id| {
            format!("an iptables-restore that was running before this start (process {id}) has ended")
        })
    }

    pub(crate) fn is_check_due(&self, now: Instant) -> bool {
        self.next_check.is_some_and(|at| at <= now)
    }

    /// Sets the time of the next look.
    pub(crate) fn check_again(&mut self, at: Instant) {
        self.next_check = Some(at);
    }

    /// Looks at the canaries, and creates those that are missing. Runs programs.
    pub(crate) fn check(&mut self, programs: &Programs, now: Instant) -> Checked {
        let nothing = |again| Checked { flushed: None, again };
        match self.canaries {
            Canaries::Missing => match create_canaries(programs) {
                Ok(()) => self.canaries = Canaries::InPlace,
                Err(error) => tracing::warn!(%error, "cannot create the canary chains; trying again later"),
            },
            Canaries::InPlace => {
                if presence(programs, Table::Mangle) == Presence::Absent {
                    self.canaries = Canaries::Flushed(now);
                    return nothing(FLUSH_INTERVAL);
                }
            }
            Canaries::Flushed(since) => {
                let going = |table| presence(programs, table) != Presence::Absent;
                if now.duration_since(since) < FLUSH_LIMIT && (going(Table::Nat) || going(Table::Filter)) {
                    return nothing(FLUSH_INTERVAL);
                }
                self.canaries = Canaries::Missing;
                let text =
                    format!("chain {CANARY} is gone from table {}: the rules were flushed", Table::Mangle);
                return Checked { flushed: Some(text), again: self.period };
            }
        }
        nothing(self.period)
    }
}

fn create_canaries(programs: &Programs) -> Result<(), Error> {
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

    const PERIOD: Duration = Duration::from_secs(30);

    fn nothing(again: Duration) -> Checked {
        Checked { flushed: None, again }
    }

    fn run(programs: &Programs, work: impl FnOnce(&mut TamperWatch) + Send) {
        let namespace = Namespace::new("tampering").unwrap();
        let mut watch = TamperWatch::new(PERIOD, None, EarlierRestores::default());
        namespace
            .run(|| {
                programs.check().unwrap();
                watch.check(programs, Instant::now());
                assert_eq!(watch.canaries, Canaries::InPlace);
                work(&mut watch);
                Ok(())
            })
            .unwrap();
    }

    fn programs() -> Programs {
        Programs::new(Family::V4, Variant::Nft)
    }

    #[test]
    fn nothing_is_watched_before_the_first_sync() {
        let mut watch = TamperWatch::new(PERIOD, None, EarlierRestores::default());
        assert_eq!(watch.deadline(), None);
        let now = Instant::now();
        watch.sync_begins(&programs(), now);
        assert_eq!(watch.deadline(), Some(now + PERIOD));
        assert!(!watch.is_check_due(now) && watch.is_check_due(now + PERIOD));
    }

    #[test]
    fn nothing_happens_while_the_canaries_live() {
        let programs = programs();
        run(&programs, |watch| {
            assert_eq!(watch.check(&programs, Instant::now()), nothing(PERIOD));
            assert_eq!(watch.canaries, Canaries::InPlace);
        });
    }

    #[test]
    fn a_flush_is_reported_once_all_tables_are_flushed() {
        let programs = programs();
        run(&programs, |watch| {
            let start = Instant::now();
            programs.delete_chain(Table::Mangle, CANARY).unwrap();
            assert_eq!(watch.check(&programs, start), nothing(FLUSH_INTERVAL));
            programs.delete_chain(Table::Nat, CANARY).unwrap();
            assert_eq!(watch.check(&programs, start + FLUSH_INTERVAL), nothing(FLUSH_INTERVAL));
            programs.delete_chain(Table::Filter, CANARY).unwrap();
            let flushed = watch.check(&programs, start + 2 * FLUSH_INTERVAL).flushed;
            assert!(flushed.unwrap().contains("KUBE-PROXY-CANARY"));
            assert_eq!(watch.canaries, Canaries::Missing);
        });
    }

    #[test]
    fn a_flush_of_one_table_is_reported_after_a_while() {
        let programs = programs();
        run(&programs, |watch| {
            let start = Instant::now();
            programs.delete_chain(Table::Mangle, CANARY).unwrap();
            assert_eq!(watch.check(&programs, start).flushed, None);
            assert_eq!(watch.check(&programs, start + FLUSH_LIMIT - FLUSH_INTERVAL).flushed, None);
            assert!(watch.check(&programs, start + FLUSH_LIMIT).flushed.is_some());
        });
    }
}
