//! The engine: applies events from the source, resolves the desired state, and syncs the kernel to it.
//!
//! It runs on a thread of its own (see [`run`]), because everything it does with the kernel blocks. Time comes from a [`Clock`] and the
//! kernel from [`Dataplane`]s, so that tests control both.
//!
//! | file | what |
//! |---|---|
//! | `inbox.rs` | messages to the engine, and a descriptor to wait for |
//! | `run.rs` | the loop of the thread |
//! | `memory_return.rs` | when free memory goes back to the system |
//! | `heartbeat.rs` | shows other threads whether the engine makes progress |
//! | `event_intake.rs` | applies events to the cluster; decides when the first sync may happen |
//! | `node_wait.rs` | logs what the first sync waits for |
//! | `family_sync.rs` | one family: pending changes, when they are synced, retries, periodic full syncs |
//! | `sync_set.rs` | all dataplanes, and the change from one mode to another |
//! | `problem_log.rs` | problems of objects in the log, limited |
//! | `refused_services.rs` | Services that the kernel refuses |
//! | `repair.rs` | how fast changes by other processes are undone |
//! | `flows.rs`, `conntrack.rs` | removing stale flows after syncs |
//! | `notifications.rs` | what dataplanes detect outside of a sync |
//! | `outcomes.rs` | what became of a sync, in health, metrics and the log |
//! | `outputs.rs` | what the engine publishes: health-check ports, notices |
//! | `parts.rs` | what an engine is built from, messages, errors |

mod clock;
mod conntrack;
mod event_intake;
mod family_sync;
mod flows;
mod heartbeat;
mod inbox;
mod memory_return;
mod node_wait;
mod notifications;
mod outcomes;
mod outputs;
mod parts;
mod problem_log;
mod refused_services;
mod repair;
mod run;
mod sync_set;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Instant;

use portwarden_model::{Changes, Cluster, Event, Family, GoneFrontend, PerFamily, Problem};
use portwarden_source::{Health, Update};
use tracing::{error, info};

use crate::health::SharedHealth;
use crate::introspection::Activity;
use crate::metrics::Metrics;

pub use clock::{Clock, Moment};
pub use conntrack::ConntrackFlows;
pub use event_intake::{NodeWait, log_waiting_for_caches};
pub use flows::{Flows, FlowsError};
pub use heartbeat::{Heartbeat, Stage};
pub use inbox::{Handle, Inbox, inbox};
pub use outputs::{EngineOutputs, EngineReceivers, HealthCheckPorts, Notice};
pub use parts::{
    Check, EngineError, EngineParts, Message, ModeWords, Reconfiguration, RemoveLeftovers, Replacement,
};
pub use run::run;

use event_intake::{EventIntake, Readiness};
use family_sync::Outcome;
use flows::Cleanup;
use node_wait::Missing;
use problem_log::ProblemLog;
use sync_set::SyncSet;

/// The engine's state.
pub struct Engine {
    cluster: Cluster,
    intake: EventIntake,
    syncs: SyncSet,
    check: Option<Check>,
    cleanup: Cleanup,
    health: SharedHealth,
    metrics: Metrics,
    outputs: EngineOutputs,
    heartbeat: Heartbeat,
    activity: Activity,
    problem_log: ProblemLog,
    clock: Clock,
    /// Whether the log says that everything is in force.
    announced: bool,
    stopped: bool,
}

impl Engine {
    /// An engine without events; nothing is written yet.
    pub fn new(parts: EngineParts) -> Self {
        let now = (parts.clock)();
        let engine = Engine {
            cluster: Cluster::new(parts.settings),
            intake: EventIntake::new(parts.node_wait, parts.metrics.changes.clone()),
            syncs: SyncSet::new(
                parts.words,
                parts.dataplanes,
                parts.pacing,
                parts.remove_leftovers,
                now.instant,
            ),
            check: Some(parts.check),
            cleanup: Cleanup::new(parts.flows),
            health: parts.health,
            metrics: parts.metrics,
            outputs: parts.outputs,
            heartbeat: parts.heartbeat,
            activity: parts.activity,
            problem_log: ProblemLog::default(),
            clock: parts.clock,
            announced: false,
            stopped: false,
        };
        engine.announce(now);
        engine
    }

    /// Names the UDP frontends that an earlier process left in the kernel. The first sync removes the flows to those that no Service has any more.
    pub fn take_over(&mut self, earlier: &PerFamily<BTreeSet<GoneFrontend>>) {
        let changes =
            PerFamily::from_fn(|family| Changes { gone: earlier[family].clone(), ..Changes::default() });
        self.syncs.add(&changes);
    }

    /// Whether a message asked it to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Where the engine shows its progress.
    pub(super) fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Handles a message.
    pub fn take(&mut self, message: Message) {
        self.heartbeat.enter(Stage::Messages);
        match message {
            Message::Update(Update::Events(batch)) => self.apply(batch.into_events()),
            Message::Update(Update::Problems(problems)) => self.report_problems(problems),
            Message::Update(Update::Status(status)) => {
                let failing = self.metrics.own.source_failing.with_label_values(&[&status.part]);
                let now = (self.clock)();
                match status.health {
                    Health::Following => {
                        self.activity.source(&status.part, None, now);
                        failing.set(0.0);
                        info!(part = status.part, "Following changes");
                    }
                    Health::Failing(why) => {
                        self.activity.source(&status.part, Some(&why), now);
                        failing.set(1.0);
                        error!(
                            part = status.part,
                            err = why,
                            "Cannot follow changes; the last known state stays in force"
                        );
                    }
                }
            }
            Message::Reconfigure(wanted) => self.reconfigure(*wanted),
            Message::Inspect(inspect) => inspect(&self.cluster),
            Message::Stop => self.stopped = true,
        }
    }

    fn report_problems(&mut self, problems: Vec<Problem>) {
        if problems.is_empty() {
            return;
        }
        self.metrics.own.object_problems.inc_by(problems.len() as u64);
        let now = (self.clock)();
        self.activity.problems(&problems, now);
        for problem in problems {
            self.problem_log.log(&problem, now.instant);
            self.outputs.notice(Notice::Problem(problem));
        }
    }

    /// Applies events and requests syncs of the families that they affect.
    pub fn apply(&mut self, events: Vec<Event>) {
        let now = (self.clock)();
        let waited = !self.cluster.is_synced();
        self.activity.changed(events.len());
        let touched = self.intake.apply(&mut self.cluster, events, &self.syncs.families());
        let problems = self.cluster.take_problems();
        self.report_problems(problems);
        self.health.set_node_eligible(self.intake.is_node_eligible(&self.cluster));
        let first = waited && self.cluster.is_synced();
        for family in self.syncs.families() {
            if first || touched.node || (touched.objects && self.cluster.pending(family) > 0) {
                self.request(family, now);
            }
        }
    }

    /// Does what is due, and returns when something is due next.
    pub fn turn(&mut self) -> Result<Option<Instant>, EngineError> {
        let now = (self.clock)();
        match self.intake.readiness(&self.cluster, now.instant) {
            Readiness::Ready => {}
            Readiness::Wait(until) => return Ok(until),
            Readiness::Failed(missing) => {
                let node = self.cluster.settings().node_name.to_string();
                return Err(match missing {
                    Missing::Node => EngineError::NoNode(node),
                    Missing::Addresses | Missing::PodCidrs => EngineError::NoPodCidrs(node),
                });
            }
        }
        self.poll_dataplanes_due(now.instant);
        if self.syncs.is_due(now.instant) {
            self.sync()?;
        }
        self.heartbeat.enter(Stage::Flows);
        // Of both families: a mode that serves one of them may have replaced one that served both.
        for family in Family::BOTH {
            self.cleanup.run(family, &self.cluster, &self.metrics, self.clock.as_ref());
        }
        let now = (self.clock)().instant;
        Ok([self.syncs.next_sync(now), self.syncs.next_poll(), self.cleanup.next()]
            .into_iter()
            .flatten()
            .min())
    }

    /// Lets dataplanes handle readable descriptors and deadlines, and handles their notifications.
    pub fn poll_dataplanes(&mut self) {
        self.heartbeat.enter(Stage::Poll);
        let now = (self.clock)();
        for notification in self.syncs.poll(now.instant) {
            self.notified(notification, now);
        }
    }

    fn poll_dataplanes_due(&mut self, now: Instant) {
        if self.syncs.next_poll().is_some_and(|at| at <= now) {
            self.poll_dataplanes();
        }
    }

    /// Descriptors that are readable when [`Engine::poll_dataplanes`] has something to do.
    pub fn watch_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        self.syncs.watch_fds()
    }

    /// A started loop counts as an update for health, as in kube-proxy.
    fn announce(&self, now: Moment) {
        for family in self.syncs.families() {
            self.health.updated(family, now.instant);
            self.metrics.sync.queued(family, now.wall);
        }
        self.announce_modes();
    }

    fn announce_modes(&self) {
        for words in self.syncs.modes() {
            self.metrics.mode.announce(words.counters);
        }
        self.show_modes();
    }

    fn show_modes(&self) {
        let modes: Vec<&'static str> = self.syncs.modes().map(|words| words.name).collect();
        self.activity.modes(&self.syncs.families(), &modes, (self.clock)());
    }

    fn request(&mut self, family: Family, now: Moment) {
        self.syncs.request(family, now.instant);
        // Nothing can be written before Services and slices are known. A restart because of bad health would not make the API server
        // answer.
        if self.cluster.is_synced() {
            self.health.queued(family, now.instant);
        }
        self.metrics.sync.queued(family, now.wall);
    }

    fn reconfigure(&mut self, wanted: Reconfiguration) {
        let now = (self.clock)();
        self.cluster.set_settings(wanted.settings);
        let problems = self.cluster.take_problems();
        self.report_problems(problems);
        self.syncs.set_pacing(wanted.pacing);
        if let Some(replacement) = wanted.dataplanes {
            self.syncs.replace(replacement, wanted.pacing, now.instant);
        }
        self.announce_modes();
        self.forget_unserved_families();
        for family in self.syncs.families() {
            // A family that the last mode did not serve may never succeed; health must show that.
            self.health.started(family, now.instant);
            self.request(family, now);
        }
    }

    /// Changes of a family that the new mode does not serve wait for no sync.
    fn forget_unserved_families(&self) {
        let served = self.syncs.families();
        let unserved = Family::BOTH.into_iter().filter(|family| !served.contains(family));
        unserved.for_each(|family| self.health.stopped(family));
    }

    /// Resolves the events so far, and syncs the families that are due.
    fn sync(&mut self) -> Result<(), EngineError> {
        self.heartbeat.enter(Stage::Resolve);
        let changes = self.cluster.resolve();
        self.heartbeat.enter(Stage::Sync);
        self.intake.resolved();
        self.syncs.add(&changes);
        if let Some(check) = self.check.take() {
            check(&self.cluster).map_err(EngineError::Misconfigured)?;
        }
        let mut outcomes = Vec::new();
        self.syncs.sync(&self.cluster, self.clock.as_ref(), |words, family, outcome| {
            outcomes.push((words, family, outcome));
        });
        for (words, family, outcome) in outcomes {
            match outcome {
                Outcome::Idle => self.health.updated(family, (self.clock)().instant),
                Outcome::Done(done) => self.succeeded(words, family, *done),
                Outcome::Unfinished(failure) => self.unfinished(words, family, &failure),
                Outcome::Failed(failure) => self.failed(words, family, &failure),
            }
        }
        if self.syncs.finish_change() {
            self.outputs.installed();
            self.forget_unserved_families();
        }
        self.show_modes();
        if !self.announced && self.syncs.is_installed() {
            self.announced = true;
            self.log_in_force();
        }
        Ok(())
    }
}
