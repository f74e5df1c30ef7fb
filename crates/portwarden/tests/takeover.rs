//! The program takes over a node from kube-proxy in iptables mode and hands it back, without a lost connection.
//!
//! The rules that a real kube-proxy wrote (and what its own `--cleanup` left of them) are fixtures of the iptables dataplane. They are
//! loaded into the node, connections are made through them, and then the program starts. Endpoints have the addresses of the
//! recording, which pods have in addition to their own.

mod support;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portwarden_iptables::PACKET_COUNTERS;
use portwarden_netlink::nfacct::Accounting;
use portwarden_testkit::probe::{Behaviour, Connection, Exchanging, Probe};
use portwarden_testkit::saved_rules::{assert_same, canonical};
use portwarden_testkit::{Transport, topology::addresses};
use support::{Rig, TIMEOUT};

/// The recorded endpoints of `demo/web` and of `demo/six`, whose clients are sticky, with the pods that play them.
const ENDPOINTS: [(&str, u16, &str); 8] = [
    ("10.244.1.10", 8080, "pod-0"),
    ("10.244.2.10", 8080, "pod-1"),
    ("10.244.2.13", 8080, "pod-2"),
    ("10.244.2.66", 8000, "pod-0"),
    ("10.244.3.66", 8000, "pod-1"),
    ("10.244.3.67", 8000, "pod-2"),
    ("fd00:244:2::66", 8000, "pod-0"),
    ("fd00:244:3::66", 8000, "pod-1"),
];
const WEB: &str = "10.110.0.11:80";
const STICKY_NODE_PORT: u16 = 31000;

const FAMILIES: [(&str, &str); 2] = [("iptables", "v4"), ("ip6tables", "v6")];

/// How many connections a sticky client makes: too many to reach the same endpoint each time by chance.
const VISITS: usize = 20;

#[test]
fn nobody_notices_with_iptables_nft() -> Result<()> {
    take_over("nft", "default")
}

#[test]
fn nobody_notices_with_iptables_legacy() -> Result<()> {
    take_over("legacy", "default")
}

/// If kube-proxy had other settings, the chains with session affinity are rewritten.
#[test]
fn nobody_notices_other_rules_with_iptables_nft() -> Result<()> {
    take_over("nft", "masquerade-all")
}

#[test]
fn nobody_notices_other_rules_with_iptables_legacy() -> Result<()> {
    take_over("legacy", "masquerade-all")
}

fn take_over(variant: &str, recording: &str) -> Result<()> {
    let mut rig = Rig::new()?;
    rig.use_iptables(variant)?;
    play_endpoints(&rig)?;
    load(&rig, recording)?;
    let established = established(&rig)?;
    let sticky = sticky_clients(&rig)?;
    let newcomers = rig.topology.outside().probe().load(Transport::Tcp, node_port(true), 100)?;

    start(&mut rig)?;
    for (program, family) in FAMILIES {
        let expected = canonical(&fixture(&format!("default.{family}.save"))?);
        assert_same(&saved(&rig, program)?, &expected, &format!("{program} after the take-over"));
    }
    newcomers.wait_for(TIMEOUT, "answers", |tally| tally.answered() > 100)?;
    let tally = newcomers.stop()?;
    ensure!(tally.failed() == 0, "new connections during the take-over: {tally}");
    sticky.iter().try_for_each(Sticky::is_still_served_by_its_host)?;
    established.into_iter().try_for_each(|(connection, host)| went_on(connection, &host))?;

    ensure!(rig.stop()?.success(), "it ends well");
    rig.program().arg("--cleanup").run()?;
    for (program, family) in FAMILIES {
        let expected = canonical(&fixture(&format!("cleaned.{family}.save"))?);
        assert_same(&saved(&rig, program)?, &expected, &format!("{program} after the clean-up"));
    }
    Ok(())
}

/// Gives the recorded addresses to pods, which serve there.
fn play_endpoints(rig: &Rig) -> Result<()> {
    for (ip, port, pod) in ENDPOINTS {
        let pod = rig.topology.host(pod).context("a pod")?;
        let ip: IpAddr = ip.parse()?;
        // Without `nodad` an IPv6 address cannot be used at once.
        let nodad: &[&str] = if ip.is_ipv6() { &["nodad"] } else { &[] };
        pod.command("ip").args(["address", "replace", &ip.to_string(), "dev", "lo"]).args(nodad).run()?;
        let through = pod.ip().like(ip).to_string();
        rig.node().command("ip").args(["route", "replace", &ip.to_string(), "via", &through]).run()?;
        pod.serve_on(Transport::Tcp, SocketAddr::new(ip, port), Behaviour::Answer)?;
    }
    Ok(())
}

/// Loads the rules that kube-proxy wrote.
fn load(rig: &Rig, recording: &str) -> Result<()> {
    let ensure_counters = || {
        let mut accounting = Accounting::open()?;
        PACKET_COUNTERS.iter().try_for_each(|counter| accounting.ensure(counter.object))?;
        Ok(())
    };
    rig.node().namespace().run(ensure_counters)?;
    for (program, family) in FAMILIES {
        let rules = fixture(&format!("{recording}.{family}.save"))?;
        rig.command(&rig.path("bin").join(format!("{program}-restore")).display().to_string())
            .args(["-w", "5"])
            .input(rules)
            .run()?;
    }
    Ok(())
}

/// Starts the program on the recorded objects and waits for its first sync of both families.
fn start(rig: &mut Rig) -> Result<()> {
    for file in ["objects.json", "node.json"] {
        rig.write(&format!("manifests/{file}"), &fixture(file)?)?;
    }
    rig.start(&["--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16,fd00:244::/32", "-v=2"])?;
    for family in ["IPv4", "IPv6"] {
        let series = format!("kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}}");
        rig.wait_until("the first sync", || Ok(rig.metric(&series)? > 0.0))?;
    }
    Ok(())
}

/// Connections that are in use all the time, and the hosts that answer them.
fn established(rig: &Rig) -> Result<Vec<(Exchanging, String)>> {
    let web: SocketAddr = WEB.parse()?;
    let mut connections = Vec::new();
    let mut keep = |(connection, first): (Connection, portwarden_testkit::Outcome)| -> Result<()> {
        let host = first.host().with_context(|| format!("an answer: {first}"))?.to_owned();
        connections.push((connection.keep_exchanging(Duration::from_millis(2))?, host));
        Ok(())
    };
    for _ in 0..6 {
        keep(rig.node().probe().open(Transport::Tcp, web)?)?;
    }
    for v4 in [true, false] {
        keep(rig.topology.outside().probe().open(Transport::Tcp, node_port(v4))?)?;
    }
    Ok(connections)
}

fn went_on(connection: Exchanging, host: &str) -> Result<()> {
    let tally = connection.stop()?;
    let always = tally.failed() == 0 && tally.answered_by().keys().all(|answered| answered == host);
    ensure!(always && tally.answered() > 0, "an established connection to {host}: {tally}");
    Ok(())
}

/// A client that the recorded rules have sent to an endpoint.
struct Sticky {
    client: Probe,
    target: SocketAddr,
    host: String,
}

impl Sticky {
    fn is_still_served_by_its_host(&self) -> Result<()> {
        for visit in 1..=VISITS {
            let outcome = self.client.tcp(self.target)?;
            ensure!(
                outcome.host() == Some(self.host.as_str()),
                "visit {visit} to {}: {outcome} instead of {}",
                self.target,
                self.host
            );
        }
        Ok(())
    }
}

fn sticky_clients(rig: &Rig) -> Result<Vec<Sticky>> {
    let mut clients = Vec::new();
    for v4 in [true, false] {
        for number in 10..10 + addresses::CLIENT_COUNT {
            let ip = addresses::CLIENTS.host(number);
            let from: IpAddr = if v4 { ip.v4.into() } else { ip.v6.into() };
            let client = rig.topology.outside().probe().from(from);
            let target = node_port(v4);
            let first = client.tcp(target)?;
            let host = first.host().with_context(|| format!("an answer: {first}"))?.to_owned();
            clients.push(Sticky { client, target, host });
        }
    }
    Ok(clients)
}

fn node_port(v4: bool) -> SocketAddr {
    let ip = if v4 { addresses::NODE.v4.into() } else { addresses::NODE.v6.into() };
    SocketAddr::new(ip, STICKY_NODE_PORT)
}

fn saved(rig: &Rig, program: &str) -> Result<String> {
    let program = rig.path("bin").join(format!("{program}-save"));
    Ok(canonical(&rig.command(&program.display().to_string()).run()?))
}

/// A recorded file of kube-proxy.
fn fixture(name: &str) -> Result<String> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../dataplane/iptables/tests/fixtures/kube-proxy");
    fs::read_to_string(folder.join(name)).with_context(|| format!("cannot read the fixture {name}"))
}
