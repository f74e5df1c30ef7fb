//! The measurements: one program, one mode, one size of cluster.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use portwarden_testkit::apiserver::ApiServer;
use portwarden_testkit::build::{endpoint, port, service, service_cidr, slice};
use portwarden_testkit::rig::Rig;
use portwarden_testkit::{Topology, Transport};
use tempfile::TempDir;

use crate::cluster::{Cluster, Mark, Size};
use crate::kernel::{Listener, installed_endpoints};
use crate::result::{Churn, Memory, Rolling, Run, Times, milliseconds};
use crate::subject::{Running, Subject};

/// A change that takes longer is late.
const LATE: Duration = Duration::from_secs(1);
/// Services that take part in the rolling update.
const ROLLING_SERVICES: u32 = 500;
/// Steps in which all pods of a Service are replaced, as a Deployment does it by default.
const ROLLING_STEPS: u32 = 4;
/// The server keeps so many of the last changes, as those who watch may be a little behind.
const KEPT_CHANGES: u64 = 20_000;
/// Services whose connections show that everything is in force: in the order of names, one before all others and one behind.
const SENTINELS: [(&str, u8); 2] = [("a-sentinel", 10), ("z-sentinel", 11)];

/// How much is measured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) starts: usize,
    pub(crate) changes: usize,
    /// Quiet time before each of these changes.
    pub(crate) pause: Duration,
    pub(crate) churn_rates: Vec<u32>,
    pub(crate) churn_seconds: u32,
    /// How long the first sync may take.
    pub(crate) timeout: Duration,
}

/// Measures everything.
pub(crate) fn measure(subject: &Subject, mode: &str, size: Size, plan: &Plan) -> Result<Run> {
    let mut run = Run {
        subject: subject.name.to_owned(),
        ours: subject.ours,
        mode: mode.to_owned(),
        services: size.services,
        endpoints: size.endpoints,
        change_pause_ms: milliseconds(plan.pause),
        ..Run::default()
    };
    let mut stage = Stage::new(size)?;
    let Some(running) = stage.starts(subject, mode, plan, &mut run)? else { return Ok(run) };
    let listener = Listener::start(stage.topology.node().namespace())?;
    listener.wait_for_quiet(Duration::from_millis(1500), Duration::from_secs(20));
    run.memory.synced = running.resident()?;
    run.change = stage.changes(&listener, plan, &mut run.notes)?;
    print_line(
        &run.change
            .map_or("no change arrived".to_owned(), |times| format!("change to kernel: {}", show(times))),
    );
    for rate in &plan.churn_rates {
        let churn = stage.churn(&running, &listener, *rate, plan.churn_seconds)?;
        print_line(&format!(
            "{rate} changes/s: lag {}, {} late, {} lost, {:.1} % of a core, {:.1} MB; {:.0}/s achieved",
            show(churn.lag),
            churn.late,
            churn.lost,
            churn.share_of_core * 100.0,
            running.resident()? as f64 / 1e6,
            churn.achieved
        ));
        run.churn.push(churn);
    }
    let rolling = stage.roll(&listener)?;
    print_line(&format!(
        "rolling update of {} services: {:.2} s, {:.1} ms behind the last write",
        rolling.services, rolling.seconds, rolling.behind
    ));
    run.rolling = Some(rolling);
    listener.wait_for_quiet(Duration::from_secs(2), Duration::from_secs(20));
    run.memory.churned = running.resident()?;
    print_line(&format!("memory: {}", show_memory(run.memory)));
    stage.verify(listener, subject, mode, &mut run)?;
    Ok(run)
}

/// A node, an API server, and the cluster in it.
pub(crate) struct Stage {
    pub(crate) topology: Topology,
    pub(crate) server: ApiServer,
    pub(crate) cluster: Cluster,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) folder: TempDir,
    /// Services are changed in an order that has nothing to do with their names.
    next: u32,
}

impl Stage {
    pub(crate) fn new(size: Size) -> Result<Stage> {
        let topology = Topology::builder().pods(1).build()?;
        topology.pod(0).serve(Transport::Tcp, 8080)?;
        let server = {
            let _inside = topology.node().namespace().enter()?;
            ApiServer::builder().tls().start()?
        };
        let cluster = Cluster::new(size);
        server.load(cluster.objects());
        server.apply(Rig::node());
        server.apply(service_cidr("kubernetes", ["10.96.0.0/12"]));
        for (name, number) in SENTINELS {
            let ip = Ipv4Addr::new(10, 96, 0, number);
            server.apply(service(name).cluster_ip(ip).port(port(80).name("http")));
            let pod = endpoint(topology.pod(0).ip().v4).on("node-a");
            server.apply(slice(name, name).port(port(8080).name("http")).endpoint(pod));
        }
        server.compact();
        server.prepare();
        let folder = tempfile::tempdir()?;
        let kubeconfig = server.kubeconfig(folder.path(), "")?;
        Ok(Stage { topology, server, cluster, kubeconfig, folder, next: 0 })
    }

    /// Starts the program several times on an empty node; it runs on after the last time.
    fn starts(&self, subject: &Subject, mode: &str, plan: &Plan, run: &mut Run) -> Result<Option<Running>> {
        let mut times = Vec::new();
        loop {
            let began = Instant::now();
            let mut running =
                subject.start(self.topology.node(), mode, &self.kubeconfig, self.folder.path())?;
            let synced = self.await_sync(&mut running, plan.timeout, &mut run.memory)?;
            if !synced {
                run.notes.push(format!("not synced within {:?}; nothing else was measured", plan.timeout));
                print_line(run.notes.last().map_or("", String::as_str));
                return Ok(None);
            }
            times.push(began.elapsed());
            print_line(&format!("start to synced: {:.3} s", began.elapsed().as_secs_f64()));
            if times.len() == plan.starts {
                run.starts = times.len();
                run.start_processor_seconds = Some(running.processor()?.as_secs_f64());
                run.start_seconds = Times::of(times).map(|times| times.p50 / 1e3);
                return Ok(Some(running));
            }
            drop(running);
            self.topology.node().command("nft").args(["flush", "ruleset"]).run()?;
        }
    }

    /// How many Services there are beside those of the cluster.
    pub(crate) fn sentinels(&self) -> usize {
        SENTINELS.len()
    }

    /// Waits until connections to both sentinels are answered.
    pub(crate) fn await_sync(
        &self,
        running: &mut Running,
        timeout: Duration,
        memory: &mut Memory,
    ) -> Result<bool> {
        let (began, requests) = (Instant::now(), self.server.requests().len());
        let probe = self.topology.node().probe().timeout(Duration::from_millis(5));
        let mut waiting = SENTINELS.map(|(_, number)| ([10, 96, 0, number], 80).into()).to_vec();
        memory.start = 0;
        while let Some(target) = waiting.last() {
            if probe.tcp(*target)?.is_answered() {
                waiting.pop();
                continue;
            }
            if !running.process.is_running() {
                bail!("it ended; its last log lines:\n{}", running.last_log_lines());
            }
            if began.elapsed() > timeout {
                return Ok(false);
            }
            if memory.start == 0 && self.server.requests().len() > requests {
                memory.start = running.resident()?;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// One change at a time.
    fn changes(
        &mut self,
        listener: &Listener,
        plan: &Plan,
        notes: &mut Vec<String>,
    ) -> Result<Option<Times>> {
        let mut times = Vec::new();
        let mut missed = 0;
        for _ in 0..plan.changes {
            std::thread::sleep(plan.pause);
            let (written, marks) = self.write(listener, 1);
            match marks.first().and_then(|mark| listener.wait_for(*mark, plan.timeout)) {
                Some(seen) => times.push(seen.saturating_duration_since(written)),
                None => missed += 1,
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

    /// Changes at a steady rate.
    fn churn(&mut self, running: &Running, listener: &Listener, rate: u32, seconds: u32) -> Result<Churn> {
        let (began, processor) = (Instant::now(), running.processor()?);
        let mut writes: Vec<(Mark, Instant)> = Vec::new();
        for number in 0..rate * seconds {
            let due = began + Duration::from_secs_f64(f64::from(number) / f64::from(rate));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            // A machine that cannot write so fast shows it by the rate that was achieved.
            if began.elapsed() > Duration::from_secs(seconds.into()) {
                break;
            }
            let (written, marks) = self.write(listener, 1);
            writes.extend(marks.into_iter().map(|mark| (mark, written)));
        }
        let wrote = began.elapsed();
        self.wait_for_all(listener, &writes);
        let used = (running.processor()? - processor).as_secs_f64();
        let elapsed = began.elapsed().as_secs_f64();
        let current = self.current();
        let received = listener.received();
        let mut lags = Vec::new();
        let mut churn = Churn {
            rate,
            seconds: wrote.as_secs_f64(),
            achieved: writes.len() as f64 / wrote.as_secs_f64(),
            processor_seconds_per_1000: used * 1000.0 / (writes.len() as f64).max(1.0),
            share_of_core: used / elapsed,
            ..Churn::default()
        };
        for (mark, written) in &writes {
            match received.first(*mark) {
                Some(seen) => lags.push(seen.saturating_duration_since(*written)),
                None if current.contains(mark) => churn.lost += 1,
                None => churn.overtaken += 1,
            }
        }
        churn.late = lags.iter().filter(|lag| **lag > LATE).count();
        churn.lag = Times::of(lags).unwrap_or_default();
        Ok(churn)
    }

    /// All pods of many Services are replaced, as fast as the server takes the writes.
    fn roll(&mut self, listener: &Listener) -> Result<Rolling> {
        let Size { services, endpoints } = self.cluster.size;
        let (services, steps) = (services.min(ROLLING_SERVICES), endpoints.min(ROLLING_STEPS));
        let began = Instant::now();
        let mut writes = Vec::new();
        let mut count = 0;
        for step in 0..steps {
            let replaced = endpoints * (step + 1) / steps - endpoints * step / steps;
            for service in 0..services {
                let (written, marks) = self.write_to(listener, service, replaced);
                writes.extend(marks.into_iter().map(|mark| (mark, written)));
                count += 1;
            }
        }
        let wrote = Instant::now();
        self.wait_for_all(listener, &writes);
        let received = listener.received();
        let last = writes.iter().filter_map(|(mark, _)| received.first(*mark)).max().unwrap_or(wrote);
        Ok(Rolling {
            services,
            endpoints: services * endpoints,
            writes: count,
            seconds: last.saturating_duration_since(began).as_secs_f64(),
            behind: milliseconds(last.saturating_duration_since(wrote)),
        })
    }

    /// Whether the kernel has exactly what it should have, by its notifications, and by its rules.
    fn verify(&self, listener: Listener, subject: &Subject, mode: &str, run: &mut Run) -> Result<()> {
        let received = listener.received();
        if received.overruns > 0 {
            run.notes.push(
                "the kernel sent more notifications than could be read, so they were not checked".to_owned(),
            );
        } else {
            let wanted: BTreeSet<Ipv4Addr> = self.current().into_iter().map(Mark::address).collect();
            let mut present: BTreeSet<Ipv4Addr> = received.present().into_iter().map(Mark::address).collect();
            if !subject.ours {
                // kube-proxy empties chains as a whole and removes them later; only our changes are notified one by one.
                present.retain(|address| wanted.contains(address));
            }
            run.wrong.extend(difference("the kernel's notifications", &wanted, &present));
        }
        drop(received);
        listener.stop()?;
        if subject.ours && mode == "nftables" {
            let began = Instant::now();
            let installed = installed_endpoints(self.topology.node().namespace())?;
            let sentinel = self.topology.pod(0).ip().v4;
            let wanted: BTreeSet<Ipv4Addr> = self.cluster.addresses().chain([sentinel]).collect();
            run.wrong.extend(difference("a listing", &wanted, &installed));
            print_line(&format!(
                "{} endpoints compared with the kernel's in {:.1?}",
                wanted.len(),
                began.elapsed()
            ));
        }
        run.wrong.iter().for_each(|wrong| print_line(wrong));
        Ok(())
    }

    /// Changes some Service.
    fn write(&mut self, listener: &Listener, count: u32) -> (Instant, Vec<Mark>) {
        let service = self.next_service();
        self.write_to(listener, service, count)
    }

    /// The Service that is changed next.
    pub(crate) fn next_service(&mut self) -> u32 {
        self.next = self.next.wrapping_add(7919);
        self.next % self.cluster.size.services
    }

    fn write_to(&mut self, listener: &Listener, service: u32, count: u32) -> (Instant, Vec<Mark>) {
        let (object, marks) = self.cluster.replace(service, count);
        {
            let mut received = listener.received();
            marks.iter().for_each(|mark| received.ask_for(*mark));
        }
        let now = Instant::now();
        let version = self.server.apply(object).version;
        if version.is_multiple_of(1000) {
            self.server.compact_until(version.saturating_sub(KEPT_CHANGES));
        }
        (now, marks)
    }

    /// Waits until all of these changes that still count are in the kernel, for a while.
    fn wait_for_all(&self, listener: &Listener, writes: &[(Mark, Instant)]) {
        let current = self.current();
        let mut waiting: Vec<Mark> =
            writes.iter().map(|(mark, _)| *mark).filter(|mark| current.contains(mark)).collect();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !waiting.is_empty() && Instant::now() < deadline {
            {
                let received = listener.received();
                waiting.retain(|mark| received.first(*mark).is_none());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The marks of all endpoints.
    fn current(&self) -> BTreeSet<Mark> {
        self.cluster.addresses().filter_map(Mark::of).collect()
    }
}

/// What is wrong with what is there, if anything.
fn difference(source: &str, wanted: &BTreeSet<Ipv4Addr>, present: &BTreeSet<Ipv4Addr>) -> Option<String> {
    let missing: Vec<_> = wanted.difference(present).collect();
    let left: Vec<_> = present.difference(wanted).collect();
    let example = missing.first().or(left.first())?;
    let (missing, left) = (missing.len(), left.len());
    Some(format!("by {source}, {missing} endpoints are missing and {left} are left over, such as {example}"))
}

/// Shows progress.
pub(crate) fn print_line(text: &str) {
    println!("   {text}");
}

pub(crate) fn show(times: Times) -> String {
    format!("p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", times.p50, times.p99, times.max)
}

pub(crate) fn show_memory(memory: Memory) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    format!(
        "{:.1} MB at start, {:.1} MB synced, {:.1} MB after churn",
        megabytes(memory.start),
        megabytes(memory.synced),
        megabytes(memory.churned)
    )
}
