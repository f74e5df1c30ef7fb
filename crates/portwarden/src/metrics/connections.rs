//! What a proxy in user space counts about connections, read at each scrape.

use std::collections::HashMap;

use portwarden_userspace::Snapshot;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// What all names start with.
pub(super) const PREFIX: &str = "portwarden_userspace_";

/// Reads all values, those of one metric next to each other.
pub type ReadConnections = Box<dyn Fn() -> Vec<Snapshot> + Send + Sync>;

/// Shows them. Names that end in `_total` are counters, others gauges.
pub(super) struct ConnectionCollector {
    read: ReadConnections,
    descriptions: Vec<Desc>,
}

impl ConnectionCollector {
    pub(super) fn new(read: ReadConnections) -> prometheus::Result<Self> {
        let mut all = read();
        all.dedup_by_key(|one| one.metric);
        let describe = |one: &Snapshot| {
            let labels = one.labels.iter().map(|(name, _)| (*name).to_owned()).collect();
            Desc::new(format!("{PREFIX}{}", one.metric), one.help.to_owned(), labels, HashMap::new())
        };
        let descriptions = all.iter().map(describe).collect::<prometheus::Result<_>>()?;
        Ok(ConnectionCollector { read, descriptions })
    }
}

impl Collector for ConnectionCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.read)().chunk_by(|one, next| one.metric == next.metric).filter_map(family).collect()
    }
}

fn family(snapshots: &[Snapshot]) -> Option<MetricFamily> {
    let first = snapshots.first()?;
    let counts = first.metric.ends_with("_total");
    let mut family = MetricFamily::default();
    family.set_name(format!("{PREFIX}{}", first.metric));
    family.set_help(first.help.to_owned());
    family.set_field_type(if counts { MetricType::COUNTER } else { MetricType::GAUGE });
    family.set_metric(snapshots.iter().map(|one| metric(one, counts)).collect());
    Some(family)
}

fn metric(snapshot: &Snapshot, counts: bool) -> Metric {
    let label = |(name, value): &(&'static str, String)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value(value.clone());
        pair
    };
    let mut metric = Metric::default();
    metric.set_label(snapshot.labels.iter().map(label).collect());
    if counts {
        let mut counter = Counter::default();
        counter.set_value(snapshot.value as f64);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(snapshot.value as f64);
        metric.set_gauge(gauge);
    }
    metric
}
