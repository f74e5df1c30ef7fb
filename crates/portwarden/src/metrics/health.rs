//! Metrics of the health server.

use prometheus::IntCounterVec;

use super::{MetricError, Part};

/// Answers by status code.
#[derive(Clone)]
pub struct HealthMetrics {
    /// Answers of `/healthz`.
    pub healthz: IntCounterVec,
    /// Answers of `/livez`.
    pub livez: IntCounterVec,
}

impl HealthMetrics {
    pub(super) fn new(part: &Part<'_>) -> Result<Self, MetricError> {
        Ok(HealthMetrics {
            healthz: part.counters(
                "kubeproxy_proxy_healthz_total",
                "[ALPHA] Answers of /healthz by status code",
                &["code"],
            )?,
            livez: part.counters(
                "kubeproxy_proxy_livez_total",
                "[ALPHA] Answers of /livez by status code",
                &["code"],
            )?,
        })
    }
}
