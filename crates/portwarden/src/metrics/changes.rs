//! Metrics of object changes from the source.

use prometheus::{Gauge, IntCounter};

use super::{MetricError, Part};

/// Changes of objects: counters, and those that wait for a sync.
#[derive(Clone)]
pub struct ChangeMetrics {
    /// Slice events.
    pub endpoints_total: IntCounter,
    /// Slice events that wait for a sync.
    pub endpoints_pending: Gauge,
    /// Service events, once for each family in use.
    pub services_total: IntCounter,
    /// Services that wait for a sync.
    pub services_pending: Gauge,
}

impl ChangeMetrics {
    pub(super) fn new(part: &Part<'_>) -> Result<Self, MetricError> {
        Ok(ChangeMetrics {
            endpoints_total: part.counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "[ALPHA] Changes of EndpointSlices that came in",
            )?,
            endpoints_pending: part.gauge(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "[ALPHA] Changes of EndpointSlices that wait for a sync",
            )?,
            services_total: part.counter(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "[ALPHA] Changes of Services that came in, once for each family",
            )?,
            services_pending: part.gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "[ALPHA] Changes of Services that wait for a sync",
            )?,
        })
    }
}
