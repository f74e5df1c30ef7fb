//! Requests to the API server.

use std::time::Duration;

use prometheus::{Gauge, HistogramVec, IntCounterVec};

use super::{MetricError, Part};

/// Requests to the API server, as client-go counts them.
#[derive(Clone)]
pub struct RestClientMetrics {
    requests: IntCounterVec,
    retries: IntCounterVec,
    resolution: HistogramVec,
    duration: HistogramVec,
    rate_limiter: HistogramVec,
    request_size: HistogramVec,
    response_size: HistogramVec,
    transports: Gauge,
    transports_made: IntCounterVec,
}

impl RestClientMetrics {
    pub(super) fn new(part: &Part<'_>) -> Result<Self, MetricError> {
        let up_to_half_a_minute = || vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0];
        let seconds = || [up_to_half_a_minute(), vec![60.0]].concat();
        let bytes = || {
            [64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
                .map(f64::from)
                .to_vec()
        };
        let labels = &["verb", "host"];
        Ok(RestClientMetrics {
            requests: part.counters(
                "rest_client_requests_total",
                "[ALPHA] Requests to the API server by status code, method and host",
                &["code", "method", "host"],
            )?,
            retries: part.counters(
                "rest_client_request_retries_total",
                "[ALPHA] Requests to the API server that repeat one that failed, by what it failed with",
                &["code", "verb", "host"],
            )?,
            resolution: part.histograms(
                "rest_client_dns_resolution_duration_seconds",
                "[ALPHA] How long it took to look up the API server's name",
                &["host"],
                up_to_half_a_minute(),
            )?,
            duration: part.histograms(
                "rest_client_request_duration_seconds",
                "[ALPHA] How long requests to the API server took",
                labels,
                seconds(),
            )?,
            rate_limiter: part.histograms(
                "rest_client_rate_limiter_duration_seconds",
                "[ALPHA] How long requests to the API server waited for the client's own limit",
                labels,
                seconds(),
            )?,
            request_size: part.histograms(
                "rest_client_request_size_bytes",
                "[ALPHA] Bytes sent to the API server in a request's body",
                labels,
                bytes(),
            )?,
            response_size: part.histograms(
                "rest_client_response_size_bytes",
                "[ALPHA] Bytes in an answer of the API server, where it says so beforehand",
                labels,
                bytes(),
            )?,
            transports: part.gauge(
                "rest_client_transport_cache_entries",
                "[ALPHA] Connections to API servers that are kept",
            )?,
            transports_made: part.counters(
                "rest_client_transport_create_calls_total",
                "[ALPHA] Connections to API servers that were set up",
                &["result"],
            )?,
        })
    }

    /// Counts a response by status code, or a failure (`<error>`).
    pub fn answered(&self, code: &str, method: &str, host: &str) {
        self.requests.with_label_values(&[code, method, host]).inc();
    }

    /// Counts a retry after a failure with this code, or without a response (`<error>`).
    pub fn repeated(&self, code: &str, verb: &str, host: &str) {
        self.retries.with_label_values(&[code, verb, host]).inc();
    }

    /// The duration of a DNS look-up.
    pub fn resolved(&self, host: &str, duration: Duration) {
        self.resolution.with_label_values(&[host]).observe(duration.as_secs_f64());
    }

    /// The duration of a request.
    pub fn took(&self, verb: &str, host: &str, duration: Duration) {
        self.duration.with_label_values(&[verb, host]).observe(duration.as_secs_f64());
    }

    /// The time that a request waited for the rate limit.
    pub fn waited(&self, verb: &str, host: &str, duration: Duration) {
        self.rate_limiter.with_label_values(&[verb, host]).observe(duration.as_secs_f64());
    }

    /// Counts a new client, which replaces the last one.
    pub fn connected(&self) {
        self.transports.set(1.0);
        self.transports_made.with_label_values(&["miss"]).inc();
    }

    /// The size of a response. Lists and watches are streams of any length.
    #[expect(clippy::cast_precision_loss, reason = "sizes fit")]
    pub fn received(&self, verb: &str, host: &str, bytes: u64) {
        self.response_size.with_label_values(&[verb, host]).observe(bytes as f64);
    }

    /// The size of a request.
    pub fn sent(&self, verb: &str, host: &str, bytes: usize) {
        self.request_size.with_label_values(&[verb, host]).observe(bytes as f64);
    }
}
