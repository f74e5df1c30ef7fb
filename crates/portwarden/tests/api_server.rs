//! The program with an API server: credentials, Events, the Node, and a server that goes away.

mod support;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use portwarden_testkit::apiserver::{ApiServer, Resource};
use portwarden_testkit::build::{NodeBuilder, endpoint, node, port, service, slice};
use portwarden_testkit::topology::addresses::NODE;
use serde_json::Value;
use support::{HEALTH, METRICS, Rig, cluster_cidr};

const WEB: &str = "10.96.0.10";

fn web() -> SocketAddr {
    SocketAddr::new(WEB.parse().expect("an address"), 80)
}

fn here() -> NodeBuilder {
    node("node-a").ip(NODE.v4).ip(NODE.v6)
}

/// An API server on the node's loopback, with a Service whose one endpoint answers.
fn cluster(rig: &Rig) -> Result<ApiServer> {
    let pod = rig.topology.pod(0);
    pod.serve(Transport::Tcp, 8080)?;
    let _entered = rig.node().namespace().enter()?;
    let server = ApiServer::builder().tls().start()?;
    server.apply(service("web").cluster_ip(WEB).port(port(80).name("p")));
    server
        .apply(slice("web", "web-1").port(port(8080).name("p")).endpoint(endpoint(pod.ip().v4).on("node-a")));
    Ok(server)
}

fn start(rig: &mut Rig, server: &ApiServer, more: &[&str]) -> Result<()> {
    let kubeconfig = server.kubeconfig(&rig.path(""), "")?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let cidr = format!("--cluster-cidr={}", cluster_cidr());
    rig.start_following(
        &[&[kubeconfig.as_str(), "--proxy-mode=nftables", cidr.as_str(), "-v=2"], more].concat(),
    )
}

fn event<'a>(events: &'a [Value], reason: &str) -> Option<&'a Value> {
    events.iter().find(|event| event["reason"] == reason)
}

#[test]
fn follows_a_cluster_and_says_that_it_started() -> Result<()> {
    let mut rig = Rig::new()?;
    let server = cluster(&rig)?;
    server.apply(here());
    start(&mut rig, &server, &[])?;
    rig.wait_for_service(web())?;
    rig.wait_until("the Event of the start", || Ok(event(&server.events(), "Starting").is_some()))?;
    let events = server.events();
    let started = event(&events, "Starting").context("the Event")?;
    ensure!(started["type"] == "Normal" && started["action"] == "StartKubeProxy", "{started}");
    ensure!(started["regarding"]["kind"] == "Node" && started["regarding"]["name"] == "node-a", "{started}");
    ensure!(started["reportingController"] == "kube-proxy", "{started}");
    ensure!(
        started["reportingInstance"].as_str().is_some_and(|text| text.starts_with("kube-proxy-")),
        "{started}"
    );
    let (_, metrics) = rig.get(METRICS, "/metrics")?;
    ensure!(metrics.contains("rest_client_requests_total{code=\"200\""), "{metrics}");
    ensure!(metrics.contains("rest_client_transport_create_calls_total{result=\"miss\"} 1\n"), "{metrics}");
    Ok(())
}

#[test]
fn a_gate_says_whether_lists_are_streams() -> Result<()> {
    for (gate, streams) in [("WatchListClient=true", true), ("WatchListClient=false", false)] {
        let mut rig = Rig::new()?;
        let server = cluster(&rig)?;
        server.apply(here());
        start(&mut rig, &server, &[&format!("--feature-gates={gate}")])?;
        rig.wait_for_service(web())?;
        let requests = server.requests();
        ensure!(
            requests.iter().any(|seen| seen.query.contains("sendInitialEvents")) == streams,
            "{gate}: {requests:?}"
        );
    }
    Ok(())
}

#[test]
fn an_unset_mode_is_found_as_an_event() -> Result<()> {
    let mut rig = Rig::new()?;
    let server = cluster(&rig)?;
    server.apply(here());
    start(&mut rig, &server, &["--proxy-mode="])?;
    rig.wait_until("the Event", || Ok(event(&server.events(), "KubeProxyDefaultMode").is_some()))
}

#[test]
fn nothing_is_written_and_nobody_is_sent_here_before_the_node_is_known() -> Result<()> {
    let mut rig = Rig::new()?;
    let server = cluster(&rig)?;
    start(&mut rig, &server, &[])?;
    rig.wait_for_log("\"Following changes\" part=\"Services\"")?;
    let (status, body) = rig.get(HEALTH, "/healthz")?;
    ensure!(status == 503 && body.contains("\"nodeEligible\":false"), "{status} {body}");
    ensure!(rig.get(HEALTH, "/livez")?.0 == 200, "which is no reason to restart");
    let tables = rig.node().command("nft").args(["list", "tables"]).run()?;
    ensure!(!tables.contains("kube-proxy"), "{tables}");
    server.apply(here());
    rig.wait_for_service(web())?;
    rig.wait_until("the node to be eligible", || Ok(rig.get(HEALTH, "/healthz")?.0 == 200))
}

#[test]
fn a_node_that_goes_keeps_its_rules_and_gets_no_new_traffic() -> Result<()> {
    let mut rig = Rig::new()?;
    let server = cluster(&rig)?;
    server.apply(here());
    start(&mut rig, &server, &[])?;
    rig.wait_for_service(web())?;
    server.delete(Resource::Nodes, "", "node-a").context("it was there")?;
    rig.wait_until("no new traffic to be wanted", || Ok(rig.get(HEALTH, "/healthz")?.0 == 503))?;
    ensure!(rig.is_running() && rig.node().tcp(web())?.is_answered());
    server.apply(node("node-a").ip("192.168.0.2"));
    rig.wait_until("the node to be back", || Ok(rig.get(HEALTH, "/healthz")?.0 == 200))
}

#[test]
fn a_server_that_goes_away_takes_nothing_with_it() -> Result<()> {
    let mut rig = Rig::new()?;
    let mut server = cluster(&rig)?;
    server.apply(here());
    start(&mut rig, &server, &[])?;
    rig.wait_for_service(web())?;
    server.stop();
    rig.wait_until("the loss to be logged", || {
        Ok(rig.metric("portwarden_source_failing{part=\"Services\"}")? > 0.0)
    })?;
    ensure!(rig.node().tcp(web())?.is_answered(), "the last known state stays in force");
    let pod = rig.topology.pod(1);
    pod.serve(Transport::Tcp, 8080)?;
    server
        .apply(slice("web", "web-1").port(port(8080).name("p")).endpoint(endpoint(pod.ip().v4).on("node-a")));
    {
        let _entered = rig.node().namespace().enter()?;
        server.resume()?;
    }
    rig.wait_until("what changed meanwhile", || Ok(rig.node().tcp(web())?.host() == Some(pod.name())))?;
    ensure!(rig.is_running());
    Ok(())
}

#[test]
fn a_port_that_cannot_be_opened_is_found_to_the_service() -> Result<()> {
    let mut rig = Rig::new()?;
    let server = cluster(&rig)?;
    server.apply(here());
    let _taken = {
        let _entered = rig.node().namespace().enter()?;
        std::net::TcpListener::bind("0.0.0.0:31000")?
    };
    let local = service("local").cluster_ip("10.96.0.11").port(port(80).name("p")).of_type("LoadBalancer");
    server.apply(local.external_policy_local().health_check_node_port(31000));
    start(&mut rig, &server, &["--nodeport-addresses=all"])?;
    let reason = "FailedToStartServiceHealthcheck";
    rig.wait_until("the Event", || Ok(event(&server.events(), reason).is_some()))?;
    let events = server.events();
    let found = event(&events, reason).context("the Event")?;
    ensure!(found["regarding"]["kind"] == "Service" && found["regarding"]["name"] == "local", "{found}");
    let note = found["note"].as_str().context("a note")?;
    ensure!(
        note.starts_with("node node-a failed to start healthcheck \"demo/local\" on port 31000: "),
        "{note}"
    );
    Ok(())
}

#[test]
fn a_server_that_must_have_its_port_says_why_the_process_ends() -> Result<()> {
    for (port, reason) in
        [(HEALTH, "FailedToStartProxierHealthcheck"), (METRICS, "FailedToStartMetricServer")]
    {
        let mut rig = Rig::new()?;
        let server = cluster(&rig)?;
        let _taken = {
            let _entered = rig.node().namespace().enter()?;
            std::net::TcpListener::bind(("127.0.0.1", port))?
        };
        let addresses = ["--healthz-bind-address=127.0.0.1:10256", "--bind-address-hard-fail"];
        start(&mut rig, &server, &addresses)?;
        rig.wait_for_log("\"command failed\"")?;
        let events = server.events();
        let found = event(&events, reason).with_context(|| format!("no Event {reason}: {events:?}"))?;
        ensure!(found["type"] == "Warning" && found["action"] == "StartKubeProxy", "{found}");
        ensure!(found["note"].as_str().is_some_and(|note| note.contains("cannot listen on")), "{found}");
    }
    Ok(())
}
