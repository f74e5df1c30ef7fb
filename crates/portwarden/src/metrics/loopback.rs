//! Node ports on loopback addresses in nftables mode. They appear when the feature is first switched on.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use portwarden_model::{Family, Protocol};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};

use super::{MetricError, Part};

const REJECTED: &str = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total";
const REJECTED_HELP: &str = "[ALPHA] Packets to node ports on loopback addresses that were refused";

/// Reads the packets that were refused, if the kernel counts them.
pub type ReadRejected = Box<dyn Fn() -> Vec<(Family, Protocol, u64)> + Send + Sync>;

/// Metrics of the loopback proxy, and of packets that the rules refuse.
#[derive(Clone)]
pub struct LoopbackMetrics {
    registry: Registry,
    shown: Arc<OnceLock<()>>,
    listeners: GaugeVec,
    failures: IntCounterVec,
}

impl LoopbackMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, MetricError> {
        let named = |name: &'static str| move |source| MetricError { name: name.to_owned(), source };
        let (listeners, failures) = (
            "kubeproxy_nftables_localhost_nodeport_listeners",
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
        );
        let family = &["ip_family"];
        let listeners_help = "[ALPHA] Node ports that are served on a loopback address";
        let failures_help = "[ALPHA] Attempts to listen for a node port on a loopback address that failed";
        Ok(LoopbackMetrics {
            registry: registry.clone(),
            shown: Arc::default(),
            listeners: GaugeVec::new(Opts::new(listeners, listeners_help), family)
                .map_err(named(listeners))?,
            failures: IntCounterVec::new(Opts::new(failures, failures_help), family)
                .map_err(named(failures))?,
        })
    }

    /// Registers them.
    pub fn show(&self, read: ReadRejected) -> Result<(), MetricError> {
        if self.shown.set(()).is_err() {
            return Ok(());
        }
        let part = Part(&self.registry);
        part.add("nftables_localhost_nodeport_listeners", self.listeners.clone())?;
        part.add("nftables_localhost_nodeport_listener_creation_failures_total", self.failures.clone())?;
        let labels = ["ip_family", "protocol"].map(str::to_owned).into();
        let described = Desc::new(REJECTED.to_owned(), REJECTED_HELP.to_owned(), labels, HashMap::new());
        let description = described.map_err(|source| MetricError { name: REJECTED.to_owned(), source })?;
        part.add(REJECTED, Rejected { read, description })
    }

    /// Sets the number of open ports, if there are or were any.
    pub fn listening(&self, family: Family, count: usize, served: bool) {
        if served {
            self.listeners.with_label_values(&[family.as_str()]).set(count as f64);
        } else {
            // It does not exist if no port was ever open.
            let _ = self.listeners.remove_label_values(&[family.as_str()]);
        }
    }

    /// Counts a port that could not be opened.
    pub fn failed(&self, family: Family) {
        self.failures.with_label_values(&[family.as_str()]).inc();
    }
}

struct Rejected {
    read: ReadRejected,
    description: Desc,
}

impl Collector for Rejected {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.description]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let metrics: Vec<Metric> = (self.read)().into_iter().map(metric).collect();
        if metrics.is_empty() {
            return Vec::new();
        }
        let mut family = MetricFamily::default();
        family.set_name(REJECTED.to_owned());
        family.set_help(REJECTED_HELP.to_owned());
        family.set_field_type(MetricType::COUNTER);
        family.set_metric(metrics);
        vec![family]
    }
}

fn metric((family, protocol, packets): (Family, Protocol, u64)) -> Metric {
    let label = |name: &str, value: &str| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    };
    let mut counter = Counter::default();
    counter.set_value(packets as f64);
    let mut metric = Metric::default();
    metric.set_label(vec![label("ip_family", family.as_str()), label("protocol", protocol.as_str())]);
    metric.set_counter(counter);
    metric
}
