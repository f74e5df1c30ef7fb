//! The answers of the introspection server, from the real program.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use portwarden::engine::{Heartbeat, Moment, Stage, inbox};
use portwarden::health::SharedHealth;
use portwarden::http::{ConnectionLimit, Limits, Sockets, bind, serve};
use portwarden::introspection::api::{ApiError, ServicePage, ServiceState, Status, Timeline, TimelineKind};
use portwarden::introspection::{
    Action, Activity, Identity, Introspection, PacketExplanation, ServiceExplanation, Sources,
};
use prometheus::IntCounter;
use serde::de::DeserializeOwned;
use support::{PAGE, Rig, TIMEOUT, node, service, slice};

const WEB: &str = "10.96.0.10";

fn ask<T: DeserializeOwned>(rig: &Rig, path: &str) -> Result<T> {
    let (status, body) = rig.get(PAGE, path)?;
    ensure!(status == 200, "{path}: {status} {body}");
    serde_json::from_str(&body).with_context(|| format!("{path}: {body}"))
}

fn refused(rig: &Rig, path: &str) -> Result<(u16, ApiError)> {
    let (status, body) = rig.get(PAGE, path)?;
    Ok((status, serde_json::from_str(&body).with_context(|| format!("{path}: {body}"))?))
}

/// Sends a request as it is, and returns the head of the answer.
fn raw(rig: &Rig, request: &str) -> Result<String> {
    let request = request.to_owned();
    rig.node().namespace().run(move || {
        let mut stream = TcpStream::connect(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), PAGE))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split("\r\n\r\n").next().unwrap_or_default().to_lowercase())
    })
}

fn rig() -> Result<Rig> {
    let rig = Rig::new()?;
    let endpoints: Vec<(IpAddr, &str)> = vec![(rig.topology.pod(0).ip().v4.into(), "node-a")];
    rig.objects(&[
        node(),
        service("web", WEB, "fd00:10:96::10", "TCP", ""),
        slice("web", "TCP", &endpoints, 8080),
        service("lost", "10.96.0.11", "fd00:10:96::11", "TCP", ""),
    ])?;
    Ok(rig)
}

fn installed(rig: &Rig) -> Result<()> {
    rig.wait_until("a healthy status", || Ok(ask::<Status>(rig, "/api/status")?.verdict.healthy))
}

#[test]
fn the_running_process_is_described() -> Result<()> {
    let mut rig = rig()?;
    rig.start_mode("nftables")?;
    installed(&rig)?;
    let status: Status = ask(&rig, "/api/status")?;
    ensure!((status.mode.as_str(), status.node.as_str()) == ("nftables", "node-a"), "{status:?}");
    let families: Vec<(&str, usize, usize)> = status
        .families
        .iter()
        .map(|family| (family.family.as_str(), family.services, family.endpoints))
        .collect();
    ensure!(families == [("IPv4", 2, 1), ("IPv6", 2, 0)], "{status:?}");
    ensure!(status.syncs.iter().all(|sync| sync.error.is_none() && sync.mode == "nftables"), "{status:?}");
    ensure!(status.memory > 1 << 20 && status.sources.iter().all(|part| part.following), "{status:?}");
    let page: ServicePage = ask(&rig, "/api/services?query=web")?;
    ensure!((page.matching, page.total, page.troubled) == (1, 2, 2), "{page:?}");
    ensure!(page.services[0].state == ServiceState::NoEndpoints, "IPv6 has none: {page:?}");
    let explained: ServiceExplanation = ask(&rig, "/api/explain?service=demo/web")?;
    ensure!(
        explained.families.len() == 2 && explained.families[0].ports[0].cluster_pool == Some(1),
        "{explained:?}"
    );
    let packet: PacketExplanation = ask(&rig, "/api/explain?to=10.96.0.10:80&from=10.244.0.99")?;
    ensure!(packet.action == Action::Forward && packet.service.as_deref() == Some("demo/web"), "{packet:?}");
    let (code, error) = refused(&rig, "/api/explain?service=other/web")?;
    ensure!((code, error.did_you_mean) == (404, vec!["demo/web".to_owned()]));
    for path in ["/api/explain", "/api/explain?to=web:80", "/api/explain?to=10.96.0.10:80&from=x"] {
        ensure!(refused(&rig, path)?.0 == 400, "{path}");
    }
    ensure!(refused(&rig, "/api/nothing")?.0 == 404);
    Ok(())
}

#[test]
fn other_sites_cannot_read_and_no_one_can_write() -> Result<()> {
    let mut rig = rig()?;
    rig.start_mode("nftables")?;
    installed(&rig)?;
    let head =
        raw(&rig, "GET /api/status HTTP/1.1\r\nHost: evil.example:10266\r\nConnection: close\r\n\r\n")?;
    ensure!(head.starts_with("http/1.1 421"), "{head}");
    let head = raw(
        &rig,
        "POST /api/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    )?;
    ensure!(head.starts_with("http/1.1 405"), "{head}");
    let head = raw(
        &rig,
        "GET / HTTP/1.1\r\nHost: localhost:10266\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n",
    )?;
    ensure!(
        head.starts_with("http/1.1 200") && head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    ensure!(!head.contains("access-control"), "{head}");
    Ok(())
}

#[test]
fn a_change_and_a_repair_are_seen_live() -> Result<()> {
    let mut rig = rig()?;
    rig.start_mode("nftables")?;
    installed(&rig)?;
    let lines = rig.node().namespace().run(|| {
        let mut stream = TcpStream::connect(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), PAGE))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        Ok(lines
            .filter(|line| line.starts_with("event: ") || line.starts_with("content-type"))
            .take(4)
            .collect::<Vec<_>>())
    })?;
    ensure!(
        lines == ["content-type: text/event-stream", "event: status", "event: status", "event: series"],
        "{lines:?}"
    );
    rig.command("nft").args(["flush", "ruleset"]).run()?;
    rig.wait_until("a repair on the time line", || {
        let timeline: Timeline = ask(&rig, "/api/timeline")?;
        Ok(timeline.entries.iter().any(|entry| entry.kind == TimelineKind::Repaired))
    })?;
    ensure!(ask::<Status>(&rig, "/api/status")?.totals.repairs >= 1);
    let timeline: Timeline = ask(&rig, "/api/timeline")?;
    ensure!(timeline.entries.last().is_some_and(|first| first.kind == TimelineKind::Started), "{timeline:?}");
    Ok(())
}

/// `iptables-restore` hangs, which blocks no answer about the process.
#[test]
fn a_process_whose_kernel_writes_hang_is_described_as_such() -> Result<()> {
    let mut rig = rig()?;
    rig.use_iptables("nft")?;
    rig.start_mode("iptables")?;
    installed(&rig)?;
    for program in ["iptables-restore", "ip6tables-restore"] {
        let path = rig.path("bin").join(program);
        fs::remove_file(&path)?;
        fs::write(&path, "#!/bin/sh\nexec sleep 1000\n")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let endpoints: Vec<(IpAddr, &str)> = vec![(rig.topology.pod(1).ip().v4.into(), "node-a")];
    rig.objects(&[
        node(),
        service("web", WEB, "fd00:10:96::10", "TCP", ""),
        slice("web", "TCP", &endpoints, 8080),
    ])?;
    rig.wait_until("a change that waits", || {
        Ok(ask::<Status>(&rig, "/api/status")?.oldest_pending.is_some_and(|age| age > 1.0))
    })?;
    let explained: ServiceExplanation = ask(&rig, "/api/explain?service=demo/web")?;
    ensure!(explained.families[0].ports[0].endpoint_count == 1, "{explained:?}");
    Ok(())
}

fn write_config(rig: &Rig, address: &str) -> Result<()> {
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n";
    rig.write("config.yaml", &format!("{head}pageBindAddress: {address}\n"))
}

#[test]
fn a_taken_port_and_a_changed_address_do_no_harm() -> Result<()> {
    let mut rig = rig()?;
    let file = rig.path("config.yaml").display().to_string();
    write_config(&rig, "127.0.0.1:10249")?;
    rig.start(&["--config", &file])?;
    rig.wait_for_log("The live page cannot listen")?;
    write_config(&rig, "127.0.0.1")?;
    // The process may not follow the file yet.
    rig.signal(Signal::SIGHUP)?;
    installed(&rig)?;
    ensure!(rig.log().matches("The live page cannot listen").count() == 1, "{}", rig.log());
    write_config(&rig, "\"\"")?;
    rig.signal(Signal::SIGHUP)?;
    rig.wait_until("the page to go", || Ok(rig.get(PAGE, "/api/status").is_err()))?;
    ensure!(rig.is_running());
    Ok(())
}

/// One request, with the status and the body of its answer.
async fn fetch(address: SocketAddr, path: &'static str) -> (u16, String) {
    let answer = tokio::task::spawn_blocking(move || support::get(address, path)).await.expect("no panic");
    answer.expect("an answer")
}

/// The engine's end of the queue is open, and nothing reads it.
#[tokio::test]
async fn an_engine_that_hangs_is_reported_and_not_waited_for() {
    let start = Moment { instant: Instant::now() - Duration::from_secs(100), ..Moment::now() };
    let (engine, _unread) = inbox().expect("a queue");
    let heartbeat = Heartbeat::new(start.instant);
    heartbeat.wake(start.instant);
    heartbeat.enter(Stage::Sync);
    let health = SharedHealth::new(Duration::from_secs(30));
    health.follow(heartbeat.clone());
    let identity = Identity { node: "node-a".to_owned(), version: "v1".to_owned(), started: start };
    let sources = Sources { activity: Activity::default(), health, heartbeat };
    let handler = Introspection::new(identity, sources, engine).handler();
    let listener = bind("127.0.0.1:0".parse().expect("an address"), Sockets::OneFamily).expect("binds");
    let address = listener.local_addr().expect("bound");
    let limit = ConnectionLimit::new(64, IntCounter::new("refused", "for this test").expect("a counter"));
    tokio::spawn(serve(listener, Limits::default(), limit, handler));
    let asked: Vec<_> =
        (0..20).map(|_| tokio::spawn(fetch(address, "/api/explain?service=demo/web"))).collect();
    for answer in asked {
        let (status, body) = answer.await.expect("no panic");
        assert_eq!(status, 503);
        assert!(body.contains("busy for 10") && body.contains("(writing rules)"), "{body}");
    }
    let (status, body) = fetch(address, "/api/status").await;
    let shown: Status = serde_json::from_str(&body).expect("a status");
    assert!(status == 200 && shown.engine.stuck && !shown.verdict.healthy, "{shown:?}");
    assert!(shown.verdict.reasons.iter().any(|reason| reason.contains("writing rules")), "{shown:?}");
}
