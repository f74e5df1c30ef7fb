//! Exponential backoff with jitter, so that nodes do not retry at the same moment.

use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(800);
/// Without a failure for this long, the next one counts as the first.
const RESET_AFTER: Duration = Duration::from_secs(120);

/// Counts failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Counts a failure. The delay is between one and two times the step, by `random` in 0..1; the step is at most `most`.
    pub(crate) fn delay(&mut self, now: Instant, random: f64, most: Duration) -> Duration {
        if self.until.is_some_and(|until| now.saturating_duration_since(until) >= RESET_AFTER) {
            self.failures = 0;
        }
        let step = FIRST.saturating_mul(1u32 << self.failures.min(10)).min(most);
        let delay = step.mul_f64(1.0 + random.clamp(0.0, 1.0));
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + delay);
        delay
    }

    /// Recent failures in a row.
    pub(crate) fn failures(&self, now: Instant) -> u32 {
        let recent = self.until.is_some_and(|until| now.saturating_duration_since(until) < RESET_AFTER);
        if recent { self.failures } else { 0 }
    }
}

/// A random number in 0..1. It only spreads load, so the seed of the standard hasher is random enough.
pub(crate) fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let bits = u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or(0);
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_secs(8);

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_limit_and_shrink_after_a_quiet_time() {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let delay = backoff.delay(now, 0.0, LONG);
            waits.push(delay.as_millis());
            now += delay;
        }
        assert_eq!(waits, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(backoff.failures(now), 8);
        now += RESET_AFTER;
        assert_eq!(backoff.failures(now), 0);
        assert_eq!(backoff.delay(now, 0.5, LONG).as_millis(), 1200);
    }

    proptest! {
        #[test]
        fn never_more_than_a_few_attempts_a_minute(randoms in prop::collection::vec(0.0f64..1.0, 100)) {
            let start = Instant::now();
            let (mut backoff, mut now, mut attempts) = (Backoff::default(), start, 0);
            for random in randoms {
                now += backoff.delay(now, random, SHORT);
                if now < start + Duration::from_secs(60) {
                    attempts += 1;
                }
            }
            prop_assert!(attempts <= 9);
            prop_assert!((0.0..1.0).contains(&super::random()));
        }
    }
}
