//! What happened to connections, as atomic counters that a scrape reads without stopping any of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portwarden_model::NamespacedName;

/// A number that many tasks change.
#[derive(Debug, Default)]
pub(crate) struct Number(AtomicU64);

impl Number {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// One of the things that it counts has changed from `before` to `after`.
    pub(crate) fn correct(&self, before: usize, after: usize) {
        if after >= before {
            self.add((after - before) as u64);
        } else {
            self.0.fetch_sub((before - after) as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one proxy, over all its Services.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) accepted: Number,
    /// Connections and UDP sessions that are open now.
    pub(crate) active: Number,
    pub(crate) dialled: Number,
    pub(crate) dial_refused: Number,
    pub(crate) dial_timeout: Number,
    pub(crate) dial_failed: Number,
    /// Attempts that waited in vain for dials to the same endpoint to end.
    pub(crate) dial_limited: Number,
    /// Attempts after the first one of a connection.
    pub(crate) retries: Number,
    /// Connections for which no endpoint answered.
    pub(crate) unanswered: Number,
    pub(crate) bytes_to_endpoints: Number,
    pub(crate) bytes_to_clients: Number,
    /// Connections above the limit of their Service.
    pub(crate) over_limit: Number,
    /// Connections that did not come through our rules.
    pub(crate) not_redirected: Number,
    /// Times that accepting paused because no descriptor was left.
    pub(crate) exhausted: Number,
    /// UDP sessions that are open now.
    pub(crate) udp_clients: Number,
    /// Clients that session affinity remembers.
    pub(crate) affinity_records: Number,
    services: Mutex<BTreeMap<NamespacedName, Arc<ServiceCounters>>>,
}

/// The counters of one Service.
#[derive(Debug, Default)]
pub struct ServiceCounters {
    pub(crate) accepted: Number,
    pub(crate) active: Number,
    pub(crate) unanswered: Number,
}

/// One value at the time of a scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The metric's name without prefix. Counters end in `_total`.
    pub metric: &'static str,
    /// What it means.
    pub help: &'static str,
    /// Labels with their values.
    pub labels: Vec<(&'static str, String)>,
    /// A sum since the start for counters, otherwise the current value.
    pub value: u64,
}

impl Counters {
    /// The counters of a Service, made when it first appears.
    pub(crate) fn service(&self, name: &NamespacedName) -> Arc<ServiceCounters> {
        Arc::clone(self.services().entry(name.clone()).or_default())
    }

    /// Forgets a Service that is gone; connections that are still open go on counting, unseen.
    pub(crate) fn forget(&self, name: &NamespacedName) {
        self.services().remove(name);
    }

    /// Connections and UDP sessions that are open now.
    pub fn active(&self) -> u64 {
        self.active.get()
    }

    /// All values, those of one metric next to each other.
    pub fn read(&self) -> Vec<Snapshot> {
        let mut all = Vec::new();
        let mut push = |metric, help, labels, number: &Number| {
            all.push(Snapshot { metric, help, labels, value: number.get() });
        };
        push("connections_active", "Connections and UDP sessions that are open", vec![], &self.active);
        push(
            "udp_clients",
            "UDP sessions that are open, each of one client address and port",
            vec![],
            &self.udp_clients,
        );
        push(
            "affinity_records",
            "Clients that session affinity remembers, some of them a while longer than it keeps them",
            vec![],
            &self.affinity_records,
        );
        push("connections_total", "Connections and UDP sessions that were accepted", vec![], &self.accepted);
        for (result, number) in [
            ("ok", &self.dialled),
            ("refused", &self.dial_refused),
            ("timeout", &self.dial_timeout),
            ("error", &self.dial_failed),
            ("limit", &self.dial_limited),
        ] {
            push(
                "dials_total",
                "Attempts to reach an endpoint, by result",
                vec![("result", result.to_owned())],
                number,
            );
        }
        push(
            "dial_retries_total",
            "Attempts after the first of a connection, at another endpoint where there is one",
            vec![],
            &self.retries,
        );
        for (direction, number) in
            [("to_endpoint", &self.bytes_to_endpoints), ("to_client", &self.bytes_to_clients)]
        {
            push("bytes_total", "Bytes copied", vec![("direction", direction.to_owned())], number);
        }
        for (reason, number) in [
            ("no_endpoint_answered", &self.unanswered),
            ("service_limit", &self.over_limit),
            ("not_redirected", &self.not_redirected),
        ] {
            push(
                "connections_rejected_total",
                "Connections that were reset without reaching an endpoint, by reason",
                vec![("reason", reason.to_owned())],
                number,
            );
        }
        push(
            "accept_pauses_total",
            "Times that accepting paused because no file descriptor was left",
            vec![],
            &self.exhausted,
        );
        let services = self.services();
        type Read = fn(&ServiceCounters) -> &Number;
        let each: [(&'static str, &'static str, Read); 3] = [
            ("service_connections_active", "Open connections and UDP sessions by Service", |c| &c.active),
            ("service_connections_total", "Accepted connections and UDP sessions by Service", |c| {
                &c.accepted
            }),
            (
                "service_connections_unanswered_total",
                "Connections for which no endpoint of the Service answered",
                |c| &c.unanswered,
            ),
        ];
        for (metric, help, read) in each {
            for (name, counters) in services.iter() {
                push(
                    metric,
                    help,
                    vec![("namespace", name.namespace().to_string()), ("service", name.name().to_string())],
                    read(counters),
                );
            }
        }
        drop(services);
        all
    }

    fn services(&self) -> MutexGuard<'_, BTreeMap<NamespacedName, Arc<ServiceCounters>>> {
        // Nothing is half done under this lock.
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection or UDP session that is counted as long as it is open.
pub(crate) struct Open(Arc<Counters>, Arc<ServiceCounters>);

impl Open {
    pub(crate) fn new(all: &Arc<Counters>, service: &Arc<ServiceCounters>) -> Self {
        all.accepted.increment();
        all.active.increment();
        service.accepted.increment();
        service.active.increment();
        Open(Arc::clone(all), Arc::clone(service))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.active.decrement();
        self.1.active.decrement();
    }
}

/// One more for as long as this lives.
pub(crate) struct Counted<'a>(&'a Number);

impl<'a> Counted<'a> {
    pub(crate) fn new(number: &'a Number) -> Self {
        number.increment();
        Counted(number)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.decrement();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_in_the_documentation() {
        let counters = Counters::default();
        let _service = counters.service(&NamespacedName::new("demo", "web"));
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/userspace.md");
        let text = std::fs::read_to_string(file).expect("docs/userspace.md");
        let (_, section) = text.split_once("\n## Metrics\n").expect("a section about metrics");
        let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
        let named = |word: &str| section.contains(&format!("`{word}`"));
        for Snapshot { metric, labels, .. } in counters.read() {
            assert!(
                named(metric) || section.contains(&format!("`{metric}{{")),
                "docs/userspace.md lacks {metric}"
            );
            let fixed = labels.iter().filter(|(name, _)| !matches!(*name, "namespace" | "service"));
            for (name, value) in fixed {
                assert!(named(value), "docs/userspace.md lacks {name}={value:?} of {metric}");
            }
        }
    }
}
