//! The health of the proxy: written by the engine thread, read by the servers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portwarden_model::{Family, HealthReport, ProxyHealth, Timestamp};

use crate::engine::{Heartbeat, Moment};

/// The health of the proxy. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct SharedHealth(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    proxy: ProxyHealth,
    /// The engine's progress, once there is an engine.
    heartbeat: Option<Heartbeat>,
    /// Whether the Node is known and is not being deleted.
    eligible: bool,
    /// Published dates of updates. The two clocks are never read at the same instant, so a published date is kept.
    dates: VecDeque<(Instant, Timestamp)>,
}

impl SharedHealth {
    /// Without any update yet.
    pub fn new(sync_period: Duration) -> Self {
        let proxy = ProxyHealth::new(sync_period);
        SharedHealth(Arc::new(Mutex::new(State {
            proxy,
            heartbeat: None,
            eligible: false,
            dates: VecDeque::new(),
        })))
    }

    /// Follows the progress of an engine: as long as it is busy, changes wait that it has not even seen.
    pub fn follow(&self, heartbeat: Heartbeat) {
        self.state().heartbeat = Some(heartbeat);
    }

    /// Since when the engine is stuck: busy for longer than a change may wait.
    pub fn stuck_since(&self, now: Instant) -> Option<Instant> {
        let state = self.state();
        let busy = state.heartbeat.as_ref()?.busy_since()?;
        state.proxy.is_late(busy, now).then_some(busy)
    }

    /// Changes the sync period.
    pub fn set_sync_period(&self, sync_period: Duration) {
        self.state().proxy.set_sync_period(sync_period);
    }

    /// Whether load balancers may send new traffic to the Node.
    pub fn set_node_eligible(&self, eligible: bool) {
        self.state().eligible = eligible;
    }

    /// A change waits for its sync.
    pub fn queued(&self, family: Family, now: Instant) {
        self.state().proxy.queued(family, now);
    }

    /// A family is up to date.
    pub fn updated(&self, family: Family, now: Instant) {
        self.state().proxy.updated(family, now);
    }

    /// Since when the oldest change of a family waits for its sync.
    pub fn oldest_queued(&self, family: Family) -> Option<Instant> {
        self.state().proxy.oldest_queued(family)
    }

    /// A family is served from now on.
    pub fn started(&self, family: Family, now: Instant) {
        self.state().proxy.started(family, now);
    }

    /// A family is no longer served.
    pub fn stopped(&self, family: Family) {
        self.state().proxy.stopped(family);
    }

    /// The health at this moment, and whether the Node is eligible.
    pub fn report(&self, now: Instant) -> (HealthReport, bool) {
        let state = self.state();
        let busy = state.heartbeat.as_ref().and_then(Heartbeat::busy_since);
        (state.proxy.report(now, busy), state.eligible)
    }

    /// The date of an update, the same in every call.
    pub fn date(&self, at: Instant, now: Moment) -> Timestamp {
        let mut state = self.state();
        if let Some((_, date)) = state.dates.iter().find(|(known, _)| *known == at) {
            return *date;
        }
        let since = i64::try_from(now.instant.saturating_duration_since(at).as_nanos()).unwrap_or(i64::MAX);
        let date = Timestamp::from_nanos(now.wall.as_nanos().saturating_sub(since));
        // One for each family is enough.
        state.dates.truncate(Family::BOTH.len() - 1);
        state.dates.push_front((at, date));
        date
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
