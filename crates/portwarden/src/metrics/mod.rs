//! Metrics: those of kube-proxy under the same names, and a few of Portwarden.
//!
//! Each part of the program has a struct here, built from one registry. Names, types, labels and buckets are an interface for dashboards and
//! alerts; `tests/metrics.rs` compares them with a recording of kube-proxy.

mod changes;
mod connections;
mod health;
mod loopback;
mod own;
mod packets;
mod process;
mod rest_client;
mod services;
mod sync;
mod text;

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

pub use changes::ChangeMetrics;
pub use connections::ReadConnections;
pub use health::HealthMetrics;
pub use loopback::{LoopbackMetrics, ReadRejected};
pub use own::OwnMetrics;
pub use packets::PacketCounter;
pub use process::process_start_time;
pub use rest_client::RestClientMetrics;
pub use services::ReadPortCounts;
pub use sync::{FlowMetrics, ModeMetrics, SyncMetrics};
pub use text::{CONTENT_TYPE, go_float};

/// A metric could not be registered: a duplicate name, or wrong labels.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the metric {name:?}; this is a mistake in Portwarden")]
pub struct MetricError {
    name: String,
    source: prometheus::Error,
}

/// All metrics of the process. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// Syncs in every mode.
    pub sync: SyncMetrics,
    /// Metrics of the proxy mode.
    pub mode: Arc<ModeMetrics>,
    /// Object changes from the source.
    pub changes: ChangeMetrics,
    /// Clean-up of flows.
    pub flows: FlowMetrics,
    /// Answers of the health server.
    pub health: HealthMetrics,
    /// Node ports on loopback addresses.
    pub loopback: LoopbackMetrics,
    /// Requests to the API server.
    pub rest_client: RestClientMetrics,
    /// `portwarden_*`.
    pub own: OwnMetrics,
}

impl Metrics {
    /// All metrics that do not depend on the proxy mode.
    pub fn new(version: &BuildInfo) -> Result<Self, MetricError> {
        let registry = Registry::new();
        let part = Part(&registry);
        part.build_info(version)?;
        part.add("process_*", process::ProcessCollector::new())?;
        Ok(Metrics {
            sync: SyncMetrics::new(&part)?,
            mode: Arc::new(ModeMetrics::new(registry.clone())),
            changes: ChangeMetrics::new(&part)?,
            flows: FlowMetrics::new(&part)?,
            health: HealthMetrics::new(&part)?,
            loopback: LoopbackMetrics::new(&registry),
            rest_client: RestClientMetrics::new(&part)?,
            own: OwnMetrics::new(&part)?,
            registry,
        })
    }

    /// Publishes which feature gates are on. Stages are `ALPHA`, `BETA`, `DEPRECATED`, or empty for general availability.
    pub fn feature_gates<'a>(
        &self,
        gates: impl Iterator<Item = (&'a str, &'a str, bool)>,
    ) -> Result<(), MetricError> {
        let enabled = Part(&self.registry).gauges(
            "kubernetes_feature_enabled",
            "[BETA] Whether a feature gate is on (1) or off (0)",
            &["name", "stage"],
        )?;
        for (name, stage, on) in gates {
            enabled.with_label_values(&[name, stage]).set(f64::from(u8::from(on)));
        }
        Ok(())
    }

    /// Publishes what a proxy counts about connections, read at each scrape.
    pub fn connections(&self, read: ReadConnections) -> Result<(), MetricError> {
        let collector = connections::ConnectionCollector::new(read);
        let collector =
            collector.map_err(|source| MetricError { name: connections::PREFIX.into(), source })?;
        Part(&self.registry).add(connections::PREFIX, collector)
    }

    /// Publishes what eBPF programs count for each service port, read at each scrape.
    pub fn socket_connections(&self, read: ReadPortCounts) -> Result<(), MetricError> {
        let collector = services::ServiceCollector::new(read);
        let collector = collector.map_err(|source| MetricError { name: services::PREFIX.into(), source })?;
        Part(&self.registry).add(services::PREFIX, collector)
    }

    /// All metrics in the text format of Prometheus.
    pub fn text(&self) -> String {
        text::encode(&self.registry.gather())
    }
}

/// The version that `kubernetes_build_info` shows.
#[derive(Debug, Clone, Default)]
pub struct BuildInfo {
    /// The Kubernetes version whose behaviour this is, for example `v1.37.0`.
    pub git_version: String,
    /// The commit that was built.
    pub git_commit: String,
}

/// Creates and registers metrics.
struct Part<'a>(&'a Registry);

impl Part<'_> {
    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricError> {
        self.made(name, IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, MetricError> {
        self.made(name, IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> Result<Gauge, MetricError> {
        self.made(name, Gauge::new(name, help))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, MetricError> {
        self.made(name, GaugeVec::new(Opts::new(name, help), labels))
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: Vec<f64>,
    ) -> Result<HistogramVec, MetricError> {
        self.made(name, HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels))
    }

    fn made<M: Collector + Clone + 'static>(
        &self,
        name: &str,
        metric: prometheus::Result<M>,
    ) -> Result<M, MetricError> {
        let metric = metric.map_err(|source| MetricError { name: name.to_owned(), source })?;
        self.add(name, metric.clone())?;
        Ok(metric)
    }

    fn add(&self, name: &str, collector: impl Collector + 'static) -> Result<(), MetricError> {
        self.0.register(Box::new(collector)).map_err(|source| MetricError { name: name.to_owned(), source })
    }

    fn build_info(&self, version: &BuildInfo) -> Result<(), MetricError> {
        let mut numbers = version.git_version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or(""), numbers.next().unwrap_or(""));
        let platform = format!("linux/{}", go_architecture());
        let labels = [
            ("major", major),
            ("minor", minor),
            ("git_version", &version.git_version),
            ("git_commit", &version.git_commit),
            ("git_tree_state", ""),
            ("build_date", ""),
            // There is no Go version, but queries join on the label.
            ("go_version", ""),
            ("compiler", "rustc"),
            ("platform", &platform),
        ];
        let names = labels.map(|(name, _)| name);
        let info = self.gauges(
            "kubernetes_build_info",
            "[ALPHA] Constant 1, with the version in its labels",
            &names,
        )?;
        info.with_label_values(&labels.map(|(_, value)| value)).set(1.0);
        Ok(())
    }
}

/// The architecture in the spelling of Go.
pub fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}
