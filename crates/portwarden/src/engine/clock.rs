//! The engine's clock, which tests replace.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use portwarden_model::Timestamp;

/// One point in time on the monotonic clock and on the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic, for deadlines and durations.
    pub instant: Instant,
    /// Wall clock, for logs, metrics and trigger times.
    pub wall: Timestamp,
}

impl Moment {
    /// Reads both clocks.
    pub fn now() -> Self {
        Moment { instant: Instant::now(), wall: wall_clock() }
    }
}

/// Returns the current time.
pub type Clock = Box<dyn Fn() -> Moment + Send>;

fn wall_clock() -> Timestamp {
    // A clock before 1970 or after 2262 is broken; zero is as good as any other value then.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(i64::try_from(since.as_nanos()).unwrap_or(0))
}
