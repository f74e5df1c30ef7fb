//! Mode ipvs, inside a kernel that has IPVS: `scripts/bench` runs it in user-mode Linux. IPVS sends no notifications, so the kernel is asked.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use portwarden_netlink::ipvs::{Ipvs, ServerKey};
use portwarden_netlink::route::Route;

use crate::cluster::{Mark, Size, service_ip};
use crate::measure::{Plan, Stage, print_line, show, show_memory};
use crate::result::{Memory, Run, Times, milliseconds};
use crate::subject::{Running, Subject};

/// Least time between two looks at all virtual servers.
const LOOK: Duration = Duration::from_millis(20);

/// A look at all virtual servers takes some of the only processor, which the program needs: at most one part in so many.
const SHARE_OF_LOOKS: u32 = 20;

/// Starts a program once with a single Service, so that the kernel's modules are loaded and its file is read: whichever program is measured
/// first would pay for that.
pub(crate) fn warm_up(subject: &Subject, plan: &Plan) -> Result<()> {
    let stage = Stage::new(Size { services: 1, endpoints: 1 })?;
    let mut running = subject.start(stage.topology.node(), "ipvs", &stage.kubeconfig, stage.folder.path())?;
    if !stage.await_sync(&mut running, plan.timeout, &mut Memory::default())? {
        bail!("{} does not start; its last log lines:\n{}", subject.name, running.last_log_lines());
    }
    Ok(())
}

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
    let (mut kernel, mut route) = {
        let _inside = stage.topology.node().namespace().enter()?;
        (Ipvs::open()?.context("this kernel has no IPVS; run it in scripts/uml")?, Route::open()?)
    };
    let began = Instant::now();
    let mut running = subject.start(stage.topology.node(), "ipvs", &stage.kubeconfig, stage.folder.path())?;
    let wanted = usize::try_from(size.services)? + stage.sentinels();
    let last = service_ip(size.services - 1);
    let synced = match await_servers(&mut kernel, &mut running, last, wanted, plan.timeout) {
        Ok(there) => Ok(there
            && await_address(&mut route, last, plan.timeout)?
            && stage.await_sync(&mut running, plan.timeout, &mut run.memory)?),
        Err(error) => Err(error),
    };
    let why_not = match synced {
        Ok(true) => None,
        Ok(false) => Some(format!("not synced within {:?}", plan.timeout)),
        // Of what it is compared with, the figures so far are worth keeping.
        Err(error) if !subject.ours => Some(format!("{error:#}\n   not synced")),
        Err(error) => return Err(error),
    };
    if let Some(why_not) = why_not {
        run.start_at_least_seconds = Some(began.elapsed().as_secs_f64());
        let memory =
            running.resident().map_or(String::new(), |bytes| format!(" and {:.1} MB", bytes as f64 / 1e6));
        let servers = kernel.servers()?.len();
        let note = format!(
            "{why_not}, with {servers} of {wanted} virtual servers{memory}; nothing else was measured"
        );
        print_line(&note);
        run.notes.push(note);
        return Ok(run);
    }
    let (elapsed, processor) = (began.elapsed().as_secs_f64(), running.processor()?.as_secs_f64());
    run.starts = 1;
    run.start_seconds = Some(elapsed);
    run.start_processor_seconds = Some(processor);
    print_line(&format!("start to synced: {elapsed:.3} s, {processor:.2} s of the processor"));
    std::thread::sleep(Duration::from_secs(2));
    print_line(&running.memory_by_kind()?);
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

/// Waits until all virtual servers are there: first for the last one, which costs little, then for all.
fn await_servers(
    kernel: &mut Ipvs,
    running: &mut Running,
    last: Ipv4Addr,
    wanted: usize,
    timeout: Duration,
) -> Result<bool> {
    let last = ServerKey { address: SocketAddr::new(last.into(), 80), protocol: 6 };
    let deadline = Instant::now() + timeout;
    loop {
        let look = Instant::now();
        if !kernel.real_servers(&last)?.is_empty() && kernel.servers()?.len() >= wanted {
            return Ok(true);
        }
        let cost = look.elapsed();
        if !running.process.is_running() {
            bail!("it ended; its last log lines:\n{}", running.last_log_lines());
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(LOOK.max(cost * SHARE_OF_LOOKS));
    }
}

/// Waits until packets to an address reach the node.
fn await_address(route: &mut Route, ip: Ipv4Addr, timeout: Duration) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    while !route.is_local(ip.into())? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
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
