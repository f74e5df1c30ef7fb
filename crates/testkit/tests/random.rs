//! Random clusters on every dataplane: random packets through the real kernel end as the oracle says, also after random changes
//! and a restart.
//!
//! A plain run tries the same clusters each time, so that a failure comes from the change under test. `PORTWARDEN_RANDOM_SEED` tries
//! others: a number, which a failure prints, or `any`. `PORTWARDEN_RANDOM_CASES` sets how many are tried on each dataplane.

mod candidates;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portwarden_model::{Family, PortName};
use portwarden_testkit::oracle::{Expected, Packet};
use portwarden_testkit::probe::{Outcome, Probe};
use portwarden_testkit::random::{self, Change, History, PODS, REMOTE_POD_COUNT, TARGET_PORTS};
use portwarden_testkit::rig::{Candidate, Object, Rig};
use portwarden_testkit::topology::PodNetwork;
use portwarden_testkit::topology::addresses::{NODE, NODE_SECONDARY, POD_BRIDGE, SERVICE_CIDR, VIPS};
use portwarden_testkit::{Host, Topology, Transport};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

const CASES: u32 = 10;
const SEED: u64 = 1;
const PACKETS: usize = 40;
/// How many times the cluster changes.
const CHANGES: usize = 3;
/// Long enough to believe in silence where an answer may come as well.
const DOUBTFUL: Duration = Duration::from_secs(1);

#[test]
fn nftables_does_what_the_oracle_says() {
    try_clusters(candidates::NFTABLES);
}

#[test]
fn iptables_nft_does_what_the_oracle_says() {
    try_clusters(candidates::IPTABLES_NFT);
}

#[test]
fn iptables_legacy_does_what_the_oracle_says() {
    try_clusters(candidates::IPTABLES_LEGACY);
}

#[test]
fn userspace_does_what_the_oracle_says() {
    try_clusters(candidates::USERSPACE);
}

#[test]
fn ebpf_does_what_the_oracle_says() {
    try_clusters(candidates::EBPF);
}

#[test]
fn userspace_by_iptables_does_what_the_oracle_says() {
    try_clusters(candidates::USERSPACE_IPTABLES);
}

/// Who sends where, as positions in lists that depend on the cluster.
#[derive(Clone, Debug)]
struct Shot {
    sender: Index,
    kind: u8,
    target: Index,
    variant: Index,
    udp: bool,
    other_port: bool,
}

fn shots() -> impl Strategy<Value = Vec<Shot>> {
    let parts =
        (any::<Index>(), 0u8..10, any::<Index>(), any::<Index>(), any::<bool>(), prop::bool::weighted(0.1));
    let shot = parts.prop_map(|(sender, kind, target, variant, udp, other_port)| Shot {
        sender,
        kind,
        target,
        variant,
        udp,
        other_port,
    });
    vec(shot, PACKETS)
}

fn try_clusters(candidate: Candidate) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let cases = number("PORTWARDEN_RANDOM_CASES")
        .map_or(CASES, |cases| u32::try_from(cases).expect("a small number"));
    let seed = match std::env::var("PORTWARDEN_RANDOM_SEED") {
        Ok(any) if any == "any" => any_seed(),
        _ => number("PORTWARDEN_RANDOM_SEED").unwrap_or(SEED),
    };
    let config = Config { cases, max_shrink_iters: 40, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome = runner.run(&(random::history(CHANGES), shots()), |(history, shots)| {
        try_cluster(candidate, &history, &shots).map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, (history, shots))) => panic!(
            // The reason comes last: logs are cut at the beginning.
            "{}: smallest history: {history:#?}\n{} packets\n{}: PORTWARDEN_RANDOM_SEED={seed}: {reason}",
            candidate.name,
            shots.len(),
            candidate.name
        ),
        Err(TestError::Abort(reason)) => panic!("gave up: {reason}"),
    }
}

/// The standard library's hashers start from random keys.
fn any_seed() -> u64 {
    RandomState::new().hash_one(())
}

fn try_cluster(candidate: Candidate, history: &History, shots: &[Shot]) -> Result<()> {
    let pod_network = if history.bridge { PodNetwork::Bridge } else { PodNetwork::Routed };
    let topology =
        Topology::builder().pods(PODS).remote_pods(REMOTE_POD_COUNT).pod_network(pod_network).build()?;
    let settings = history.operator.settings(Rig::settings(&candidate));
    let mut rig = Rig::new(candidate, topology, settings)?;
    serve_everywhere(&mut rig)?;
    let mut memory = Memory::default();
    for (number, changes) in history.steps.iter().enumerate() {
        for change in changes {
            match change {
                Change::Apply(object) => rig.apply(object.clone()),
                Change::Delete(object) => rig.delete(object),
            }
        }
        rig.sync().with_context(|| format!("step {number}"))?;
        memory.forget_what_is_gone(&rig);
        if candidate.mode.at_sockets {
            memory.forget_changed_services(changes);
        }
        fire(&rig, shots, &mut memory).with_context(|| format!("after step {number}"))?;
    }
    rig.restart()?;
    if candidate.mode.proxies {
        // The process that proxies remembers clients, and its records end with it.
        memory = Memory::default();
    }
    fire(&rig, shots, &mut memory).context("after the restart")
}

fn serve_everywhere(rig: &mut Rig) -> Result<()> {
    let hosts: Vec<String> =
        rig.topology().hosts().map(|host| host.name().to_owned()).filter(|name| name != "outside").collect();
    for host in hosts {
        for port in TARGET_PORTS {
            rig.serve(&host, Transport::Tcp, port)?;
            rig.serve(&host, Transport::Udp, port)?;
        }
    }
    Ok(())
}

/// Sends all packets and compares. Those whose endpoint may be remembered go one after the other, the rest together.
fn fire(rig: &Rig, shots: &[Shot], memory: &mut Memory) -> Result<()> {
    let mut together = Vec::new();
    for shot in shots {
        let (packet, probe) = aim(rig, shot);
        let expected = rig.oracle().expect(&packet);
        if expected.sticky.is_some() {
            let outcome = send(&probe, &packet, &expected)?;
            memory.check(&packet, &expected, &outcome).with_context(|| describe(&packet))?;
        } else {
            together.push((packet, probe, expected));
        }
    }
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let senders: Vec<_> = together
            .iter()
            .map(|(packet, probe, expected)| {
                scope.spawn(move || {
                    let outcome = send(probe, packet, expected)?;
                    expected.check(&outcome).with_context(|| describe(packet))
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().expect("a probe does not panic")).collect()
    });
    results.into_iter().collect()
}

fn send(probe: &Probe, packet: &Packet<'_>, expected: &Expected) -> Result<Outcome> {
    let probe = match (expected.is_silence(), expected.dropped) {
        (true, _) => probe.clone().short_timeout(),
        (false, true) => probe.clone().timeout(DOUBTFUL),
        (false, false) => probe.clone(),
    };
    probe.send(packet.transport, packet.to)
}

fn describe(packet: &Packet<'_>) -> String {
    format!("{:?} from {} ({}) to {}", packet.transport, packet.from.name(), packet.source, packet.to)
}

/// Turns a shot into a packet of the current cluster.
fn aim<'a>(rig: &'a Rig, shot: &Shot) -> (Packet<'a>, Probe) {
    let topology = rig.topology();
    let transport = if shot.udp { Transport::Udp } else { Transport::Tcp };
    let family = *shot.variant.get(&Family::BOTH);
    let (mut to, transport) = target(rig, shot, family, transport);
    if shot.other_port {
        to.set_port(to.port().wrapping_add(1));
    }
    let (host, source) =
        if to.ip().is_loopback() { (topology.node(), None) } else { sender(topology, shot, to.ip()) };
    let mut packet = Packet::new(topology, host, transport, to);
    let mut probe = host.probe();
    if let Some(source) = source {
        packet.source = source;
        probe = probe.from(source);
    }
    (packet, probe)
}

/// Any host, from its usual address or, where it has more, from another.
fn sender<'a>(topology: &'a Topology, shot: &Shot, to: IpAddr) -> (&'a Host, Option<IpAddr>) {
    let hosts: Vec<&Host> = topology.hosts().collect();
    let host = *shot.sender.get(&hosts);
    let own_target = topology.node_addresses().contains(&to) && host.name() == topology.node().name();
    let own = shot.variant.get(host.addresses()).like(to);
    (host, (host.addresses().len() > 1 && !own_target).then_some(own))
}

/// Mostly an address of a Service, sometimes a node port somewhere, rarely an unused address.
fn target(rig: &Rig, shot: &Shot, family: Family, transport: Transport) -> (SocketAddr, Transport) {
    let desired = rig.cluster().desired(family);
    let mut frontends: Vec<(Option<IpAddr>, u16, Transport)> = Vec::new();
    for port in desired.ports() {
        let transport = match port.protocol() {
            portwarden_model::Protocol::Udp => Transport::Udp,
            _ => Transport::Tcp,
        };
        frontends.extend(port.frontends.iter().map(|frontend| (frontend.ip, frontend.port, transport)));
    }
    frontends.sort_unstable();
    let (node_ports, addresses): (Vec<_>, Vec<_>) = frontends.into_iter().partition(|(ip, ..)| ip.is_none());
    let like = family.loopback();
    match shot.kind {
        0..=5 if !addresses.is_empty() => {
            let (ip, port, transport) = *shot.target.get(&addresses);
            (SocketAddr::new(ip.unwrap_or(like), port), transport)
        }
        6..=8 if !node_ports.is_empty() => {
            let (_, port, transport) = *shot.target.get(&node_ports);
            let bridge = (rig.topology().pod_network() == PodNetwork::Bridge).then(|| POD_BRIDGE.like(like));
            let own = [
                Some(NODE.like(like)),
                Some(NODE.like(like)),
                Some(NODE_SECONDARY.like(like)),
                Some(like),
                bridge,
            ];
            let own: Vec<IpAddr> = own.into_iter().flatten().collect();
            (SocketAddr::new(*shot.variant.get(&own), port), transport)
        }
        _ => {
            let unused = [SERVICE_CIDR.host(200), SERVICE_CIDR.host(10), VIPS.host(9), NODE];
            (SocketAddr::new(shot.target.get(&unused).like(like), 79), transport)
        }
    }
}

/// Which endpoints a client may have been bound to.
#[derive(Default)]
struct Memory {
    /// By service port and client.
    bound: BTreeMap<(PortName, IpAddr), BTreeSet<SocketAddr>>,
}

impl Memory {
    /// A client is answered by an endpoint that it was bound to, if one of them is still to be had.
    fn check(&mut self, packet: &Packet<'_>, expected: &Expected, outcome: &Outcome) -> Result<()> {
        expected.check(outcome)?;
        let (Some(port), Some(answer)) = (&expected.sticky, outcome.answer()) else { return Ok(()) };
        let bound = self.bound.entry((port.clone(), packet.source)).or_default();
        let mut usable = bound.iter().filter(|endpoint| expected.includes(**endpoint)).peekable();
        let sticks = usable.peek().is_none() || usable.any(|endpoint| *endpoint == answer.endpoint);
        ensure!(sticks, "not sticky: {outcome}, bound to {bound:?}");
        bound.insert(answer.endpoint);
        Ok(())
    }

    /// A Service that changes may move from programs at sockets to nftables or back. Each remembers clients by itself.
    fn forget_changed_services(&mut self, changes: &[Change]) {
        for change in changes {
            if let Change::Apply(Object::Service(service)) = change {
                self.bound.retain(|(port, _), _| port.service.name() != service.metadata.name);
            }
        }
    }

    /// Endpoints that are taken out forget their clients, whether or not they come back.
    fn forget_what_is_gone(&mut self, rig: &Rig) {
        self.bound.retain(|(name, client), endpoints| {
            let desired = rig.cluster().desired(Family::of(*client));
            let Some(port) = desired.ports().find(|port| port.name == *name && port.affinity.is_some())
            else {
                return false;
            };
            endpoints
                .retain(|endpoint| port.reachable().iter().any(|backend| backend.address() == *endpoint));
            !endpoints.is_empty()
        });
    }
}
