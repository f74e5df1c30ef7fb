//! One family of a dataplane: pending changes, when they are synced, and the outcome.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use portwarden_model::{
    Changes, Dataplane, Desired, Family, GoneFrontend, NamespacedName, Pacer, PacerConfig, RefusedService,
    Report, Retry, SyncError,
};
use tracing::debug;

use super::clock::Moment;
use super::refused_services::{Difference, RefusedServices};
use super::repair::Repair;

/// How long after a write without notifications everything is compared with the kernel: at least this, and long enough that comparisons take a
/// small part of the time.
const COMPARE_AGAIN: Duration = Duration::from_secs(1);
const COMPARE_AGAIN_SHARE: u32 = 20;

/// The work of one dataplane for one family.
pub(super) struct FamilySync {
    family: Family,
    pending: Changes,
    pacer: Pacer,
    pacing: PacerConfig,
    repair: Repair,
    refused: RefusedServices,
    last_full: Option<Instant>,
    /// How long after it the next one is due without any other cause.
    full_sync_interval: Option<Duration>,
    /// How long the last full sync took.
    full_took: Duration,
    /// When to compare everything with the kernel, because changes by other processes may have gone unnoticed.
    compare_again: Option<Instant>,
    /// A sync continues in the background of the dataplane, which reports when the call can be repeated.
    background: Option<Background>,
    failures: u32,
}

struct Background {
    started: Instant,
    /// When the call is repeated even without a report.
    ask_again: Instant,
}

/// The outcome of a due family.
pub(super) enum Outcome {
    /// There was nothing to do.
    Idle,
    /// The dataplane needs more time, and reports when the sync can be repeated.
    Unfinished(Box<Failure>),
    /// The kernel is in the desired state.
    Done(Box<Done>),
    /// Part of it is missing; the engine retries.
    Failed(Box<Failure>),
}

/// A sync that succeeded.
pub(super) struct Done {
    /// The changes that the kernel has now.
    pub(super) changes: Changes,
    pub(super) report: Report,
    pub(super) refused: Difference,
    pub(super) took: Duration,
    /// How many attempts failed before.
    pub(super) failures: u32,
    /// How many Services the kernel refuses now.
    pub(super) refused_now: usize,
    /// How long it took to undo changes by another process, if they were logged.
    pub(super) repaired: Option<Duration>,
}

/// A sync that failed or needs more time.
pub(super) struct Failure {
    pub(super) error: SyncError,
    pub(super) full: bool,
    pub(super) took: Duration,
    /// When the engine retries.
    pub(super) retry: Option<Instant>,
}

impl FamilySync {
    /// Nothing is in the kernel yet: the first sync writes everything.
    pub(super) fn new(family: Family, pacing: PacerConfig, now: Instant) -> Self {
        let mut pacer = Pacer::new(pacing, now);
        pacer.request(now);
        FamilySync {
            family,
            pending: Changes::everything(),
            pacer,
            pacing,
            repair: Repair::default(),
            refused: RefusedServices::default(),
            last_full: None,
            full_sync_interval: None,
            full_took: Duration::ZERO,
            compare_again: None,
            background: None,
            failures: 0,
        }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// Whether the kernel has had everything once.
    pub(super) fn is_installed(&self) -> bool {
        self.last_full.is_some()
    }

    pub(super) fn set_pacing(&mut self, pacing: PacerConfig) {
        self.pacing = pacing;
        self.pacer.set_config(pacing);
    }

    /// An event touches this family.
    pub(super) fn request(&mut self, now: Instant) {
        self.pacer.request(now);
    }

    /// Adds changes that the model resolved.
    pub(super) fn add(&mut self, changes: Changes) {
        self.pending.merge(changes);
    }

    /// The changes that no sync has brought to the kernel yet.
    pub(super) fn pending(&self) -> Changes {
        let mut pending = self.pending.clone();
        pending.gone.extend(self.refused.gone());
        pending
    }

    /// Another process changed our objects. Returns whether that is news; `None` before the first sync, when the rules belong to the proxy that we
    /// take over from.
    pub(super) fn tampered(&mut self, now: Instant) -> Option<bool> {
        if !self.is_installed() {
            return None;
        }
        self.pending.full = true;
        Some(self.repair.ask(now))
    }

    /// The sync in the background can be repeated now.
    pub(super) fn ready(&mut self, now: Instant) {
        if let Some(background) = &mut self.background {
            background.ask_again = now;
        }
    }

    /// A Service turned out to be unusable after its sync. Returns whether that is news.
    pub(super) fn refused_late(&mut self, refused: RefusedService, now: Instant) -> bool {
        self.refused.add(refused, now, self.pacing.sync_period)
    }

    /// A refused Service works now. Returns the frontends whose rules it may have kept, if it was known as refused.
    pub(super) fn accepted_late(&mut self, service: &NamespacedName) -> Option<BTreeSet<GoneFrontend>> {
        self.refused.remove(service)
    }

    /// How many Services the kernel refuses now.
    pub(super) fn refused_now(&self) -> usize {
        self.refused.len()
    }

    pub(super) fn is_refused(&self, service: &NamespacedName) -> bool {
        self.refused.contains(service)
    }

    /// When there is something to do next.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        if let Some(background) = &self.background {
            return Some(background.ask_again);
        }
        if self.failures > 0 {
            // While syncs fail, the pacer's growing intervals alone decide about the next attempt.
            return self.pacer.next_run();
        }
        let others = [self.repair.next(now), self.refused.next(), self.compare_again, self.next_full()];
        others.into_iter().chain([self.pacer.next_run()]).flatten().min()
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next(now).is_some_and(|at| at <= now)
    }

    /// Adds what is due apart from new changes: retries of refused Services, periodic full syncs. Nothing else schedules full syncs without a cause.
    pub(super) fn wake(&mut self, full_sync_interval: Option<Duration>, now: Instant) {
        self.full_sync_interval = full_sync_interval;
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.next_full()) || is_due(self.compare_again) {
            self.pending.full = true;
        }
        self.pending.services.extend(self.refused.due(now).cloned());
    }

    /// When a full sync is due without any other cause.
    fn next_full(&self) -> Option<Instant> {
        self.last_full.zip(self.full_sync_interval).map(|(last, interval)| last + interval)
    }

    /// Brings the kernel to `desired`.
    pub(super) fn sync(
        &mut self,
        dataplane: &mut dyn Dataplane,
        mode: &str,
        desired: &Desired,
        clock: &dyn Fn() -> Moment,
    ) -> Outcome {
        let started = clock().instant;
        self.pacer.started(started);
        if self.pending.is_empty() {
            self.pacer.finished(started, Duration::ZERO, true);
            return Outcome::Idle;
        }
        self.log_start(mode, desired);
        let result = dataplane.sync(desired, &self.pending, started);
        let ended = clock().instant;
        let started = self.background.take().map_or(started, |background| background.started);
        let took = ended.saturating_duration_since(started);
        let full = self.pending.full;
        if let Err(SyncError { report: Report { missed_notifications: true, .. }, .. }) = &result {
            self.compare_again_after(ended);
        }
        match result {
            Err(error) if error.retry == Retry::OnNotification => {
                let ask_again = ended + self.pacing.sync_period;
                self.background = Some(Background { started, ask_again });
                Outcome::Unfinished(Box::new(Failure { error, full, took, retry: Some(ask_again) }))
            }
            Err(error) => {
                self.pacer.finished(ended, took, false);
                self.failures = self.failures.saturating_add(1);
                Outcome::Failed(Box::new(Failure { error, full, took, retry: self.pacer.next_run() }))
            }
            Ok(report) => {
                self.pacer.finished(ended, took, true);
                Outcome::Done(Box::new(self.done(report, ended, took)))
            }
        }
    }

    fn log_start(&self, mode: &str, desired: &Desired) {
        let family = self.family;
        debug!(ipFamily = %family, fullSync = self.pending.full, "Syncing {mode} rules");
        debug!(
            ipFamily = %family, numServices = desired.services().len(), numEndpoints = desired.totals().endpoints,
            "Reloading service {mode} data"
        );
    }

    fn done(&mut self, mut report: Report, ended: Instant, took: Duration) -> Done {
        let mut changes = std::mem::take(&mut self.pending);
        let mut repaired = None;
        if changes.full || report.full {
            (self.last_full, self.full_took) = (Some(ended), took);
            self.compare_again = None;
            repaired = self.repair.done(ended, took);
        }
        if report.missed_notifications {
            self.compare_again_after(ended);
        }
        let refused = std::mem::take(&mut report.refused);
        let mut refused = self.refused.report(&changes, refused, ended, self.pacing.sync_period);
        changes.gone.append(&mut refused.gone);
        let failures = std::mem::take(&mut self.failures);
        Done { changes, report, refused, took, failures, refused_now: self.refused.len(), repaired }
    }

    /// Something was written without notifications. Only a full sync finds what other processes changed meanwhile.
    fn compare_again_after(&mut self, ended: Instant) {
        let wait = COMPARE_AGAIN.max(self.full_took * COMPARE_AGAIN_SHARE);
        self.compare_again.get_or_insert(ended + wait);
    }
}
