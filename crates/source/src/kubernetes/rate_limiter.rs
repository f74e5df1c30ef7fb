//! Limits the rate of requests to an API server, as `clientConnection.qps` and `burst` say.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// A token bucket that all requests of a client share.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    /// `None` without a limit.
    bucket: Option<Mutex<Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    per_second: f64,
    burst: f64,
    /// Negative while requests wait.
    tokens: f64,
    at: Instant,
}

impl RateLimiter {
    /// At most `qps` requests per second on average, and `burst` at once; a negative `qps` means no limit.
    pub(crate) fn new(qps: f32, burst: u32) -> Self {
        if qps <= 0.0 {
            return RateLimiter { bucket: None };
        }
        let burst = f64::from(burst.max(1));
        let bucket = Bucket { per_second: f64::from(qps), burst, tokens: burst, at: Instant::now() };
        RateLimiter { bucket: Some(Mutex::new(bucket)) }
    }

    /// Waits until the request may be sent, and returns how long that took.
    pub(crate) async fn acquire(&self) -> Duration {
        let Some(bucket) = &self.bucket else { return Duration::ZERO };
        let wait = bucket.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }
}

impl Bucket {
    /// Takes a token, and returns the time until it is available.
    fn take(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst) - 1.0;
        if self.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-self.tokens / self.per_second)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_the_rate_holds() {
        let limiter = RateLimiter::new(5.0, 10);
        let start = Instant::now();
        for _ in 0..10 {
            limiter.acquire().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..5 {
            limiter.acquire().await;
        }
        assert_eq!(start.elapsed().as_millis(), 1000);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(limiter.acquire().await.is_zero(), "the bucket has filled again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_negative_rate_is_no_limit() {
        let limiter = RateLimiter::new(-1.0, 1);
        let start = Instant::now();
        for _ in 0..1000 {
            limiter.acquire().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
