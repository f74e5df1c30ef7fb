//! The program in mode ebpf: what outlives it, what it publishes, and who removes its programs.

mod support;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use portwarden_testkit::probe::Behaviour;
use portwarden_testkit::topology::addresses::POD_BRIDGE;
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
    start_with(rig, mode, place, &[])
}

fn start_with(rig: &mut Rig, mode: &str, place: &Place, more: &[&str]) -> Result<()> {
    let [cgroup, pins] = place.flags();
    let cidr = cluster_cidr();
    let arguments = ["--proxy-mode", mode, "--cluster-cidr", &cidr, "-v=4", &cgroup, &pins];
    rig.start(&[&arguments[..], more].concat())?;
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

/// The rules that take packets out of connection tracking, in both families.
fn untracking_rules(rig: &Rig) -> Result<usize> {
    let mut found = 0;
    for family in ["ip", "ip6"] {
        let rules = rig.command("nft").args(["list", "table", family, "kube-proxy"]).run()?;
        found += rules.lines().filter(|line| line.trim_end().ends_with(" notrack")).count();
    }
    Ok(found)
}

/// What `portwarden diff` says about a change to a mode.
fn diff(rig: &Rig, mode: &str, place: &Place) -> Result<String> {
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let cidr = format!("--cluster-cidr={}", cluster_cidr());
    let mode = format!("--proxy-mode={mode}");
    let output = rig.program().args(["diff", &mode, &manifests, &cidr]).args(place.flags()).output()?;
    Ok(output.stdout + &output.stderr)
}

/// Whether the node tracks connections from pod-1 to the endpoint, after one was made.
fn is_tracked(rig: &Rig) -> Result<bool> {
    let (client, server) = (rig.topology.pod(1), rig.topology.pod(0).ip().v4);
    ensure!(client.probe().tcp(SocketAddr::new(server.into(), 8080))?.is_answered(), "without a Service");
    ensure!(client.probe().tcp(target()?)?.is_answered(), "through the Service");
    let client = client.ip().v4.to_string();
    let flows = rig.command("conntrack").args(["-L", "-s", &client, "-d", &server.to_string()]).run()?;
    Ok(flows.contains("dport=8080"))
}

/// An address in the range of the pods comes and goes, as that of a bridge does.
fn packets_to_the_node_stay_tracked(rig: &Rig) -> Result<()> {
    let own = SocketAddr::from((POD_BRIDGE.v4, 9090));
    let excepts_it = || -> Result<bool> {
        let rules = rig.command("nft").args(["list", "table", "ip", "kube-proxy"]).run()?;
        Ok(rules.contains(&format!("ip daddr != {} notrack", own.ip())))
    };
    ensure!(!excepts_it()?, "nothing to except yet");
    let address = format!("{}/32", own.ip());
    rig.command("ip").args(["address", "add", &address, "dev", "lo"]).run()?;
    rig.wait_until("the rule to except the node's address", excepts_it)?;
    rig.topology.node().serve_on(Transport::Tcp, own, Behaviour::Answer)?;
    ensure!(rig.topology.pod(1).probe().tcp(own)?.is_answered(), "the node does not answer on {own}");
    let flows = rig.command("conntrack").args(["-L", "-d", &own.ip().to_string()]).run()?;
    rig.command("ip").args(["address", "del", &address, "dev", "lo"]).run()?;
    rig.wait_until("the rule without the address", || Ok(!excepts_it()?))?;
    ensure!(flows.contains("dport=9090"), "packets from a pod to the node are not tracked: {flows}");
    Ok(())
}

#[test]
fn packets_from_pod_to_pod_leave_connection_tracking_unless_rules_of_others_need_it() -> Result<()> {
    let _alone = alone();
    let mut rig = Rig::new()?;
    rig.topology.pod(0).serve(Transport::Tcp, 8080)?;
    rig.objects(&objects(&rig, &[0]))?;
    let place = Place::new("untracked")?;
    start(&mut rig, "ebpf", &place)?;
    ensure!(untracking_rules(&rig)? == 0 && is_tracked(&rig)?, "it has to be asked for");
    ensure!(diff(&rig, "ebpf", &place)?.contains("rules of mode ebpf, which stays"));
    ensure!(
        diff(&rig, "nftables", &place)?.contains("rules of mode ebpf; mode nftables would use them, too")
    );
    ensure!(rig.stop()?.success());
    rig.command("conntrack").arg("-F").run()?;

    let plugin = "table inet plugin { chain forward { type filter hook forward priority 10; ct state invalid counter; }; }";
    rig.command("nft").arg(plugin).run()?;
    let [cgroup, pins] = place.flags();
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let arguments = [
        "--proxy-mode=ebpf",
        "--ebpf-notrack=enabled",
        "--conntrack-max-per-core=0",
        &manifests,
        &cgroup,
        &pins,
    ];
    let refused = rig.program().args(arguments).arg(format!("--cluster-cidr={}", cluster_cidr())).output()?;
    let text = &refused.stderr;
    ensure!(
        refused.code == Some(1) && text.contains("table inet plugin, chain forward (ct state)"),
        "{text}"
    );
    let missing = rig.program().args(arguments).output()?;
    ensure!(missing.stderr.contains("set clusterCIDR (--cluster-cidr)"), "{missing:?}");

    start_with(&mut rig, "ebpf", &place, &["--ebpf-notrack=force"])?;
    rig.wait_until("the rules", || Ok(untracking_rules(&rig)? == 2))?;
    ensure!(!is_tracked(&rig)?, "a connection from pod to pod is tracked");
    ensure!(rig.stop()?.success());
    rig.command("nft").args(["delete", "table", "inet", "plugin"]).run()?;
    start_with(&mut rig, "ebpf", &place, &["--ebpf-notrack=enabled"])?;
    rig.wait_until("the rules", || Ok(untracking_rules(&rig)? == 2))?;
    packets_to_the_node_stay_tracked(&rig)?;
    ensure!(rig.stop()?.success());
    // Another mode, and the same mode without the option, remove the rules.
    start_with(&mut rig, "nftables", &place, &["--ebpf-notrack=enabled"])?;
    rig.wait_until("the rules to be gone", || Ok(untracking_rules(&rig)? == 0))?;
    ensure!(rig.log().contains("ebpf.notrack has no effect in mode nftables"), "{}", rig.log());
    rig.wait_until("the programs to be gone", || Ok(links(&place.pins) == 0))?;
    ensure!(diff(&rig, "ebpf", &place)?.contains("rules of mode nftables; mode ebpf would use them, too"));
    ensure!(rig.stop()?.success());
    start_with(&mut rig, "ebpf", &place, &["--ebpf-notrack=enabled"])?;
    rig.wait_until("the rules", || Ok(untracking_rules(&rig)? == 2))?;
    ensure!(rig.stop()?.success());
    start(&mut rig, "ebpf", &place)?;
    rig.wait_until("the rules to be gone", || Ok(untracking_rules(&rig)? == 0))?;
    ensure!(is_tracked(&rig)?);
    ensure!(rig.stop()?.success());
    // So does --cleanup, with everything else.
    start_with(&mut rig, "ebpf", &place, &["--ebpf-notrack=enabled"])?;
    rig.wait_until("the rules", || Ok(untracking_rules(&rig)? == 2))?;
    ensure!(rig.stop()?.success());
    rig.program().args(["--cleanup"]).args(place.flags()).run()?;
    let rest = rig.command("nft").args(["list", "ruleset"]).run()?;
    ensure!(!rest.contains("notrack") && !rest.contains("kube-proxy"), "{rest}");
    Ok(())
}

#[test]
fn pods_that_the_programs_do_not_reach_are_served_without_connection_tracking() -> Result<()> {
    let _alone = alone();
    let mut rig = Rig::new()?;
    rig.topology.pod(0).serve(Transport::Tcp, 8080)?;
    rig.objects(&objects(&rig, &[0]))?;
    // Like pods in a sandbox: no process is in this cgroup.
    let empty = bpf::cgroup()?.join("empty");
    fs::create_dir_all(&empty)?;
    let place = Place { cgroup: empty.display().to_string(), pins: bpf::pin_directory("sandbox")? };
    // The second range holds the addresses of Services as well.
    for range in [cluster_cidr(), "10.0.0.0/8,fd00::/8".to_owned()] {
        let [cgroup, pins] = place.flags();
        let arguments =
            ["--proxy-mode=ebpf", "--ebpf-notrack=enabled", "--cluster-cidr", &range, &cgroup, &pins];
        rig.start(&arguments)?;
        rig.wait_until("the rules", || Ok(untracking_rules(&rig).is_ok_and(|count| count == 2)))?;
        for address in [V4, V6] {
            let target = SocketAddr::new(address.parse()?, 80);
            rig.wait_for_service(target)?;
            let answer = rig.topology.pod(1).probe().tcp(target)?;
            ensure!(answer.is_answered(), "{range}, {target}: {answer:?}\n{}", rig.log());
        }
        ensure!(!is_tracked(&rig)?, "{range}: a connection from pod to pod is tracked");
        ensure!(rig.stop()?.success());
    }
    rig.program().args(["--cleanup"]).args(place.flags()).run()?;
    fs::remove_dir(&empty)?;
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
