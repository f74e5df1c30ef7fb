//! What a new user meets first: starts that cannot work change nothing, and the last line of a failure names cause and remedy.

mod support;

use std::fs;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::apiserver::ApiServer;
use portwarden_testkit::build;
use portwarden_testkit::netns::Output;
use support::{HEALTH, Rig, cluster_cidr, node, service, slice};

const V4: &str = "10.96.0.10";
const V6: &str = "fd00:10:96::10";

/// Everything on the node that a start could change.
fn state(rig: &Rig) -> Result<String> {
    let run = |program: &str, arguments: &[&str]| rig.node().command(program).args(arguments).run();
    let sysctls = run("sysctl", &["-a", "--pattern", "^net\\.(netfilter|ipv4\\.conf\\.all|ipv4\\.vs)"])?;
    let settings = sysctls.lines().filter(|line| !line.contains("nf_conntrack_count"));
    Ok(format!(
        "{}\n{}{}{}",
        settings.collect::<Vec<_>>().join("\n"),
        run("nft", &["list", "ruleset"])?,
        run("iptables-save", &[])?
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect::<Vec<_>>()
            .join("\n"),
        run("ip", &["-o", "link"])?,
    ))
}

fn fails(rig: &Rig, arguments: &[&str]) -> Result<Output> {
    let output = rig.program().args(arguments).output()?;
    ensure!(output.code == Some(1), "{arguments:?}: {output:?}");
    Ok(output)
}

#[test]
fn a_start_that_cannot_work_changes_nothing() -> Result<()> {
    let rig = Rig::new()?;
    // iptables-save creates its tables when it lists them for the first time.
    state(&rig)?;
    let before = state(&rig)?;
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let flags: [&[&str]; 5] = [
        &[],
        &["--proxy-mode=nftables", "--kubeconfig=/no/such/kubeconfig"],
        &["--proxy-mode=iptables", "--manifests=/no/such/folder"],
        &["--init-only", "--proxy-mode=sideways"],
        &[
            &manifests,
            "--proxy-mode=nftables",
            "--metrics-bind-address=192.0.2.1:1",
            "--bind-address-hard-fail",
        ],
    ];
    for arguments in flags {
        let output = fails(&rig, arguments)?;
        ensure!(state(&rig)? == before, "{arguments:?} changed the node: {output:?}");
    }
    Ok(())
}

#[test]
fn a_failure_ends_with_its_cause_and_what_to_do() -> Result<()> {
    let rig = Rig::new()?;
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let last =
        |arguments: &[&str]| Ok::<_, anyhow::Error>(fails(&rig, arguments)?.last_error_line().to_owned());
    let line = last(&["--manifests=/no/such/folder"])?;
    ensure!(line.contains("/no/such/folder") && line.contains("--manifests takes a folder"), "{line}");
    let line = last(&["--masquerade-all", "true"])?;
    ensure!(line.ends_with("--masquerade-all=true"), "{line}");
    let line = last(&["statsu"])?;
    ensure!(line.contains("does not take any arguments"), "{line}");
    // Without any iptables.
    fs::create_dir(rig.path("empty"))?;
    let output = rig
        .node()
        .command(env!("CARGO_BIN_EXE_portwarden"))
        .args([manifests.as_str(), "--proxy-mode=iptables"])
        .mount(rig.path("empty"), "/usr/sbin")
        .output()?;
    let line = output.last_error_line();
    ensure!(line.contains("command failed") && output.code == Some(1), "{output:?}");
    for words in ["/usr/sbin/iptables", "install iptables 1.6.2 or newer", "--proxy-mode=nftables"] {
        ensure!(line.contains(words), "{words}: {line}");
    }
    Ok(())
}

#[test]
fn without_privileges_the_last_line_says_how_to_get_them() -> Result<()> {
    let rig = Rig::new()?;
    for flags in [&["--proxy-mode=nftables"][..], &["--cleanup"], &["--init-only"]] {
        let mut command = rig.command("setpriv").args(["--bounding-set=-all", "--inh-caps=-all"]);
        command = command.arg(env!("CARGO_BIN_EXE_portwarden")).args(flags);
        let output = command.arg(format!("--manifests={}", rig.path("manifests").display())).output()?;
        let line = output.last_error_line();
        ensure!(output.code == Some(1) && line.contains("lacks CAP_NET_ADMIN"), "{output:?}");
        ensure!(line.contains("sudo portwarden"), "{line}");
    }
    Ok(())
}

#[test]
fn the_first_sync_says_what_is_in_force() -> Result<()> {
    let mut rig = Rig::new()?;
    let near = rig.topology.pod(0).ip();
    rig.objects(&[
        node(),
        service("web", V4, V6, "TCP", ""),
        service("lonely", "10.96.0.11", "fd00:10:96::11", "TCP", ""),
        slice(
            "web",
            "TCP",
            &[(near.v4.into(), "node-a"), (rig.topology.pod(1).ip().v4.into(), "node-a")],
            8080,
        ),
        slice("web", "TCP", &[(near.v6.into(), "node-a")], 8080),
    ])?;
    rig.start_mode("nftables")?;
    rig.wait_for_log("\"The rules are in force\" services=2 endpoints=\"IPv4: 2, IPv6: 1\"")
}

#[test]
fn an_empty_folder_is_a_warning_and_a_folder_that_cannot_be_followed_is_no_health() -> Result<()> {
    let mut rig = Rig::new()?;
    rig.start_mode("nftables")?;
    rig.wait_for_log("\"No Service is known, so nothing is proxied; check --manifests")?;
    rig.wait_until("health", || Ok(rig.get(HEALTH, "/healthz")?.0 == 200))?;
    rig.kill();
    // Nothing answers there, so nothing is ever read.
    rig.write("kubeconfig", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n")?;
    let kubeconfig = format!("--kubeconfig={}", rig.path("kubeconfig").display());
    rig.start_following(&[&kubeconfig, "--proxy-mode=nftables"])?;
    rig.wait_for_log("Cannot follow changes")?;
    let (status, body) = rig.get(HEALTH, "/healthz")?;
    ensure!(status == 503, "{status} {body}");
    Ok(())
}

#[test]
fn mistakes_in_manifests_name_the_field_the_kind_and_the_node() -> Result<()> {
    let mut rig = Rig::new()?;
    let bad = "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec:\n  clusterIP: 10.96.0.9\n  ports:\n  - port: \"eighty\"\n";
    rig.write("manifests/bad.yaml", bad)?;
    rig.write("manifests/kind.yaml", "apiVersion: v1\nkind: Servcie\nmetadata: {name: x}\n")?;
    rig.objects(&[node().replace("node-a", "node-b")])?;
    rig.start_mode("nftables")?;
    rig.wait_for_log("spec.ports[0].port")?;
    rig.wait_for_log("did you mean v1 Service?")?;
    rig.wait_for_log("The manifests have no Node of this name")?;
    let log = rig.log();
    ensure!(log.contains("node=\"node-a\" exist=\"node-b\""), "{log}");
    Ok(())
}

#[test]
fn a_node_that_does_not_exist_is_named_with_those_that_do() -> Result<()> {
    let mut rig = Rig::new()?;
    let server = {
        let _entered = rig.node().namespace().enter()?;
        ApiServer::builder().start()?
    };
    server.apply(build::node("worker-1").ip("192.0.2.1".parse::<std::net::Ipv4Addr>()?));
    server.apply(build::node("worker-2").ip("192.0.2.2".parse::<std::net::Ipv4Addr>()?));
    let kubeconfig = server.kubeconfig(&rig.path(""), "kubeconfig")?;
    rig.start_following(&[&format!("--kubeconfig={}", kubeconfig.display()), "--proxy-mode=nftables"])?;
    rig.wait_for_log("The API server has no Node of this name")?;
    let log = rig.log();
    let line = log.lines().find(|line| line.contains("has no Node")).context("a line")?;
    ensure!(line.contains("node=\"node-a\"") && line.contains("exist=\"worker-1, worker-2\""), "{line}");
    ensure!(line.contains("--hostname-override"), "{line}");
    Ok(())
}

#[test]
fn a_second_instance_reports_the_first_until_that_one_ends() -> Result<()> {
    let mut first = Rig::new()?;
    first.start_mode("nftables")?;
    first.wait_for_log("Started")?;
    let manifests = format!("--manifests={}", first.path("manifests").display());
    let log = fs::File::create(first.path("second"))?;
    let cidr = format!("--cluster-cidr={}", cluster_cidr());
    let flags = [&manifests, &cidr, "--proxy-mode=nftables", "--conntrack-max-per-core=0"];
    let second = first.program().args(flags).spawn_logging(log)?;
    first.wait_until("the second one to say so", || {
        let text = fs::read_to_string(first.path("second"))?;
        let line = text.lines().find(|line| line.contains("Another Portwarden runs on this node"));
        Ok(line.is_some_and(|line| line.contains("stop one of them") && line.contains("other=\"process ")))
    })?;
    first.wait_until("it to say that its ports are taken", || {
        let text = fs::read_to_string(first.path("second"))?;
        let started = text.lines().find(|line| line.contains("\"Started\""));
        Ok(started.is_some_and(|line| line.ends_with("page=\"not listening\"")))
    })?;
    first.kill();
    first.wait_until("the second one to take its place", || {
        Ok(fs::read_to_string(first.path("second"))?.contains("this one serves the node alone"))
    })?;
    let doctor = first.program().args(["doctor"]).output()?;
    ensure!(doctor.stdout.contains("is taken, presumably by Portwarden (process "), "{doctor:?}");
    drop(second);
    let cleanup = first.program().args(["--cleanup"]).output()?;
    ensure!(cleanup.code == Some(0), "{cleanup:?}");
    let lines: Vec<&str> = cleanup.stderr.lines().collect();
    ensure!(
        matches!(lines[..], [only] if only.contains("The rules of all modes are removed")),
        "{cleanup:?}"
    );
    Ok(())
}

#[test]
fn flushed_rules_are_logged_as_that_and_so_is_their_repair() -> Result<()> {
    for mode in ["nftables", "iptables"] {
        let mut rig = Rig::new()?;
        let pod = rig.topology.pod(0).ip();
        let objects = [
            node(),
            service("web", V4, V6, "TCP", ""),
            slice("web", "TCP", &[(pod.v4.into(), "node-a")], 8080),
        ];
        rig.objects(&objects)?;
        rig.start_mode(mode)?;
        rig.wait_for_log("The rules are in force")?;
        rig.node().command("nft").args(["flush", "ruleset"]).run()?;
        rig.wait_for_log("repaired in ")?;
        let log = rig.log();
        let flushed = log.find("all rules were flushed").with_context(|| log.clone())?;
        let repaired = log.find("Our rules are complete again: repaired in ").context("a repair")?;
        ensure!(flushed < repaired && log[repaired..].contains(" ms\""), "{log}");
    }
    Ok(())
}
