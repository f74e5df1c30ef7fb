//! What changes must not do: spread connections unevenly, send them to endpoints that are gone, or disturb those that are there.
//!
//! `PORTWARDEN_RANDOM_SEED` repeats a run.

mod candidates;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use portwarden_model::Family;
use portwarden_testkit::build::{ServiceBuilder, SliceBuilder, endpoint, port, service, slice};
use portwarden_testkit::probe::{Exchanging, Load, uniformity};
use portwarden_testkit::random::{self, Change};
use portwarden_testkit::rig::{Candidate, Rig};
use portwarden_testkit::topology::addresses::{DualIp, NODE, SERVICE_CIDR};
use portwarden_testkit::{Host, Topology, Transport};
use proptest::sample::subsequence;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const TARGET: u16 = 8080;
const NODE_PORT: u16 = 31000;
const LONG: Duration = Duration::from_secs(20);

macro_rules! on_each_dataplane {
    ($($test:ident)+) => {
        mod nftables {
            $(#[test] fn $test() -> anyhow::Result<()> { super::$test(super::candidates::NFTABLES) })+
        }
        mod iptables_nft {
            $(#[test] fn $test() -> anyhow::Result<()> { super::$test(super::candidates::IPTABLES_NFT) })+
        }
        mod iptables_legacy {
            $(#[test] fn $test() -> anyhow::Result<()> { super::$test(super::candidates::IPTABLES_LEGACY) })+
        }
        mod userspace {
            $(#[test] fn $test() -> anyhow::Result<()> { super::$test(super::candidates::USERSPACE) })+
        }
    };
}

on_each_dataplane! {
    connections_spread_evenly_whatever_came_and_went
    changes_and_restarts_disturb_nobody
}

/// Random values of a run that can be repeated.
struct Dice {
    seed: u64,
    runner: TestRunner,
}

impl Dice {
    fn new() -> Dice {
        let given = std::env::var("PORTWARDEN_RANDOM_SEED").ok().map(|text| text.parse().expect("a number"));
        // The standard library's hashers start from random keys.
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(()));
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Dice { seed, runner: TestRunner::new_with_rng(Config::default(), rng) }
    }

    fn roll<T: std::fmt::Debug>(&mut self, strategy: impl Strategy<Value = T>) -> T {
        strategy.new_tree(&mut self.runner).expect("the strategy rejects nothing").current()
    }
}

fn cluster_ip() -> DualIp {
    SERVICE_CIDR.host(100)
}

/// `demo/steady`, in both families.
fn steady() -> ServiceBuilder {
    let built = service("steady").of_type("NodePort").port(port(80).node_port(NODE_PORT));
    cluster_ip().both().into_iter().fold(built, ServiceBuilder::cluster_ip)
}

/// Its slice of a family, with these endpoints.
fn endpoints(hosts: &[&Host], family: Family) -> SliceBuilder {
    let name = format!("steady-{}", family.as_str().to_lowercase());
    let built = slice("steady", &name).family(family).port(port(TARGET));
    let node = |host: &Host| if host.name().starts_with("pod") { "node-a" } else { "node-b" };
    let add = |built: SliceBuilder, host: &&Host| {
        built.endpoint(endpoint(host.ip().like(family.loopback())).on(node(host)))
    };
    hosts.iter().fold(built, add)
}

fn set_endpoints(rig: &mut Rig, names: &[String]) -> Result<()> {
    for family in Family::BOTH {
        let hosts: Vec<&Host> = names.iter().map(|name| rig.host(name)).collect::<Result<_>>()?;
        let slice = endpoints(&hosts, family);
        rig.apply(slice);
    }
    Ok(())
}

/// A node with the Service, whose endpoints are yet to come, and servers on all pods.
fn rig(candidate: Candidate, pods: u8, remote_pods: u8) -> Result<(Rig, Vec<String>)> {
    let topology = Topology::builder().pods(pods).remote_pods(remote_pods).build()?;
    let mut rig = Rig::new(candidate, topology, Rig::settings(&candidate))?;
    let all = rig.topology().pods().iter().chain(rig.topology().remote_pods());
    let all: Vec<String> = all.map(|pod| pod.name().to_owned()).collect();
    for name in &all {
        rig.serve(name, Transport::Tcp, TARGET)?;
    }
    rig.apply(steady());
    Ok((rig, all))
}

fn connections_spread_evenly_whatever_came_and_went(candidate: Candidate) -> Result<()> {
    const PER_ENDPOINT: u32 = 40;
    let mut dice = Dice::new();
    let (mut rig, all) = rig(candidate, 38, 4)?;
    // Few and many, growing and shrinking, with and without endpoints in common.
    for (size, family) in [3, 41, 2, 17, 34, 33, 8].into_iter().zip(Family::BOTH.into_iter().cycle()) {
        let chosen = dice.roll(subsequence(all.clone(), size));
        set_endpoints(&mut rig, &chosen)?;
        rig.sync()?;
        let target = SocketAddr::new(cluster_ip().like(family.loopback()), 80);
        let draws = PER_ENDPOINT * u32::try_from(size)?;
        let tally = rig.topology().outside().probe().volley(Transport::Tcp, target, draws)?;
        let context = format!("PORTWARDEN_RANDOM_SEED={}, {size} endpoints in {family}: {tally}", dice.seed);
        assert_eq!(tally.failed(), 0, "{context}");
        let gone: Vec<_> = tally.answered_by().keys().filter(|name| !chosen.contains(name)).collect();
        assert!(gone.is_empty(), "{gone:?} answered; {context}");
        let count = |name: &String| tally.answered_by().get(name).copied().unwrap_or(0);
        let counts: Vec<u32> = chosen.iter().map(count).collect();
        assert!(uniformity::is_uniform(&counts), "{context}");
    }
    Ok(())
}

fn changes_and_restarts_disturb_nobody(candidate: Candidate) -> Result<()> {
    let mut dice = Dice::new();
    let (mut rig, all) = rig(candidate, random::PODS, random::REMOTE_POD_COUNT)?;
    let keep: Vec<String> = all.iter().filter(|name| name.ends_with('0')).cloned().collect();
    set_endpoints(&mut rig, &all)?;
    rig.sync()?;
    let talks: Vec<Exchanging> =
        ways(&rig).into_iter().map(|(host, to)| talk(host, to)).collect::<Result<_>>()?;
    let loads: Vec<Load> = ways(&rig).into_iter().map(|(host, to)| load(host, to)).collect::<Result<_>>()?;
    for step in 0..40 {
        for change in dice.roll(proptest::collection::vec(random::change(), 1..4)) {
            match change {
                Change::Apply(object) => rig.apply(object),
                Change::Delete(object) => rig.delete(&object),
            }
        }
        match step {
            // Every endpoint that is there at some time answers to the end, as a pod does while it is shut down.
            10 => set_endpoints(&mut rig, &keep)?,
            20 => set_endpoints(&mut rig, &all)?,
            _ => {}
        }
        if step % 12 == 11 { rig.restart() } else { rig.sync() }?;
    }
    let known: BTreeSet<&String> = all.iter().collect();
    for talk in talks {
        let tally = talk.stop()?;
        assert_eq!(tally.failed(), 0, "PORTWARDEN_RANDOM_SEED={}: a connection: {tally}", dice.seed);
        assert_eq!(tally.answered_by().len(), 1, "a connection has one endpoint: {tally}");
    }
    for load in loads {
        let tally = load.stop()?;
        assert_eq!(tally.failed(), 0, "PORTWARDEN_RANDOM_SEED={}: new connections: {tally}", dice.seed);
        assert!(tally.answered_by().keys().all(|name| known.contains(name)), "{tally}");
    }
    Ok(())
}

/// Ways to the Service: from a pod, the node and outside, by cluster address and node port.
fn ways(rig: &Rig) -> Vec<(&Host, SocketAddr)> {
    let topology = rig.topology();
    let ways = |ip: IpAddr| {
        let (internal, external) =
            (SocketAddr::new(cluster_ip().like(ip), 80), SocketAddr::new(NODE.like(ip), NODE_PORT));
        [(topology.pod(1), internal), (topology.node(), internal), (topology.outside(), external)]
    };
    Family::BOTH.into_iter().flat_map(|family| ways(family.loopback())).collect()
}

fn talk(host: &Host, to: SocketAddr) -> Result<Exchanging> {
    let (connection, outcome) = host.probe().open(Transport::Tcp, to)?;
    assert!(outcome.is_answered(), "{outcome}");
    connection.keep_exchanging(Duration::from_millis(5))
}

fn load(host: &Host, to: SocketAddr) -> Result<Load> {
    let load = host.probe().timeout(LONG).load(Transport::Tcp, to, 100)?;
    load.wait_for(LONG, "the first answer", |tally| tally.answered() > 0)?;
    Ok(load)
}
