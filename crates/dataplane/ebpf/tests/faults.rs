//! What a sync writes, and what happens when maps are full or things disappear.

mod common;

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use common::{Node, links};
use portwarden_ebpf::{Ebpf, Options, Sizes, cleanup};
use portwarden_model::Family;
use portwarden_testkit::build::{ServiceBuilder, ToEvent, port, service};
use portwarden_testkit::wait::until;
use portwarden_testkit::{Host, Transport, bpf};

fn numbered(number: u8) -> ServiceBuilder {
    let name = format!("web-{number}");
    service(&name)
        .cluster_ip(format!("10.96.0.{number}"))
        .cluster_ip(format!("fd00:10:96::{number}"))
        .port(port(80))
}

fn target(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 96, 0, number], 80))
}

fn answers(host: &Host, number: u8) -> Result<bool> {
    Ok(host.probe().tcp(target(number))?.is_answered())
}

/// Whether connections are served by programs: endpoints then see a process of the node that has no route to the Service.
fn flows(node: &Node, number: u8) -> Result<bool> {
    let listed = node
        .topology
        .node()
        .command("conntrack")
        .args(["-L", "-d", &target(number).ip().to_string()])
        .run()?;
    Ok(listed.contains("dport=80"))
}

#[test]
fn one_changed_endpoint_is_a_bounded_number_of_writes_and_nothing_is_written_twice() -> Result<()> {
    let mut node = Node::new("writes")?;
    for number in 10..30 {
        node.apply(numbered(number), &format!("web-{number}"), &port(8080), &[0, 1]);
    }
    node.sync()?;
    let report = node.full_sync().map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(report.written == 0, "{report:?}");
    let written = node.start()?.written;
    ensure!(written == 9, "a restart replaces nine programs and nothing else, but wrote {written} times");
    for (pods, most) in [([0, 1, 2].as_slice(), 14), (&[0, 2], 7), (&[0, 1], 7)] {
        node.endpoints("web-12", &port(8080), pods);
        let written = node.sync()?.written;
        ensure!((1..=most).contains(&written), "{pods:?} in both families: {written} writes, at most {most}");
    }
    Ok(())
}

#[test]
fn services_that_do_not_fit_are_served_by_nftables() -> Result<()> {
    let sizes = Sizes { endpoints: 2, frontends: 64, counted_ports: 2 };
    let mut node = Node::with("full", |options| options.sizes = sizes)?;
    node.topology.pod(0).serve(Transport::Tcp, 8080)?;
    for number in 10..13 {
        node.apply(numbered(number), &format!("web-{number}"), &port(8080), &[0]);
    }
    let report = node.sync()?;
    ensure!(report.refused.len() == 4, "six pools of one endpoint, and room for two: {report:?}");
    ensure!(report.refused[0].reason.contains("--ebpf-max-endpoints"), "{report:?}");
    for number in 10..13 {
        ensure!(answers(node.topology.pod(1), number)?, "Service {number} does not answer");
    }
    ensure!(flows(&node, 12)? && !flows(&node, 10)?, "the last one is translated, the first one is not");
    // Room again.
    for number in 10..12 {
        node.endpoints(&format!("web-{number}"), &port(8080), &[]);
    }
    node.sync()?;
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let report = node.full_sync().map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(report.refused.is_empty(), "{report:?}");
    Ok(())
}

#[test]
fn frontends_that_do_not_fit_are_served_by_nftables() -> Result<()> {
    let sizes = Sizes { endpoints: 64, frontends: 4, counted_ports: 2 };
    let mut node = Node::with("frontends", |options| options.sizes = sizes)?;
    node.topology.pod(0).serve(Transport::Tcp, 8080)?;
    for number in 10..16 {
        node.apply(numbered(number), &format!("web-{number}"), &port(8080), &[0]);
    }
    let report = node.sync()?;
    ensure!(report.refused.len() == 8, "twelve frontends, and room for four: {report:?}");
    for number in 10..16 {
        ensure!(answers(node.topology.pod(1), number)?, "Service {number} does not answer");
    }
    Ok(())
}

#[test]
fn a_process_that_is_interrupted_loads_its_programs_all_the_same() -> Result<()> {
    let mut node = Node::new("interrupted")?;
    // The kernel stops verifying a program when a signal is pending. There are fewer of them than attempts to load a program.
    let script = "i=0; while [ $i -lt 15 ]; do kill -STOP $1; kill -CONT $1; i=$((i+1)); sleep 0.007; done";
    let own = std::process::id().to_string();
    let mut starts = 0;
    for _ in 0..4 {
        let mut signals = std::process::Command::new("sh").args(["-c", script, "sh", &own]).spawn()?;
        while signals.try_wait()?.is_none() {
            node.start().with_context(|| format!("start {starts}"))?;
            starts += 1;
        }
    }
    ensure!(starts > 0, "all signals came before the first start");
    Ok(())
}

#[test]
fn the_table_of_frontends_grows_while_connections_are_made() -> Result<()> {
    const MANY: u16 = 8_300;
    let sizes = Sizes { endpoints: 256, frontends: 16_384, counted_ports: 16 };
    let mut node = Node::with("grows", |options| options.sizes = sizes)?;
    node.topology.pod(0).serve(Transport::Tcp, 8080)?;
    for number in 10..20 {
        node.apply(numbered(number), &format!("web-{number}"), &port(8080), &[0]);
    }
    node.sync()?;
    let client = node.topology.pod(1).namespace().clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let load = std::thread::spawn(move || -> Result<u32> {
        let _inside = client.enter()?;
        let mut count = 0;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let number = u8::try_from(10 + count % 10)?;
            std::net::TcpStream::connect(target(number)).with_context(|| format!("connection {count}"))?;
            count += 1;
        }
        Ok(count)
    });
    let address = |number: u16| {
        let [high, low] = number.to_be_bytes();
        std::net::Ipv4Addr::from([203, 0, high, low])
    };
    let many =
        (0..MANY).fold(numbered(30), |service, number| service.external_ip(address(number).to_string()));
    node.apply(many, "web-30", &port(8080), &[0]);
    let report = node.sync()?;
    ensure!(report.refused.is_empty() && report.written > usize::from(MANY), "{report:?}");
    stop.send(())?;
    let count = load.join().expect("the load did not panic")?;
    ensure!(count > 50, "only {count} connections");
    for number in [0, 1, MANY / 2, MANY - 1] {
        let to = SocketAddr::from((address(number), 80));
        ensure!(node.topology.pod(1).probe().tcp(to)?.is_answered(), "{to} does not answer");
    }
    ensure!(answers(node.topology.pod(1), 12)? && !flows(&node, 12)?, "it is still served by the programs");
    let report = node.full_sync().map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(report.written == 0, "{report:?}");
    let written = node.start()?.written;
    ensure!(written == 9, "a restart replaces the programs and nothing else, but wrote {written} times");
    Ok(())
}

#[test]
fn pins_that_are_removed_come_back() -> Result<()> {
    let mut node = Node::new("pins")?;
    node.topology.pod(0).serve(Transport::Tcp, 8080)?;
    node.apply(numbered(10), "web-10", &port(8080), &[0]);
    node.sync()?;
    let all = || -> Result<usize> { Ok(fs::read_dir(links(&node)).map(Iterator::count).unwrap_or(0)) };
    ensure!(all()? == 9);
    fs::remove_dir_all(links(&node))?;
    ensure!(answers(node.topology.pod(1), 10)?, "the programs are still attached");
    node.full_sync().map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(fs::read_dir(links(&node))?.count() == 9, "they are pinned again");
    Ok(())
}

#[test]
fn clients_keep_their_endpoint_when_the_internal_policy_changes() -> Result<()> {
    let mut node = Node::new("policy")?;
    for pod in node.topology.pods() {
        pod.serve(Transport::Tcp, 8080)?;
    }
    let sticky = || numbered(10).affinity(600);
    node.apply(sticky(), "web-10", &port(8080), &[0, 1, 2]);
    node.sync()?;
    let homes = |node: &Node| -> Result<Vec<String>> {
        let of = |host: &Host| Ok(host.probe().tcp(target(10))?.host().context("an answer")?.to_owned());
        node.topology.pods().iter().map(of).collect()
    };
    let before = homes(&node)?;
    for round in 0..6 {
        let local = round % 2 == 0;
        let service = if local { sticky().internal_policy_local() } else { sticky() };
        node.cluster.apply(service.build().event());
        ensure!(node.sync()?.written > 0, "another pool serves");
        ensure!(homes(&node)? == before, "round {round}: {:?} were {before:?}", homes(&node)?);
    }
    Ok(())
}

#[test]
fn what_disappears_is_noticed_within_seconds_and_repaired() -> Result<()> {
    let cgroup = bpf::cgroup()?.join("noticed");
    fs::create_dir_all(&cgroup)?;
    let path = cgroup.clone();
    let mut node = Node::with("noticed", move |options| options.cgroup = Some(path))?;
    node.apply(numbered(10), "web-10", &port(8080), &[0]);
    node.sync()?;
    let later = |seconds| Instant::now() + Duration::from_secs(seconds);
    let due = node.next_deadline().context("a check is due")?;
    ensure!(due <= later(10), "within seconds");
    ensure!(node.poll(later(11)).is_empty(), "nothing is missing");
    let mut entries = fs::read_dir(&node.options.pin_directory)?.flatten();
    let maps = entries.find(|entry| entry.file_name().to_string_lossy().starts_with("maps-"));
    let maps = maps.context("the maps are pinned")?.path();
    for gone in [links(&node).join("connect4"), maps.join("affinities"), cgroup.clone()] {
        if gone == cgroup {
            fs::remove_dir(&gone)?;
        } else {
            fs::remove_file(&gone)?;
        }
        // The kernel detaches programs after it has removed the cgroup.
        let found = until(common::TIMEOUT, "a notification", || {
            let found = node.poll(later(30));
            (!found.is_empty()).then_some(found)
        })?;
        let text = format!("{found:?}");
        ensure!(text.contains("is gone") && found.len() == 1, "{text}");
        ensure!(node.poll(later(60)).is_empty(), "it is reported once");
        if gone == cgroup {
            fs::create_dir(&gone)?;
        }
        node.full_sync().map_err(|error| anyhow::anyhow!("{error}"))?;
        ensure!(gone.exists(), "{} is back", gone.display());
        ensure!(node.poll(later(30)).is_empty(), "all is well again");
    }
    drop(node);
    fs::remove_dir(&cgroup)?;
    Ok(())
}

#[test]
fn a_cgroup_that_is_gone_is_named_and_used_again_when_it_is_back() -> Result<()> {
    let cgroup = bpf::cgroup()?.join("gone");
    fs::create_dir_all(&cgroup)?;
    let path = cgroup.clone();
    let mut node = Node::with("cgroup", move |options| options.cgroup = Some(path))?;
    node.topology.pod(0).serve(Transport::Tcp, 8080)?;
    node.apply(numbered(10), "web-10", &port(8080), &[0]);
    node.sync()?;
    fs::remove_dir(&cgroup)?;
    let error = node.full_sync().err().context("the cgroup is gone")?;
    ensure!(error.to_string().contains("--ebpf-cgroup-root"), "{error}");
    ensure!(answers(node.topology.pod(1), 10)?, "nftables serves");
    fs::create_dir(&cgroup)?;
    let report = node.full_sync().map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(report.written >= 9, "all programs are attached again: {report:?}");
    fs::remove_dir(&cgroup)?;
    Ok(())
}

#[test]
fn a_directory_that_cannot_hold_pins_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = Options { pin_directory: folder.path().join("pins"), ..Options::new(&Family::BOTH) };
    let error = Ebpf::new(options, Default::default()).err().context("it is not a BPF file system")?;
    ensure!(error.to_string().contains("mount -t bpf bpf /sys/fs/bpf"), "{error}");
    let missing = Options { cgroup: Some("/no/such/cgroup".into()), ..Options::new(&Family::BOTH) };
    let error = Ebpf::new(missing, Default::default()).err().context("there is no such cgroup")?;
    ensure!(error.to_string().contains("/no/such/cgroup"), "{error}");
    Ok(())
}

#[test]
fn the_programs_of_others_are_left_alone() -> Result<()> {
    let mut ours = Node::new("ours")?;
    let mut others = Node::new("others")?;
    for node in [&mut ours, &mut others] {
        node.topology.pod(0).serve(Transport::Tcp, 8080)?;
        node.apply(numbered(10), "web-10", &port(8080), &[0]);
        node.sync()?;
    }
    ensure!(cleanup(&ours.options.pin_directory)?, "there was something to remove");
    ensure!(!cleanup(&ours.options.pin_directory)?, "nothing is left");
    ensure!(answers(others.topology.pod(1), 10)? && !flows(&others, 10)?, "the other one still works");
    Ok(())
}

#[test]
fn new_services_at_a_restart_take_nothing_from_those_that_were_there() -> Result<()> {
    let mut node = Node::new("adoption")?;
    for pod in node.topology.pods() {
        pod.serve(Transport::Tcp, 8080)?;
    }
    node.apply(numbered(90).affinity(600), "web-90", &port(8080), &[0, 1, 2]);
    node.sync()?;
    let home = |node: &Node| -> Result<String> {
        let outcome = node.topology.pod(1).probe().tcp(target(90))?;
        Ok(outcome.host().context("an answer")?.to_owned())
    };
    let first = home(&node)?;
    // Each of them sorts before the one that was there, and would get its pool if that were free.
    for number in 10..16 {
        node.apply(numbered(number), &format!("web-{number}"), &port(8080), &[0, 1, 2]);
        node.start()?;
        ensure!(home(&node)? == first, "the client has lost its endpoint");
    }
    // What is gone when the next process starts is removed.
    for number in 10..16 {
        node.cluster.apply(numbered(number).build().deletion());
    }
    node.start()?;
    ensure!(!node.topology.pod(1).probe().short_timeout().tcp(target(12))?.is_answered(), "it is gone");
    ensure!(home(&node)? == first);
    let report = node.full_sync().map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(report.written == 0, "{report:?}");
    Ok(())
}
