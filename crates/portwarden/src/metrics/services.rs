//! What the eBPF programs count for each service port, read at each scrape.

use std::collections::HashMap;

use portwarden_ebpf::PortCounts;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};

/// What all names start with.
pub(super) const PREFIX: &str = "portwarden_service_";

/// Reads the counts of all service ports.
pub type ReadPortCounts = Box<dyn Fn() -> Vec<PortCounts> + Send + Sync>;

const LABELS: [&str; 5] = ["namespace", "service", "port", "protocol", "ip_family"];

/// One metric: its name, what it means, its value.
struct Shown {
    name: &'static str,
    help: &'static str,
    value: fn(&PortCounts) -> u64,
}

const SHOWN: [Shown; 2] = [
    Shown {
        name: "portwarden_service_connections_total",
        help: "Connections and datagram destinations of this node that were pointed at an endpoint, by service port",
        value: |counts| counts.connections,
    },
    Shown {
        name: "portwarden_service_refusals_total",
        help: "Connections and datagrams of this node that were refused because there is no endpoint, by service port",
        value: |counts| counts.refusals,
    },
];

/// Shows them.
pub(super) struct ServiceCollector {
    read: ReadPortCounts,
    descriptions: Vec<Desc>,
}

impl ServiceCollector {
    pub(super) fn new(read: ReadPortCounts) -> prometheus::Result<Self> {
        let labels = || LABELS.map(str::to_owned).into();
        let describe =
            |shown: Shown| Desc::new(shown.name.to_owned(), shown.help.to_owned(), labels(), HashMap::new());
        let descriptions = SHOWN.into_iter().map(describe).collect::<prometheus::Result<_>>()?;
        Ok(ServiceCollector { read, descriptions })
    }
}

impl Collector for ServiceCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counts = (self.read)();
        if counts.is_empty() {
            return Vec::new();
        }
        SHOWN
            .into_iter()
            .map(|shown| {
                let mut family = MetricFamily::default();
                family.set_name(shown.name.to_owned());
                family.set_help(shown.help.to_owned());
                family.set_field_type(MetricType::COUNTER);
                family.set_metric(counts.iter().map(|port| metric(port, (shown.value)(port))).collect());
                family
            })
            .collect()
    }
}

fn metric(counts: &PortCounts, value: u64) -> Metric {
    let name = &counts.name;
    let values = [
        name.service.namespace().to_owned(),
        name.service.name().to_owned(),
        name.port.to_string(),
        name.protocol.to_string(),
        counts.family.to_string(),
    ];
    let labels = LABELS.into_iter().zip(values).map(|(label, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(label.to_owned());
        pair.set_value(value);
        pair
    });
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::default();
    metric.set_label(labels.collect());
    metric.set_counter(counter);
    metric
}

#[cfg(test)]
mod tests {
    use portwarden_model::{Family, Name, NamespacedName, PortName, Protocol};
    use prometheus::Registry;

    use super::*;

    #[test]
    fn each_service_port_has_its_counts() {
        let name = PortName {
            service: NamespacedName::new("demo", "web"),
            port: Name::from("http"),
            protocol: Protocol::Tcp,
        };
        let counts = PortCounts { family: Family::V4, name, connections: 3, refusals: 1 };
        let registry = Registry::new();
        registry
            .register(Box::new(ServiceCollector::new(Box::new(move || vec![counts.clone()])).unwrap()))
            .unwrap();
        let text = super::super::text::encode(&registry.gather());
        let labels = r#"{namespace="demo",service="web",port="http",protocol="TCP",ip_family="IPv4"}"#;
        for line in ["connections_total", "refusals_total"]
            .iter()
            .zip([3, 1])
            .map(|(n, v)| format!("{PREFIX}{n}{labels} {v}"))
        {
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }
}
