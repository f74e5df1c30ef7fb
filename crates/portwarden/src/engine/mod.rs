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
//! | `outputs.rs` | what the engine publishes: health-check ports, notices |

mod clock;
mod conntrack;
mod event_intake;
mod family_sync;
mod flows;
mod heartbeat;
mod inbox;
mod memory_return;
mod node_wait;
mod outputs;
mod problem_log;
mod refused_services;
mod repair;
mod run;
mod sync_set;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use portwarden_model::{
    Changes, Cluster, Dataplane, Event, Family, GoneFrontend, NamespacedName, Notification, PacerConfig,
    PerFamily, Problem, RefusedService, Settings,
};
use portwarden_source::{Health, Update};
use tracing::{debug, error, info, trace, warn};

use crate::health::SharedHealth;
use crate::introspection::{Activity, SyncRecord};
use crate::metrics::Metrics;

pub use clock::{Clock, Moment};
pub use conntrack::ConntrackFlows;
pub use event_intake::{NodeWait, log_waiting_for_caches};
pub use flows::{Flows, FlowsError};
pub use heartbeat::{Heartbeat, Stage};
pub use inbox::{Handle, Inbox, inbox};
pub use outputs::{EngineOutputs, EngineReceivers, HealthCheckPorts, Notice};
pub use run::run;

use event_intake::{EventIntake, Readiness};
use family_sync::{Done, Failure, FamilySync, Outcome};
use flows::Cleanup;
use node_wait::Missing;
use problem_log::ProblemLog;
use sync_set::SyncSet;

/// A message to the engine.
pub enum Message {
    /// Events, problems or the status of the source.
    Update(Update),
    /// The configuration changed.
    Reconfigure(Box<Reconfiguration>),
    /// Runs a function on the cluster, for `explain` and checks.
    Inspect(Box<dyn FnOnce(&Cluster) + Send>),
    /// The process ends; the kernel keeps its rules.
    Stop,
}

/// What a changed configuration means for the engine.
pub struct Reconfiguration {
    /// The model's settings.
    pub settings: Settings,
    /// When syncs may happen.
    pub pacing: PacerConfig,
    /// Other dataplanes, if the mode or its options changed.
    pub dataplanes: Option<Replacement>,
}

/// Dataplanes that replace the current ones.
pub struct Replacement {
    /// The mode that they belong to.
    pub words: ModeWords,
    /// Together they serve all families.
    pub dataplanes: Vec<Box<dyn Dataplane>>,
    /// Removes what the current ones leave behind, once the new ones have installed everything. `None` if the new ones use the same
    /// objects.
    pub remove_leftovers: Option<RemoveLeftovers>,
}

/// How a mode appears in logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeWords {
    /// As in `--proxy-mode`.
    pub name: &'static str,
    /// The log message of a failed sync. Alerts search for it.
    pub sync_failed: &'static str,
    /// The counters that the mode's dataplanes report, with their help texts. They are visible before they count anything.
    pub counters: &'static [(&'static str, &'static str)],
}

/// Removes the leftovers of other proxies and modes. Called once, when our rules are complete; must not block.
pub type RemoveLeftovers = Box<dyn FnOnce() + Send>;

/// Checks whether the configuration fits the node, once that is known.
pub type Check = Box<dyn FnOnce(&Cluster) -> Result<(), String> + Send>;

/// Everything that an engine is built from.
pub struct EngineParts {
    /// The model's settings.
    pub settings: Settings,
    /// The mode that the dataplanes belong to.
    pub words: ModeWords,
    /// Together they serve all families.
    pub dataplanes: Vec<Box<dyn Dataplane>>,
    /// When syncs may happen.
    pub pacing: PacerConfig,
    /// How long the first sync waits for the Node.
    pub node_wait: NodeWait,
    /// Removes leftovers of other programs and modes after the first syncs.
    pub remove_leftovers: Option<RemoveLeftovers>,
    /// Inspects the cluster before the first sync: an error ends the engine.
    pub check: Check,
    /// How flows are removed.
    pub flows: Box<dyn Flows>,
    /// Gets the state of every family.
    pub health: SharedHealth,
    /// Gets counts and durations.
    pub metrics: Metrics,
    /// Channels to the tasks of the runtime.
    pub outputs: EngineOutputs,
    /// Shows progress to the watchdog.
    pub heartbeat: Heartbeat,
    /// Gets what happens, for the introspection server.
    pub activity: Activity,
    /// Tests replace it.
    pub clock: Clock,
}

/// Why the engine failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Pod traffic is identified by the Node's pod ranges, and the Node does not get any.
    #[error(
        "timeout waiting for PodCIDR allocation on node {0:?}; detectLocalMode NodeCIDR needs spec.podCIDRs on the Node: check that the \
         controller manager allocates node CIDRs, or choose another detectLocalMode"
    )]
    NoPodCidrs(String),
    /// Pod traffic is identified by the Node's pod ranges, and there is no Node.
    #[error(
        "timeout waiting for node {0:?} to exist; detectLocalMode NodeCIDR needs its spec.podCIDRs: check that the kubelet runs and \
         registers under this name (see --hostname-override), or choose another detectLocalMode"
    )]
    NoNode(String),
    /// The configuration does not fit the node.
    #[error("{0}")]
    Misconfigured(String),
    /// The thread cannot sleep on its descriptors.
    #[error("cannot wait for events on the engine's descriptors")]
    Wait(#[source] std::io::Error),
}

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

    fn notified(&mut self, notification: Notification, now: Moment) {
        match notification {
            Notification::Tampered { family, what } => self.tampered(family, &what, now),
            Notification::Ready { family } => {
                self.syncs.of(family).for_each(|sync| sync.ready(now.instant));
            }
            Notification::Refused { family, refused } => {
                // During a change of mode there are two of a family, and both must know.
                let report = |sync: &mut FamilySync| sync.refused_late(refused.clone(), now.instant);
                let news: Vec<bool> = self.syncs.of(family).map(report).collect();
                if news.contains(&true) {
                    self.report_refused(family, &refused);
                }
                self.show_refused(family);
            }
            Notification::Accepted { family, service } => {
                let known: Vec<BTreeSet<GoneFrontend>> =
                    self.syncs.of(family).filter_map(|sync| sync.accepted_late(&service)).collect();
                if !known.is_empty() {
                    self.report_accepted(family, &service);
                }
                let gone: BTreeSet<GoneFrontend> = known.into_iter().flatten().collect();
                if !gone.is_empty() {
                    self.cleanup.request(family, false, gone, now.instant);
                }
                self.show_refused(family);
            }
            Notification::Restored { family, written } => self.restored(family, written, now),
            Notification::Counts { family, counts } => self.metrics.mode.count(family, &counts),
        }
    }

    fn tampered(&mut self, family: Family, what: &str, now: Moment) {
        let news: Vec<bool> = self.syncs.of(family).filter_map(|sync| sync.tampered(now.instant)).collect();
        if news.is_empty() {
            return;
        }
        self.metrics.own.tampering.with_label_values(&[family.as_str()]).inc();
        if news.contains(&true) {
            warn!(ipFamily = %family, what, "Another process changed our rules; restoring them");
        }
        self.activity.tampered(family, what, now);
        self.health.queued(family, now.instant);
        self.metrics.sync.queued(family, now.wall);
    }

    /// A comparison found what no notification had named.
    fn restored(&mut self, family: Family, written: usize, now: Moment) {
        let label = &[family.as_str()];
        self.metrics.own.tampering.with_label_values(label).inc();
        self.metrics.own.written.with_label_values(label).inc_by(written as u64);
        warn!(ipFamily = %family, written, "Part of our rules was missing or changed; it is restored");
        self.activity.tampered(family, &format!("{written} elements differed and were restored"), now);
        // While rules were missing, flows may have passed without redirection.
        self.cleanup.request(family, true, BTreeSet::new(), now.instant);
    }

    fn report_accepted(&self, family: Family, service: &NamespacedName) {
        info!(ipFamily = %family, %service, "The kernel accepts a Service that it had refused");
        self.activity.accepted(family, service, (self.clock)());
    }

    fn report_refused(&self, family: Family, refused: &RefusedService) {
        error!(ipFamily = %family, service = %refused.service, err = refused.reason, "The kernel refuses a Service; all others are in force");
        self.activity.refused(family, refused, (self.clock)());
        self.outputs.notice(Notice::Refused { family, refused: refused.clone() });
    }

    fn show_refused(&mut self, family: Family) {
        let count: usize = self.syncs.of(family).map(|sync| sync.refused_now()).sum();
        self.metrics.own.refused_services.with_label_values(&[family.as_str()]).set(count as f64);
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

    /// One line after the first syncs: what is in force.
    fn log_in_force(&self) {
        let families = self.syncs.families();
        let mut services = BTreeSet::new();
        let mut refused = BTreeSet::new();
        for family in &families {
            for (name, _) in self.cluster.desired(*family).services() {
                let list = if self.syncs.is_refused(*family, name) { &mut refused } else { &mut services };
                list.insert(name);
            }
        }
        if !refused.is_empty() {
            warn!(
                services = refused.len(),
                "The kernel refuses Services; see the errors above, and portwarden status"
            );
        }
        if services.is_empty() {
            if refused.is_empty() {
                warn!(
                    "No Service is known, so nothing is proxied; check --manifests, or what the API server lists"
                );
            }
            return;
        }
        let endpoints: Vec<String> = families
            .iter()
            .map(|family| format!("{family}: {}", self.cluster.desired(*family).totals().endpoints))
            .collect();
        info!(services = services.len(), endpoints = endpoints.join(", "), "The rules are in force");
    }

    fn succeeded(&mut self, words: ModeWords, family: Family, done: Done) {
        let mode = words.name;
        let now = (self.clock)();
        let desired = self.cluster.desired(family);
        let label = &[family.as_str()];
        self.metrics.sync.attempted(family, done.report.full, done.took);
        self.metrics.sync.succeeded(family, now.wall, desired.totals(), &done.changes.trigger_times);
        self.metrics.mode.show(family, &done.report.gauges);
        self.metrics.mode.count(family, &done.report.counts);
        self.metrics.own.written.with_label_values(label).inc_by(done.report.written as u64);
        self.metrics.own.refused_services.with_label_values(label).set(done.refused_now as f64);
        let waited = self.health.oldest_queued(family);
        let record = SyncRecord {
            at: now,
            family,
            mode,
            full: done.changes.full || done.report.full,
            took: done.took,
            change_to_kernel: waited.map(|since| now.instant.saturating_duration_since(since)),
            written: done.report.written,
            services: done.changes.services.len(),
            error: None,
        };
        self.activity.synced(record, desired);
        self.health.updated(family, now.instant);
        for trigger in &done.changes.trigger_times {
            let nanos = now.wall.as_nanos().saturating_sub(trigger.as_nanos());
            let elapsed = Duration::from_nanos(u64::try_from(nanos).unwrap_or_default());
            trace!(ipFamily = %family, ?elapsed, "Network programming");
        }
        debug!(
            ipFamily = %family, mode, full = done.report.full, services = desired.services().len(),
            endpoints = desired.totals().endpoints, written = done.report.written, elapsed = ?done.took,
            "SyncProxyRules complete"
        );
        if done.failures > 0 {
            info!(ipFamily = %family, mode, failures = done.failures, "Syncs succeed again");
        }
        if let Some(elapsed) = done.repaired {
            let ms = elapsed.as_millis();
            info!(ipFamily = %family, mode, written = done.report.written, "Our rules are complete again: repaired in {ms} ms");
        }
        for refused in &done.refused.fresh {
            self.report_refused(family, refused);
        }
        for service in &done.refused.recovered {
            self.report_accepted(family, service);
        }
        self.outputs.health_checks(desired, &done.changes);
        // Before a full sync rules may have been missing, so flows may have passed without redirection.
        let full = done.changes.full || done.report.full;
        // While a Service was refused, its old rules led flows to endpoints that may have left meanwhile.
        let accepted = !done.refused.recovered.is_empty();
        let concerned = full || accepted || done.changes.udp || !done.changes.gone.is_empty();
        if concerned && !done.report.flows_removed {
            self.cleanup.request(family, full, done.changes.gone, now.instant);
        }
    }

    fn unfinished(&self, words: ModeWords, family: Family, failure: &Failure) {
        self.metrics.mode.count(family, &failure.error.report.counts);
        let reason = crate::logging::chain(failure.error.source.as_ref());
        info!(ipFamily = %family, mode = words.name, reason, elapsed = ?failure.took, "The sync continues in the background");
    }

    fn failed(&self, words: ModeWords, family: Family, failure: &Failure) {
        let (mode, applied) = (words.name, &failure.error.report);
        self.metrics.sync.attempted(family, failure.full, failure.took);
        self.metrics.mode.count(family, &applied.counts);
        self.metrics.own.written.with_label_values(&[family.as_str()]).inc_by(applied.written as u64);
        let err = crate::logging::chain(failure.error.source.as_ref());
        error!(ipFamily = %family, err = err.as_str(), applied = applied.written, "{}", words.sync_failed);
        self.activity.sync_failed(SyncRecord {
            at: (self.clock)(),
            family,
            mode,
            full: failure.full,
            took: failure.took,
            change_to_kernel: None,
            written: applied.written,
            services: 0,
            error: Some(err),
        });
        let retrying = failure.retry.map(|at| at.saturating_duration_since((self.clock)().instant));
        info!(ipFamily = %family, mode, retryingTime = ?retrying.unwrap_or_default(), "Sync failed");
    }
}
