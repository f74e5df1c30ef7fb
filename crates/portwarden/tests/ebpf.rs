//! The program in mode ebpf: what outlives it, what it publishes, and who removes its programs.

mod support;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use portwarden_testkit::{Host, Transport, bpf};
use support::{METRICS, Rig, TIMEOUT, cluster_cidr, node, service, slice};

const V4: &str = "10.96.0.10";
const V6: &str = "fd00:10:96::10";

/// The programs serve all sockets of this process, so that only one test at a time may have them.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn target() -> Result<SocketAddr> {
    Ok(SocketAddr::new(V4.parse()?, 80))
}

/// `demo/web` with some pods of the node as endpoints, in both families.
fn objects(rig: &Rig, pods: &[usize]) -> Vec<String> {
    let endpoints = |ip: fn(&Host) -> IpAddr| -> Vec<(IpAddr, &str)> {
        pods.iter().map(|pod| (ip(rig.topology.pod(*pod)), "node-a")).collect()
    };
    vec![
        node(),
        service("web", V4, V6, "TCP", ""),
        slice("web", "TCP", &endpoints(|pod| pod.ip().v4.into()), 8080),
        slice("web", "TCP", &endpoints(|pod| pod.ip().v6.into()), 8080),
    ]
}

struct Place {
    cgroup: String,
    pins: PathBuf,
}

impl Place {
    fn new(name: &str) -> Result<Place> {
        let cgroup = bpf::cgroup()?.display().to_string();
        Ok(Place { cgroup, pins: bpf::pin_directory(name)? })
    }

    fn flags(&self) -> [String; 2] {
        [
            format!("--ebpf-cgroup-root={}", self.cgroup),
            format!("--ebpf-pin-directory={}", self.pins.display()),
        ]
    }
}

fn start(rig: &mut Rig, mode: &str, place: &Place) -> Result<()> {
    let [cgroup, pins] = place.flags();
    let cidr = cluster_cidr();
    rig.start(&["--proxy-mode", mode, "--cluster-cidr", &cidr, "-v=4", &cgroup, &pins])?;
    rig.wait_for_service(target()?)
}

fn links(pins: &Path) -> usize {
    fs::read_dir(pins.join("links")).map(Iterator::count).unwrap_or(0)
}

#[test]
fn connections_go_on_after_a_crash_and_changes_are_made_up_for() -> Result<()> {
    let _alone = alone();
    let mut rig = Rig::new()?;
    for pod in rig.topology.pods() {
        pod.serve(Transport::Tcp, 8080)?;
    }
    rig.objects(&objects(&rig, &[0]))?;
    let place = Place::new("crash")?;
    start(&mut rig, "ebpf", &place)?;
    rig.wait_until("the programs to be pinned", || Ok(links(&place.pins) == 9))?;
    ensure!(rig.get(METRICS, "/proxyMode")?.1 == "ebpf");
    let load = rig.topology.pod(1).probe().load(Transport::Tcp, target()?, 200)?;
    load.wait_for(TIMEOUT, "answers", |tally| tally.answered() > 50)?;
    let flows = rig
        .command("conntrack")
        .args(["-L", "-s", &rig.topology.pod(1).ip().v4.to_string(), "-d", V4])
        .run()?;
    ensure!(!flows.contains("dport=80"), "a connection was translated: {flows}");
    let series = "portwarden_service_connections_total{namespace=\"demo\",service=\"web\",port=\"p\",protocol=\"TCP\",ip_family=\"IPv4\"}";
    ensure!(rig.metric(series)? >= 50.0);

    rig.kill();
    let before = load.tally().answered();
    load.wait_for(TIMEOUT, "answers without the program", |tally| tally.answered() > before + 100)?;
    rig.objects(&objects(&rig, &[1]))?;
    start(&mut rig, "ebpf", &place)?;
    load.wait_for(TIMEOUT, "answers of pod-1", |tally| tally.answered_by().contains_key("pod-1"))?;
    let tally = load.stop()?;
    ensure!(tally.failed() == 0, "{tally}\n{}", rig.log());
    ensure!(rig.stop()?.success());
    ensure!(links(&place.pins) == 9, "a program that ends leaves everything in place");

    rig.program().args(["--cleanup"]).args(place.flags()).run()?;
    ensure!(!place.pins.exists(), "--cleanup removes it");
    ensure!(
        !rig.topology.pod(2).probe().short_timeout().tcp(target()?)?.is_answered(),
        "nothing serves any more"
    );
    Ok(())
}

#[test]
fn other_modes_take_over_and_remove_the_programs() -> Result<()> {
    let _alone = alone();
    let mut rig = Rig::new()?;
    rig.topology.pod(0).serve(Transport::Tcp, 8080)?;
    rig.objects(&objects(&rig, &[0]))?;
    let place = Place::new("take-over")?;
    start(&mut rig, "ebpf", &place)?;
    rig.wait_until("the programs to be pinned", || Ok(links(&place.pins) == 9))?;
    let load = rig.topology.pod(1).probe().load(Transport::Tcp, target()?, 100)?;
    load.wait_for(TIMEOUT, "answers", |tally| tally.answered() > 50)?;
    ensure!(rig.stop()?.success());
    start(&mut rig, "nftables", &place)?;
    rig.wait_until("the programs to be removed", || Ok(!place.pins.exists()))?;
    let before = load.tally().answered();
    load.wait_for(TIMEOUT, "answers through nftables", |tally| tally.answered() > before + 50)?;
    let tally = load.stop()?;
    ensure!(tally.failed() == 0, "{tally}\n{}", rig.log());
    ensure!(rig.stop()?.success());
    start(&mut rig, "ebpf", &place)?;
    rig.wait_until("the programs to be pinned again", || Ok(links(&place.pins) == 9))?;
    let tables = rig.command("nft").args(["list", "tables"]).run()?;
    ensure!(tables.contains("ip kube-proxy"), "the rules below stay: {tables}");
    rig.stop().context("it ends")?;
    rig.program().args(["--cleanup"]).args(place.flags()).run()?;
    Ok(())
}
