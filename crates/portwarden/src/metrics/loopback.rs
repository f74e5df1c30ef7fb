//! Packets to node ports on loopback addresses that nftables mode refuses, counted by the kernel.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use portwarden_model::{Family, Protocol};
use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};

use super::{MetricError, Part};

const REJECTED: &str = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total";
const REJECTED_HELP: &str = "[ALPHA] Packets to node ports on loopback addresses that were refused";

/// Reads the packets that were refused, if the kernel counts them.
pub type ReadRejected = Box<dyn Fn() -> Vec<(Family, Protocol, u64)> + Send + Sync>;

/// The metric of refused packets. It appears when the feature is first switched on.
#[derive(Clone)]
pub struct LoopbackMetrics {
    registry: Registry,
    shown: Arc<OnceLock<()>>,
}

impl LoopbackMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        LoopbackMetrics { registry: registry.clone(), shown: Arc::default() }
    }

    /// Registers it.
    pub fn show(&self, read: ReadRejected) -> Result<(), MetricError> {
        if self.shown.set(()).is_err() {
            return Ok(());
        }
        let labels = ["ip_family", "protocol"].map(str::to_owned).into();
        let described = Desc::new(REJECTED.to_owned(), REJECTED_HELP.to_owned(), labels, HashMap::new());
        let description = described.map_err(|source| MetricError { name: REJECTED.to_owned(), source })?;
        Part(&self.registry).add(REJECTED, Rejected { read, description })
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
