//! How long to wait after which failure.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use super::error::RequestError;

/// The longest step while a server answers, so that it is not kept from recovering.
const LONG: Duration = Duration::from_secs(30);
/// The longest step while there is no server at all: asking costs nobody anything.
const SHORT: Duration = Duration::from_secs(8);
/// No server is left alone for longer than this, whatever it asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// What a proxy can do without is asked for this seldom while it is refused.
const SELDOM: Duration = Duration::from_secs(300);
/// Refusals that may be over soon: a starting server does not know its roles yet.
const REFUSALS: u32 = 5;

/// Counts the failures of one kind of object.
#[derive(Debug)]
pub(crate) struct Patience {
    backoff: Backoff,
    refusals: u32,
    dispensable: bool,
}

impl Patience {
    /// `dispensable` if a proxy can do without these objects.
    pub(crate) fn new(dispensable: bool) -> Self {
        Patience { backoff: Backoff::default(), refusals: 0, dispensable }
    }

    /// Failures in a row, as far as they are not forgotten.
    pub(crate) fn failures(&self, now: Instant) -> u32 {
        self.backoff.failures(now)
    }

    /// How long to wait after this failure; `random` is in 0..1.
    pub(crate) fn after(&mut self, error: &RequestError, now: Instant, random: f64) -> Duration {
        let first = self.failures(now) == 0;
        let most = if matches!(error, RequestError::Connect { .. }) { SHORT } else { LONG };
        let delay = self.backoff.delay(now, random, most);
        match error {
            // Nothing is wrong with the server, and what we know gets older.
            RequestError::Expired { .. } if first => Duration::ZERO,
            RequestError::NotFound { .. } | RequestError::Forbidden { .. } if self.dispensable => {
                self.refusals = self.refusals.saturating_add(1);
                if self.refusals > REFUSALS { SELDOM.mul_f64(1.0 + random) } else { delay }
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
    fn a_server_that_asks_to_wait_is_left_alone_for_that_long_but_not_for_ever() {
        let now = Instant::now();
        let mut patience = Patience::new(false);
        assert_eq!(patience.after(&busy(7), now, 0.0), Duration::from_secs(7));
        assert_eq!(patience.after(&busy(u64::MAX), now, 0.0), LONGEST_WAIT);
        assert!(patience.after(&busy(0), now, 0.0) > Duration::ZERO);
    }

    #[test]
    fn an_expired_version_is_replaced_at_once_but_not_again_and_again() {
        let now = Instant::now();
        let mut patience = Patience::new(false);
        let expired = RequestError::Expired { message: String::new() };
        assert_eq!(patience.after(&expired, now, 0.0), Duration::ZERO);
        assert!(patience.after(&expired, now, 0.0) > Duration::ZERO);
    }

    #[test]
    fn what_can_be_done_without_is_asked_for_seldom_after_some_refusals() {
        let now = Instant::now();
        let forbidden = RequestError::Forbidden { message: String::new() };
        let after = |dispensable| {
            let mut patience = Patience::new(dispensable);
            (0..10).map(|_| patience.after(&forbidden, now, 0.0)).collect::<Vec<_>>()
        };
        assert!(after(false).iter().all(|delay| *delay <= LONG));
        assert!(after(true).iter().take(5).all(|delay| *delay <= LONG));
        assert!(after(true).iter().skip(5).all(|delay| *delay >= SELDOM));
    }

    #[test]
    fn a_server_that_is_not_there_is_asked_for_more_often_than_one_that_struggles() {
        let now = Instant::now();
        let last = |error: &RequestError| {
            let mut patience = Patience::new(false);
            (0..10).map(|_| patience.after(error, now, 0.0)).last()
        };
        let away = RequestError::Connect { server: String::new(), problem: String::new() };
        let broken = RequestError::Refused { code: 500, message: String::new(), retry_after: None };
        assert_eq!((last(&away), last(&broken)), (Some(SHORT), Some(LONG)));
    }
}
