//! Runs the syncs of one family on a thread, so that a program that hangs, or a lock that another process holds, keeps no other family
//! waiting. A sync that takes longer than its caller can wait goes on in the background.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use portwarden_model::{Changes, Desired, Family, Notification, Report, Retry, SyncError};
use portwarden_xtables::Programs;

use crate::background_job::Job;
use crate::error::Error;
use crate::family_rules::{FamilyRules, Task};
use crate::tampering::Checked;

/// One family and what happens to it.
#[derive(Debug)]
pub(crate) struct FamilyWorker {
    family: Family,
    programs: Programs,
    state: State,
    /// How long a sync may keep its caller.
    wait: Duration,
    /// The outcome of a sync that ended in the background: the next call reports it.
    unreported: Option<Result<Report, SyncError>>,
    /// A caller was sent away and waits for [`Notification::Ready`].
    caller_waits: bool,
    /// Notifications were paused for another family.
    missed_notifications: bool,
}

#[derive(Debug)]
enum State {
    Idle(Box<FamilyRules>),
    Busy(Job<Finished>),
    /// Only while the state changes.
    Moving,
}

/// What a thread hands back.
#[derive(Debug)]
struct Finished {
    rules: Box<FamilyRules>,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Synced(Result<Option<Report>, Error>),
    Checked(Checked),
}

impl FamilyWorker {
    pub(crate) fn new(rules: FamilyRules, wait: Duration) -> Self {
        FamilyWorker {
            family: rules.family(),
            programs: rules.programs().clone(),
            state: State::Idle(Box::new(rules)),
            wait,
            unreported: None,
            caller_waits: false,
            missed_notifications: false,
        }
    }

    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// Other processes may have changed rules of this family without our notice.
    pub(crate) fn notifications_were_paused(&mut self) {
        self.missed_notifications = true;
    }

    /// Readable when there is something to [`poll`](Self::poll).
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Idle(rules) => rules.tampering.fd(),
            State::Busy(job) => Some(job.fd()),
            State::Moving => None,
        }
    }

    /// When there is something to [`poll`](Self::poll) even if nothing is readable.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Idle(rules) => rules.tampering.deadline(),
            State::Busy(_) | State::Moving => None,
        }
    }

    /// Brings the kernel to `desired`, or lets that go on in the background.
    pub(crate) fn sync(
        &mut self,
        desired: &Desired,
        changes: &Changes,
        now: Instant,
    ) -> Result<Report, SyncError> {
        // A look at the canaries is over soon; a sync has had its time.
        let wait = if self.caller_waits { Duration::ZERO } else { self.wait };
        let Some(mut rules) = self.become_idle(wait, now) else { return Err(self.still_running()) };
        self.caller_waits = false;
        let mut earlier = match self.unreported.take() {
            None => None,
            Some(Ok(report)) => Some(report),
            Some(Err(error)) => {
                self.state = State::Idle(rules);
                return Err(error);
            }
        };
        rules.sync_begins(now);
        let compared = earlier.as_ref().is_some_and(|report| report.full);
        let full = !rules.is_trusted() || (changes.full && !compared);
        let task = if full { rules.plan_full(desired) } else { rules.plan_partial(desired, changes) };
        let result = match task {
            Ok(mut task) => {
                if let Some(earlier) = &mut earlier {
                    let left_out = rules.leave_out_known_refusals(&mut task);
                    earlier.refused.retain(|refused| left_out.contains(&refused.service));
                }
                self.run(rules, task, desired, now)
            }
            Err(error) => {
                self.state = State::Idle(rules);
                Err(Some(error))
            }
        };
        self.conclude(result, earlier)
    }

    /// Handles what is readable or due.
    pub(crate) fn poll(&mut self, now: Instant) -> Vec<Notification> {
        let mut notifications = Vec::new();
        let family = self.family;
        let was_busy = matches!(self.state, State::Busy(_));
        let mut tampering = None;
        if let State::Busy(_) = self.state
            && let Some(finished) = self.take_finished(Duration::ZERO)
        {
            tampering = self.collect(finished, now);
            if std::mem::take(&mut self.caller_waits) {
                notifications.push(Notification::Ready { family });
            }
        }
        let State::Idle(rules) = &mut self.state else { return notifications };
        rules.read_notices(now);
        let tampering = tampering.or_else(|| rules.tampering.due(now));
        if let Some(what) = tampering {
            rules.distrust();
            notifications.push(Notification::Tampered { family, what });
        }
        if !was_busy && rules.tampering.is_check_due(now) {
            self.start_check(now);
        }
        notifications
    }

    /// The state of the family once nothing runs; `None` if that takes too long.
    fn become_idle(&mut self, wait: Duration, now: Instant) -> Option<Box<FamilyRules>> {
        if let State::Busy(_) = self.state {
            let finished = self.take_finished(wait)?;
            if self.collect(finished, now).is_some()
                && let State::Idle(rules) = &mut self.state
            {
                // The caller is about to sync: no need to ask for it.
                rules.distrust();
            }
        }
        match std::mem::replace(&mut self.state, State::Moving) {
            State::Idle(rules) => Some(rules),
            other => {
                self.state = other;
                None
            }
        }
    }

    fn take_finished(&mut self, wait: Duration) -> Option<Finished> {
        let State::Busy(job) = std::mem::replace(&mut self.state, State::Moving) else { return None };
        match job.wait(wait) {
            Ok(finished) => Some(finished),
            Err(job) => {
                self.state = State::Busy(job);
                None
            }
        }
    }

    /// Takes over what ended in the background. Returns the flush that it found, if any.
    fn collect(&mut self, finished: Finished, now: Instant) -> Option<String> {
        let Finished { mut rules, outcome } = finished;
        let mut flushed = None;
        match outcome {
            Outcome::Checked(checked) => {
                rules.tampering.check_again(now + checked.again);
                flushed = checked.flushed;
            }
            // The next call makes a full sync.
            Outcome::Synced(Ok(None)) => {}
            Outcome::Synced(Ok(Some(mut report))) => {
                report.counts = rules.take_counts();
                self.unreported = Some(Ok(match self.unreported.take() {
                    Some(Ok(earlier)) => sum(earlier, report),
                    _ => report,
                }));
            }
            Outcome::Synced(Err(error)) => {
                let mut error = SyncError::from(error);
                error.report.counts = rules.take_counts();
                self.unreported = Some(Err(error));
            }
        }
        self.state = State::Idle(rules);
        flushed
    }

    /// Carries out a task, and a full sync if the kernel refuses a partial one. `Err(None)`: it goes on in the background.
    fn run(
        &mut self,
        rules: Box<FamilyRules>,
        task: Task,
        desired: &Desired,
        now: Instant,
    ) -> Result<Report, Option<Error>> {
        let (mut rules, mut task) = (rules, task);
        loop {
            let result = if rules.is_trivial(&task) {
                let result = rules.run(task);
                self.state = State::Idle(rules);
                result
            } else {
                self.start(rules, "sync", move |rules| Outcome::Synced(rules.run(task))).map_err(Some)?;
                let Some(finished) = self.take_finished(self.wait) else { return Err(None) };
                self.state = State::Idle(finished.rules);
                match finished.outcome {
                    Outcome::Synced(result) => result,
                    Outcome::Checked(_) => Ok(None),
                }
            };
            if let Some(report) = result.map_err(Some)? {
                return Ok(report);
            }
            let Some(idle) = self.become_idle(self.wait, now) else { return Err(None) };
            rules = idle;
            task = match rules.plan_full(desired) {
                Ok(task) => task,
                Err(error) => {
                    self.state = State::Idle(rules);
                    return Err(Some(error));
                }
            };
        }
    }

    /// Adds what was counted and what an earlier sync did that ended in the background.
    fn conclude(
        &mut self,
        result: Result<Report, Option<Error>>,
        earlier: Option<Report>,
    ) -> Result<Report, SyncError> {
        let counts = match &mut self.state {
            State::Idle(rules) => rules.take_counts(),
            State::Busy(_) | State::Moving => Vec::new(),
        };
        match result {
            Ok(report) => {
                let missed = std::mem::take(&mut self.missed_notifications);
                let missed_notifications = report.missed_notifications || missed;
                let report = Report { counts, missed_notifications, ..report };
                Ok(match earlier {
                    Some(earlier) => sum(earlier, report),
                    None => report,
                })
            }
            Err(Some(error)) => {
                let report = sum(earlier.unwrap_or_default(), Report { counts, ..Report::default() });
                Err(SyncError { report, ..SyncError::from(error) })
            }
            Err(None) => {
                // Reported together with what is running now.
                self.unreported = earlier.map(Ok);
                Err(self.still_running())
            }
        }
    }

    /// The caller is sent away until [`Notification::Ready`].
    fn still_running(&mut self) -> SyncError {
        self.caller_waits = true;
        let error = Error::StillRunning { family: self.family, commands: self.programs.running() };
        SyncError { retry: Retry::OnNotification, ..SyncError::from(error) }
    }

    fn start_check(&mut self, now: Instant) {
        let State::Idle(rules) = std::mem::replace(&mut self.state, State::Moving) else { return };
        let check = move |rules: &mut FamilyRules| Outcome::Checked(rules.check_canaries(now));
        if let Err(error) = self.start(rules, "check", check) {
            tracing::warn!(%error, family = %self.family, "cannot look at the canary chains; trying again later");
            if let State::Idle(rules) = &mut self.state {
                rules.tampering.check_again(now + self.wait);
            }
        }
    }

    fn start(
        &mut self,
        rules: Box<FamilyRules>,
        what: &str,
        work: impl FnOnce(&mut FamilyRules) -> Outcome + Send + 'static,
    ) -> Result<(), Error> {
        let started = Job::start(format!("{}-{what}", self.family), rules, |mut rules| {
            let outcome = work(&mut rules);
            Finished { rules, outcome }
        });
        match started {
            Ok(job) => {
                self.state = State::Busy(job);
                Ok(())
            }
            Err((source, rules)) => {
                self.state = State::Idle(rules);
                Err(Error::Thread { source })
            }
        }
    }
}

/// Programs that run in the background are of no use without the dataplane.
impl Drop for FamilyWorker {
    fn drop(&mut self) {
        self.programs.kill_all();
    }
}

/// What two syncs did, of which the second only had to add what the first one lacked.
fn sum(first: Report, second: Report) -> Report {
    Report {
        full: first.full || second.full,
        written: first.written + second.written,
        refused: [first.refused, second.refused].concat(),
        missed_notifications: first.missed_notifications || second.missed_notifications,
        flows_removed: false,
        gauges: if second.gauges.is_empty() { first.gauges } else { second.gauges },
        counts: [first.counts, second.counts].concat(),
    }
}
