//! Things around the program that hang: none of them keeps a change out of the kernel, and what does is seen in its health.

mod support;

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};
use portwarden_testkit::Transport;
use support::{METRICS, Rig, cluster_cidr, node, service, slice};

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
