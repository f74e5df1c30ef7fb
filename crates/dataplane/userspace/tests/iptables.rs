//! Redirection by iptables instead of nf_tables: what is written, repaired, kept over a restart and removed.

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use portwarden_model::{Family, PerFamily, Report};
use portwarden_testkit::Namespace;
use portwarden_testkit::build::port;
use portwarden_userspace::{Options, Redirection, cleanup};
use portwarden_xtables::{Programs, Variant};
use support::{CLUSTER_IP, Node, ask, echo, in_namespace, on_node, service_with, start, web};

fn by_iptables(folder: &Path) -> impl Fn(&mut Options) {
    let lock = folder.join("xtables.lock");
    move |options| {
        let programs = |family| Programs::new(family, Variant::Installed).env("XTABLES_LOCKFILE", &lock);
        options.redirection = Redirection::Iptables(Box::new(PerFamily::from_fn(programs)));
    }
}

fn service() -> SocketAddr {
    SocketAddr::new(CLUSTER_IP.parse().expect("an address"), 80)
}

fn written(reports: &PerFamily<Report>) -> usize {
    reports.iter().map(|(_, report)| report.written).sum()
}

/// The rules of a table that name one of our chains, in a fixed order.
fn saved(namespace: &Namespace, program: &str) -> Result<Vec<String>> {
    let text = namespace.command(program).run()?;
    let ours = text.lines().filter(|line| line.contains("KUBE-PORTALS-") || line.contains("KUBE-NODEPORT-"));
    let mut rules: Vec<String> = ours.filter(|line| line.starts_with("-A")).map(str::to_owned).collect();
    rules.sort_unstable();
    Ok(rules)
}

#[test]
fn only_differences_are_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    on_node(|namespace| {
        echo("10.244.0.10:8080", b'a')?;
        let (mut node, _) = start(by_iptables(folder.path()))?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        ensure!(ask(service()) == Some(b'a'));
        let other = |endpoints: &[&str]| {
            service_with("other", "10.96.0.11", port(80).node_port(30080), port(8080), endpoints)
        };
        let added = written(&node.apply(other(&["10.244.0.10"]))?);
        // Two redirections for each address and origin, and two rules that guard the cluster address.
        ensure!(added == 6, "{added} rules for a Service with a cluster IP and a node port");
        let incremental = saved(namespace, "iptables-save")?;
        ensure!(written(&node.sync_all()?) == 0, "a full sync over right rules writes nothing");
        let refused = written(&node.apply(other(&[]))?);
        // Four redirections go, two refusals come.
        ensure!(refused == 6, "{refused} rules for a Service that lost its endpoints");
        ensure!(ask("10.96.0.11:80".parse()?).is_none());
        node.apply(other(&["10.244.0.10"]))?;
        ensure!(saved(namespace, "iptables-save")? == incremental);
        Ok(())
    })
}

/// Puts programs into a folder of which `iptables-restore` keeps its last input in a file there.
fn record_input(folder: &Path) -> Result<()> {
    for name in ["iptables", "ip6tables"] {
        for (program, keep) in [("", ""), ("-save", ""), ("-restore", "tee {folder}/{program}.input | ")] {
            let program = format!("{name}{program}");
            let keep = keep.replace("{folder}", &folder.display().to_string()).replace("{program}", &program);
            let path = folder.join(&program);
            fs::write(&path, format!("#!/bin/sh\n{keep}/usr/sbin/{program} \"$@\"\n"))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// A connection that is neither redirected nor refused between two tables would be lost, with all later ones from its port.
#[test]
fn a_service_is_refused_before_its_redirection_goes_and_until_it_is_there() -> Result<()> {
    let folder = tempfile::tempdir()?;
    record_input(folder.path())?;
    let with_programs = |options: &mut Options| {
        let programs = |family| {
            let lock = folder.path().join("xtables.lock");
            let programs = Programs::new(family, Variant::Installed).in_folder(folder.path());
            programs.env("XTABLES_LOCKFILE", lock)
        };
        options.redirection = Redirection::Iptables(Box::new(PerFamily::from_fn(programs)));
    };
    let line_of = |refusal: &str, redirection: &str| -> Result<(usize, usize)> {
        let input = fs::read_to_string(folder.path().join("iptables-restore.input"))?;
        let find = |words: &str| {
            let has = |line: &str| words.split(' ').all(|word| line.contains(word));
            input.lines().position(has).with_context(|| format!("no line has {words:?}:\n{input}"))
        };
        Ok((find(refusal)?, find(redirection)?))
    };
    on_node(|_| {
        echo("10.244.0.10:8080", b'a')?;
        let served = || web("TCP", &["10.244.0.10"]);
        let (mut node, _) = start(with_programs)?;
        node.apply(served())?;
        node.apply(web("TCP", &[]))?;
        let (refusal, redirection) =
            line_of("-I KUBE-PORTALS-FILTER REJECT", "-D KUBE-PORTALS-HOST --to-destination")?;
        ensure!(refusal < redirection, "endpoints go");
        node.apply(served())?;
        let (refusal, redirection) =
            line_of("-D KUBE-PORTALS-FILTER REJECT", "-I KUBE-PORTALS-HOST --to-destination")?;
        ensure!(redirection < refusal, "endpoints come");
        // What changed while no process ran.
        node.apply(web("TCP", &[]))?;
        drop(node);
        let _node = support::start_with(with_programs, served())?;
        let (refusal, redirection) =
            line_of(":KUBE-PORTALS-FILTER", "-A KUBE-PORTALS-HOST --to-destination")?;
        ensure!(redirection < refusal, "endpoints have come");
        ensure!(ask(service()) == Some(b'a'));
        Ok(())
    })
}

#[test]
fn what_other_processes_change_is_repaired() -> Result<()> {
    let folder = tempfile::tempdir()?;
    on_node(|namespace| {
        echo("10.244.0.10:8080", b'a')?;
        let (mut node, _) = start(by_iptables(folder.path()))?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        let right = saved(namespace, "iptables-save")?;
        for damage in [
            "-t nat -F KUBE-PORTALS-HOST",
            "-t nat -F OUTPUT",
            "-t filter -F KUBE-PORTALS-UNKNOWN",
            "-t nat -A KUBE-PORTALS-HOST -j RETURN",
            "-t nat -I PREROUTING -s 192.0.2.99 -j KUBE-PORTALS-HOST",
        ] {
            namespace.command("iptables").args(damage.split(' ')).run()?;
            ensure!(saved(namespace, "iptables-save")? != right, "{damage}: no damage");
            node.sync_all()?;
            let found = saved(namespace, "iptables-save")?;
            ensure!(found == right, "{damage}: {found:#?}");
            ensure!(ask(service()) == Some(b'a'), "{damage}");
        }
        // A change that meets rules which are not there any more ends in the right ones, too.
        namespace.command("iptables").args(["-t", "nat", "-F", "KUBE-PORTALS-HOST"]).run()?;
        node.apply(web("TCP", &[]))?;
        node.apply(web("TCP", &["10.244.0.10"]))?;
        ensure!(saved(namespace, "iptables-save")? == right);
        Ok(())
    })
}

#[test]
fn a_restart_keeps_ports_and_writes_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    on_node(|namespace| {
        let dns = || service_with("dns", "10.96.0.53", udp(53), udp(8053), &["10.244.0.10"]);
        echo("10.244.0.10:8080", b'a')?;
        let (mut first, _) = start(by_iptables(folder.path()))?;
        first.apply(web("TCP", &["10.244.0.10"]).into_iter().chain(dns()))?;
        let before = saved(namespace, "iptables-save")?;
        drop(first);
        let mut second = restarted(folder.path(), web("TCP", &["10.244.0.10"]).into_iter().chain(dns()))?;
        ensure!(saved(namespace, "iptables-save")? == before, "the same ports, so the same rules");
        ensure!(ask(service()) == Some(b'a'));
        ensure!(written(&second.sync_all()?) == 0);
        Ok(())
    })
}

fn udp(number: u16) -> portwarden_testkit::build::PortBuilder {
    port(number).protocol("UDP")
}

/// A process that knows these objects before its first sync.
fn restarted(
    folder: &Path,
    objects: impl IntoIterator<Item = portwarden_testkit::rig::Object>,
) -> Result<Node<portwarden_userspace::Userspace>> {
    support::start_with(by_iptables(folder), objects).map(|(node, _)| node)
}

#[test]
fn cleanup_leaves_other_rules_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    in_namespace(&["192.0.2.1/24", "fd00::1/64"], |namespace| {
        let add = ["-t", "nat", "-A", "PREROUTING", "-s", "192.0.2.99/32", "-j", "RETURN"];
        namespace.command("iptables").args(add).run()?;
        let before = namespace.command("iptables-save").run()?;
        let (node, _) = start(by_iptables(folder.path()))?;
        drop(node);
        for family in Family::BOTH {
            ensure!(cleanup(family)?, "{family}: there were rules");
            ensure!(!cleanup(family)?, "{family}: there is nothing left");
        }
        let rules = |text: &str| -> Vec<String> {
            text.lines().filter(|line| line.starts_with("-A")).map(str::to_owned).collect()
        };
        let after = namespace.command("iptables-save").run()?;
        ensure!(rules(&after) == rules(&before) && !after.contains("KUBE-"), "{after}");
        ensure!(!namespace.command("ip6tables-save").run()?.contains("KUBE-"));
        Ok(())
    })
}
