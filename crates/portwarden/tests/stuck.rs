//! Things around the program that hang: none of them keeps a change out of the kernel, and what does is seen in its health.

mod support;

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use portwarden_testkit::Transport;
use support::{HEALTH, METRICS, Rig, cluster_cidr, node, service, slice};

const CLUSTER_IP: &str = "10.96.0.10";

fn web() -> SocketAddr {
    SocketAddr::new(CLUSTER_IP.parse().expect("an address"), 80)
}

/// `demo/web` with one endpoint, in the pod of this number.
fn write_objects(rig: &Rig, pod: usize) -> Result<()> {
    let pod = rig.topology.pod(pod);
    let endpoints = [(pod.ip().v4.into(), "node-a")];
    rig.objects(&[
        node(),
        service("web", CLUSTER_IP, "fd00:10:96::10", "TCP", ""),
        slice("web", "TCP", &endpoints, 8080),
    ])
}

/// A node whose Service leads to the first of two pods, and no program yet.
fn rig() -> Result<Rig> {
    let rig = Rig::new()?;
    for pod in [0, 1] {
        rig.topology.pod(pod).serve(Transport::Tcp, 8080)?;
    }
    write_objects(&rig, 0)?;
    Ok(rig)
}

/// Moves the Service to the second pod, and waits until the kernel does so too.
fn a_change_reaches_the_kernel(rig: &Rig) -> Result<()> {
    write_objects(rig, 1)?;
    let pod = rig.topology.pod(1);
    rig.wait_until("the second pod to answer", || {
        Ok(rig.node().tcp(web()).is_ok_and(|outcome| outcome.host() == Some(pod.name())))
    })
}

#[test]
fn a_log_that_nothing_reads_stops_no_change() -> Result<()> {
    let mut rig = rig()?;
    let (unread, mut log) = std::io::pipe()?;
    // As much as a pipe holds: the next write of a line would wait for ever.
    log.write_all(&[b'\n'; 65536])?;
    let (manifests, cidr) = (format!("--manifests={}", rig.path("manifests").display()), cluster_cidr());
    let arguments = [manifests.as_str(), "--proxy-mode=nftables", "--cluster-cidr", &cidr, "-v=6"];
    rig.start_logging_to(fs::File::from(OwnedFd::from(log)), &arguments)?;
    rig.wait_for_service(web())?;
    a_change_reaches_the_kernel(&rig)?;
    for round in 0..300 {
        // Each of them is worth several lines at this verbosity, so that in the end the queue is full as well.
        write_objects(&rig, round % 2)?;
        if rig.metric("portwarden_log_lines_dropped_total")? > 0.0 {
            break;
        }
    }
    a_change_reaches_the_kernel(&rig)?;
    drop(unread);
    Ok(())
}

/// Leftovers of other modes are looked for with programs that may hang.
#[test]
fn an_iptables_that_hangs_keeps_no_change_out_of_nftables_mode() -> Result<()> {
    let mut rig = rig()?;
    fs::create_dir(rig.path("bin"))?;
    for program in ["iptables", "ip6tables"] {
        for variant in ["", "-nft", "-legacy"] {
            for kind in ["", "-save", "-restore"] {
                let path = rig.path("bin").join(format!("{program}{variant}{kind}"));
                fs::write(&path, "#!/bin/sh\nexec sleep 1000\n")?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            }
        }
    }
    rig.start_mode("nftables")?;
    rig.wait_for_service(web())?;
    a_change_reaches_the_kernel(&rig)?;
    ensure!(rig.get(METRICS, "/metrics")?.1.contains("portwarden_engine_stuck 0"), "the engine is not stuck");
    ensure!(rig.stop()?.success(), "it ends although a program hangs");
    Ok(())
}

/// Changes cannot be written, which health reports, and are when the lock is free.
#[test]
fn a_lock_that_another_process_holds_is_seen_in_health() -> Result<()> {
    let mut rig = rig()?;
    rig.use_iptables("legacy")?;
    let cidr = cluster_cidr();
    rig.start(&["--proxy-mode=iptables", "--cluster-cidr", &cidr, "--iptables-sync-period=1s", "-v=2"])?;
    rig.wait_for_service(web())?;
    rig.wait_until("good health", || Ok(rig.get(HEALTH, "/healthz")?.0 == 200))?;
    let file = fs::File::options().create(true).append(true).open(rig.path("xtables.lock"))?;
    let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    write_objects(&rig, 1)?;
    for page in ["/healthz", "/livez"] {
        rig.wait_until("bad health", || Ok(rig.get(HEALTH, page)?.0 == 503))?;
    }
    let first = rig.topology.pod(0);
    ensure!(rig.node().tcp(web())?.host() == Some(first.name()), "the rules in force stay");
    drop(lock);
    a_change_reaches_the_kernel(&rig)?;
    rig.wait_until("good health", || Ok(rig.get(HEALTH, "/healthz")?.0 == 200))
}

/// A pipe in the place of the configuration file, without a writer.
#[test]
fn a_pipe_instead_of_the_configuration_stops_neither_servers_nor_changes() -> Result<()> {
    let mut rig = rig()?;
    let config = |extra: &str| {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: \"{}\"\n\
             conntrack: {{maxPerCore: 0}}\n{extra}",
            cluster_cidr()
        )
    };
    rig.write("config.yaml", &config(""))?;
    let path = rig.path("config.yaml");
    rig.start(&["--config", path.to_str().context("a plain path")?])?;
    rig.wait_for_service(web())?;
    let pipe = rig.path("pipe");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU)?;
    fs::rename(&pipe, &path)?;
    rig.signal(Signal::SIGHUP)?;
    rig.wait_for_log("it is not a regular file")?;
    ensure!(rig.get(HEALTH, "/livez")?.0 == 200);
    a_change_reaches_the_kernel(&rig)?;
    rig.write("config.yaml", &config("oomScoreAdj: -7\n"))?;
    rig.wait_for_log("oomScoreAdj")
}

/// Many half-open requests to health-check ports use up the descriptors; the node's own health still answers.
#[test]
fn without_descriptors_the_health_of_the_node_still_answers() -> Result<()> {
    let mut rig = rig()?;
    let pod = rig.topology.pod(0).ip();
    let ports = 31000..31008_u16;
    let mut objects = vec![node()];
    for port in ports.clone() {
        let name = format!("s{port}");
        let (v4, v6) = (format!("10.96.1.{}", port - 31000), format!("fd00:10:96::1:{}", port - 31000));
        let spec =
            format!("  type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: {port}\n");
        objects.push(service(&name, &v4, &v6, "TCP", &spec).replace(", nodePort: 30080", ""));
        objects.push(slice(&name, "TCP", &[(pod.v4.into(), "node-a")], 8080));
    }
    rig.objects(&objects)?;
    let (manifests, cidr) = (format!("--manifests={}", rig.path("manifests").display()), cluster_cidr());
    let program = env!("CARGO_BIN_EXE_portwarden");
    let limited =
        rig.command("prlimit").args(["--nofile=64:128", program, &manifests, "--cluster-cidr", &cidr]);
    rig.start_command(limited.args([
        "--nodeport-addresses=all",
        "--proxy-mode=nftables",
        "--hostname-override=node-a",
        "--conntrack-max-per-core=0",
    ]))?;
    rig.wait_until("the last port to open", || Ok(rig.get(31007, "/")?.0 == 200))?;
    ensure!(rig.metric("process_max_fds")? >= 128.0, "the soft limit is raised to the hard one");
    let half_open = rig.node().namespace().run(move || {
        let mut all = Vec::new();
        for port in ports.cycle().take(200) {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
            stream.write_all(b"GET / HTTP/1.1\r\n")?;
            all.push(stream);
        }
        Ok(all)
    })?;
    rig.wait_for_log("Cannot accept connections")?;
    // Over some time: the other ports take every descriptor that becomes free.
    for _ in 0..50 {
        ensure!(rig.get(HEALTH, "/livez")?.0 == 200);
        thread::sleep(Duration::from_millis(20));
    }
    drop(half_open);
    rig.wait_until("the other ports to answer again", || Ok(rig.get(31000, "/")?.0 == 200))?;
    ensure!(rig.log().matches("Cannot accept connections").count() <= 10, "{}", rig.log());
    Ok(())
}
