//! One family's way into the kernel: what waits, when it may go, and what happened to it.

use std::time::{Duration, Instant};

use portwarden_model::{Changes, Dataplane, Desired, Family, Pacer, PacerConfig, Report, SyncError};
use tracing::debug;

use super::clock::Moment;
use super::isolation::{Difference, Isolation};
use super::repair::Repair;

/// Everything is compared with the kernel at least this often, whatever was heard of it.
pub const FULL_EVERY: Duration = Duration::from_secs(3600);

/// How long after a write that nobody watched over everything is compared with the kernel: no sooner than this, and so that it takes a
/// small part of the time.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_SHARE: u32 = 20;

/// One dataplane and its work.
pub(super) struct Lane {
    dataplane: Box<dyn Dataplane>,
    pending: Changes,
    pacer: Pacer,
    pacing: PacerConfig,
    repair: Repair,
    isolation: Isolation,
    last_full: Option<Instant>,
    /// How long that took.
    full_took: Duration,
    /// When to compare everything with the kernel, as others may have been at work unseen.
    look_again: Option<Instant>,
    failures: u32,
}

/// What a lane did when it was due.
pub(super) enum Outcome {
    /// Nothing was left to do.
    Idle,
    /// The kernel has it.
    Done(Box<Done>),
    /// The kernel has not; it is tried again.
    Failed(Failure),
}

/// A sync that succeeded.
pub(super) struct Done {
    /// What it brought to the kernel.
    pub(super) changes: Changes,
    pub(super) report: Report,
    pub(super) refused: Difference,
    pub(super) took: Duration,
    /// How many attempts failed before.
    pub(super) failures: u32,
    /// How many Services the kernel refuses now.
    pub(super) isolated: usize,
}

/// A sync that failed.
pub(super) struct Failure {
    pub(super) error: SyncError,
    pub(super) full: bool,
    pub(super) took: Duration,
    /// When it is tried again.
    pub(super) retry: Option<Instant>,
}

impl Lane {
    /// A lane that has everything before it.
    pub(super) fn new(dataplane: Box<dyn Dataplane>, pacing: PacerConfig, now: Instant) -> Self {
        let mut pacer = Pacer::new(pacing, now);
        pacer.request(now);
        Lane {
            dataplane,
            pending: Changes::everything(),
            pacer,
            pacing,
            repair: Repair::default(),
            isolation: Isolation::default(),
            last_full: None,
            full_took: Duration::ZERO,
            look_again: None,
            failures: 0,
        }
    }

    pub(super) fn family(&self) -> Family {
        self.dataplane.family()
    }

    pub(super) fn dataplane(&self) -> &dyn Dataplane {
        self.dataplane.as_ref()
    }

    /// Whether the kernel has had everything once.
    pub(super) fn is_installed(&self) -> bool {
        self.last_full.is_some()
    }

    pub(super) fn set_pacing(&mut self, pacing: PacerConfig) {
        self.pacing = pacing;
        self.pacer.set_config(pacing);
    }

    /// Something came in for this family.
    pub(super) fn request(&mut self, now: Instant) {
        self.pacer.request(now);
    }

    /// Adds what was worked out since.
    pub(super) fn add(&mut self, changes: Changes) {
        self.pending.merge(changes);
    }

    /// Reads what the kernel told. `Some` is what somebody else did, and whether that is news.
    pub(super) fn look_for_tampering(&mut self, now: Instant) -> Option<(String, bool)> {
        let what = self.dataplane.tampering()?;
        // Before the first sync there is nothing of ours; what is there belongs to whom we take over from.
        if !self.is_installed() {
            return None;
        }
        self.pending.full = true;
        Some((what, self.repair.ask(now)))
    }

    /// When this lane has something to do next.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        // While syncs fail, nothing but the pacer's growing patience decides about the next attempt.
        if self.failures > 0 {
            return self.pacer.next_run();
        }
        let others = [self.repair.next(now), self.isolation.next(), self.look_again];
        others.into_iter().chain([self.pacer.next_run()]).flatten().min()
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next(now).is_some_and(|at| at <= now)
    }

    /// Adds what is to be done again by now, apart from new changes.
    pub(super) fn wake(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.last_full.map(|at| at + FULL_EVERY)) || is_due(self.look_again) {
            self.pending.full = true;
        }
        self.pending.services.extend(self.isolation.due(now).cloned());
    }

    /// Brings the kernel to `desired`.
    pub(super) fn sync(&mut self, desired: &Desired, clock: &dyn Fn() -> Moment) -> Outcome {
        let started = clock().instant;
        self.pacer.started(started);
        if self.pending.is_empty() {
            self.pacer.finished(started, Duration::ZERO, true);
            return Outcome::Idle;
        }
        self.announce(desired);
        let result = self.dataplane.sync(desired, &self.pending);
        let ended = clock().instant;
        let took = ended.saturating_duration_since(started);
        self.pacer.finished(ended, took, result.is_ok());
        match result {
            Ok(report) => Outcome::Done(Box::new(self.done(report, ended, took))),
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                Outcome::Failed(Failure {
                    error,
                    full: self.pending.full,
                    took,
                    retry: self.pacer.next_run(),
                })
            }
        }
    }

    fn announce(&self, desired: &Desired) {
        let (mode, family) = (self.dataplane.mode(), self.family());
        debug!(ipFamily = %family, fullSync = self.pending.full, "Syncing {mode} rules");
        debug!(
            ipFamily = %family, numServices = desired.services().len(), numEndpoints = desired.totals().endpoints,
            "Reloading service {mode} data"
        );
    }

    fn done(&mut self, mut report: Report, ended: Instant, took: Duration) -> Done {
        let changes = std::mem::take(&mut self.pending);
        if changes.full || report.full {
            (self.last_full, self.full_took) = (Some(ended), took);
            self.look_again = None;
            self.repair.done(ended, took);
        }
        if report.unwatched && self.look_again.is_none() {
            self.look_again = Some(ended + LOOK_AGAIN.max(self.full_took * LOOK_AGAIN_SHARE));
        }
        let isolated = std::mem::take(&mut report.isolated);
        let refused = self.isolation.report(&changes, isolated, ended, self.pacing.sync_period);
        let failures = std::mem::take(&mut self.failures);
        Done { changes, report, refused, took, failures, isolated: self.isolation.len() }
    }
}
