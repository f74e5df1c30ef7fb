//! A UDP client that keeps one socket open reaches a live endpoint after every kind of change.
//!
//! The kernel remembers where a flow goes for as long as packets come. Without clean-up the client would talk to a deleted pod for ever,
//! so no timeout here has to be short.
//! Every transition runs for both modes and both families, and a restart in between must not disturb a valid flow.
//! Established TCP connections stay where they are, and new ones reach a live endpoint. Only connections that began while rules were
//! missing must be deleted from conntrack.

mod support;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use portwarden_testkit::probe::Connection;
use portwarden_testkit::{Host, Topology, Transport, topology::addresses, wait};
use support::{Rig, TIMEOUT, cluster_cidr, node, service, slice};

const V4: &str = "10.96.0.53";
const V6: &str = "fd00:10:96::53";

/// How long one attempt waits for an answer; it is repeated until [`TIMEOUT`] ends.
const ATTEMPT: Duration = Duration::from_millis(100);

/// Which address a client uses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Through {
    ClusterIp,
    NodePort,
    ExternalIp,
    LoadBalancerIp,
}

/// One change to the cluster, and what must come of it.
struct Transition {
    name: &'static str,
    through: Through,
    before: &'static [&'static str],
    before_spec: &'static str,
    after: &'static [&'static str],
    after_spec: &'static str,
}

const NODE_PORT: &str = "  type: NodePort\n";
const NODE_PORT_LOCAL: &str = "  type: NodePort\n  externalTrafficPolicy: Local\n";
const EXTERNAL: &str = "  externalIPs: [\"192.0.2.9\", \"2001:db8:2::9\"]\n";
/// The Service does not exist.
const GONE: &str = "gone";

const TRANSITIONS: &[Transition] = &[
    Transition {
        name: "endpoint replaced",
        through: Through::ClusterIp,
        before: &["pod-0"],
        before_spec: "",
        after: &["pod-1"],
        after_spec: "",
    },
    Transition {
        name: "endpoint on another node replaced",
        through: Through::ClusterIp,
        before: &["remote-pod-0"],
        before_spec: "",
        after: &["pod-1"],
        after_spec: "",
    },
    Transition {
        name: "one of two endpoints removed",
        through: Through::ClusterIp,
        before: &["pod-0"],
        before_spec: "",
        after: &["pod-1", "remote-pod-0"],
        after_spec: "",
    },
    Transition {
        name: "first endpoint appears",
        through: Through::ClusterIp,
        before: &[],
        before_spec: "",
        after: &["pod-0"],
        after_spec: "",
    },
    Transition {
        name: "Service appears",
        through: Through::ClusterIp,
        before: &["pod-0"],
        before_spec: GONE,
        after: &["pod-0"],
        after_spec: "",
    },
    Transition {
        name: "endpoint replaced behind a node port",
        through: Through::NodePort,
        before: &["pod-0"],
        before_spec: NODE_PORT,
        after: &["pod-1"],
        after_spec: NODE_PORT,
    },
    Transition {
        name: "first endpoint appears behind a node port",
        through: Through::NodePort,
        before: &[],
        before_spec: NODE_PORT,
        after: &["pod-1"],
        after_spec: NODE_PORT,
    },
    Transition {
        name: "node port appears",
        through: Through::NodePort,
        before: &["pod-0"],
        before_spec: "",
        after: &["pod-0"],
        after_spec: NODE_PORT,
    },
    Transition {
        name: "policy becomes Local",
        through: Through::NodePort,
        before: &["remote-pod-0"],
        before_spec: NODE_PORT,
        after: &["pod-1", "remote-pod-0"],
        after_spec: NODE_PORT_LOCAL,
    },
    Transition {
        name: "endpoint replaced behind an external address",
        through: Through::ExternalIp,
        before: &["pod-0"],
        before_spec: EXTERNAL,
        after: &["pod-1"],
        after_spec: EXTERNAL,
    },
    Transition {
        name: "external address appears",
        through: Through::ExternalIp,
        before: &["pod-0"],
        before_spec: "",
        after: &["pod-0"],
        after_spec: EXTERNAL,
    },
    Transition {
        name: "endpoint replaced behind a load balancer",
        through: Through::LoadBalancerIp,
        before: &["pod-0"],
        before_spec: "",
        after: &["pod-1"],
        after_spec: "",
    },
];

fn host<'a>(topology: &'a Topology, name: &str) -> Result<&'a Host> {
    topology.host(name).with_context(|| format!("a host {name}"))
}

fn ip_of(host: &Host, v4: bool) -> IpAddr {
    if v4 { host.ip().v4.into() } else { host.ip().v6.into() }
}

fn objects(
    rig: &Rig,
    transport: Transport,
    endpoints: &[&str],
    spec: &str,
    through: Through,
) -> Result<Vec<String>> {
    let protocol = match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
        Transport::Sctp => "SCTP",
    };
    let mut objects = vec![node()];
    if spec != GONE {
        let mut dns = service("dns", V4, V6, protocol, spec);
        if through == Through::LoadBalancerIp {
            dns.push_str(
                "status: {loadBalancer: {ingress: [{ip: \"198.51.100.9\"}, {ip: \"2001:db8:100::9\"}]}}\n",
            );
        }
        objects.push(dns);
    }
    for v4 in [true, false] {
        let list: Result<Vec<(IpAddr, &str)>> = endpoints
            .iter()
            .map(|name| {
                Ok((
                    ip_of(host(&rig.topology, name)?, v4),
                    if name.starts_with("remote") { "node-b" } else { "node-a" },
                ))
            })
            .collect();
        let list = list?;
        if !list.is_empty() {
            objects.push(slice("dns", protocol, &list, 5353));
        }
    }
    Ok(objects)
}

fn address(through: Through, v4: bool) -> SocketAddr {
    let ip = |four: &str, six: &str| -> IpAddr { if v4 { four } else { six }.parse().expect("an address") };
    match through {
        Through::ClusterIp => SocketAddr::new(ip(V4, V6), 80),
        Through::NodePort => {
            SocketAddr::new(if v4 { addresses::NODE.v4.into() } else { addresses::NODE.v6.into() }, 30080)
        }
        Through::ExternalIp => SocketAddr::new(ip("192.0.2.9", "2001:db8:2::9"), 80),
        Through::LoadBalancerIp => SocketAddr::new(ip("198.51.100.9", "2001:db8:100::9"), 80),
    }
}

/// Sends until one of these hosts answers.
fn reaches(connection: &mut Connection, wanted: &[&str], what: &str) -> Result<()> {
    connection.set_timeout(ATTEMPT);
    wait::until(TIMEOUT, what, || {
        let outcome = connection.exchange().ok()?;
        outcome.host().is_some_and(|host| wanted.contains(&host)).then_some(())
    })
}

fn run(mode: &str) -> Result<()> {
    for transition in TRANSITIONS {
        for transport in [Transport::Udp, Transport::Tcp] {
            for v4 in [true, false] {
                let family = if v4 { "IPv4" } else { "IPv6" };
                let what = format!("{} ({mode}, {transport:?}, {family})", transition.name);
                one(mode, transport, transition, v4, &what).context(what)?;
            }
        }
    }
    Ok(())
}

fn one(mode: &str, transport: Transport, transition: &Transition, v4: bool, what: &str) -> Result<()> {
    let mut rig = Rig::new()?;
    for name in ["pod-0", "pod-1", "remote-pod-0"] {
        host(&rig.topology, name)?.serve(transport, 5353)?;
    }
    let Transition { through, before, before_spec, after, after_spec, .. } = *transition;
    rig.objects(&objects(&rig, transport, before, before_spec, through)?)?;
    rig.start(&["--proxy-mode", mode, "--cluster-cidr", &cluster_cidr(), "--nodeport-addresses=all"])?;
    let in_force = |series: &str| rig.metric(series).unwrap_or(0.0) > 0.0;
    rig.wait_until("the first sync of both families", || {
        let synced = |family| {
            in_force(&format!("kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}}"))
        };
        Ok(synced("IPv4") && synced("IPv6"))
    })?;
    let client = if through == Through::ClusterIp { rig.topology.pod(2) } else { rig.topology.outside() };
    let to = address(through, v4);
    let is_up = !before.is_empty()
        && before_spec != GONE
        && (through != Through::NodePort || before_spec == NODE_PORT)
        && (through != Through::ExternalIp || before_spec == EXTERNAL);
    // Only a probe that is expected to fail gives up early.
    let probe = if is_up { client.probe() } else { client.probe().short_timeout() };
    // TCP without an endpoint has nothing to keep open.
    let open = transport == Transport::Udp || is_up;
    let (mut connection, first) = match open.then(|| probe.open(transport, to)).transpose()? {
        Some((connection, first)) => (Some(connection), first),
        None => (None, probe.send(transport, to)?),
    };
    ensure!(first.is_answered() == is_up, "at first: {first}");
    if is_up {
        ensure!(first.host().is_some_and(|host| before.contains(&host)), "at first: {first}");
    }
    rig.objects(&objects(&rig, transport, after, after_spec, through)?)?;
    // Of several endpoints only those that the policy allows.
    let wanted: Vec<&str> = after
        .iter()
        .copied()
        .filter(|name| after_spec != NODE_PORT_LOCAL || !name.starts_with("remote"))
        .collect();
    match (transport, &mut connection) {
        (Transport::Udp, Some(connection)) => reaches(connection, &wanted, what).with_context(|| rig.log()),
        (_, connection) => {
            let probe = probe.timeout(ATTEMPT);
            wait::until(TIMEOUT, what, || {
                let outcome = probe.send(transport, to).ok()?;
                outcome.host().is_some_and(|host| wanted.contains(&host)).then_some(())
            })
            .with_context(|| rig.log())?;
            let Some(connection) = connection else { return Ok(()) };
            let outcome = connection.exchange()?;
            ensure!(outcome.host() == first.host(), "established with {first}, and then {outcome}");
            Ok(())
        }
    }
}

#[test]
fn every_transition_with_nftables() -> Result<()> {
    run("nftables")
}

#[test]
fn every_transition_with_iptables() -> Result<()> {
    run("iptables")
}

#[test]
fn a_deleted_service_lets_its_flows_go() -> Result<()> {
    for v4 in [true, false] {
        let mut rig = Rig::new()?;
        host(&rig.topology, "pod-0")?.serve(Transport::Udp, 5353)?;
        rig.objects(&objects(&rig, Transport::Udp, &["pod-0"], NODE_PORT, Through::NodePort)?)?;
        rig.start(&["--proxy-mode=nftables", "--cluster-cidr", &cluster_cidr(), "--nodeport-addresses=all"])?;
        for (through, client) in
            [(Through::ClusterIp, rig.topology.pod(2)), (Through::NodePort, rig.topology.outside())]
        {
            let to = address(through, v4);
            rig.wait_until("an answer", || Ok(client.probe().short_timeout().udp(to)?.is_answered()))?;
            let (mut connection, first) = client.probe().open(Transport::Udp, to)?;
            ensure!(first.is_answered(), "{first}");
            rig.objects(&[node()])?;
            connection.set_timeout(ATTEMPT);
            rig.wait_until("the flow to end with its Service", || Ok(!connection.exchange()?.is_answered()))?;
            rig.objects(&objects(&rig, Transport::Udp, &["pod-0"], NODE_PORT, Through::NodePort)?)?;
            reaches(&mut connection, &["pod-0"], "the flow to come back with its Service")
                .with_context(|| rig.log())?;
        }
    }
    Ok(())
}

/// Only the rules of the last process still name the frontends that a deleted Service had.
#[test]
fn a_service_deleted_while_no_process_runs_lets_its_flows_go() -> Result<()> {
    for mode in ["nftables", "iptables"] {
        for v4 in [true, false] {
            deleted_in_between(mode, v4).with_context(|| format!("{mode}, IPv{}", if v4 { 4 } else { 6 }))?;
        }
    }
    Ok(())
}

fn deleted_in_between(mode: &str, v4: bool) -> Result<()> {
    let mut rig = Rig::new()?;
    host(&rig.topology, "pod-0")?.serve(Transport::Udp, 5353)?;
    rig.objects(&objects(&rig, Transport::Udp, &["pod-0"], NODE_PORT, Through::NodePort)?)?;
    let arguments = ["--proxy-mode", mode, "--cluster-cidr", &cluster_cidr(), "--nodeport-addresses=all"];
    rig.start(&arguments)?;
    let mut flows = Vec::new();
    for through in [Through::ClusterIp, Through::NodePort] {
        let client = if through == Through::ClusterIp { rig.topology.pod(2) } else { rig.topology.outside() };
        let to = address(through, v4);
        rig.wait_until("an answer", || Ok(client.probe().short_timeout().udp(to)?.is_answered()))?;
        let (mut connection, first) = client.probe().open(Transport::Udp, to)?;
        ensure!(first.is_answered(), "{first}");
        connection.set_timeout(ATTEMPT);
        flows.push(connection);
    }
    rig.kill();
    for flow in &mut flows {
        ensure!(flow.exchange()?.is_answered(), "the rules stay without the process");
    }
    rig.objects(&[node()])?;
    rig.start(&arguments)?;
    for flow in &mut flows {
        rig.wait_until("the flow to end with its Service", || Ok(!flow.exchange()?.is_answered()))?;
    }
    Ok(())
}

#[test]
fn a_restart_leaves_good_flows_alone() -> Result<()> {
    for mode in ["nftables", "iptables"] {
        let mut rig = Rig::new()?;
        for name in ["pod-0", "pod-1", "remote-pod-0"] {
            host(&rig.topology, name)?.serve(Transport::Udp, 5353)?;
        }
        rig.objects(&objects(
            &rig,
            Transport::Udp,
            &["pod-0", "pod-1", "remote-pod-0"],
            NODE_PORT,
            Through::NodePort,
        )?)?;
        rig.start_mode(mode)?;
        let to = address(Through::ClusterIp, true);
        rig.wait_until("an answer", || {
            Ok(rig.topology.pod(2).probe().short_timeout().udp(to)?.is_answered())
        })?;
        let mut flows = Vec::new();
        for _ in 0..20 {
            let (connection, first) = rig.topology.pod(2).probe().open(Transport::Udp, to)?;
            flows.push((connection, first.host().context("an answer")?.to_owned()));
        }
        for _ in 0..2 {
            ensure!(rig.stop()?.success());
            rig.start_mode(mode)?;
            rig.wait_until("the clean-up after the first sync", || {
                Ok(rig.metric(
                    "kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv4\"}",
                )? > 0.0)
            })?;
        }
        for (connection, host) in &mut flows {
            let outcome = connection.exchange()?;
            ensure!(outcome.host() == Some(host.as_str()), "{mode}: {outcome} instead of {host}");
        }
    }
    Ok(())
}

/// The kernel remembers for two minutes that such a connection is not redirected, and takes a later one from the same port for the same.
#[test]
fn a_connection_that_began_without_rules_is_forgotten_with_their_repair() -> Result<()> {
    for (mode, damages) in [
        (
            "nftables",
            &[["nft", "flush", "table", "ip", "kube-proxy"], ["nft", "flush", "table", "ip6", "kube-proxy"]],
        ),
        (
            "iptables",
            &[
                ["iptables", "-t", "nat", "-F", "KUBE-SERVICES"],
                ["ip6tables", "-t", "nat", "-F", "KUBE-SERVICES"],
            ],
        ),
    ] {
        for v4 in [true, false] {
            unredirected(mode, damages[usize::from(!v4)], v4)
                .with_context(|| format!("{mode}, IPv{}", if v4 { 4 } else { 6 }))?;
        }
    }
    Ok(())
}

fn unredirected(mode: &str, damage: [&str; 5], v4: bool) -> Result<()> {
    let mut rig = Rig::new()?;
    let pod = host(&rig.topology, "pod-0")?;
    pod.serve(Transport::Tcp, 8080)?;
    let endpoint = |v4| slice("web", "TCP", &[(ip_of(pod, v4), "node-a")], 8080);
    rig.objects(&[node(), service("web", V4, V6, "TCP", ""), endpoint(true), endpoint(false)])?;
    rig.start_mode(mode)?;
    let to = address(Through::ClusterIp, v4);
    rig.wait_for_service(to)?;
    rig.signal(Signal::SIGSTOP)?;
    rig.command(damage[0]).args(&damage[1..]).run()?;
    let client = rig.topology.pod(2).probe().short_timeout().from_port(40_001);
    let outcome = client.tcp(to)?;
    ensure!(!outcome.is_answered(), "without rules: {outcome}");
    rig.signal(Signal::SIGCONT)?;
    rig.wait_for_service(to)?;
    rig.wait_until("the same port to be answered", || Ok(client.tcp(to)?.is_answered()))
}
