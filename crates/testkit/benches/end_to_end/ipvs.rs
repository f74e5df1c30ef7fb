//! Mode ipvs, inside a kernel that has IPVS: `scripts/bench` runs it in user-mode Linux. IPVS sends no notifications, so the kernel is asked.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use portwarden_netlink::ipvs::{Ipvs, ServerKey};

use crate::cluster::{Mark, Size, service_ip};
use crate::measure::{Plan, Stage, print_line, show, show_memory};
use crate::result::{Run, Times, milliseconds};
use crate::subject::{Running, Subject};

/// Time between two looks at the number of virtual servers: each takes some of the only processor.
const LOOK: Duration = Duration::from_millis(50);

/// Measures the start, single changes and memory.
pub(crate) fn measure(subject: &Subject, size: Size, plan: &Plan) -> Result<Run> {
    let mut run = Run {
        subject: subject.name.to_owned(),
        ours: subject.ours,
        mode: "ipvs".to_owned(),
        services: size.services,
        endpoints: size.endpoints,
        change_pause_ms: milliseconds(plan.pause),
        ..Run::default()
    };
    let mut stage = Stage::new(size)?;
    let mut kernel = {
        let _inside = stage.topology.node().namespace().enter()?;
        Ipvs::open()?.context("this kernel has no IPVS; run it in scripts/uml")?
    };
    let began = Instant::now();
    let mut running = subject.start(stage.topology.node(), "ipvs", &stage.kubeconfig, stage.folder.path())?;
    let wanted = usize::try_from(size.services)? + stage.sentinels();
    if !await_servers(&mut kernel, &mut running, wanted, plan.timeout)?
        || !stage.await_sync(&mut running, plan.timeout, &mut run.memory)?
    {
        run.notes.push(format!("not synced within {:?}; nothing else was measured", plan.timeout));
        print_line(run.notes.last().map_or("", String::as_str));
        return Ok(run);
    }
    run.starts = 1;
    run.start_seconds = Some(began.elapsed().as_secs_f64());
    run.start_processor_seconds = Some(running.processor()?.as_secs_f64());
    print_line(&format!("start to synced: {:.3} s", began.elapsed().as_secs_f64()));
    std::thread::sleep(Duration::from_secs(2));
    run.memory.synced = running.resident()?;
    run.change = changes(&mut stage, &mut kernel, plan, &mut run.notes)?;
    let shown = run.change.map(|times| format!("change to kernel: {}", show(times)));
    print_line(&shown.unwrap_or_else(|| "no change arrived".to_owned()));
    run.memory.churned = running.resident()?;
    print_line(&format!("memory: {}", show_memory(run.memory)));
    run.wrong.extend(verify(&stage, &mut kernel)?);
    run.wrong.iter().for_each(|wrong| print_line(wrong));
    Ok(run)
}

/// Waits until all virtual servers are there.
fn await_servers(kernel: &mut Ipvs, running: &mut Running, wanted: usize, timeout: Duration) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    while kernel.servers()?.len() < wanted {
        if !running.process.is_running() {
            bail!("it ended; its last log lines:\n{}", running.last_log_lines());
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// Whether the next change reaches the kernel in time.
pub(crate) fn change_arrives(stage: &mut Stage, kernel: &mut Ipvs, timeout: Duration) -> Result<bool> {
    let service = stage.next_service();
    let (object, marks) = stage.cluster.replace(service, 1);
    let wanted: Vec<Ipv4Addr> = marks.into_iter().map(Mark::address).collect();
    stage.server.apply(object);
    await_endpoints(kernel, &key(service), &wanted, timeout)
}

/// One change at a time.
fn changes(
    stage: &mut Stage,
    kernel: &mut Ipvs,
    plan: &Plan,
    notes: &mut Vec<String>,
) -> Result<Option<Times>> {
    let mut times = Vec::new();
    let mut missed = 0;
    for _ in 0..plan.changes {
        std::thread::sleep(plan.pause);
        let written = Instant::now();
        if change_arrives(stage, kernel, plan.timeout)? {
            times.push(written.elapsed());
        } else {
            missed += 1;
        }
        if missed > 2 {
            break;
        }
    }
    if missed > 0 {
        notes.push(format!("{missed} single changes did not reach the kernel within {:?}", plan.timeout));
    }
    Ok(Times::of(times))
}

fn await_endpoints(
    kernel: &mut Ipvs,
    key: &ServerKey,
    wanted: &[Ipv4Addr],
    timeout: Duration,
) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        let reals: BTreeSet<_> =
            kernel.real_servers(key)?.into_iter().map(|real| real.address.ip()).collect();
        if wanted.iter().all(|ip| reals.contains(&(*ip).into())) {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(false)
}

/// Whether the kernel has exactly the endpoints that it should have.
fn verify(stage: &Stage, kernel: &mut Ipvs) -> Result<Option<String>> {
    let mut installed = BTreeSet::new();
    for service in 0..stage.cluster.size.services {
        let reals = kernel.real_servers(&key(service))?;
        installed.extend(reals.into_iter().filter(|real| real.weight > 0).map(|real| real.address.ip()));
    }
    let wanted: BTreeSet<_> = stage.cluster.addresses().map(std::net::IpAddr::from).collect();
    let (missing, left) = (wanted.difference(&installed).count(), installed.difference(&wanted).count());
    Ok((missing + left > 0)
        .then(|| format!("by a listing, {missing} endpoints are missing and {left} are left over")))
}

fn key(service: u32) -> ServerKey {
    ServerKey { address: SocketAddr::new(service_ip(service).into(), 80), protocol: 6 }
}
