//! `portwarden_*`: metrics that kube-proxy does not have.

use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec};

use super::{MetricError, Part};

/// Portwarden's own metrics.
#[derive(Clone)]
pub struct OwnMetrics {
    /// Changes of our kernel objects by other processes.
    pub tampering: IntCounterVec,
    /// Services that the kernel currently refuses.
    pub refused_services: GaugeVec,
    /// Failed attempts to remove stale flows.
    pub flow_failures: IntCounterVec,
    /// Reloads of the configuration file, by result: `applied`, `rejected` or `unchanged`.
    pub reloads: IntCounterVec,
    /// Parts of objects that could not be used.
    pub object_problems: IntCounter,
    /// Whether a part of the source fails (1) or works (0).
    pub source_failing: GaugeVec,
    /// Objects or rules written or removed by syncs.
    pub written: IntCounterVec,
    /// Connections that a server closed to make room.
    pub refused_connections: IntCounterVec,
    /// Log lines that were dropped because nothing read the log.
    pub log_lines_dropped: IntCounter,
    /// Whether the engine is stuck (1) or makes progress (0).
    pub engine_stuck: Gauge,
}

impl OwnMetrics {
    pub(super) fn new(part: &Part<'_>) -> Result<Self, MetricError> {
        let family = &["ip_family"];
        Ok(OwnMetrics {
            tampering: part.counters(
                "portwarden_tampering_total",
                "Times that another process changed Portwarden's objects in the kernel",
                family,
            )?,
            refused_services: part.gauges(
                "portwarden_refused_services",
                "Services that the kernel refuses at present",
                family,
            )?,
            flow_failures: part.counters(
                "portwarden_conntrack_failures_total",
                "Attempts to remove stale flows that failed and are repeated",
                family,
            )?,
            reloads: part.counters(
                "portwarden_config_reloads_total",
                "Reloads of the configuration file by result: applied, unchanged or rejected",
                &["result"],
            )?,
            object_problems: part
                .counter("portwarden_object_problems_total", "Parts of objects that could not be used")?,
            source_failing: part.gauges(
                "portwarden_source_failing",
                "Whether a part of the source is out of date (1) or follows (0)",
                &["part"],
            )?,
            written: part.counters(
                "portwarden_kernel_writes_total",
                "Objects or rules that syncs wrote or removed",
                family,
            )?,
            refused_connections: part.counters(
                "portwarden_refused_connections_total",
                "Connections that a server turned away because it had too many",
                &["server"],
            )?,
            log_lines_dropped: part.counter(
                "portwarden_log_lines_dropped_total",
                "Log lines that were dropped because nothing read standard error",
            )?,
            engine_stuck: part.gauge(
                "portwarden_engine_stuck",
                "Whether the engine has been busy for longer than a change may wait (1)",
            )?,
        })
    }
}
