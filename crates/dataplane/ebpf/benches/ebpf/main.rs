//! What mode ebpf costs, beside a direct connection and mode nftables in the same run.
//!
//!     cargo bench -p portwarden-ebpf --bench ebpf
//!     BENCH=quick cargo bench -p portwarden-ebpf --bench ebpf
//!     cargo bench -p portwarden-ebpf --bench ebpf -- connect      (only that part: connect, updates, memory)
//!
//! Prints tables and judges nothing. Needs root: everything happens in network namespaces and cgroups of its own.

mod connect;
mod updates;

use anyhow::{Result, bail};
use portwarden_model::build::{ToEvent, endpoint, node, port, service, service_cidr, slice};
use portwarden_model::{Cluster, Event, Kind, Settings};

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// About a minute.
    Quick,
    /// Some minutes.
    Full,
}

impl Effort {
    /// One of two numbers.
    pub(crate) fn choose<T>(self, quick: T, full: T) -> T {
        if self == Effort::Quick { quick } else { full }
    }
}

/// A part of the benchmark.
type Part = fn(Effort) -> Result<()>;

const PARTS: [(&str, Part); 3] =
    [("connect", connect::run), ("updates", updates::run), ("memory", updates::memory)];

fn main() -> Result<()> {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = arguments.iter().find(|name| PARTS.iter().all(|(part, _)| part != name)) {
        bail!("there is no part {unknown}; the parts are {}", PARTS.map(|(name, _)| name).join(", "));
    }
    let effort = match std::env::var("BENCH").as_deref() {
        Ok("quick") => Effort::Quick,
        _ => Effort::Full,
    };
    for (name, part) in PARTS {
        if arguments.is_empty() || arguments.iter().any(|argument| argument == name) {
            part(effort)?;
        }
    }
    Ok(())
}

/// The number of a Service in the cluster address that it has.
pub(crate) fn cluster_ip(service: usize) -> [u8; 4] {
    let byte = |number: usize| u8::try_from(number).expect("fewer than 64,000 Services");
    [10, 96, byte(service / 250), byte(service % 250 + 1)]
}

/// A cluster of Services with one TCP port each, whose endpoints `endpoints` lists.
pub(crate) fn cluster(services: usize, endpoints: impl Fn(usize) -> Vec<String>) -> Cluster {
    // Pods of the testkit's topology.
    let pod_ranges = vec!["10.244.0.0/16".parse().expect("a range")];
    let mut cluster = Cluster::new(Settings { pod_ranges, ..Settings::new("node-a") });
    cluster.apply(node("node-a").ip("192.168.0.2").build().event());
    // The last one is what a bridge of pods has.
    let own = ["127.0.0.1", "192.168.0.2", "10.244.0.1"].map(|ip| ip.parse().expect("an address"));
    cluster.apply(Event::HostAddresses(own.into()));
    // Every cluster has one.
    cluster.apply(service_cidr("kubernetes", ["10.96.0.0/12"]).event());
    for number in 0..services {
        let [a, b, c, d] = cluster_ip(number);
        let name = format!("service-{number}");
        let object = service(&name).cluster_ip(format!("{a}.{b}.{c}.{d}")).port(port(80));
        cluster.apply(object.build().event());
        cluster.apply(endpoints_of(number, endpoints(number)));
    }
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
    cluster
}

/// The slice of a Service.
pub(crate) fn endpoints_of(number: usize, addresses: Vec<String>) -> Event {
    let own = slice(&format!("service-{number}"), &format!("service-{number}-1")).port(port(8080));
    addresses.into_iter().fold(own, |own, ip| own.endpoint(endpoint(ip).on("node-b"))).build().event()
}

/// A percentile of values, which are sorted.
pub(crate) fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get((values.len() * percent / 100).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}
