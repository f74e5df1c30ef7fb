//! How long to wait after a failure, depending on its kind.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use super::error::RequestError;

/// The longest step while a server answers with errors, so that it can recover.
const LONG: Duration = Duration::from_secs(30);
/// The longest step while no server answers, which costs no server anything.
const SHORT: Duration = Duration::from_secs(8);
/// The longest wait that a server can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// The wait for optional objects after [`REFUSALS`].
const OPTIONAL_WAIT: Duration = Duration::from_secs(300);
/// Refusals that may be temporary: a starting server has not loaded its roles yet.
const REFUSALS: u32 = 5;

/// Counts the failures of one kind of object.
#[derive(Debug)]
pub(crate) struct RetryPolicy {
    backoff: Backoff,
    refusals: u32,
    optional: bool,
}

impl RetryPolicy {
    /// `optional` if a proxy works without these objects.
    pub(crate) fn new(optional: bool) -> Self {
        RetryPolicy { backoff: Backoff::default(), refusals: 0, optional }
    }

    /// Recent failures in a row.
    pub(crate) fn failures(&self, now: Instant) -> u32 {
        self.backoff.failures(now)
    }

    /// How long to wait after this failure; `random` is in 0..1.
    pub(crate) fn after(&mut self, error: &RequestError, now: Instant, random: f64) -> Duration {
        let first = self.failures(now) == 0;
        let most = if matches!(error, RequestError::Connect { .. }) { SHORT } else { LONG };
        let delay = self.backoff.delay(now, random, most);
        match error {
            // The server works, and our objects get older.
            RequestError::Expired { .. } if first => Duration::ZERO,
            RequestError::NotFound { .. } | RequestError::Forbidden { .. } if self.optional => {
                self.refusals = self.refusals.saturating_add(1);
                if self.refusals > REFUSALS { OPTIONAL_WAIT.mul_f64(1.0 + random) } else { delay }
            }
            _ => {
                self.refusals = 0;
                delay.max(error.retry_after().unwrap_or_default().min(LONGEST_WAIT))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(seconds: u64) -> RequestError {
        RequestError::TooManyRequests { retry_after: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn a_server_can_ask_for_a_wait_up_to_a_limit() {
        let now = Instant::now();
        let mut policy = RetryPolicy::new(false);
        assert_eq!(policy.after(&busy(7), now, 0.0), Duration::from_secs(7));
        assert_eq!(policy.after(&busy(u64::MAX), now, 0.0), LONGEST_WAIT);
        assert!(policy.after(&busy(0), now, 0.0) > Duration::ZERO);
    }

    #[test]
    fn the_first_expired_version_is_retried_at_once() {
        let now = Instant::now();
        let mut policy = RetryPolicy::new(false);
        let expired = RequestError::Expired { message: String::new() };
        assert_eq!(policy.after(&expired, now, 0.0), Duration::ZERO);
        assert!(policy.after(&expired, now, 0.0) > Duration::ZERO);
    }

    #[test]
    fn optional_objects_are_requested_rarely_after_some_refusals() {
        let now = Instant::now();
        let forbidden = RequestError::Forbidden { message: String::new() };
        let after = |optional| {
            let mut policy = RetryPolicy::new(optional);
            (0..10).map(|_| policy.after(&forbidden, now, 0.0)).collect::<Vec<_>>()
        };
        assert!(after(false).iter().all(|delay| *delay <= LONG));
        assert!(after(true).iter().take(5).all(|delay| *delay <= LONG));
        assert!(after(true).iter().skip(5).all(|delay| *delay >= OPTIONAL_WAIT));
    }

    #[test]
    fn a_missing_server_is_retried_more_often_than_a_failing_one() {
        let now = Instant::now();
        let last = |error: &RequestError| {
            let mut policy = RetryPolicy::new(false);
            (0..10).map(|_| policy.after(error, now, 0.0)).last()
        };
        let away = RequestError::Connect { server: String::new(), problem: String::new() };
        let broken = RequestError::Refused { code: 500, message: String::new(), retry_after: None };
        assert_eq!((last(&away), last(&broken)), (Some(SHORT), Some(LONG)));
    }
}
