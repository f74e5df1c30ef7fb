//! New connections while the rules are written again, and while one dataplane takes over from another: none fails.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use portwarden_model::{Family, Settings};
use portwarden_testkit::Namespace;
use portwarden_testkit::build::node;
use portwarden_testkit::rig::Object;
use portwarden_userspace::{Drain, Options, Userspace};
use support::{
    CLUSTER_IP, NODE, Node, connect, echo, letter, on_node, rounds, start, start_with,
    take_over_again_and_again, web,
};

/// How many connections were answered (`None`) or failed, and how.
type Outcomes = BTreeMap<Option<ErrorKind>, u32>;

/// Clients that connect without a pause.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Outcomes>>>,
}

fn service() -> SocketAddr {
    SocketAddr::new(CLUSTER_IP.parse().expect("an address"), 80)
}

fn attempt() -> Option<ErrorKind> {
    match connect(service()) {
        Ok(mut stream) => (letter(&mut stream) != Some(b'a')).then_some(ErrorKind::ConnectionReset),
        Err(error) => Some(error.kind()),
    }
}

impl Clients {
    fn start(namespace: &Namespace, count: usize) -> Result<Self> {
        // Each connection keeps a port for a minute after its end: the usual 28,000 are used up when there are many rounds.
        namespace.command("sysctl").args(["-qw", "net.ipv4.ip_local_port_range=1024 65535"]).run()?;
        let stop = Arc::<AtomicBool>::default();
        let threads = (0..count).map(|_| {
            let stop = Arc::clone(&stop);
            namespace.spawn(move || {
                let mut outcomes = Outcomes::new();
                while !stop.load(Ordering::Relaxed) {
                    *outcomes.entry(attempt()).or_default() += 1;
                }
                outcomes
            })
        });
        Ok(Clients { stop: Arc::clone(&stop), threads: threads.collect::<Result<_>>()? })
    }

    fn stop(self) -> Result<Outcomes> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Outcomes::new();
        for thread in self.threads {
            for (outcome, count) in thread.join().ok().context("a client panicked")?? {
                *all.entry(outcome).or_default() += count;
            }
        }
        Ok(all)
    }
}

/// Everything in our table, with the numbers that the kernel gave to it.
fn table(namespace: &Namespace) -> Result<String> {
    namespace.command("nft").args(["-a", "list", "table", "ip", "portwarden-userspace"]).run()
}

#[test]
fn a_full_sync_changes_only_what_differs() -> Result<()> {
    on_node(|namespace| {
        let (mut node, _) = start(|_| {})?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let before = table(namespace)?;
        let reports = node.sync_all()?;
        ensure!(reports.v4.full && reports.v4.written == 0, "{:?}", reports.v4);
        ensure!(table(namespace)? == before);
        for change in [
            "delete element ip portwarden-userspace from-node { 10.96.0.10 . tcp . 80 }",
            "add element ip portwarden-userspace cluster-addresses { 10.96.0.99 }",
            "flush chain ip portwarden-userspace from-node",
            "add chain ip portwarden-userspace another",
            "add set ip portwarden-userspace another { type ipv4_addr; }",
            "delete table ip portwarden-userspace",
        ] {
            namespace.command("nft").args([change]).run()?;
            let reports = node.sync_all()?;
            ensure!(reports.v4.written > 0, "{change}");
            let reports = node.sync_all()?;
            ensure!(reports.v4.written == 0, "{change}: {:?}", reports.v4);
        }
        Ok(())
    })
}

/// The kernel's numbers of all listening sockets in the namespace.
fn listening() -> Result<BTreeSet<String>> {
    const LISTENING: &str = "0A";
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp")?;
    let fields = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let listening = fields.filter(|fields| fields.get(3) == Some(&LISTENING));
    Ok(listening.filter_map(|fields| fields.get(9).map(|&inode| inode.to_owned())).collect())
}

#[test]
fn the_next_dataplane_keeps_the_table_and_the_sockets() -> Result<()> {
    on_node(|namespace| {
        let objects = || web("TCP", &["10.244.0.10"]);
        let (old, _) = start_with(|_| {}, objects())?;
        let (before, sockets) = (table(namespace)?, listening()?);
        ensure!(!sockets.is_empty());
        let (_new, _) = start_with(|_| {}, objects())?;
        ensure!(listening()? == sockets, "a listener that is closed resets connections in its queue");
        drop(old);
        // A table that is replaced lets connections pass for a moment.
        ensure!(table(namespace)? == before, "before: {before}\nafter: {}", table(namespace)?);
        Ok(())
    })
}

#[test]
fn no_connection_fails_when_one_dataplane_takes_over_from_another() -> Result<()> {
    on_node(|namespace| {
        echo("10.244.0.10:8080", b'a')?;
        let objects = || web("TCP", &["10.244.0.10"]);
        let next = || start_with(|_| {}, objects()).map(|(node, _)| node);
        let present = next()?;
        let clients = Clients::start(namespace, 8)?;
        let _last = take_over_again_and_again(rounds()?, next, present)?;
        let outcomes = clients.stop()?;
        println!("{outcomes:?}");
        ensure!(outcomes.keys().eq([&None]), "{outcomes:?}");
        Ok(())
    })
}

#[test]
fn no_connection_fails_when_the_node_gets_another_address() -> Result<()> {
    on_node(|namespace| {
        let addresses = [NODE, "192.0.2.2"];
        namespace.command("ip").args(["address", "add", "192.0.2.2/24", "dev", "lo"]).run()?;
        echo("10.244.0.10:8080", b'a')?;
        let at = |ip: &str| Object::from(node("here").ip(ip));
        let dataplane = Userspace::new(Options::new(&Family::BOTH), Arc::default(), &Drain::default())?;
        let all = addresses.iter().map(|ip| ip.parse()).collect::<Result<Vec<IpAddr>, _>>()?;
        let objects = web("TCP", &["10.244.0.10"]).into_iter().chain([at(NODE)]);
        let mut present = Node::with_objects(dataplane, Settings::new("here"), &all, objects)?;
        let clients = Clients::start(namespace, 8)?;
        for ip in addresses.iter().rev().cycle().take(usize::try_from(rounds()?)?) {
            present.apply([at(ip)])?;
            ensure!(table(namespace)?.contains(&format!("tcp . 80 : {ip} .")), "{}", table(namespace)?);
        }
        let outcomes = clients.stop()?;
        ensure!(outcomes.keys().eq([&None]), "{outcomes:?}");
        Ok(())
    })
}
