//! The commands, as an operator runs them on a node.

mod support;

use std::fs;
use std::io::Read;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use portwarden_testkit::netns::Output;
use serde_json::Value;
use support::{Rig, cluster_cidr, node, service, slice};

const V4: &str = "10.96.0.10";
const V6: &str = "fd00:10:96::10";

/// `demo/web` with a node port and two endpoints, `demo/lonely` with none; no program yet.
fn rig() -> Result<Rig> {
    let rig = Rig::new()?;
    let (near, far) = (rig.topology.pod(0), rig.topology.remote_pod(0));
    for host in [near, far] {
        host.serve(Transport::Tcp, 8080)?;
    }
    rig.objects(&[
        node(),
        service("web", V4, V6, "TCP", "  type: NodePort\n"),
        service("lonely", "10.96.0.11", "fd00:10:96::11", "TCP", ""),
        slice("web", "TCP", &[(near.ip().v4.into(), "node-a"), (far.ip().v4.into(), "node-b")], 8080),
        slice("web", "TCP", &[(near.ip().v6.into(), "node-a"), (far.ip().v6.into(), "node-b")], 8080),
    ])?;
    Ok(rig)
}

fn started(mode: &str) -> Result<Rig> {
    let mut rig = rig()?;
    // In mode ipvs the kernel sends no notifications; the mode compares as often as this.
    let cidr = cluster_cidr();
    rig.start(&["--proxy-mode", mode, "--cluster-cidr", &cidr, "--ipvs-sync-period=2s", "-v=2"])?;
    rig.wait_for_log("The rules are in force")?;
    rig.wait_for_service(format!("{V4}:80").parse()?)?;
    Ok(rig)
}

fn run(rig: &Rig, arguments: &[&str]) -> Result<Output> {
    rig.program().args(arguments).output()
}

fn json(output: &Output) -> Result<Value> {
    serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))
}

/// The flags that the process was started with.
fn flags(rig: &Rig, mode: &str) -> Vec<String> {
    vec![
        format!("--manifests={}", rig.path("manifests").display()),
        format!("--proxy-mode={mode}"),
        format!("--cluster-cidr={}", cluster_cidr()),
        "--hostname-override=node-a".to_owned(),
        "--conntrack-max-per-core=0".to_owned(),
    ]
}

fn run_with_flags(rig: &Rig, mode: &str, arguments: &[&str]) -> Result<Output> {
    rig.program().args(arguments).args(flags(rig, mode)).output()
}

#[test]
fn status_is_one_screen_and_its_exit_status_is_health() -> Result<()> {
    let mut rig = started("nftables")?;
    let output = run(&rig, &["status"])?;
    ensure!(output.code == Some(0), "{output:?}");
    for words in [
        ": healthy\n",
        "mode         nftables, IPv4 and IPv6",
        "2 Services, 2 endpoints",
        "conntrack",
        "refused      no Service",
    ] {
        ensure!(output.stdout.contains(words), "{words}: {}", output.stdout);
    }
    ensure!(output.stdout.lines().count() <= 30, "one screen: {}", output.stdout);
    let status = json(&run(&rig, &["status", "-o", "json"])?)?;
    ensure!(status["verdict"]["healthy"] == true && status["mode"] == "nftables", "{status}");
    // A source that is lost makes it unhealthy.
    fs::remove_dir_all(rig.path("manifests"))?;
    rig.wait_until("bad health", || Ok(run(&rig, &["status"])?.code == Some(1)))?;
    let output = run(&rig, &["status"])?;
    ensure!(output.stdout.contains("NOT HEALTHY\n  ! "), "{}", output.stdout);
    rig.kill();
    let output = run(&rig, &["status"])?;
    ensure!(
        output.code == Some(2) && output.stderr.contains("no Portwarden answers at 127.0.0.1:10266"),
        "{output:?}"
    );
    Ok(())
}

/// `damage` is a command, with `POD` for the address of an endpoint.
fn explains_and_finds_a_difference(mode: &str, damage: &[&str]) -> Result<()> {
    let rig = started(mode)?;
    let near = rig.topology.pod(0).ip().v4;
    for question in [
        &["explain", "demo/web"][..],
        &["explain", "10.96.0.10:80"],
        &["explain", "--from", "10.244.0.7", "--to", "10.96.0.10:80/tcp"],
    ] {
        let output = run(&rig, question)?;
        ensure!(output.code == Some(0), "{output:?}");
        ensure!(output.stdout.contains("The kernel was read back and agrees."), "{}", output.stdout);
        ensure!(output.stdout.contains(&format!("{near}:8080")), "{}", output.stdout);
    }
    let output = run(&rig, &["explain", "demo/lonely"])?;
    ensure!(
        output.code == Some(0) && output.stdout.contains("rejected: the cluster has no usable endpoint"),
        "{output:?}"
    );
    // Without notifications of the kernel nothing is repaired in between: the process stands still.
    rig.signal(nix::sys::signal::Signal::SIGSTOP)?;
    let damage: Vec<String> = damage.iter().map(|word| word.replace("POD", &near.to_string())).collect();
    rig.node().command(&damage[0]).args(&damage[1..]).run()?;
    let output = run_with_flags(&rig, mode, &["explain", "demo/web"])?;
    ensure!(output.code == Some(1), "{output:?}");
    ensure!(output.stdout.contains("!! THE KERNEL DIFFERS: connections"), "{}", output.stdout);
    let output = run_with_flags(&rig, mode, &["explain", "demo/web", "-o", "json"])?;
    let answer = json(&output)?;
    let differences = answer["kernel"]["frontends"].as_array().context("frontends")?;
    ensure!(
        differences.iter().any(|one| one["differences"].as_array().is_some_and(|all| !all.is_empty())),
        "{answer}"
    );
    rig.signal(nix::sys::signal::Signal::SIGCONT)?;
    rig.wait_until("the repair", || Ok(run(&rig, &["explain", "demo/web"])?.code == Some(0)))
}

#[test]
fn explain_reads_back_what_nftables_holds() -> Result<()> {
    explains_and_finds_a_difference(
        "nftables",
        &["nft", "delete", "element", "ip", "kube-proxy", "frontends", "{ 10.96.0.10 . tcp . 80 }"],
    )
}

#[test]
fn explain_reads_back_what_iptables_holds() -> Result<()> {
    explains_and_finds_a_difference("iptables", &["iptables", "-t", "nat", "-F", "KUBE-SERVICES"])
}

#[test]
fn explain_reads_back_what_userspace_holds() -> Result<()> {
    let elements = "{ 10.96.0.10 . tcp . 80 }";
    explains_and_finds_a_difference(
        "userspace",
        &["nft", "delete", "element", "ip", "portwarden-userspace", "from-elsewhere", elements],
    )?;
    let rig = started("userspace")?;
    let output = run(&rig, &["diff"])?;
    ensure!(output.code == Some(0), "{output:?}");
    let output = run(&rig, &["explain", "demo/web"])?;
    let shown = |line: &str| output.stdout.lines().any(|one| one.trim() == line);
    ensure!(
        shown(
            "the proxy connects to the endpoint: the endpoint sees the node's address, whoever the client is"
        ),
        "{}",
        output.stdout
    );
    ensure!(!output.stdout.contains("masqueraded"), "{}", output.stdout);
    Ok(())
}

#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn explain_reads_back_what_ipvs_holds() -> Result<()> {
    explains_and_finds_a_difference("ipvs", &["ipvsadm", "-d", "-t", "10.96.0.10:80", "-r", "POD:8080"])
}

/// Virtual servers have one list of endpoints for all clients, which is no difference; those of other programs are none of ours.
#[test]
#[ignore = "needs a kernel with IPVS: scripts/test-uml"]
fn what_ipvs_cannot_do_and_servers_of_other_programs_are_no_differences() -> Result<()> {
    let rig = started("ipvs")?;
    let (near, far) = (rig.topology.pod(0).ip().v4, rig.topology.remote_pod(0).ip().v4);
    let objects = fs::read_to_string(rig.path("manifests/objects.yaml"))?;
    let local = "  type: NodePort\n  externalTrafficPolicy: Local\n";
    rig.objects(&[objects.replace("  type: NodePort\n", local)])?;
    let node_port = "192.168.0.2:30080";
    rig.wait_until("a virtual server without the other node's pod", || {
        Ok(!rig.node().command("ipvsadm").args(["-ln", "-t", node_port]).run()?.contains(&far.to_string()))
    })?;
    let other = "-A -t 172.16.0.1:30080 -s rr\n-a -t 172.16.0.1:30080 -r 172.16.0.2:80 -m\n";
    rig.node().command("ipvsadm").arg("-R").input(other).run()?;
    let output = run(&rig, &["explain", "demo/web"])?;
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(output.stdout.contains("The kernel was read back and agrees."), "{}", output.stdout);
    ensure!(output.stdout.contains(&format!("in mode ipvs: forwarded to {near}:8080")), "{}", output.stdout);
    let output = run_with_flags(&rig, "ipvs", &["diff"])?;
    ensure!(output.code == Some(0), "{output:?}");
    // One of the node's addresses differs.
    rig.signal(nix::sys::signal::Signal::SIGSTOP)?;
    let real = format!("{near}:8080");
    rig.node().command("ipvsadm").args(["-d", "-t", node_port, "-r", &real]).run()?;
    let output = run_with_flags(&rig, "ipvs", &["explain", "demo/web"])?;
    ensure!(output.code == Some(1), "{output:?}");
    ensure!(output.stdout.contains("!! THE KERNEL DIFFERS"), "{}", output.stdout);
    ensure!(output.stdout.contains(&format!("virtual server {node_port}/TCP")), "{}", output.stdout);
    rig.signal(nix::sys::signal::Signal::SIGCONT)?;
    rig.wait_until("the repair", || Ok(run(&rig, &["explain", "demo/web"])?.code == Some(0)))
}

#[test]
fn explain_refuses_questions_that_make_no_sense() -> Result<()> {
    let rig = started("nftables")?;
    let output = run(&rig, &["explain", "web"])?;
    ensure!(output.code == Some(1) && output.stdout.contains("did you mean demo/web?"), "{output:?}");
    let output = run(&rig, &["explain", "192.0.2.9:80"])?;
    ensure!(output.code == Some(1), "{output:?}");
    for question in [
        &["explain"][..],
        &["explain", "--to", "nonsense"],
        &["explain", "demo/web", "--from", "10.0.0.1"],
        &["explain", "a", "b"],
    ] {
        let output = run(&rig, question)?;
        ensure!(output.code == Some(2) && output.stderr.starts_with("Error: "), "{question:?}: {output:?}");
    }
    Ok(())
}

#[test]
fn doctor_finds_what_is_wrong_with_the_node_and_says_how_to_cure_it() -> Result<()> {
    let rig = rig()?;
    rig.node().command("sysctl").args(["-qw", "net.ipv4.ip_forward=0"]).run()?;
    let output = run_with_flags(&rig, "nftables", &["doctor"])?;
    ensure!(output.code == Some(1), "{output:?}");
    for words in [
        "FAILED   forwarding",
        "cure: sysctl -w net.ipv4.ip_forward=1",
        "docs/troubleshooting.md#forwarding",
        "ok       mode               mode nftables works for IPv4",
        "2 Services with IPv4",
    ] {
        ensure!(output.stdout.contains(words), "{words}: {}", output.stdout);
    }
    rig.node().command("sysctl").args(["-qw", "net.ipv4.ip_forward=1"]).run()?;
    let output = run_with_flags(&rig, "nftables", &["doctor", "-o", "json"])?;
    let report = json(&output)?;
    ensure!(output.code == Some(0) && report["failures"] == 0, "{report:#}");
    let before = rig.node().command("nft").args(["list", "ruleset"]).run()?;
    ensure!(!before.contains("kube-proxy"), "doctor changes nothing: {before}");
    let output = rig.program().args(["doctor", "--kubeconfig=/no/such/file"]).output()?;
    ensure!(output.code == Some(1) && output.stdout.contains("FAILED   source"), "{output:?}");
    ensure!(output.stdout.contains("from Kubernetes 1.40 the default is nftables"), "{}", output.stdout);
    Ok(())
}

/// What README.md says: `sudo portwarden doctor`, and nothing else.
#[test]
fn doctor_without_flags_takes_those_of_the_running_process() -> Result<()> {
    let rig = started("nftables")?;
    let output = run(&rig, &["doctor"])?;
    for words in [
        "ok       configuration      the configuration of the running process (",
        "is valid; mode nftables",
        "ok       leftovers          no rules of other modes",
        "ok       source             the manifests in ",
        "2 Services with IPv4",
    ] {
        ensure!(output.stdout.contains(words), "{words}: {}", output.stdout);
    }
    let output = run(&rig, &["diff"])?;
    ensure!(output.code == Some(0), "{output:?}");
    let output = run(&rig, &["diff", "--proxy-mode", "iptables"])?;
    let words = "The kernel has rules of mode nftables; mode iptables would replace them.\n0 addresses added, 0 removed, 0 changed";
    ensure!(output.code == Some(1) && output.stdout.starts_with(words), "{output:?}");
    Ok(())
}

#[test]
fn rules_of_another_program_that_cannot_be_read_are_named() -> Result<()> {
    let rig = rig()?;
    rig.node().command("nft").args(["add table ip kube-proxy; add chain ip kube-proxy services"]).run()?;
    for mode in ["nftables", "iptables"] {
        let output = run_with_flags(&rig, mode, &["diff"])?;
        ensure!(output.code == Some(1), "{output:?}");
        ensure!(
            output.stdout.starts_with("The kernel has the table kube-proxy of another program"),
            "{}",
            output.stdout
        );
    }
    Ok(())
}

#[test]
fn diff_shows_what_would_change_and_changes_nothing() -> Result<()> {
    let empty = rig()?;
    let output = run_with_flags(&empty, "nftables", &["diff"])?;
    ensure!(
        output.code == Some(1) && output.stdout.contains("The kernel has no rules for Services"),
        "{output:?}"
    );
    ensure!(
        output.stdout.contains("+ IPv4 10.96.0.10:80/TCP (demo/web): forwarded to "),
        "{}",
        output.stdout
    );
    ensure!(output.stdout.contains("+ IPv4 10.96.0.11:80/TCP (demo/lonely): rejected"), "{}", output.stdout);
    for mode in ["nftables", "iptables"] {
        let rig = started(mode)?;
        let output = run_with_flags(&rig, mode, &["diff", "--show", "rules"])?;
        ensure!(output.code == Some(0), "{mode}: {output:?}");
        let more = rig.path("more");
        fs::create_dir_all(&more)?;
        fs::copy(rig.path("manifests/objects.yaml"), more.join("objects.yaml"))?;
        fs::write(more.join("new.yaml"), service("new", "10.96.0.12", "fd00:10:96::12", "UDP", ""))?;
        let mut other = flags(&rig, mode);
        other[0] = format!("--manifests={}", more.display());
        let output = rig.program().arg("diff").args(&other).output()?;
        ensure!(
            output.code == Some(1) && output.stdout.contains("+ IPv4 10.96.0.12:80/UDP (demo/new): rejected"),
            "{output:?}"
        );
        ensure!(
            output.stdout.contains(" 2 added")
                || output.stdout.contains("2 addresses added, 0 removed, 0 changed"),
            "{}",
            output.stdout
        );
        if mode == "iptables" {
            let output = rig.program().args(["diff", "--show", "rules"]).args(&other).output()?;
            ensure!(
                output.stdout.contains("\nIPv4: + filter -A KUBE-SERVICES -d 10.96.0.12/32"),
                "{}",
                output.stdout
            );
            ensure!(
                !output.stdout.contains("10.96.0.10/32"),
                "rules that stay are not shown: {}",
                output.stdout
            );
            let output = run_with_flags(&rig, "nftables", &["diff", "-o", "json"])?;
            let answer = json(&output)?;
            ensure!(answer["modeBefore"] == "iptables" && answer["modeAfter"] == "nftables", "{answer}");
            ensure!(
                answer["frontends"].as_array().is_some_and(Vec::is_empty),
                "only the mode changes: {answer:#}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_bundle_has_everything_but_credentials() -> Result<()> {
    const SECRET: &str = "n0t-f0r-y0ur-eyes";
    let rig = started("nftables")?;
    rig.write("secret.conf", &format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\ntoken: {SECRET}\nclientConnection: {{kubeconfig: /k}}\n"))?;
    rig.write("secret.log", &format!("GET / Authorization: Bearer {SECRET}\n\"Syncs succeed again\" token=\"{SECRET}\"\n-----BEGIN EC PRIVATE KEY-----\n{SECRET}\n-----END EC PRIVATE KEY-----\nthe last line\n"))?;
    let file = rig.path("report.tar.gz");
    let config = format!("--config={}", rig.path("secret.conf").display());
    let (log, target) =
        (format!("--log={}", rig.path("secret.log").display()), format!("--file={}", file.display()));
    let output = run(&rig, &["bundle", "demo/web", &config, &log, &target])?;
    ensure!(output.code == Some(0), "{output:?}");
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(&file)?).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    ensure!(!text.contains(SECRET), "a credential is in the bundle");
    for words in [
        "the last line",
        "table ip kube-proxy",
        "kubeproxy_sync_proxy_rules",
        "\"service\":\"demo/web\"",
        "FAILED   source",
        "mode: nftables",
    ] {
        ensure!(text.contains(words), "{words} is not in the bundle");
    }
    let listed = rig.node().command("tar").args(["tzf"]).arg(&file).run()?;
    for name in [
        "/status.json",
        "/metrics.txt",
        "/doctor.txt",
        "/log.txt",
        "/services/demo-web.json",
        "/kernel/nft-list-ruleset.txt",
    ] {
        ensure!(listed.contains(name), "{name}: {listed}");
    }
    ensure!(
        fs::metadata(&file)?.permissions().readonly()
            || std::os::unix::fs::MetadataExt::mode(&fs::metadata(&file)?) & 0o077 == 0,
        "only for its owner"
    );
    Ok(())
}

#[test]
fn every_command_has_help_and_completion_works_in_bash() -> Result<()> {
    let rig = Rig::new()?;
    let overview = run(&rig, &["help"])?;
    ensure!(overview.code == Some(0), "{overview:?}");
    let help = run(&rig, &["--help"])?.stdout;
    for command in ["status", "explain", "doctor", "diff", "bundle", "completion", "man", "help"] {
        ensure!(
            overview.stdout.contains(&format!("  portwarden {command} ")),
            "{command}: {}",
            overview.stdout
        );
        ensure!(help.contains(&format!("  portwarden {command} ")), "{command}: {help}");
        let output = run(&rig, &[command, "--help"])?;
        ensure!(
            output.code == Some(0)
                && output.stdout.contains("Examples:\n")
                && output.stdout.contains("Exit status:\n  0  "),
            "{command}: {output:?}"
        );
        let output = run(&rig, &["help", command])?;
        ensure!(output.stdout.starts_with(&format!("portwarden {command}: ")), "{output:?}");
        let output = run(&rig, &[command, "--no-such-flag"])?;
        ensure!(
            output.code == Some(2) && output.stderr.contains("unknown flag: --no-such-flag"),
            "{command}: {output:?}"
        );
    }
    let script = run(&rig, &["completion", "bash"])?.stdout;
    rig.write("completion", &script)?;
    let complete = |words: &str| {
        let count = words.split(' ').count() - 1;
        let line = format!(
            "source {}; COMP_WORDS=({words}); [ {count} -lt ${{#COMP_WORDS[@]}} ] || COMP_WORDS+=(''); COMP_CWORD={count}; _portwarden; echo \"${{COMPREPLY[@]}}\"",
            rig.path("completion").display()
        );
        rig.command("bash").args(["-c", &line]).run()
    };
    ensure!(complete("portwarden sta")?.trim() == "status");
    ensure!(complete("portwarden explain --fr")?.trim() == "--from");
    ensure!(complete("portwarden --proxy-mode nf")?.trim() == "nftables");
    ensure!(complete("portwarden --masq")?.trim() == "--masquerade-all");
    ensure!(complete("portwarden completion ")?.contains("zsh"));
    let page = run(&rig, &["man"])?.stdout;
    ensure!(page.starts_with(".TH PORTWARDEN 8") && page.contains("portwarden doctor"), "{page}");
    // kube-proxy has no commands.
    let link = rig.path("kube-proxy");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_portwarden"), &link)?;
    let output = rig.command(&link.display().to_string()).arg("status").output()?;
    ensure!(
        output.code == Some(1)
            && output.stderr.contains("\"kube-proxy\" does not take any arguments, got [\"status\"]\n"),
        "{output:?}"
    );
    Ok(())
}
