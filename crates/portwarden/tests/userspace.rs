//! The program in mode userspace: it retries endpoints, publishes what it sees, and hands over without a lost connection or datagram.

mod support;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use portwarden_testkit::{Host, Transport};
use support::{Rig, TIMEOUT, cluster_cidr, node, service, slice};

const V4: &str = "10.96.0.10";
const V6: &str = "fd00:10:96::10";
const DNS_V4: &str = "10.96.0.11";
const DNS_V6: &str = "fd00:10:96::11";

fn cluster_ips() -> Result<[SocketAddr; 2]> {
    Ok([SocketAddr::new(V4.parse()?, 80), SocketAddr::new(V6.parse()?, 80)])
}

/// `demo/web` over TCP and `demo/dns` over UDP with all pods of the node as endpoints, in both families.
fn objects(rig: &Rig) -> Vec<String> {
    let endpoints = |ip: fn(&Host) -> IpAddr| -> Vec<(IpAddr, &str)> {
        rig.topology.pods().iter().map(|pod| (ip(pod), "node-a")).collect()
    };
    vec![
        node(),
        service("web", V4, V6, "TCP", ""),
        slice("web", "TCP", &endpoints(|pod| pod.ip().v4.into()), 8080),
        slice("web", "TCP", &endpoints(|pod| pod.ip().v6.into()), 8080),
        service("dns", DNS_V4, DNS_V6, "UDP", ""),
        slice("dns", "UDP", &endpoints(|pod| pod.ip().v4.into()), 8080),
        slice("dns", "UDP", &endpoints(|pod| pod.ip().v6.into()), 8080),
    ]
}

fn rig() -> Result<Rig> {
    let rig = Rig::new()?;
    for pod in rig.topology.pods() {
        pod.serve(Transport::Tcp, 8080)?;
        pod.serve(Transport::Udp, 8080)?;
    }
    rig.objects(&objects(&rig))?;
    Ok(rig)
}

fn start(rig: &mut Rig, more: &[&str]) -> Result<()> {
    let cidr = cluster_cidr();
    rig.start(&[&["--proxy-mode=userspace", "--cluster-cidr", cidr.as_str(), "-v=4"], more].concat())?;
    cluster_ips()?.into_iter().try_for_each(|target| rig.wait_for_service(target))
}

#[test]
fn a_pod_that_dies_under_load_fails_no_request() -> Result<()> {
    let mut rig = rig()?;
    start(&mut rig, &[])?;
    let [v4, v6] = cluster_ips()?;
    let loads = [v4, v6].map(|target| rig.topology.outside().probe().load(Transport::Tcp, target, 100));
    let loads = loads.into_iter().collect::<Result<Vec<_>>>()?;
    for load in &loads {
        load.wait_for(TIMEOUT, "answers of all pods", |tally| tally.answered_by().len() == 3)?;
    }
    // The pod ends: it finishes what it has begun and accepts nothing new, and the API server does not know yet.
    let dying = rig.topology.pods().first().context("a pod")?;
    let rules = "add table inet ended; add chain inet ended input { type filter hook input priority 0; }; \
                 add rule inet ended input tcp dport 8080 ct state new reject with tcp reset";
    dying.command("nft").args([rules]).run()?;
    for load in &loads {
        let before = load.tally().answered();
        load.wait_for(TIMEOUT, "more answers", |tally| tally.answered() > before + 100)?;
    }
    for load in loads {
        let tally = load.stop()?;
        ensure!(tally.failed() == 0, "{tally}");
    }
    ensure!(rig.metric("portwarden_userspace_dial_retries_total")? > 0.0);
    ensure!(rig.metric("portwarden_userspace_dials_total{result=\"refused\"}")? > 0.0);
    let served = "portwarden_userspace_service_connections_total{namespace=\"demo\",service=\"web\"}";
    ensure!(rig.metric(served)? > 200.0);
    ensure!(rig.get(support::METRICS, "/proxyMode")?.1 == "userspace");
    Ok(())
}

#[test]
fn connections_drain_when_the_process_is_to_end() -> Result<()> {
    let mut rig = rig()?;
    start(&mut rig, &[])?;
    let [v4, _] = cluster_ips()?;
    let (mut staying, first) = rig.node().probe().open(Transport::Tcp, v4)?;
    let host = first.host().context("an answer")?.to_owned();
    rig.signal(Signal::SIGTERM)?;
    rig.wait_for_log("Waiting for connections to end")?;
    let outcome = staying.exchange()?;
    ensure!(outcome.host() == Some(&host), "{outcome}\n{}", rig.log());
    drop(staying);
    ensure!(rig.stop()?.success(), "it ends when the last connection has");
    Ok(())
}

#[test]
fn an_upgrade_loses_no_connection_and_no_datagram() -> Result<()> {
    let mut old = rig()?;
    start(&mut old, &[])?;
    let [v4, v6] = cluster_ips()?;
    let dns = [SocketAddr::new(DNS_V4.parse()?, 80), SocketAddr::new(DNS_V6.parse()?, 80)];
    let load = |transport, target| old.topology.outside().probe().load(transport, target, 200);
    let tcp = [v4, v6].map(|target| load(Transport::Tcp, target));
    let udp = dns.map(|target| load(Transport::Udp, target));
    let loads = tcp.into_iter().chain(udp).collect::<Result<Vec<_>>>()?;
    let (mut staying, first) = old.topology.outside().probe().open(Transport::Tcp, v4)?;
    let host = first.host().context("an answer")?.to_owned();
    // The new program beside the old one, with ports of its own for its servers.
    let manifests = format!("--manifests={}", old.path("manifests").display());
    let log = std::fs::File::create(old.path("new.log"))?;
    let cidr = cluster_cidr();
    let new = old
        .program()
        .args(["--hostname-override=node-a", "--conntrack-max-per-core=0", "--proxy-mode=userspace", "-v=4"])
        .args(["--metrics-bind-address=127.0.0.1:11249", "--healthz-bind-address=127.0.0.1:11256"])
        .args(["--cluster-cidr", cidr.as_str(), manifests.as_str()])
        .spawn_logging(log)?;
    // Before that it has the sockets, but the old one goes on, and a second signal would end its connections.
    old.wait_until("the new program to take over", || {
        Ok(std::fs::read_to_string(old.path("new.log"))?.contains("The rules are in force"))
    })?;
    old.wait_until("the new program to serve", || {
        let (_, text) = old.get(11249, "/metrics")?;
        let served =
            text.lines().find_map(|line| line.strip_prefix("portwarden_userspace_connections_total "));
        Ok(served.is_some_and(|count| count != "0"))
    })?;
    old.signal(Signal::SIGTERM)?;
    old.wait_for_log("Waiting for connections to end")?;
    for load in &loads {
        let before = load.tally().answered();
        load.wait_for(TIMEOUT, "more answers", |tally| tally.answered() > before + 100)?;
    }
    let outcome = staying.exchange()?;
    ensure!(outcome.host() == Some(&host), "established connections drain: {outcome}\n{}", old.log());
    drop(staying);
    ensure!(old.stop()?.success());
    for load in loads {
        let tally = load.stop()?;
        ensure!(tally.failed() == 0, "{tally}");
    }
    drop(new);
    Ok(())
}

#[test]
fn after_a_kill_the_next_process_answers_on_the_same_ports() -> Result<()> {
    let mut rig = rig()?;
    start(&mut rig, &[])?;
    // The kernel remembers where the datagrams of this client go.
    let target = SocketAddr::new(DNS_V4.parse()?, 80);
    let (mut client, first) = rig.topology.outside().probe().open(Transport::Udp, target)?;
    ensure!(first.is_answered(), "{first}");
    rig.kill();
    start(&mut rig, &[])?;
    let outcome = client.exchange()?;
    ensure!(outcome.is_answered(), "{outcome}\n{}", rig.log());
    Ok(())
}

#[test]
fn cleanup_removes_the_rules() -> Result<()> {
    let mut rig = rig()?;
    start(&mut rig, &[])?;
    ensure!(rig.node().command("nft").args(["list", "tables"]).run()?.contains("portwarden-userspace"));
    ensure!(rig.stop()?.success());
    rig.program().args(["--cleanup"]).run()?;
    ensure!(!rig.node().command("nft").args(["list", "tables"]).run()?.contains("portwarden-userspace"));
    Ok(())
}
