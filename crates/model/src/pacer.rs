//! When to sync: at once after a quiet time, in gathered steps under a burst, again soon after a failure.
//!
//! Time is an argument. The engine asks [`Pacer::next_run`] how long it may wait for more events, and reports when a run starts and ends:
//!
//! ```
//! # use portwarden_model::{Pacer, PacerConfig};
//! # use std::time::{Duration, Instant};
//! # let now = Instant::now();
//! let mut pacer = Pacer::new(PacerConfig::default(), now);
//! pacer.request(now);
//! assert!(pacer.is_due(now));
//! pacer.started(now);
//! let cost = Duration::from_millis(2);
//! pacer.finished(now + cost, cost, true);
//! assert!(!pacer.is_due(now + cost));
//! ```

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

/// The first repetition of a failed run comes after this time, each further one after twice the time before.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Under a burst, changes are gathered for at most this many times the fixed cost of a run: fixed costs then take at most an eleventh of
/// the time.
const GATHER_LIMIT: u32 = 10;
/// Under a lasting burst, changes are gathered for at least this long: waking up for each of them costs time that no run measures.
const BURST_GATHER: Duration = Duration::from_millis(2);
/// The upper limit for gathering changes.
const LONGEST_GATHER: Duration = Duration::from_secs(1);

/// How often to sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacerConfig {
    /// The operator's minimum time from the end of a run to the start of the next. Zero: adaptive, by the cost of runs.
    pub min_interval: Duration,
    /// The longest wait before a failed run is repeated.
    pub sync_period: Duration,
    /// A run happens at least this often, requested or not; at least `min_interval`.
    pub max_interval: Duration,
}

/// Adaptive, with kube-proxy's periods.
impl Default for PacerConfig {
    fn default() -> Self {
        PacerConfig {
            min_interval: Duration::ZERO,
            sync_period: Duration::from_secs(30),
            max_interval: Duration::from_secs(3600),
        }
    }
}

/// Decides when the next run is due.
#[derive(Debug, Clone)]
pub struct Pacer {
    config: PacerConfig,
    /// The time of the oldest request that no run has served yet.
    requested: Option<Instant>,
    running: bool,
    /// The end of the last run; before the first run, the time of creation.
    since: Instant,
    /// The duration of the last run; `None` before the first run, which never waits.
    cost: Option<Duration>,
    /// The fixed cost of a run, estimated as the shortest run since the last quiet time.
    least_cost: Duration,
    /// How many runs in a row have failed.
    failures: u32,
    /// How many runs in a row started without a quiet time before them.
    burst: u32,
}

impl Pacer {
    /// Nothing has run and nothing is requested.
    pub fn new(config: PacerConfig, now: Instant) -> Self {
        let least_cost = Duration::MAX;
        Pacer {
            config,
            requested: None,
            running: false,
            since: now,
            cost: None,
            least_cost,
            failures: 0,
            burst: 0,
        }
    }

    /// Requests a run. One run serves all requests made before it starts; requests made while it runs need another.
    pub fn request(&mut self, now: Instant) {
        self.requested.get_or_insert(now);
    }

    /// When the next run is due, possibly in the past. `None` while a run is in progress.
    pub fn next_run(&self) -> Option<Instant> {
        if self.running {
            return None;
        }
        let requested = self.requested.and_then(|requested| match self.cost {
            None => Some(requested),
            Some(_) => self.since.checked_add(self.pause()).map(|ready| ready.max(requested)),
        });
        let unrequested = self.since.checked_add(self.longest_wait());
        [requested, unrequested].into_iter().flatten().min()
    }

    /// Whether a run is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_run().is_some_and(|due| due <= now)
    }

    /// A run starts. It serves every request made so far.
    pub fn started(&mut self, now: Instant) {
        let requested = self.requested.take().unwrap_or(now);
        let was_quiet = requested.saturating_duration_since(self.since) >= self.quiet_time();
        self.burst = if was_quiet { 0 } else { self.burst.saturating_add(1) };
        self.running = true;
    }

    /// The run has ended.
    pub fn finished(&mut self, now: Instant, cost: Duration, ok: bool) {
        self.running = false;
        self.since = now;
        self.cost = Some(cost);
        self.least_cost = if self.burst == 0 { cost } else { self.least_cost.min(cost) };
        self.failures = if ok { 0 } else { self.failures.saturating_add(1) };
    }

    /// Changes the periods, effective for the next run.
    pub fn set_config(&mut self, config: PacerConfig) {
        self.config = config;
    }

    /// The minimum time between a run and the next requested one.
    fn pause(&self) -> Duration {
        if self.is_adaptive() { self.gather(1u32.checked_shl(self.burst)) } else { self.config.min_interval }
    }

    /// A request that comes later than this after a run starts a new burst.
    fn quiet_time(&self) -> Duration {
        self.gather(None)
    }

    /// The given multiple of the fixed cost, within the limits; `None` means the largest multiple.
    ///
    /// Waiting saves fixed cost only: the cost per change stays the same. If the whole cost counted, gathering more changes would make the
    /// next gathering longer, up to the limit. The pause is at least as long as the last run, so syncs take at most half of the time.
    fn gather(&self, times: Option<u32>) -> Duration {
        let Some(cost) = self.cost else { return Duration::ZERO };
        let times = times.unwrap_or(GATHER_LIMIT).min(GATHER_LIMIT);
        let shortest = if times == GATHER_LIMIT { BURST_GATHER } else { Duration::ZERO };
        self.least_cost.saturating_mul(times).max(cost).max(shortest).min(LONGEST_GATHER)
    }

    /// The time after a run at which the next one starts without a request.
    fn longest_wait(&self) -> Duration {
        let longest = self.config.max_interval.max(self.config.min_interval);
        match self.failures {
            0 => longest,
            failures => self.backoff(failures).max(self.pause()).min(longest),
        }
    }

    fn backoff(&self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
        FIRST_RETRY.saturating_mul(doubled).min(self.config.sync_period)
    }

    fn is_adaptive(&self) -> bool {
        self.config.min_interval.is_zero()
    }
}
