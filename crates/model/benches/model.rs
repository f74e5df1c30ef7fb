//! What the pure part costs: a full resolve, one changed slice in clusters of three sizes, and memory.
//!
//! Prints figures and judges nothing; `cargo bench -p portwarden-model`. Memory is what the process keeps resident, measured in a process of
//! its own for each figure, so it includes what the allocator wastes.

use std::process::Command;
use std::time::{Duration, Instant};

use portwarden_model::{Cluster, Event, Family, Interner, Kind, Settings, manifest};
use portwarden_testkit::build::{self, ToEvent, port};

const SERVICES: usize = 5_000;
const ENDPOINTS: usize = 50;
const ADDRESS_AND_PORT: f64 = 6.0;

fn main() {
    match std::env::args().skip_while(|arg| arg != "--memory").nth(1).as_deref() {
        Some(shape) => measure_memory(shape),
        None => print_table(),
    }
}

fn print_table() {
    println!(
        "one cluster, {SERVICES} services x {ENDPOINTS} endpoints, IPv4 (times: median of several runs)"
    );
    full(SERVICES, ENDPOINTS);
    println!();
    println!("one slice of {ENDPOINTS} endpoints changes, from manifest to desired state");
    let base = one_slice(500, ENDPOINTS);
    for services in [5_000, 30_000] {
        let time = one_slice(services, ENDPOINTS);
        println!("{:<58}{:>10.2} x", "  beside 500 services", time.as_secs_f64() / base.as_secs_f64());
    }
    println!();
    println!("memory, resident after the list is in and resolved");
    for shape in ["5000x50", "30000x4"] {
        let program = std::env::current_exe().expect("the program knows its own path");
        let child = Command::new(program).args(["--memory", shape]).status().expect("it can start itself");
        assert!(child.success(), "measuring {shape} failed");
    }
}

fn row(what: &str, time: Duration) {
    println!("{:<58}{:>10.3} ms", format!("  {what}"), time.as_secs_f64() * 1e3);
}

/// Everything from empty: objects from manifests, applied, resolved; then resolved again for other settings.
fn full(services: usize, endpoints: usize) {
    let manifests: Vec<_> = (0..services).map(|n| (service(n), slice(n, endpoints, 0))).collect();
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..5 {
        let mut names = Interner::default();
        let (parsed, objects) = timed(|| {
            manifests
                .iter()
                .flat_map(|(service, slice)| events(service, slice, &mut names))
                .collect::<Vec<_>>()
        });
        let mut cluster = Cluster::new(Settings::new("node-1"));
        let (applied, ()) = timed(|| {
            for event in objects {
                cluster.apply(event);
            }
        });
        let (resolved, changes) = timed(|| cluster.resolve());
        assert_eq!(changes.v4.services.len(), services);
        let mut other = cluster.settings().clone();
        other.masquerade_all = true;
        let (again, changes) = timed(|| {
            cluster.set_settings(other);
            cluster.resolve()
        });
        assert_eq!(changes.v4.services.len(), services);
        for (all, time) in times.iter_mut().zip([parsed, applied, resolved, again]) {
            all.push(time);
        }
    }
    let [parsed, applied, resolved, again] = times.map(median);
    row("objects from manifests", parsed);
    row("apply", applied);
    row("resolve", resolved);
    row("resolve everything again (other settings)", again);
    row("apply and resolve", applied + resolved);
}

/// One endpoint of one slice is replaced, again and again, in a cluster of this size.
fn one_slice(services: usize, endpoints: usize) -> Duration {
    let mut names = Interner::default();
    let mut cluster = Cluster::new(Settings::new("node-1"));
    fill(&mut cluster, &mut names, services, endpoints);
    let mut times = Vec::new();
    let mut without_manifest = Vec::new();
    for round in 1..=400 {
        let changed = slice(services / 2, endpoints, round);
        let (decode, event) = timed(|| changed.event_with(&mut names));
        let (resolve, changes) = timed(|| {
            cluster.apply(event);
            cluster.resolve()
        });
        assert_eq!(changes.v4.services.len(), 1);
        times.push(decode + resolve);
        without_manifest.push(resolve);
    }
    let time = median(times);
    row(&format!("{services} services, in all"), time);
    row(&format!("{services} services, apply and resolve"), median(without_manifest));
    time
}

fn measure_memory(shape: &str) {
    let (services, endpoints) = shape.split_once('x').expect("services x endpoints");
    let (services, endpoints): (usize, usize) =
        (services.parse().expect("a number"), endpoints.parse().expect("a number"));
    let mut names = Interner::default();
    let mut cluster = Cluster::new(Settings::new("node-1"));
    let before = resident();
    fill(&mut cluster, &mut names, services, endpoints);
    let grown = resident() - before;
    let each = grown as f64 / (services * endpoints) as f64;
    assert_eq!(cluster.desired(Family::V4).totals().endpoints, services * endpoints);
    println!(
        "  {services} services x {endpoints} endpoints: {:.1} MB, {each:.1} bytes per endpoint, {:.1} beyond address and port",
        grown as f64 / 1e6,
        each - ADDRESS_AND_PORT
    );
}

/// Resident memory in bytes.
fn resident() -> usize {
    let status =
        std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux reports the memory of a process");
    let line = status.lines().find(|line| line.starts_with("Anonymous:")).expect("it has this line");
    let kilobytes: usize = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kilobytes * 1024
}

/// As a source does: one object at a time, nothing kept of its text.
fn fill(cluster: &mut Cluster, names: &mut Interner, services: usize, endpoints: usize) {
    for n in 0..services {
        for event in events(&service(n), &slice(n, endpoints, 0), names) {
            cluster.apply(event);
        }
    }
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
}

fn events(service: &manifest::Service, slice: &manifest::EndpointSlice, names: &mut Interner) -> [Event; 2] {
    [service.event_with(names), slice.event_with(names)]
}

fn service(n: usize) -> manifest::Service {
    let service = build::service(&format!("service-{n}")).cluster_ip(address(10, 96, n));
    service.port(port(80).name("http")).build()
}

/// Endpoints spread over 1,000 nodes; one of them is another one in each round.
fn slice(n: usize, endpoints: usize, round: usize) -> manifest::EndpointSlice {
    let slice = build::slice(&format!("service-{n}"), &format!("service-{n}-abcde"));
    let endpoint = |index: usize| {
        let (number, second) = if index == 0 { (n * 1_000 + round, 128) } else { (n * endpoints + index, 1) };
        build::endpoint(address(10, second, number))
            .on(&format!("node-{}", (n * 7 + index) % 1_000))
            .ready(true)
            .serving(true)
            .terminating(false)
    };
    let slice = slice.port(port(8080).name("http"));
    (0..endpoints).map(endpoint).fold(slice, build::SliceBuilder::endpoint).build()
}

fn address(first: u8, second: u8, number: usize) -> std::net::Ipv4Addr {
    let base = u32::from_be_bytes([first, second, 0, 0]);
    std::net::Ipv4Addr::from(base + u32::try_from(number).expect("a small cluster"))
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let value = work();
    (start.elapsed(), value)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
