//! Shows other threads that the engine's thread makes progress, and where it is if it does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the engine's thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Taking messages into the cluster.
    Messages,
    /// Resolving the desired state.
    Resolve,
    /// Syncing the kernel.
    Sync,
    /// Removing stale flows.
    Flows,
    /// Handling notifications of dataplanes.
    Poll,
}

impl Stage {
    const ALL: [Stage; 5] = [Stage::Messages, Stage::Resolve, Stage::Sync, Stage::Flows, Stage::Poll];

    /// For the log: where the engine is stuck.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Messages => "taking in changes of objects",
            Stage::Resolve => "resolving changes",
            Stage::Sync => "writing rules",
            Stage::Flows => "removing stale flows",
            Stage::Poll => "reading notifications of the kernel",
        }
    }
}

/// The engine's progress. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    /// Since when the engine has been at work without a pause, in nanoseconds after `start`; `IDLE` while it sleeps.
    busy_since: AtomicU64,
    stage: AtomicU8,
}

const IDLE: u64 = u64::MAX;

impl Heartbeat {
    /// An engine that sleeps.
    pub fn new(now: Instant) -> Self {
        Heartbeat(Arc::new(Inner { start: now, busy_since: AtomicU64::new(IDLE), stage: AtomicU8::new(0) }))
    }

    /// The engine woke up.
    pub fn wake(&self, now: Instant) {
        let since = u64::try_from(now.saturating_duration_since(self.0.start).as_nanos()).unwrap_or(IDLE - 1);
        self.0.busy_since.store(since, Ordering::Relaxed);
    }

    /// The engine goes to sleep.
    pub fn sleep(&self) {
        self.0.busy_since.store(IDLE, Ordering::Relaxed);
    }

    /// The engine enters another stage.
    pub fn enter(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Since when the engine has been at work without a pause; whatever comes meanwhile waits.
    pub fn busy_since(&self) -> Option<Instant> {
        match self.0.busy_since.load(Ordering::Relaxed) {
            IDLE => None,
            nanos => Some(self.0.start + Duration::from_nanos(nanos)),
        }
    }

    /// What it does.
    pub fn stage(&self) -> Stage {
        let number = usize::from(self.0.stage.load(Ordering::Relaxed));
        Stage::ALL.get(number).copied().unwrap_or(Stage::Messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_busy_from_waking_up_to_going_to_sleep() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        assert_eq!(heartbeat.busy_since(), None);
        let woken = start + Duration::from_secs(5);
        heartbeat.wake(woken);
        for stage in Stage::ALL {
            heartbeat.enter(stage);
            assert_eq!(heartbeat.stage(), stage);
        }
        assert_eq!(heartbeat.busy_since(), Some(woken));
        heartbeat.sleep();
        assert_eq!(heartbeat.busy_since(), None);
    }
}
