//! Failures of the iptables programs: the log explains them, the other family continues, and the program recovers when the cause is
//! gone.

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use portwarden_testkit::Transport;
use support::{HEALTH, Rig, cluster_cidr, node, service, slice};

const V4: &str = "10.96.0.53";
const V6: &str = "fd00:10:96::53";

/// A node with a Service of both families, on which `iptables-restore` is a script.
fn node_with_broken_restore(script: &str) -> Result<Rig> {
    let mut rig = Rig::new()?;
    rig.use_iptables("nft")?;
    replace(&rig, "iptables-restore", script)?;
    let pod = rig.topology.pod(0).ip();
    rig.objects(&[
        node(),
        service("web", V4, V6, "TCP", ""),
        slice("web", "TCP", &[(pod.v4.into(), "node-a")], 8080),
        slice("web", "TCP", &[(pod.v6.into(), "node-a")], 8080),
    ])?;
    let cidr = cluster_cidr();
    rig.start(&["--proxy-mode=iptables", "--cluster-cidr", &cidr, "--iptables-sync-period=1s", "-v=2"])?;
    Ok(rig)
}

/// Puts a script in the place of one of the programs.
fn replace(rig: &Rig, program: &str, script: &str) -> Result<()> {
    let program = rig.path("bin").join(program);
    fs::remove_file(&program)?;
    fs::write(&program, format!("#!/bin/sh\n{script}\n"))?;
    Ok(fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?)
}

fn last_sync(family: &str) -> String {
    format!("kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}}")
}

/// The reason is logged with advice, IPv6 is in force, health turns to 503, and IPv4 follows when the program works again.
fn is_explained_and_overcome(script: &str, explanation: &str) -> Result<()> {
    let rig = node_with_broken_restore(script)?;
    rig.wait_until("the first sync of the other family", || Ok(rig.metric(&last_sync("IPv6"))? > 0.0))?;
    rig.wait_for_log(explanation)?;
    rig.wait_for_log("\"Failed to execute iptables-restore\" ipFamily=\"IPv4\" err=")?;
    rig.wait_for_log("\"Sync failed\" ipFamily=\"IPv4\" mode=\"iptables\" retryingTime=")?;
    rig.wait_until("health to turn", || Ok(rig.get(HEALTH, "/healthz")?.0 == 503))?;
    ensure!(rig.metric(&last_sync("IPv4")).unwrap_or(0.0) == 0.0, "IPv4 cannot be in force");
    let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total";
    let failed = rig.metric(&format!("{failures}{{ip_family=\"IPv4\"}}"))?;
    ensure!(failed > 0.0, "failures are counted");

    rig.link_iptables("iptables", "nft", "-restore")?;
    rig.wait_until("the first sync", || Ok(rig.metric(&last_sync("IPv4"))? > 0.0))?;
    rig.wait_until("health to be back", || Ok(rig.get(HEALTH, "/healthz")?.0 == 200))
}

#[test]
fn a_missing_match_is_explained_and_overcome() -> Result<()> {
    is_explained_and_overcome(
        "echo \"iptables-restore v1.8.9 (nf_tables): Couldn't load match \\`recent':No such file or directory\" >&2\n\
         echo 'Error occurred at line: 2' >&2\nexit 2",
        "the installed iptables lacks this extension",
    )
}

#[test]
fn a_missing_kernel_module_is_explained_and_overcome() -> Result<()> {
    is_explained_and_overcome(
        "echo 'Warning: Extension recent revision 0 not supported, missing kernel module?' >&2\n\
         echo 'iptables-restore v1.8.9 (nf_tables): ' >&2\n\
         echo 'line 2: RULE_APPEND failed (No such file or directory): rule in chain KUBE-SERVICES' >&2\nexit 4",
        "load the kernel module of this match or target",
    )
}

#[test]
fn a_program_that_cannot_run_is_explained_and_overcome() -> Result<()> {
    is_explained_and_overcome("exit 127", "(exit status: 127): it gave no reason")
}

#[test]
fn a_family_without_iptables_is_left_out_and_a_host_without_any_is_reported() -> Result<()> {
    let mut rig = Rig::new()?;
    rig.use_iptables("nft")?;
    rig.objects(&[node()])?;
    replace(&rig, "ip6tables", "exit 1")?;
    rig.start(&["--proxy-mode=iptables"])?;
    rig.wait_for_log("\"No iptables support for family\" ipFamily=\"IPv6\"")?;
    rig.wait_for_log("\"kube-proxy running in single-stack mode\" ipFamily=\"IPv4\"")?;
    rig.wait_until("the first sync", || Ok(rig.metric(&last_sync("IPv4"))? > 0.0))?;
    ensure!(rig.metric(&last_sync("IPv6")).is_err(), "IPv6 is not served");
    rig.kill();
    replace(&rig, "iptables", "exit 1")?;
    let manifests = format!("--manifests={}", rig.path("manifests").display());
    let command =
        rig.program().args([manifests.as_str(), "--proxy-mode=iptables", "--conntrack-max-per-core=0"]);
    let error = format!("{:#}", command.run().err().context("it cannot run")?);
    ensure!(error.contains("mode iptables cannot be used on this host"), "{error}");
    Ok(())
}

/// As in kube-proxy: a refused partial restore counts, although a full one succeeds in the same sync.
#[test]
fn a_refused_partial_restore_is_counted_although_a_full_one_follows() -> Result<()> {
    let mut rig = Rig::new()?;
    // Without notifications, so that the change below is the first to detect it.
    rig.use_iptables("legacy")?;
    let pods = [0, 1].map(|pod| (rig.topology.pod(pod).ip().v4.into(), "node-a"));
    rig.objects(&[node(), service("web", V4, V6, "TCP", ""), slice("web", "TCP", &pods[..1], 8080)])?;
    for pod in [0, 1] {
        rig.topology.pod(pod).serve(Transport::Tcp, 8080)?;
    }
    rig.start_mode("iptables")?;
    rig.wait_until("the first sync", || Ok(rig.metric(&last_sync("IPv4"))? > 0.0))?;
    let failures = |kind: &str| {
        rig.metric(&format!(
            "kubeproxy_sync_proxy_rules_iptables_{kind}_failures_total{{ip_family=\"IPv4\"}}"
        ))
    };
    ensure!(failures("partial_restore").is_err(), "nothing has failed yet");
    for flush in ["-F", "-X"] {
        rig.command("iptables-legacy").args(["-w", "5", "-t", "nat", flush]).run()?;
    }
    rig.objects(&[node(), service("web", V4, V6, "TCP", ""), slice("web", "TCP", &pods, 8080)])?;
    rig.wait_until("the count of partial syncs", || Ok(failures("partial_restore")? > 0.0))?;
    ensure!(failures("partial_restore")? == 1.0 && failures("restore")? == 1.0, "each of them once");
    rig.wait_for_service(SocketAddr::new(V4.parse()?, 80))
}

/// IPv6 changes reach the kernel while an `iptables-restore` hangs, and health shows the other family as late.
#[test]
fn a_restore_that_hangs_does_not_keep_the_other_family_waiting() -> Result<()> {
    let rig = node_with_broken_restore("exec sleep 1000")?;
    rig.wait_until("the first sync of the other family", || Ok(rig.metric(&last_sync("IPv6"))? > 0.0))?;
    rig.wait_for_log("The sync continues in the background")?;
    let pod = rig.topology.pod(0).ip();
    let other = "fd00:10:96::54";
    rig.objects(&[
        node(),
        service("other", "10.96.0.54", other, "TCP", ""),
        slice("other", "TCP", &[(pod.v6.into(), "node-a")], 8080),
    ])?;
    rig.topology.pod(0).serve(Transport::Tcp, 8080)?;
    rig.wait_for_service(SocketAddr::new(other.parse()?, 80))?;
    rig.wait_until("health to turn", || Ok(rig.get(HEALTH, "/healthz")?.0 == 503))?;
    ensure!(rig.metric(&last_sync("IPv4")).unwrap_or(0.0) == 0.0, "IPv4 cannot be in force");
    Ok(())
}

/// An inherited PATH does not choose what runs with our rights.
#[test]
fn a_program_in_path_is_not_run() -> Result<()> {
    let mut rig = Rig::new()?;
    rig.use_iptables("nft")?;
    rig.objects(&[node()])?;
    let folder = rig.path("elsewhere");
    fs::create_dir(&folder)?;
    for program in ["iptables", "iptables-save", "iptables-restore", "iptables-nft", "iptables-legacy"] {
        let file = folder.join(program);
        fs::write(&file, format!("#!/bin/sh\ntouch {}\n", rig.path("was-run").display()))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    let path = std::env::var("PATH").context("PATH is set")?;
    rig.env("PATH", format!("{}:{path}", folder.display()));
    rig.start(&["--proxy-mode=iptables"])?;
    rig.wait_until("the first sync", || Ok(rig.metric(&last_sync("IPv4"))? > 0.0))?;
    ensure!(!rig.path("was-run").exists(), "a program from PATH was run");
    Ok(())
}

/// A restore that outlives us would overwrite the rules of our successor.
#[test]
fn a_restore_ends_with_us_even_when_we_are_killed() -> Result<()> {
    a_restore_ends_with_us(|rig| {
        rig.kill();
        Ok(())
    })
}

/// A stop waits for a running sync, but not for ever.
#[test]
fn a_restore_that_hangs_ends_with_us_when_we_are_stopped() -> Result<()> {
    a_restore_ends_with_us(|rig| {
        ensure!(rig.stop()?.success());
        Ok(())
    })
}

fn a_restore_ends_with_us(end: impl FnOnce(&mut Rig) -> Result<()>) -> Result<()> {
    let mut rig = Rig::new()?;
    let pid_file = rig.path("restore.pid");
    rig.use_iptables("nft")?;
    replace(&rig, "iptables-restore", &format!("echo $$ > {}; exec sleep 1000", pid_file.display()))?;
    rig.objects(&[node()])?;
    rig.start(&["--proxy-mode=iptables"])?;
    let restore = || Ok(fs::read_to_string(&pid_file)?.trim().to_owned());
    rig.wait_until("the restore to start", || restore().map(|id: String| !id.is_empty()))?;
    end(&mut rig)?;
    let restore = format!("/proc/{}", restore()?);
    rig.wait_until("the restore to end", || Ok(!fs::exists(&restore)?))
}
