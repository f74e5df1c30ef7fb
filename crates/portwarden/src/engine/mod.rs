//! The engine: takes in what the source tells, works out what follows, and brings the kernel to it.
//!
//! It runs on a thread of its own (see [`run`]), because everything it does with the kernel blocks. Time comes from a [`Clock`] and the
//! kernel from [`Dataplane`]s, so that tests decide about both.
//!
//! | file | what |
//! |---|---|
//! | `inbox.rs` | the way in: messages, and a descriptor to sleep on |
//! | `run.rs` | the loop of the thread |
//! | `arrivals.rs` | events on their way into the cluster: counting, the Node's special cases |
//! | `waiting.rs` | what the first sync waits for, in the log |
//! | `lane.rs` | one family: what waits, when it may go, retries |
//! | `lanes.rs` | the families together, and the change from one mode to another |
//! | `isolation.rs` | Services that the kernel refuses |
//! | `repair.rs` | putting back what others changed |
//! | `flows.rs`, `conntrack.rs` | removing stale flows after syncs |
//! | `published.rs`, `loopback.rs` | what leaves the engine: health-check ports, node ports on loopback addresses, notices |

mod arrivals;
mod clock;
mod conntrack;
mod flows;
mod inbox;
mod isolation;
mod lane;
mod lanes;
mod loopback;
mod published;
mod repair;
mod run;
mod waiting;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use portwarden_model::{Cluster, Dataplane, Event, Family, PacerConfig, Settings};
use portwarden_source::{Health, Update};
use tracing::{debug, error, info, trace, warn};

use crate::health::SharedHealth;
use crate::metrics::Metrics;

pub use arrivals::{NodeWait, tell_waiting};
pub use clock::{Clock, Moment};
pub use conntrack::ConntrackFlows;
pub use flows::Flows;
pub use inbox::{Handle, Inbox, inbox};
pub use lane::FULL_EVERY;
pub use loopback::{LoopbackPort, LoopbackPorts};
pub use published::{HealthCheckPorts, Notice, Outlets, Published};
pub use run::run;

use arrivals::{Arrivals, Readiness};
use flows::Cleanup;
use lane::{Done, Failure, Outcome};
use lanes::Lanes;
use waiting::Missing;

/// What the engine is told.
pub enum Message {
    /// The source has something.
    Update(Update),
    /// The operator wants something else.
    Reconfigure(Box<Reconfiguration>),
    /// Somebody wants to look at the cluster.
    Look(Box<dyn FnOnce(&Cluster) + Send>),
    /// The process ends; the kernel keeps its rules.
    Stop,
}

/// What a changed configuration means for the engine.
pub struct Reconfiguration {
    /// What the model decides by.
    pub settings: Settings,
    /// When syncs may happen.
    pub pacing: PacerConfig,
    /// Whether a proxy in user space serves node ports on loopback addresses.
    pub loopback_proxy: bool,
    /// Other dataplanes, if the mode or its options changed.
    pub dataplanes: Option<Replacement>,
}

/// Other dataplanes in place of the present ones.
pub struct Replacement {
    /// One for each family.
    pub dataplanes: Vec<Box<dyn Dataplane>>,
    /// Removes what the present ones leave behind, once the new ones have installed everything. `None` if the new ones take over the
    /// same objects.
    pub retire: Option<Retire>,
}

/// Removes what somebody else left in the kernel. Called once everything of ours is in it.
pub type Retire = Box<dyn FnOnce() + Send>;

/// Says whether the configuration fits the node, once that is known.
pub type Check = Box<dyn FnOnce(&Cluster) -> Result<(), String> + Send>;

/// What an engine is made of.
pub struct Parts {
    /// What the model decides by.
    pub settings: Settings,
    /// One for each family.
    pub dataplanes: Vec<Box<dyn Dataplane>>,
    /// When syncs may happen.
    pub pacing: PacerConfig,
    /// How long the first sync waits for the Node.
    pub node_wait: NodeWait,
    /// Removes leftovers of other programs and modes after the first syncs.
    pub retire: Option<Retire>,
    /// Looks at the cluster before the first sync: an error is the end.
    pub check: Check,
    /// How flows are removed.
    pub flows: Box<dyn Flows>,
    /// Where health is noted.
    pub health: SharedHealth,
    /// Where numbers go.
    pub metrics: Metrics,
    /// Where everything else goes.
    pub published: Published,
    /// Where time comes from.
    pub clock: Clock,
}

/// Why the engine gave up.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Pod traffic is told by the Node's pod ranges, and the Node does not get any.
    #[error(
        "timeout waiting for PodCIDR allocation on node {0:?}; detectLocalMode NodeCIDR needs spec.podCIDRs on the Node: check that the \
         controller manager allocates node CIDRs, or choose another detectLocalMode"
    )]
    NoPodCidrs(String),
    /// Pod traffic is told by the Node's pod ranges, and there is no Node.
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
    arrivals: Arrivals,
    lanes: Lanes,
    check: Option<Check>,
    cleanup: Cleanup,
    health: SharedHealth,
    metrics: Metrics,
    published: Published,
    clock: Clock,
    stopped: bool,
}

impl Engine {
    /// An engine that has seen nothing yet.
    pub fn new(parts: Parts) -> Self {
        let now = (parts.clock)();
        let engine = Engine {
            cluster: Cluster::new(parts.settings),
            arrivals: Arrivals::new(parts.node_wait, parts.metrics.changes.clone()),
            lanes: Lanes::new(parts.dataplanes, parts.pacing, parts.retire, now.instant),
            check: Some(parts.check),
            cleanup: Cleanup::new(parts.flows),
            health: parts.health,
            metrics: parts.metrics,
            published: parts.published,
            clock: parts.clock,
            stopped: false,
        };
        engine.announce(now);
        engine
    }

    /// Whether it was told to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Takes in a message.
    pub fn take(&mut self, message: Message) {
        match message {
            Message::Update(Update::Events(batch)) => self.apply(batch.into_events()),
            Message::Update(Update::Problems(problems)) => {
                self.metrics.own.object_problems.inc_by(problems.len() as u64);
                for problem in problems {
                    warn!(
                        object = problem.object,
                        field = problem.field,
                        problem = problem.text,
                        "An object is not used as written"
                    );
                    self.published.notice(Notice::Problem(problem));
                }
            }
            Message::Update(Update::Status(status)) => {
                let failing = self.metrics.own.source_failing.with_label_values(&[&status.part]);
                match status.health {
                    Health::Following => {
                        failing.set(0.0);
                        info!(part = status.part, "Following changes");
                    }
                    Health::Failing(why) => {
                        failing.set(1.0);
                        error!(
                            part = status.part,
                            err = why,
                            "Cannot follow changes; what is known stays in force"
                        );
                    }
                }
            }
            Message::Reconfigure(wanted) => self.reconfigure(*wanted),
            Message::Look(look) => look(&self.cluster),
            Message::Stop => self.stopped = true,
        }
    }

    /// Takes in events and asks for syncs of the families that they touch.
    pub fn apply(&mut self, events: Vec<Event>) {
        let now = (self.clock)();
        let waited = !self.cluster.is_synced();
        let touched = self.arrivals.apply(&mut self.cluster, events, &self.lanes.families());
        self.health.set_node_eligible(self.arrivals.is_node_eligible(&self.cluster));
        let first = waited && self.cluster.is_synced();
        for family in self.lanes.families() {
            if first || touched.node || (touched.objects && self.cluster.pending(family) > 0) {
                self.request(family, now);
            }
        }
    }

    /// Does what is due, and says when there is something to do next.
    pub fn turn(&mut self) -> Result<Option<Instant>, EngineError> {
        let now = (self.clock)();
        match self.arrivals.readiness(&self.cluster, now.instant) {
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
        if self.lanes.wake(now.instant) {
            self.sync()?;
        }
        for family in self.lanes.families() {
            self.cleanup.run(family, &self.cluster, &self.metrics, self.clock.as_ref());
        }
        let now = (self.clock)().instant;
        Ok([self.lanes.next(now), self.cleanup.next()].into_iter().flatten().min())
    }

    /// Reads what the kernel told about our objects.
    pub fn look_for_tampering(&mut self) {
        let now = (self.clock)();
        for (family, what, news) in self.lanes.look_for_tampering(now.instant) {
            self.metrics.own.tampering.with_label_values(&[family.as_str()]).inc();
            if news {
                warn!(ipFamily = %family, what, "Somebody else changed our rules; putting them back");
            }
            self.health.queued(family, now.instant);
            self.metrics.sync.queued(family, now.wall);
        }
    }

    /// The descriptors on which the kernel tells about our objects.
    pub fn watch_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        self.lanes.watch_fds()
    }

    /// A started loop counts as an update for health, as the reference has it.
    fn announce(&self, now: Moment) {
        for family in self.lanes.families() {
            self.health.updated(family, now.instant);
            self.metrics.sync.queued(family, now.wall);
        }
        self.announce_modes();
    }

    fn announce_modes(&self) {
        for mode in self.lanes.modes() {
            self.metrics.mode.announce(mode);
        }
    }

    fn request(&mut self, family: Family, now: Moment) {
        self.lanes.request(family, now.instant);
        // Before Services and slices are known nothing can be written. To be called unhealthy for that, and restarted, would not bring
        // back an API server that is away.
        if self.cluster.is_synced() {
            self.health.queued(family, now.instant);
        }
        self.metrics.sync.queued(family, now.wall);
    }

    fn reconfigure(&mut self, wanted: Reconfiguration) {
        let now = (self.clock)();
        self.cluster.set_settings(wanted.settings);
        self.lanes.set_pacing(wanted.pacing);
        self.published.serve_loopback(wanted.loopback_proxy);
        if let Some(replacement) = wanted.dataplanes {
            self.lanes.replace(replacement, wanted.pacing, now.instant);
        }
        self.announce_modes();
        for family in self.lanes.families() {
            self.request(family, now);
        }
    }

    /// Works out what follows from the events so far, and hands it to the lanes that are due.
    fn sync(&mut self) -> Result<(), EngineError> {
        let changes = self.cluster.resolve();
        self.arrivals.resolved();
        self.lanes.add(&changes);
        if let Some(check) = self.check.take() {
            check(&self.cluster).map_err(EngineError::Misconfigured)?;
        }
        let mut outcomes = Vec::new();
        self.lanes.sync(&self.cluster, self.clock.as_ref(), |mode, family, outcome| {
            outcomes.push((mode, family, outcome));
        });
        for (mode, family, outcome) in outcomes {
            match outcome {
                Outcome::Idle => self.health.updated(family, (self.clock)().instant),
                Outcome::Done(done) => self.succeeded(mode, family, *done),
                Outcome::Failed(failure) => self.failed(mode, family, &failure),
            }
        }
        self.lanes.retire();
        Ok(())
    }

    fn succeeded(&mut self, mode: &'static str, family: Family, done: Done) {
        let now = (self.clock)();
        let desired = self.cluster.desired(family);
        let label = &[family.as_str()];
        self.metrics.sync.attempted(family, done.report.full, done.took);
        self.metrics.sync.succeeded(family, now.wall, desired.totals(), &done.changes.trigger_times);
        self.metrics.mode.show(family, &done.report.gauges);
        self.metrics.own.written.with_label_values(label).inc_by(done.report.written as u64);
        self.metrics.own.isolated.with_label_values(label).set(done.isolated as f64);
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
            info!(ipFamily = %family, mode, failures = done.failures, "Syncs work again");
        }
        for refused in &done.refused.fresh {
            error!(ipFamily = %family, service = %refused.service, err = refused.reason, "The kernel refuses a Service; all others are in force");
            self.published.notice(Notice::Refused { family, refused: refused.clone() });
        }
        for service in &done.refused.recovered {
            info!(ipFamily = %family, %service, "The kernel takes a Service that it had refused");
        }
        self.published.health_checks(desired, &done.changes);
        self.published.loopback_ports(mode, desired, &done.changes);
        // Before a full sync rules may have been missing, so that flows went through as they were.
        let full = done.changes.full || done.report.full;
        if full || done.changes.udp || !done.changes.gone.is_empty() {
            self.cleanup.request(family, full, done.changes.gone, now.instant);
        }
    }

    fn failed(&self, mode: &'static str, family: Family, failure: &Failure) {
        self.metrics.sync.attempted(family, failure.full, failure.took);
        self.metrics.mode.failed(mode, family, failure.full);
        let err = crate::logging::chain(failure.error.as_ref());
        // Each mode's own words, which alerts on logs look for.
        match mode {
            "iptables" => error!(ipFamily = %family, err, "Failed to execute iptables-restore"),
            _ => error!(ipFamily = %family, err, "{mode} sync failed"),
        }
        let retrying = failure.retry.map(|at| at.saturating_duration_since((self.clock)().instant));
        info!(ipFamily = %family, mode, retryingTime = ?retrying.unwrap_or_default(), "Sync failed");
    }
}
