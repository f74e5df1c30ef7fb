//! Packet counters of the kernel, read at each scrape.

use std::collections::HashMap;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Metric, MetricFamily, MetricType};

/// A counter of the kernel.
pub struct PacketCounter {
    /// The name of the metric.
    pub name: &'static str,
    /// The help text of the metric.
    pub help: &'static str,
    /// Reads it; `None` hides the metric.
    pub read: Box<dyn Fn() -> Option<u64> + Send + Sync>,
}

/// Publishes packet counters.
pub(super) struct PacketCollector {
    counters: Vec<PacketCounter>,
    descriptions: Vec<Desc>,
}

impl PacketCollector {
    pub(super) fn new(counters: Vec<PacketCounter>) -> prometheus::Result<Self> {
        let describe =
            |one: &PacketCounter| Desc::new(one.name.into(), one.help.into(), Vec::new(), HashMap::new());
        let descriptions = counters.iter().map(describe).collect::<prometheus::Result<_>>()?;
        Ok(PacketCollector { counters, descriptions })
    }
}

impl Collector for PacketCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.counters.iter().filter_map(family).collect()
    }
}

fn family(packets: &PacketCounter) -> Option<MetricFamily> {
    let mut counter = Counter::default();
    counter.set_value((packets.read)()? as f64);
    let mut metric = Metric::default();
    metric.set_counter(counter);
    let mut family = MetricFamily::default();
    family.set_name(packets.name.to_owned());
    family.set_help(format!("[ALPHA] {}", packets.help));
    family.set_field_type(MetricType::COUNTER);
    family.set_metric(vec![metric]);
    Some(family)
}
