//! Node ports on loopback addresses in nftables mode, behind kube-proxy's gate `KubeProxyNFTablesLocalhostNodePorts`.

mod support;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use portwarden_testkit::probe::Outcome;
use portwarden_testkit::{Host, Transport};
use support::{Rig, cluster_cidr, node, service, slice};

const V4: &str = "10.96.0.10";
const V6: &str = "fd00:10:96::10";
const NODE_PORT: u16 = 30080;
const GATE: &str = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true";
const LOCALHOST: &str = "--nodeport-addresses=localhost,primary";

fn loopback() -> [SocketAddr; 2] {
    [IpAddr::from([127, 0, 0, 1]), "::1".parse().expect("an address")]
        .map(|ip| SocketAddr::new(ip, NODE_PORT))
}

/// `demo/web` with a node port, and these hosts as endpoints of both families.
fn objects(protocol: &str, spec: &str, hosts: &[&Host]) -> Vec<String> {
    let endpoints = |family: fn(&Host) -> IpAddr| -> Vec<(IpAddr, &str)> {
        let node = |host: &Host| if host.name().contains("remote") { "node-b" } else { "node-a" };
        hosts.iter().map(|host| (family(host), node(host))).collect()
    };
    let mut objects = vec![node(), service("web", V4, V6, protocol, &format!("  type: NodePort\n{spec}"))];
    if !hosts.is_empty() {
        objects.push(slice("web", protocol, &endpoints(|host| host.ip().v4.into()), 8080));
        objects.push(slice("web", protocol, &endpoints(|host| host.ip().v6.into()), 8080));
    }
    objects
}

fn all(rig: &Rig) -> Vec<&Host> {
    rig.topology.pods().iter().chain([rig.topology.remote_pod(0)]).collect()
}

fn rig(protocol: &str, spec: &str) -> Result<Rig> {
    let rig = Rig::new()?;
    for host in all(&rig) {
        host.serve(Transport::Tcp, 8080)?;
        host.serve(Transport::Udp, 8080)?;
    }
    rig.objects(&objects(protocol, spec, &all(&rig)))?;
    Ok(rig)
}

fn start(rig: &mut Rig, more: &[&str]) -> Result<()> {
    let cidr = cluster_cidr();
    rig.start(&[&["--proxy-mode=nftables", "--cluster-cidr", cidr.as_str(), "-v=4"], more].concat())
}

fn ask(rig: &Rig, target: SocketAddr) -> Result<Outcome> {
    rig.node().probe().short_timeout().tcp(target)
}

/// Who answers, of many connections from the node itself.
fn answering(rig: &Rig, target: SocketAddr) -> Result<BTreeSet<String>> {
    (0..40)
        .map(|_| {
            let outcome = rig.node().tcp(target)?;
            Ok(outcome.host().with_context(|| format!("{target}: {outcome}"))?.to_owned())
        })
        .collect()
}

fn wait_until_answered(rig: &Rig) -> Result<()> {
    loopback().into_iter().try_for_each(|target| rig.wait_for_service(target))
}

fn wait_until_refused(rig: &Rig) -> Result<()> {
    for target in loopback() {
        rig.wait_until(&format!("{target} to be refused"), || Ok(ask(rig, target)?.is_refused()))?;
    }
    Ok(())
}

fn names(hosts: &[&Host]) -> BTreeSet<String> {
    hosts.iter().map(|host| host.name().to_owned()).collect()
}

#[test]
fn every_endpoint_answers_on_both_loopback_addresses() -> Result<()> {
    let mut rig = rig("TCP", "")?;
    start(&mut rig, &[GATE, LOCALHOST])?;
    wait_until_answered(&rig)?;
    for target in loopback() {
        ensure!(answering(&rig, target)? == names(&all(&rig)), "{target}");
    }
    let listeners = "kubeproxy_nftables_localhost_nodeport_listeners";
    for family in ["IPv4", "IPv6"] {
        ensure!(rig.metric(&format!("{listeners}{{ip_family=\"{family}\"}}"))? == 1.0);
    }
    rig.objects(&objects("TCP", "  externalTrafficPolicy: Local\n", &all(&rig)))?;
    let near: Vec<&Host> = rig.topology.pods().iter().collect();
    for target in loopback() {
        rig.wait_until("policy Local", || Ok(answering(&rig, target)? == names(&near)))?;
    }
    rig.objects(&objects("TCP", "  externalTrafficPolicy: Local\n", &[rig.topology.remote_pod(0)]))?;
    wait_until_refused(&rig)?;
    ensure!(rig.metric(&format!("{listeners}{{ip_family=\"IPv6\"}}"))? == 0.0);
    rig.objects(&objects("TCP", "", &all(&rig)))?;
    wait_until_answered(&rig)?;
    ensure!(rig.stop()?.success());
    wait_until_refused(&rig)
}

#[test]
fn clients_stay_with_their_endpoint_until_it_goes() -> Result<()> {
    let mut rig = rig("TCP", "  sessionAffinity: ClientIP\n")?;
    start(&mut rig, &[GATE, LOCALHOST])?;
    wait_until_answered(&rig)?;
    let [v4, _] = loopback();
    let chosen = answering(&rig, v4)?;
    ensure!(chosen.len() == 1, "{chosen:?}");
    let others: Vec<&Host> = all(&rig).into_iter().filter(|host| !chosen.contains(host.name())).collect();
    rig.objects(&objects("TCP", "  sessionAffinity: ClientIP\n", &others))?;
    rig.wait_until("another endpoint", || Ok(answering(&rig, v4)?.is_disjoint(&chosen)))?;
    ensure!(answering(&rig, v4)?.len() == 1);
    Ok(())
}

#[test]
fn a_dying_endpoint_takes_only_its_own_connections() -> Result<()> {
    let mut rig = rig("TCP", "")?;
    start(&mut rig, &[GATE, LOCALHOST])?;
    wait_until_answered(&rig)?;
    let [v4, _] = loopback();
    let (mut staying, first) = rig.node().probe().open(Transport::Tcp, v4)?;
    let host = first.host().context("an answer")?.to_owned();
    let dying = all(&rig).into_iter().find(|other| other.name() != host).context("another endpoint")?;
    dying.stop_all()?;
    for _ in 0..20 {
        ensure!(ask(&rig, v4)?.is_answered(), "another endpoint is tried before the client notices");
    }
    let living: Vec<&Host> = all(&rig).into_iter().filter(|other| other.name() != dying.name()).collect();
    rig.objects(&objects("TCP", "", &living))?;
    rig.wait_until("only living endpoints", || Ok(answering(&rig, v4)? == names(&living)))?;
    ensure!(staying.exchange()?.host() == Some(&host), "a connection to a living endpoint goes on");
    Ok(())
}

#[test]
fn udp_is_refused_and_counted() -> Result<()> {
    let mut rig = rig("UDP", "")?;
    start(&mut rig, &[GATE, LOCALHOST])?;
    rig.wait_until("the Service", || Ok(rig.node().udp(SocketAddr::new(V4.parse()?, 80))?.is_answered()))?;
    let series = |family: &str, protocol: &str| {
        format!(
            "kubeproxy_nftables_localhost_nodeport_rejected_packets_total{{ip_family=\"{family}\",protocol=\"{protocol}\"}}"
        )
    };
    for (target, family) in loopback().into_iter().zip(["IPv4", "IPv6"]) {
        ensure!(rig.node().udp(target)?.is_refused(), "{target}");
        ensure!(rig.metric(&series(family, "UDP"))? == 1.0);
        ensure!(rig.metric(&series(family, "SCTP"))? == 0.0);
        ensure!(rig.metric(&series(family, "TCP")).is_err(), "TCP is the proxy's");
    }
    Ok(())
}

#[test]
fn a_range_of_all_addresses_is_no_loopback_range() -> Result<()> {
    let mut rig = rig("TCP", "")?;
    start(&mut rig, &[GATE, "--nodeport-addresses=all"])?;
    rig.wait_for_service(SocketAddr::new(rig.node().ip().v4.into(), NODE_PORT))?;
    rig.wait_for_service(SocketAddr::new(rig.node().ip().v6.into(), NODE_PORT))?;
    for target in loopback() {
        ensure!(ask(&rig, target)?.is_refused(), "{target}");
    }
    let counted =
        "kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family=\"IPv6\",protocol=\"TCP\"}";
    ensure!(rig.metric(counted)? == 1.0, "refused by a rule, not for lack of a listener");
    Ok(())
}

#[test]
fn a_gate_that_is_off_leaves_nothing() -> Result<()> {
    let mut rig = rig("TCP", "")?;
    start(&mut rig, &[LOCALHOST])?;
    rig.wait_for_service(SocketAddr::new(rig.node().ip().v4.into(), NODE_PORT))?;
    rig.wait_for_service(SocketAddr::new(rig.node().ip().v6.into(), NODE_PORT))?;
    for target in loopback() {
        ensure!(ask(&rig, target)?.is_refused(), "{target}");
    }
    let (_, metrics) = rig.get(support::METRICS, "/metrics")?;
    ensure!(!metrics.contains("localhost_nodeport"), "{metrics}");
    ensure!(!rig.node().command("nft").args(["list", "ruleset"]).run()?.contains("localhost-nodeport"));
    Ok(())
}

#[test]
fn a_changed_configuration_opens_and_closes_them() -> Result<()> {
    let mut rig = rig("TCP", "")?;
    let config = |mode: &str, gate: bool, addresses: &str| {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\nclusterCIDR: \"{}\"\n\
             conntrack: {{maxPerCore: 0}}\niptables: {{localhostNodePorts: false}}\n\
             featureGates: {{KubeProxyNFTablesLocalhostNodePorts: {gate}}}\nnodePortAddresses: [{addresses}]\n",
            cluster_cidr()
        )
    };
    rig.write("config.yaml", &config("nftables", false, "localhost"))?;
    let path = rig.path("config.yaml");
    rig.start(&["--config", path.to_str().context("a plain path")?])?;
    rig.wait_for_service(SocketAddr::new(V4.parse()?, 80))?;
    wait_until_refused(&rig)?;
    for (mode, gate, addresses, answered) in [
        ("nftables", true, "localhost", true),
        ("nftables", true, "primary", false),
        ("nftables", true, "primary, localhost", true),
        ("nftables", false, "primary, localhost", false),
        ("nftables", true, "primary, localhost", true),
        ("iptables", true, "primary, localhost", false),
        ("nftables", true, "primary, localhost", true),
    ] {
        rig.write("config.yaml", &config(mode, gate, addresses))?;
        let waited = if answered { wait_until_answered(&rig) } else { wait_until_refused(&rig) };
        waited.with_context(|| format!("{mode}, gate {gate}, {addresses}"))?;
    }
    Ok(())
}

#[test]
fn a_port_in_use_is_reported_and_taken_when_it_is_free() -> Result<()> {
    let mut rig = rig("TCP", "")?;
    let taken = rig.node().namespace().run(|| Ok(std::net::TcpListener::bind(("127.0.0.1", NODE_PORT))?))?;
    start(&mut rig, &[GATE, LOCALHOST])?;
    rig.wait_for_log("Failed to create localhost nodeport proxy")?;
    let failures =
        "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family=\"IPv4\"}";
    rig.wait_until("the failure to be counted", || Ok(rig.metric(failures).is_ok_and(|count| count >= 1.0)))?;
    rig.wait_for_service(loopback()[1])?;
    drop(taken);
    wait_until_answered(&rig)
}
