//! What it costs to load a large cluster and to change one endpoint, and how much memory the maps take.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use aya::maps::MapInfo;
use portwarden_ebpf::{Ebpf, Options, cleanup};
use portwarden_model::{Changes, Cluster, Dataplane, Desired, Family, SyncError};
use portwarden_testkit::bpf;

use crate::{Effort, cluster, endpoints_of, percentile};

const SERVICES: usize = 5_000;
const ENDPOINTS: usize = 50;

fn address(number: usize) -> String {
    let [_, a, b, c] = u32::try_from(number).unwrap_or(0).to_be_bytes();
    format!("10.{}.{b}.{c}", 100 + a)
}

fn addresses(service: usize) -> Vec<String> {
    (0..ENDPOINTS).map(|index| address(service * ENDPOINTS + index)).collect()
}

fn options(name: &str) -> Result<Options> {
    let cgroup = bpf::cgroup()?.join(name);
    fs::create_dir_all(&cgroup)?;
    let pin_directory = bpf::pin_directory(name)?;
    Ok(Options { cgroup: Some(cgroup), pin_directory, ..Options::new(&Family::BOTH) })
}

pub(crate) fn run(effort: Effort) -> Result<()> {
    let mut cluster: Cluster = cluster(SERVICES, addresses);
    let options = options("updates")?;
    let failed = |error: SyncError| anyhow!("{error}");
    println!("\n{SERVICES} Services with {ENDPOINTS} endpoints each, IPv4, the layer of programs alone");
    // Programs are attached when both families have been synced once; IPv6 is empty.
    let attach = |ebpf: &mut Ebpf, desired: &Desired| -> Result<f64> {
        let started = Instant::now();
        ebpf.sync(desired, &Changes::everything(), Instant::now()).map_err(failed)?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    };
    let (mut loads, mut attachments) = (Vec::new(), Vec::new());
    for _ in 0..effort.choose(3, 7) {
        cleanup(&options.pin_directory)?;
        let mut ebpf = Ebpf::new(options.clone(), Default::default())?;
        let started = Instant::now();
        ebpf.sync(cluster.desired(Family::V4), &Changes::everything(), Instant::now()).map_err(failed)?;
        loads.push(started.elapsed().as_secs_f64() * 1e3);
        attachments.push(attach(&mut ebpf, cluster.desired(Family::V6))?);
    }
    println!("full load: {:.1} ms (median of {})", percentile(&mut loads, 50), loads.len());
    println!("attaching the programs: {:.1} ms", percentile(&mut attachments, 50));
    let started = Instant::now();
    let mut ebpf = Ebpf::new(options.clone(), Default::default())?;
    println!("loading the programs over maps that are full: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    let started = Instant::now();
    ebpf.sync(cluster.desired(Family::V4), &Changes::everything(), Instant::now()).map_err(failed)?;
    println!("first sync after a restart: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    println!("replacing the programs: {:.1} ms", attach(&mut ebpf, cluster.desired(Family::V6))?);
    let mut times = Vec::new();
    let mut most = 0;
    for round in 0..effort.choose(500, 3_000) {
        let service = round * 7 % SERVICES;
        let mut own = addresses(service);
        own[round % ENDPOINTS] = address(SERVICES * ENDPOINTS + round);
        cluster.apply(endpoints_of(service, own));
        let changes = cluster.resolve();
        let started = Instant::now();
        let report = ebpf.sync(cluster.desired(Family::V4), &changes.v4, Instant::now()).map_err(failed)?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
        most = most.max(report.written);
    }
    println!(
        "one endpoint replaced: p50 {:.1} us, p99 {:.1} us, at most {most} writes to maps",
        percentile(&mut times, 50),
        percentile(&mut times, 99)
    );
    drop(ebpf);
    cleanup(&options.pin_directory)?;
    Ok(())
}

/// What the kernel says about the memory of a map.
fn bytes(map: BorrowedFd<'_>) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))?;
    let value = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    Ok(value.context("no memlock in fdinfo")?.trim().parse()?)
}

pub(crate) fn memory(_: Effort) -> Result<()> {
    let options = options("memory")?;
    let mut ebpf = Ebpf::new(options.clone(), Default::default())?;
    let cluster = cluster(SERVICES, addresses);
    ebpf.sync(cluster.desired(Family::V4), &Changes::everything(), Instant::now())
        .map_err(|error| anyhow!("{error}"))?;
    println!("\nmemory of the maps with {SERVICES} Services and {} endpoints", SERVICES * ENDPOINTS);
    let mut total = 0;
    for directory in fs::read_dir(&options.pin_directory)?.flatten() {
        if directory.file_name() == "links" {
            continue;
        }
        for map in fs::read_dir(directory.path())?.flatten() {
            let bytes = bytes(MapInfo::from_pin(map.path())?.fd()?.as_fd())?;
            println!("{:>20} {:.1} MB", map.file_name().to_string_lossy(), bytes as f64 / 1e6);
            total += bytes;
        }
    }
    println!("{:>20} {:.1} MB", "together", total as f64 / 1e6);
    drop(ebpf);
    cleanup(&options.pin_directory)?;
    Ok(())
}
