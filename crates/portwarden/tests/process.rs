//! The program as an operator sees it: start, stop, reload, repair, clean-up, with real traffic.

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use portwarden_testkit::Transport;
use support::{HEALTH, METRICS, Rig, cluster_cidr, node, service, slice};

const V4: &str = "10.96.0.10";
const V6: &str = "fd00:10:96::10";

fn web(v4: bool) -> SocketAddr {
    SocketAddr::new(if v4 { V4 } else { V6 }.parse().expect("an address"), 80)
}

/// `demo/web` with one endpoint in a pod of this node and one elsewhere, for both families.
fn objects(rig: &Rig) -> Vec<String> {
    let (near, far) = (rig.topology.pod(0), rig.topology.remote_pod(0));
    vec![
        node(),
        service("web", V4, V6, "TCP", ""),
        slice("web", "TCP", &[(near.ip().v4.into(), "node-a"), (far.ip().v4.into(), "node-b")], 8080),
        slice("web", "TCP", &[(near.ip().v6.into(), "node-a"), (far.ip().v6.into(), "node-b")], 8080),
    ]
}

/// A node whose Service has endpoints that answer, and no program yet.
fn rig() -> Result<Rig> {
    let rig = Rig::new()?;
    for host in [rig.topology.pod(0), rig.topology.remote_pod(0)] {
        host.serve(Transport::Tcp, 8080)?;
    }
    rig.objects(&objects(&rig))?;
    Ok(rig)
}

fn started(mode: &str) -> Result<Rig> {
    let mut rig = rig()?;
    rig.start_mode(mode)?;
    rig.wait_for_service(web(true))?;
    rig.wait_for_service(web(false))?;
    Ok(rig)
}

/// Whether the kernel has rules of ours or kube-proxy's.
fn has_rules(rig: &Rig, mode: &str) -> Result<bool> {
    Ok(match mode {
        "nftables" => rig.node().command("nft").args(["list", "tables"]).run()?.contains("kube-proxy"),
        _ => rig.node().command("iptables-save").run()?.contains("KUBE-SERVICES"),
    })
}

fn runs_stops_and_cleans_up(mode: &str) -> Result<()> {
    let mut rig = started(mode)?;
    let (status, body) = rig.get(HEALTH, "/healthz")?;
    ensure!(status == 200 && body.contains("\"nodeEligible\":true"), "{status} {body}");
    ensure!(rig.get(METRICS, "/proxyMode")? == (200, mode.to_owned()));
    ensure!(rig.stop()?.success(), "a stop that was asked for is a success");
    ensure!(has_rules(&rig, mode)?, "rules stay when the process goes");
    ensure!(rig.node().tcp(web(true))?.is_answered(), "and so does traffic");
    rig.node().command(env!("CARGO_BIN_EXE_portwarden")).arg("--cleanup").run()?;
    ensure!(!has_rules(&rig, mode)?, "until they are cleaned up");
    Ok(())
}

#[test]
fn runs_stops_and_cleans_up_with_nftables() -> Result<()> {
    runs_stops_and_cleans_up("nftables")
}

#[test]
fn runs_stops_and_cleans_up_with_iptables() -> Result<()> {
    runs_stops_and_cleans_up("iptables")
}

#[test]
fn an_interrupt_stops_it_too() -> Result<()> {
    let mut rig = started("nftables")?;
    rig.signal(Signal::SIGINT)?;
    rig.wait_for_log("Stopping; the rules stay in place")?;
    ensure!(rig.stop().is_err() || !rig.is_running());
    Ok(())
}

#[test]
fn changed_manifests_reach_the_kernel() -> Result<()> {
    let rig = started("nftables")?;
    let pod = rig.topology.pod(1);
    pod.serve(Transport::Tcp, 8080)?;
    let mut objects = objects(&rig);
    objects[2] = slice("web", "TCP", &[(pod.ip().v4.into(), "node-a")], 8080);
    rig.objects(&objects)?;
    rig.wait_until("only the new pod to answer", || {
        Ok((0..8).all(|_| rig.node().tcp(web(true)).is_ok_and(|outcome| outcome.host() == Some(pod.name()))))
    })
}

#[test]
fn what_others_remove_is_put_back() -> Result<()> {
    let rig = started("nftables")?;
    rig.node().command("nft").args(["delete", "table", "ip", "kube-proxy"]).run()?;
    rig.wait_for_service(web(true))?;
    rig.node().command("nft").args(["flush", "ruleset"]).run()?;
    rig.wait_for_service(web(true))?;
    rig.wait_for_service(web(false))?;
    ensure!(rig.metric("portwarden_tampering_total{ip_family=\"IPv4\"}")? >= 2.0);
    Ok(())
}

#[test]
fn a_restart_loses_no_connection() -> Result<()> {
    for mode in ["nftables", "iptables"] {
        let mut rig = started(mode)?;
        let (mut open, first) = rig.topology.outside().probe().open(Transport::Tcp, web(true))?;
        let host = first.host().context("an answer")?.to_owned();
        let load = rig.topology.outside().probe().load(Transport::Tcp, web(true), 200)?;
        for round in 0..3 {
            if round == 1 {
                rig.kill();
            } else {
                ensure!(rig.stop()?.success());
            }
            rig.start_mode(mode)?;
            rig.wait_until("the new process to be in force", || {
                Ok(rig.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"}")? > 0.0)
            })?;
            ensure!(open.exchange()?.host() == Some(host.as_str()), "the open connection continues");
        }
        let tally = load.stop()?;
        ensure!(tally.failed() == 0 && tally.answered() > 0, "{mode}: {tally}");
    }
    Ok(())
}

fn config(mode: &str, extra: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\nclusterCIDR: \"{}\"\nconntrack: {{maxPerCore: 0}}\n{extra}",
        cluster_cidr()
    )
}

fn started_with_config(mode: &str) -> Result<Rig> {
    let mut rig = rig()?;
    rig.write("config.yaml", &config(mode, ""))?;
    let path = rig.path("config.yaml");
    rig.start(&["--config", path.to_str().context("a plain path")?])?;
    rig.wait_for_service(web(true))?;
    Ok(rig)
}

#[test]
fn another_mode_takes_over_without_a_lost_connection() -> Result<()> {
    let mut rig = started_with_config("iptables")?;
    let load = rig.topology.outside().probe().load(Transport::Tcp, web(true), 200)?;
    for mode in ["nftables", "iptables", "nftables"] {
        let other = if mode == "nftables" { "iptables" } else { "nftables" };
        rig.write("config.yaml", &config(mode, ""))?;
        rig.wait_until(&format!("{mode} to be in force and {other} gone"), || {
            let shown = rig.get(METRICS, "/proxyMode")?.1 == mode;
            Ok(shown && has_rules(&rig, mode)? && !has_rules(&rig, other)?)
        })?;
        rig.wait_for_service(web(false))?;
    }
    let tally = load.stop()?;
    ensure!(tally.failed() == 0 && tally.answered() > 0, "{tally}");
    ensure!(rig.is_running());
    Ok(())
}

#[test]
fn a_bad_configuration_is_reported_and_the_old_one_stays() -> Result<()> {
    let mut rig = started_with_config("nftables")?;
    let before = rig.get(METRICS, "/configz")?;
    for bad in ["mode: nftables: broken", &config("sideways", ""), &config("nftables", "bindAddress: here\n")]
    {
        let rejected = rig.metric("portwarden_config_reloads_total{result=\"rejected\"}").unwrap_or(0.0);
        rig.write("config.yaml", bad)?;
        rig.wait_until("the rejection", || {
            Ok(rig.metric("portwarden_config_reloads_total{result=\"rejected\"}")? > rejected)
        })?;
        ensure!(rig.get(METRICS, "/configz")? == before, "{bad}");
    }
    ensure!(rig.log().contains("must be iptables, ipvs, nftables or blank"));
    ensure!(rig.is_running() && rig.node().tcp(web(true))?.is_answered());
    rig.write("config.yaml", &config("nftables", "configSyncPeriod: 10m\n"))?;
    rig.wait_until("a good one to be taken", || {
        Ok(rig.get(METRICS, "/configz")?.1.contains("\"configSyncPeriod\":\"10m0s\""))
    })
}

#[test]
fn live_settings_change_rules_servers_and_logs() -> Result<()> {
    let rig = started_with_config("nftables")?;
    rig.write(
        "config.yaml",
        &config("nftables", "metricsBindAddress: 127.0.0.1:11249\nhealthzBindAddress: 127.0.0.1:11256\nlogging: {verbosity: 4}\nenableProfiling: true\nnftables: {masqueradeAll: true}\n"),
    )?;
    rig.wait_until("the servers to move", || {
        Ok(rig.get(11249, "/proxyMode")?.0 == 200 && rig.get(11256, "/livez")?.0 == 200)
    })?;
    ensure!(
        rig.get(METRICS, "/proxyMode").is_err() && rig.get(HEALTH, "/livez").is_err(),
        "the old ports are free"
    );
    ensure!(rig.get(11249, "/debug/flags")?.1.contains("v: 4"));
    let pod = rig.topology.pod(1);
    rig.wait_until("all traffic to be masqueraded", || {
        let outcome = pod.tcp(web(true))?;
        Ok(outcome.source().is_some_and(|source| source != std::net::IpAddr::from(pod.ip().v4)))
    })
}

/// kube-proxy, restarted with the new configuration, would serve IPv4 alone and leave rules that nothing keeps up to date.
#[test]
fn the_rules_of_a_family_that_a_reload_loses_are_removed() -> Result<()> {
    for (mode, save) in [("nftables", "nft list tables ip6"), ("iptables", "ip6tables-save -t nat")] {
        let rig = started_with_config(mode)?;
        rig.wait_for_service(web(false))?;
        let rules = || rig.node().command("sh").args(["-c", save]).run();
        let ours = |text: &str| text.contains("kube-proxy") || text.contains("KUBE-SERVICES");
        ensure!(ours(&rules()?), "{mode}: no rules for IPv6 at first");
        rig.node().command("sh").args(["-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"]).run()?;
        rig.write("config.yaml", &config(mode, &format!("{mode}: {{masqueradeBit: 15}}\n")))?;
        rig.wait_until("the rules for IPv6 to be removed", || Ok(!ours(&rules()?)))?;
        ensure!(has_rules(&rig, mode)? && rig.node().tcp(web(true))?.is_answered(), "{mode}: IPv4 stays");
        rig.wait_for_log("This host can no longer serve a family")?;
    }
    Ok(())
}

#[test]
fn sighup_reads_the_configuration_again() -> Result<()> {
    let mut rig = started("nftables")?;
    rig.signal(Signal::SIGHUP)?;
    rig.wait_for_log("The configuration was read again")?;
    ensure!(rig.is_running());
    Ok(())
}

#[test]
fn other_signals_have_the_effect_that_they_have_on_kube_proxy() -> Result<()> {
    let mut rig = started("nftables")?;
    rig.signal(Signal::SIGUSR1)?;
    rig.signal(Signal::SIGHUP)?;
    rig.wait_for_log("The configuration was read again")?;
    ensure!(rig.is_running(), "SIGUSR1 is ignored");
    rig.signal(Signal::SIGQUIT)?;
    rig.wait_for_log("Ended by SIGQUIT")?;
    ensure!(has_rules(&rig, "nftables")?);
    Ok(())
}

/// As PID 1 of a container, signals have no default action: it must handle them itself.
#[test]
fn as_process_1_it_still_ends_on_sigterm() -> Result<()> {
    let rig = rig()?;
    let log = std::fs::File::create(rig.path("log"))?;
    let process = rig
        .node()
        .command("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"])
        .arg(env!("CARGO_BIN_EXE_portwarden"))
        .arg(format!("--manifests={}", rig.path("manifests").display()))
        .args(["--hostname-override=node-a", "--proxy-mode=nftables", "--conntrack-max-per-core=0"])
        .spawn_logging(log)?;
    rig.wait_for_service(web(true))?;
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.id()))?;
    let child: i32 = children.trim().parse().context("the one child of unshare")?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), Signal::SIGTERM)?;
    rig.wait_for_log("Stopping; the rules stay in place")?;
    rig.wait_until("the process to end", || Ok(!std::path::Path::new(&format!("/proc/{child}")).exists()))
}

#[test]
fn wrong_command_lines_and_configurations_end_with_status_1() -> Result<()> {
    let rig = Rig::new()?;
    let program = env!("CARGO_BIN_EXE_portwarden");
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(program).args(arguments).output()?;
        Ok::<_, anyhow::Error>((
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    };
    let (code, _, errors) = run(&["--no-such-flag"])?;
    ensure!(code == Some(1) && errors.contains("Error: unknown flag: --no-such-flag"), "{errors}");
    ensure!(errors.starts_with("Usage:\n  portwarden [flags]\n"), "{errors}");
    let (code, out, errors) = run(&["--cleanup", "true"])?;
    let wanted = "Error: \"portwarden\" does not take any arguments, got [\"true\"]; a switch takes its value after an equals sign: --cleanup=true\n";
    ensure!(code == Some(1) && out.is_empty() && errors == wanted, "{errors}");
    let (code, _, errors) = run(&["--cleanup", "--proxy-mode=sideways"])?;
    ensure!(code == Some(1) && errors.contains("failed validate: KubeProxyConfiguration.Mode"), "{errors}");
    let (code, _, errors) = run(&["--config=/no/such/file"])?;
    ensure!(code == Some(1) && errors.contains("failed complete: cannot read"), "{errors}");
    let (code, _, errors) = run(&["--cleanup", "--log-flush-frequency=0"])?;
    ensure!(code == Some(1) && errors.contains("initialize logging: logging.flushFrequency: "), "{errors}");
    let (code, out, errors) = run(&["-h", "--metrics-port=1"])?;
    ensure!(code == Some(0) && out.contains("--proxy-mode NAME") && !out.contains("--metrics-port"), "{out}");
    ensure!(errors.starts_with("Flag --metrics-port has been deprecated, "), "{errors}");
    let (code, _, errors) = run(&["--write-config-to=/no/such/folder/file"])?;
    ensure!(code == Some(1) && errors.contains("\"command failed\" err="), "{errors}");
    let (code, _, errors) = run(&["--proxy-mode=sideways", "--metrics-bind-address=1.2.3.4:0"])?;
    ensure!(
        code == Some(1) && errors.contains("command failed") && errors.contains("failed validate: ["),
        "{errors}"
    );
    let (code, out, _) = run(&["--version"])?;
    ensure!(code == Some(0) && out.starts_with("Kubernetes v1.37."), "{out}");
    let path = rig.path("written.yaml");
    let (code, _, errors) = run(&["--write-config-to", path.to_str().context("a plain path")?, "--cleanup"])?;
    ensure!(code == Some(0) && errors.contains("Wrote configuration"), "{errors}");
    support::exists(&path)?;
    let target = format!("--write-config-to={}", path.display());
    let (code, out, errors) = run(&["--logging-format=json", "-v=1", &target])?;
    ensure!(code == Some(0) && out.is_empty(), "logs go to standard error: {out}");
    let lines: Vec<serde_json::Value> = errors.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let has = |words: &str| lines.iter().any(|line| line["msg"] == words && line["v"] == 0);
    ensure!(has("Wrote configuration") && has("FLAG: --logging-format=\"json\""), "{errors}");
    ensure!(lines.iter().all(|line| line["ts"].is_f64() && line["caller"].is_string()), "{errors}");
    Ok(())
}

#[test]
fn init_only_prepares_and_ends() -> Result<()> {
    let rig = Rig::new()?;
    let route_localnet = || rig.command("cat").arg("/proc/sys/net/ipv4/conf/all/route_localnet").run();
    rig.command("sysctl").args(["-qw", "net.ipv4.conf.all.route_localnet=0"]).run()?;
    for (mode, addresses, localhost) in
        [("nftables", "all", false), ("iptables", "primary", false), ("iptables", "all", true)]
    {
        // Info lines go to standard output, where they can be read.
        let logs = ["--feature-gates=LoggingAlphaOptions=true", "--log-text-split-stream"];
        let arguments = ["--init-only", "--conntrack-max-per-core=0", "--proxy-mode", mode];
        let addresses = format!("--nodeport-addresses={addresses}");
        let out = rig.program().args(arguments).args(logs).arg(&addresses).run()?;
        for family in ["IPv4", "IPv6"] {
            let line = format!("\"System initialized and --init-only specified\" ipFamily=\"{family}\"");
            ensure!(out.contains(&line), "{out}");
        }
        ensure!(out.contains("Setting route_localnet=1") == localhost, "{mode} {addresses}: {out}");
        ensure!((route_localnet()?.trim() == "1") == localhost, "{mode} {addresses}");
        ensure!(!has_rules(&rig, mode)?, "nothing is proxied yet");
    }
    Ok(())
}

#[test]
fn a_process_that_cannot_run_says_so_once_and_ends_with_status_1() -> Result<()> {
    let rig = Rig::new()?;
    let flags = ["--kubeconfig=/no/such/file", "--proxy-mode=nftables", "--conntrack-max-per-core=0"];
    let error = format!("{:#}", rig.program().args(flags).run().err().context("it cannot run")?);
    for words in ["exit status: 1", "\"command failed\" err=", "/no/such/file"] {
        ensure!(error.contains(words), "{words}: {error}");
    }
    ensure!(error.matches("the kubeconfig /no/such/file cannot be read").count() == 1, "{error}");
    // Under kube-proxy's name both of its lines are there.
    let link = rig.path("kube-proxy");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_portwarden"), &link)?;
    let error = format!(
        "{:#}",
        rig.command(&link.display().to_string()).args(flags).run().err().context("it cannot run")?
    );
    for words in ["\"Error running ProxyServer\" err=", "\"command failed\" err="] {
        ensure!(error.contains(words), "{words}: {error}");
    }
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let flags = [
        &manifests,
        "--proxy-mode=ebpf",
        "--conntrack-max-per-core=0",
        "--ebpf-pin-directory=/tmp/not-there",
    ];
    let error = format!("{:#}", rig.program().args(flags).run().err().context("it cannot run")?);
    ensure!(error.contains("/tmp/not-there is not on a BPF file system; mount one"), "{error}");
    Ok(())
}

#[test]
fn a_cluster_that_this_host_cannot_serve_ends_the_process() -> Result<()> {
    let mut rig = rig()?;
    rig.command("sysctl").args(["-qw", "net.ipv6.conf.all.disable_ipv6=1"]).run()?;
    let flags = ["--proxy-mode=nftables", "--nodeport-addresses=primary", "--cluster-cidr=fd00:10::/32"];
    rig.start(&flags)?;
    rig.wait_for_log("\"kube-proxy running in single-stack mode\" ipFamily=\"IPv4\"")?;
    rig.wait_for_log(
        "kube-proxy configuration is incorrect: the cluster is IPv4 only but clusterCIDR is only IPv6",
    )?;
    rig.wait_for_log("\"command failed\"")?;
    let mut objects = objects(&rig);
    objects[0] = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {addresses: [{type: InternalIP, address: \"fd00::1\"}]}\n".to_owned();
    rig.objects(&objects)?;
    rig.start(&flags)?;
    rig.wait_for_log("no support for primary IP family")
}

#[test]
fn servers_whose_ports_are_taken_say_so_and_get_them_later() -> Result<()> {
    let mut rig = rig()?;
    let taken = {
        let _entered = rig.node().namespace().enter()?;
        [HEALTH, METRICS].map(|port| std::net::TcpListener::bind(("::", port)))
    };
    let taken = taken.into_iter().collect::<std::io::Result<Vec<_>>>()?;
    rig.start(&["--proxy-mode=nftables", "--metrics-bind-address=0.0.0.0:10249"])?;
    rig.wait_for_service(web(true))?;
    rig.wait_for_log("\"Healthz server failed\" address=\"0.0.0.0:10256\" err=\"Address already in use")?;
    rig.wait_for_log("\"starting metrics server failed\" address=\"0.0.0.0:10249\"")?;
    rig.wait_for_log("\"Started\" healthz=\"not listening\" metrics=\"not listening\"")?;
    drop(taken);
    rig.wait_until("both servers to answer", || {
        Ok(rig.get(HEALTH, "/livez")?.0 == 200 && rig.get(METRICS, "/proxyMode")?.0 == 200)
    })
}

#[test]
fn what_is_odd_about_a_changed_file_is_logged() -> Result<()> {
    let rig = started_with_config("nftables")?;
    let gates = "featureGates: {NFTablesNetlink: false}\nmodus: x\n";
    rig.write("config.yaml", &config("nftables", gates))?;
    rig.wait_for_log("feature gate NFTablesNetlink is false, which has no effect")?;
    rig.wait_for_log("Using lenient decoding as strict decoding failed: unknown field \\\"modus\\\"")?;
    rig.wait_for_log("\"The configuration was read again; nothing changed\"")
}

#[test]
fn clean_up_takes_everything_of_every_mode_and_leaves_what_is_not_ours() -> Result<()> {
    let mut rig = started("iptables")?;
    ensure!(rig.stop()?.success());
    let nft = "table ip kube-proxy { }\ntable ip6 kube-proxy { }\ntable ip other { }\n";
    rig.node().command("nft").args(["-f", "-"]).input(nft).run()?;
    rig.node().command("iptables").args(["-t", "nat", "-N", "MINE"]).run()?;
    rig.node().command(env!("CARGO_BIN_EXE_portwarden")).arg("--cleanup").run()?;
    let tables = rig.node().command("nft").args(["list", "tables"]).run()?;
    ensure!(!tables.contains("kube-proxy") && tables.contains("table ip other"), "{tables}");
    let saved = rig.node().command("iptables-save").run()?;
    ensure!(!saved.contains("KUBE-SERVICES") && saved.contains(":MINE"), "{saved}");
    Ok(())
}

#[test]
fn a_clean_up_that_is_not_allowed_reports_everything_that_failed() -> Result<()> {
    let rig = Rig::new()?;
    let without_rights = ["--bounding-set", "-net_admin", env!("CARGO_BIN_EXE_portwarden"), "--cleanup"];
    let error = rig.command("setpriv").args(without_rights).run().err().context("it may not do that")?;
    let text = format!("{error:#}");
    ensure!(text.contains("exit status: 1"), "{text}");
    ensure!(text.contains("encountered an error while tearing down rules"), "{text}");
    for family in ["IPv4", "IPv6"] {
        ensure!(
            text.contains(&format!("nftables rules for {family}")),
            "no stop at the first failure: {text}"
        );
    }
    Ok(())
}

#[test]
fn a_setting_that_cannot_be_made_is_logged_and_ends_the_process_only_on_request() -> Result<()> {
    let mut rig = rig()?;
    // In this namespace the number of flows cannot be set.
    let mode = ["--proxy-mode=nftables", "--conntrack-max-per-core=32768"];
    rig.start(&mode)?;
    rig.wait_for_service(web(true))?;
    ensure!(rig.log().contains("cannot set nf_conntrack_max to"), "{}", rig.log());
    rig.kill();
    let program = rig.node().command(env!("CARGO_BIN_EXE_portwarden")).args(mode);
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let error = program.args([manifests.as_str(), "--sysctl-hard-fail"]).run().err().context("it ends")?;
    ensure!(format!("{error:#}").contains("could not set conntrack parameters"), "{error:#}");
    Ok(())
}

#[test]
fn node_ports_follow_the_hosts_addresses() -> Result<()> {
    let mut rig = rig()?;
    let mut objects = objects(&rig);
    objects[1] = service("web", V4, V6, "TCP", "  type: NodePort\n");
    rig.objects(&objects)?;
    let cidr = cluster_cidr();
    rig.start(&["--proxy-mode=nftables", "--cluster-cidr", &cidr, "--nodeport-addresses=192.168.77.0/24"])?;
    rig.wait_for_service(web(true))?;
    let late = SocketAddr::new("192.168.77.7".parse()?, 30080);
    rig.node().command("ip").args(["address", "add", "192.168.77.7/32", "dev", "lo"]).run()?;
    rig.wait_until("the new address to have node ports", || {
        Ok(rig.topology.pod(1).probe().timeout(Duration::from_millis(300)).tcp(late)?.is_answered())
    })
}

#[test]
fn a_health_check_port_answers_on_the_node() -> Result<()> {
    let mut rig = rig()?;
    let mut objects = objects(&rig);
    objects[1] = service(
        "web",
        V4,
        V6,
        "TCP",
        "  type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 31000\n",
    );
    rig.objects(&objects)?;
    rig.start(&["--proxy-mode=nftables", "--nodeport-addresses=all"])?;
    rig.wait_until("the port to be open", || Ok(rig.get(31000, "/")?.0 == 200))?;
    let (_, body) = rig.get(31000, "/any")?;
    ensure!(body.contains("\"localEndpoints\": 1"), "{body}");
    objects[2] = slice("web", "TCP", &[(rig.topology.remote_pod(0).ip().v4.into(), "node-b")], 8080);
    rig.objects(&objects)?;
    rig.wait_until("no local endpoint to be left", || Ok(rig.get(31000, "/")?.0 == 503))
}

#[test]
fn health_check_ports_answer_without_the_health_server() -> Result<()> {
    let mut rig = rig()?;
    let mut objects = objects(&rig);
    let spec = "  type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 31000\n";
    objects[1] = service("web", V4, V6, "TCP", spec);
    rig.objects(&objects)?;
    rig.start(&["--proxy-mode=nftables", "--nodeport-addresses=all", "--healthz-port=0"])?;
    rig.wait_until("the port to be open", || Ok(rig.get(31000, "/")?.0 == 200))?;
    ensure!(rig.get(31000, "/")?.1.contains("\"serviceProxyHealthy\": true"));
    ensure!(rig.get(HEALTH, "/healthz").is_err(), "the health server is closed");
    ensure!(rig.get(METRICS, "/healthz")?.0 == 200);
    Ok(())
}

/// A panic in any thread is logged and ends the process with status 2. Runs in a child process: this same test with a variable in its
/// environment.
#[test]
fn a_panic_in_any_thread_ends_the_process() -> Result<()> {
    const SIGN: &str = "PORTWARDEN_TEST_PANIC";
    if std::env::var_os(SIGN).is_some() {
        std::sync::Arc::<portwarden::logging::Logs>::default().start();
        portwarden::logging::end_on_panic();
        let thread = std::thread::spawn(|| panic!("the very reason"));
        let _ = thread.join();
        return Ok(());
    }
    let child = std::process::Command::new(std::env::current_exe()?)
        .args(["--exact", "a_panic_in_any_thread_ends_the_process", "--nocapture"])
        .env(SIGN, "yes")
        .output()?;
    let errors = String::from_utf8_lossy(&child.stderr);
    ensure!(child.status.code() == Some(2), "{:?} {errors}", child.status);
    ensure!(errors.contains("Internal error") && errors.contains("panic=\"the very reason\""), "{errors}");
    Ok(())
}

#[test]
fn explains_where_packets_go() -> Result<()> {
    let rig = rig()?;
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let program = env!("CARGO_BIN_EXE_portwarden");
    let run = |service: &str| {
        rig.node().command(program).args(["explain", service, &manifests, "--hostname-override=node-a"]).run()
    };
    let text = run("demo/web")?;
    let near = rig.topology.pod(0).ip();
    ensure!(text.contains("demo/web, IPv4\n  port p (TCP)\n    cluster IP 10.96.0.10:80\n"), "{text}");
    ensure!(text.contains(&format!("    endpoint {}:8080 on node-a: used: ready\n", near.v4)), "{text}");
    ensure!(text.contains("demo/web, IPv6\n"), "{text}");
    let unknown = rig.program().args(["explain", "web", &manifests]).output()?;
    ensure!(
        unknown.code == Some(1)
            && unknown.stdout.contains("Service default/web is not proxied")
            && unknown.stdout.contains("did you mean demo/web?"),
        "{unknown:?}"
    );
    Ok(())
}

/// What kube-proxy leaves in ipvs mode, as far as a kernel without IPVS allows: a bridge takes the place of the dummy device.
#[test]
fn a_clean_up_removes_what_ipvs_mode_left() -> Result<()> {
    let rig = Rig::new()?;
    let run = |program: &str, arguments: &str| rig.node().command(program).args(arguments.split(' ')).run();
    run("ip", "link add kube-ipvs0 type bridge")?;
    for set in ["KUBE-CLUSTER-IP", "KUBE-LOAD-BALANCER-FW", "KUBE-6-LOOP-BACK", "mine"] {
        run("ipset", &format!("create {set} hash:ip,port"))?;
    }
    for line in [
        "-t nat -N KUBE-SERVICES",
        "-t nat -N KUBE-LOAD-BALANCER",
        "-t nat -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-LOAD-BALANCER",
        "-t filter -N KUBE-IPVS-FILTER",
        "-t filter -N KUBE-PROXY-FIREWALL",
        "-t filter -N KUBE-SOURCE-RANGES-FIREWALL",
        "-t filter -A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL",
        "-t filter -A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN",
        "-t filter -N mine",
    ] {
        run("iptables-nft", line)?;
    }
    for (from, to, comment) in [
        ("INPUT", "KUBE-IPVS-FILTER", "kubernetes ipvs access filter"),
        ("FORWARD", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    ] {
        rig.node()
            .command("iptables-nft")
            .args(["-I", from, "-m", "comment", "--comment", comment, "-j", to])
            .run()?;
    }
    rig.program().arg("--cleanup").run()?;
    let rules = run("iptables-nft-save", "-c")?;
    ensure!(!rules.contains("KUBE-") && rules.contains(":mine"), "{rules}");
    let sets = run("ipset", "list -n")?;
    ensure!(sets.trim() == "mine", "{sets}");
    ensure!(
        rig.node().command("ip").args(["link", "show", "kube-ipvs0"]).run().is_err(),
        "the device is gone"
    );
    rig.program().arg("--cleanup").run()?;
    Ok(())
}

/// An entry that cannot be parsed may have been meant to exclude any virtual server.
#[test]
fn a_clean_up_with_unreadable_exclusions_leaves_virtual_servers_alone() -> Result<()> {
    let rig = Rig::new()?;
    let run = |arguments: &str| rig.node().command("ip").args(arguments.split(' ')).run();
    let clean_up = |excluded: &str| {
        let config = rig.path("config.yaml");
        rig.write(
            "config.yaml",
            &format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
                 ipvs:\n  excludeCIDRs: [{excluded}]\n"
            ),
        )?;
        rig.program().args(["--cleanup", &format!("--config={}", config.display())]).run()
    };
    clean_up("172.16.0.0/12, 10.0.0.0/33").context("without the device there is nothing to protect")?;
    run("link add kube-ipvs0 type bridge")?;
    let error = format!("{:#}", clean_up("172.16.0.0/12, 10.0.0.0/33").err().context("it is refused")?);
    for words in ["exit status: 1", "10.0.0.0/33", "all virtual servers stay"] {
        ensure!(error.contains(words), "{words}: {error}");
    }
    run("link show kube-ipvs0").context("the device stays, too: it identifies the virtual servers")?;
    clean_up("172.16.0.0/12, 10.0.0.0/8")?;
    ensure!(run("link show kube-ipvs0").is_err(), "the device is gone");
    Ok(())
}

#[test]
fn buffered_info_lines_come_out_in_the_end() -> Result<()> {
    let rig = Rig::new()?;
    let target = format!("--write-config-to={}", rig.path("written.yaml").display());
    let flags = [
        "--feature-gates=LoggingAlphaOptions=true",
        "--log-text-split-stream",
        "--log-text-info-buffer-size=64Ki",
        "--log-flush-frequency=1h",
        &target,
    ];
    let out = rig.program().args(flags).run()?;
    ensure!(out.contains("\"Wrote configuration\""), "{out}");
    Ok(())
}

#[test]
fn the_words_that_operators_search_for_are_in_the_log() -> Result<()> {
    let mut rig = rig()?;
    rig.start(&["--proxy-mode=nftables", "-v=4"])?;
    rig.wait_for_service(web(true))?;
    for words in [
        "\"Version info\"",
        "\"Using nftables Proxier\"",
        "\"kube-proxy running in dual-stack mode\"",
        "\"Successfully retrieved NodeIPs\"",
        "\"Detect-local-mode set to ClusterCIDR, but no cluster CIDR specified for primary IP family\"",
        "\"Starting healthz HTTP server\" address=\"0.0.0.0:10256\"",
        "\"Started\" healthz=\"[::]:10256\" metrics=\"127.0.0.1:10249\"",
        "\"Starting service config controller\"",
        "\"Starting endpoint slice config controller\"",
        "\"Starting serviceCIDR config controller\"",
        "\"Starting node config controller\"",
        "\"Waiting for caches to sync\" controller=\"service config\"",
        "\"Caches are synced\" controller=\"service config\"",
        "\"Caches are synced\" controller=\"endpoint slice config\"",
        "\"Caches are synced\" controller=\"serviceCIDR config\"",
        "\"Caches are synced\" controller=\"node config\"",
        "\"nftables sync params\" minSyncPeriod=\"adaptive\" syncPeriod=\"30s\" maxSyncPeriod=\"3600s\"",
        "\"Syncing nftables rules\" ipFamily=\"IPv4\" fullSync=true",
        "\"Reloading service nftables data\" ipFamily=\"IPv4\" numServices=1 numEndpoints=2",
        "\"SyncProxyRules complete\"",
        "] FLAG: --proxy-mode=\"nftables\"\n",
    ] {
        rig.wait_for_log(words)?;
    }
    Ok(())
}

#[test]
fn node_ports_on_loopback_are_announced_where_mode_iptables_opens_them() -> Result<()> {
    for (addresses, announced) in [("all", true), ("primary", false)] {
        let mut rig = rig()?;
        rig.start(&["--proxy-mode=iptables", "--nodeport-addresses", addresses, "-v=2"])?;
        rig.wait_for_service(web(true))?;
        rig.wait_for_log("\"Using iptables Proxier\"")?;
        ensure!(rig.log().contains("\"Setting route_localnet=1") == announced, "{addresses}: {}", rig.log());
    }
    Ok(())
}

#[test]
fn a_liberal_conntrack_is_logged_and_leaves_a_rule_out() -> Result<()> {
    let sysctl = "net.netfilter.nf_conntrack_tcp_be_liberal";
    for (value, liberal) in [("0", false), ("1", true)] {
        let mut rig = rig()?;
        rig.command("sysctl").args(["-qw", &format!("{sysctl}={value}")]).run()?;
        rig.start_mode("iptables")?;
        rig.wait_for_service(web(true))?;
        let words = "\"nf_conntrack_tcp_be_liberal set, not installing DROP rules for INVALID packets\" ipFamily=\"IPv4\"";
        ensure!(rig.log().contains(words) == liberal, "{value}: {}", rig.log());
        let rules = rig.command("iptables-save").run()?;
        ensure!(rules.contains("--ctstate INVALID") != liberal, "{value}: {rules}");
    }
    Ok(())
}
