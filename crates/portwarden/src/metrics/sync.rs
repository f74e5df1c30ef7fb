//! Metrics of syncs and of the conntrack clean-up after them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use portwarden_model::{Count, Family, Gauge, Timestamp, Totals};
use prometheus::{GaugeVec, HistogramVec, IntCounterVec, Opts, Registry};

use super::packets::{PacketCollector, PacketCounter};
use super::{MetricError, Part};

const FAMILY: &[&str] = &["ip_family"];

/// Metrics of syncs in every mode.
#[derive(Clone)]
pub struct SyncMetrics {
    duration: HistogramVec,
    full_duration: HistogramVec,
    partial_duration: HistogramVec,
    last: GaugeVec,
    last_queued: GaugeVec,
    programming: HistogramVec,
    no_local_endpoints: GaugeVec,
}

impl SyncMetrics {
    pub(super) fn new(part: &Part<'_>) -> Result<Self, MetricError> {
        Ok(SyncMetrics {
            duration: part.histograms(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "[ALPHA] How long attempts to sync took",
                FAMILY,
                doubling_from_a_millisecond(),
            )?,
            full_duration: part.histograms(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "[ALPHA] How long attempts to sync everything took",
                FAMILY,
                doubling_from_a_millisecond(),
            )?,
            partial_duration: part.histograms(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "[ALPHA] How long attempts to sync only changes took",
                FAMILY,
                doubling_from_a_millisecond(),
            )?,
            last: part.gauges(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "[ALPHA] When a sync last succeeded, in seconds since the epoch",
                FAMILY,
            )?,
            last_queued: part.gauges(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "[ALPHA] When a sync was last asked for, in seconds since the epoch",
                FAMILY,
            )?,
            programming: part.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "[ALPHA] Time from a change of a Service's pods to its arrival in the kernel",
                FAMILY,
                programming_buckets(),
            )?,
            no_local_endpoints: part.gauges(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "[ALPHA] Service ports of a Local traffic policy whose endpoints are all elsewhere",
                &["traffic_policy", "ip_family"],
            )?,
        })
    }

    /// A sync was requested.
    pub fn queued(&self, family: Family, at: Timestamp) {
        self.last_queued.with_label_values(&[family.as_str()]).set(seconds(at));
    }

    /// A sync succeeded or failed.
    pub fn attempted(&self, family: Family, full: bool, took: Duration) {
        let kind = if full { &self.full_duration } else { &self.partial_duration };
        for histogram in [&self.duration, kind] {
            histogram.with_label_values(&[family.as_str()]).observe(took.as_secs_f64());
        }
    }

    /// A sync succeeded; `triggers` are the times of the changes that it brought to the kernel.
    pub fn succeeded(&self, family: Family, at: Timestamp, totals: Totals, triggers: &[Timestamp]) {
        let label = family.as_str();
        self.last.with_label_values(&[label]).set(seconds(at));
        for trigger in triggers {
            self.programming.with_label_values(&[label]).observe(seconds(at) - seconds(*trigger));
        }
        let gauge = |policy, value: usize| {
            self.no_local_endpoints.with_label_values(&[policy, label]).set(value as f64);
        };
        gauge("internal", totals.no_local_internal);
        gauge("external", totals.no_local_external);
    }
}

/// Metrics of the conntrack clean-up.
#[derive(Clone)]
pub struct FlowMetrics {
    duration: HistogramVec,
    deleted: IntCounterVec,
}

impl FlowMetrics {
    pub(super) fn new(part: &Part<'_>) -> Result<Self, MetricError> {
        Ok(FlowMetrics {
            duration: part.histograms(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "[ALPHA] How long looking for stale flows took",
                FAMILY,
                doubling_from_a_millisecond(),
            )?,
            deleted: part.counters(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "[ALPHA] Flows that were removed because their endpoint no longer serves",
                FAMILY,
            )?,
        })
    }

    /// A clean-up ended.
    pub fn cleaned(&self, family: Family, deleted: usize, took: Duration) {
        self.duration.with_label_values(&[family.as_str()]).observe(took.as_secs_f64());
        self.deleted.with_label_values(&[family.as_str()]).inc_by(deleted as u64);
    }
}

/// Metrics of the proxy modes. Those of a mode appear when it is first used.
pub struct ModeMetrics {
    registry: Registry,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    packets: bool,
    gauges: HashMap<&'static str, GaugeVec>,
    counters: HashMap<&'static str, IntCounterVec>,
}

impl ModeMetrics {
    pub(super) fn new(registry: Registry) -> Self {
        ModeMetrics { registry, known: Mutex::default() }
    }

    /// Shows the values that a mode reports after a sync.
    pub fn show(&self, family: Family, gauges: &[Gauge]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for gauge in gauges {
            let (labels, values) = labels(&gauge.labels, family);
            if let Some(vector) = self.gauges(&mut known, gauge.metric, &labels)
                && let Ok(one) = vector.get_metric_with_label_values(&values)
            {
                one.set(gauge.value as f64);
            }
        }
    }

    /// Makes a mode's counters visible. Their series appear with the first increment, as in kube-proxy.
    pub fn announce(&self, counters: &[(&'static str, &'static str)]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (metric, help) in counters {
            self.counters(&mut known, metric, help, FAMILY);
        }
    }

    /// Adds what a mode's dataplanes counted.
    pub fn count(&self, family: Family, counts: &[Count]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for count in counts {
            let (labels, values) = labels(&count.labels, family);
            if let Some(vector) =
                self.counters(&mut known, count.metric, "[ALPHA] Counted by the proxy mode", &labels)
                && let Ok(one) = vector.get_metric_with_label_values(&values)
            {
                one.inc_by(count.by);
            }
        }
    }

    /// Registers packet counters of the kernel.
    pub fn show_packets(&self, counters: Vec<PacketCounter>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut known.packets, true) {
            return;
        }
        let added =
            PacketCollector::new(counters).and_then(|collector| self.registry.register(Box::new(collector)));
        if let Err(error) = added {
            tracing::warn!(%error, "Cannot publish the packet counters of the kernel");
        }
    }

    fn gauges<'a>(
        &self,
        known: &'a mut Known,
        metric: &'static str,
        labels: &[&str],
    ) -> Option<&'a GaugeVec> {
        if !known.gauges.contains_key(metric) {
            let name = format!("kubeproxy_{metric}");
            let made = Part(&self.registry).made(
                &name,
                GaugeVec::new(
                    Opts::new(&name, "[ALPHA] A number of the proxy mode after its last sync"),
                    labels,
                ),
            );
            match made {
                Ok(vector) => known.gauges.insert(metric, vector),
                Err(error) => {
                    tracing::warn!(%error, metric, "Cannot publish a gauge");
                    return None;
                }
            };
        }
        known.gauges.get(metric)
    }

    fn counters<'a>(
        &self,
        known: &'a mut Known,
        metric: &'static str,
        help: &str,
        labels: &[&str],
    ) -> Option<&'a IntCounterVec> {
        if !known.counters.contains_key(metric) {
            match Part(&self.registry).counters(&format!("kubeproxy_{metric}"), help, labels) {
                Ok(vector) => known.counters.insert(metric, vector),
                Err(error) => {
                    tracing::warn!(%error, metric, "A counter of the proxy mode is not shown");
                    return None;
                }
            };
        }
        known.counters.get(metric)
    }
}

/// The names and values of a series' labels, with the family at the end.
fn labels<'a>(own: &'a [(&'static str, String)], family: Family) -> (Vec<&'a str>, Vec<&'a str>) {
    let names = own.iter().map(|(name, _)| *name).chain(["ip_family"]).collect();
    let values = own.iter().map(|(_, value)| value.as_str()).chain([family.as_str()]).collect();
    (names, values)
}

fn doubling_from_a_millisecond() -> Vec<f64> {
    // Written as a product of exact powers of two, so that every bound prints as briefly as kube-proxy prints it.
    (0..15).map(|power| 0.001 * f64::from(1u32 << power)).collect()
}

fn programming_buckets() -> Vec<f64> {
    let whole = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(whole.map(f64::from)).collect()
}

fn seconds(at: Timestamp) -> f64 {
    at.as_nanos() as f64 / 1e9
}
