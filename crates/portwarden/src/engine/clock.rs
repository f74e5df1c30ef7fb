//! Time, as an argument.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use portwarden_model::Timestamp;

/// One point in time on both clocks: one that never jumps, and one that means something to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// For waiting and measuring.
    pub instant: Instant,
    /// For showing.
    pub wall: Timestamp,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Moment { instant: Instant::now(), wall: wall_clock() }
    }
}

/// Where the engine takes the time from.
pub type Clock = Box<dyn Fn() -> Moment + Send>;

fn wall_clock() -> Timestamp {
    // A clock before 1970 or after 2262 is a broken one; zero is as good as any other value then.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(i64::try_from(since.as_nanos()).unwrap_or(0))
}
