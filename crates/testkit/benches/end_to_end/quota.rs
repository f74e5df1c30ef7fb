//! What a quota of processor time does: how long `/livez` is silent and how long changes take, while nothing else happens and while rules are
//! compared, repaired or written.
//!
//! Nothing here is about the machine's speed: a quota of 5 % gives a process 5 ms of each 100 ms.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use portwarden_testkit::build::{endpoint, port, service, slice};

use crate::cluster::Size;
use crate::measure::{Stage, print_line};
use crate::result::Memory;
use crate::subject::{Running, Subject};

const PERIOD: u32 = 100_000;
/// How long a change may take before the measurement is given up.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Each event is observed for at least this long.
const WINDOW: Duration = Duration::from_secs(25);

/// What happens to the rules, with a command that does it.
fn events(mode: &str) -> Vec<(&'static str, &'static [&'static str])> {
    let nftables: &[&str] = &["nft", "add", "rule", "ip", "kube-proxy", "masquerading", "counter"];
    match mode {
        "iptables" => vec![
            ("nothing", &["true"]),
            (
                "another process adds a rule",
                &["iptables", "-t", "nat", "-A", "KUBE-SERVICES", "-j", "RETURN"],
            ),
        ],
        _ => vec![
            ("nothing", &["true"]),
            ("another process adds a rule: it is removed, and everything is compared", nftables),
            (
                "another process removes an element",
                &["nft", "delete", "element", "ip", "kube-proxy", "frontends", "{ 10.96.1.0 . tcp . 80 }"],
            ),
            ("another process removes the table", &["nft", "delete", "table", "ip", "kube-proxy"]),
        ],
    }
}

/// Measures one mode with a quota in percent of one processor.
pub(crate) fn run(subject: &Subject, mode: &str, size: Size, percent: u32) -> Result<()> {
    let group = ControlGroup::new(percent)?;
    let stage = Stage::new(size)?;
    println!(
        "== {}, {mode}, {} services x {} endpoints, {percent} % of one processor",
        subject.name, size.services, size.endpoints
    );
    let began = Instant::now();
    let mut running = subject.start_in(
        &group.processes(),
        stage.topology.node(),
        mode,
        &stage.kubeconfig,
        stage.folder.path(),
    )?;
    let health = Health::watch(&stage)?;
    if !stage.await_sync(&mut running, TIMEOUT, &mut Memory::default())? {
        bail!("not synced within {TIMEOUT:?}");
    }
    print_line(&format!(
        "start: synced after {:.1} s, /livez silent for at most {:.1} s, {:.2} s of processor time",
        began.elapsed().as_secs_f64(),
        health.take_silence().as_secs_f64(),
        running.processor()?.as_secs_f64()
    ));
    // What the start leaves to do, a second comparison among it.
    std::thread::sleep(WINDOW);
    health.take_silence();
    let mut number = 0;
    for (what, command) in events(mode) {
        observe(&stage, &running, &health, what, command, &mut number)?;
    }
    Ok(())
}

fn observe(
    stage: &Stage,
    running: &Running,
    health: &Health,
    what: &str,
    command: &[&str],
    number: &mut u8,
) -> Result<()> {
    let processor = running.processor()?;
    health.take_silence();
    if let [program, arguments @ ..] = command {
        stage.topology.node().command(program).args(arguments.iter().copied()).run()?;
    }
    let (began, mut changes) = (Instant::now(), Vec::new());
    while began.elapsed() < WINDOW {
        *number = number.wrapping_add(1).max(1);
        changes.push(change(stage, *number)?);
        std::thread::sleep(Duration::from_millis(300));
    }
    changes.sort_unstable();
    let slowest = changes.last().copied().unwrap_or_default();
    let median = changes.get(changes.len() / 2).copied().unwrap_or_default();
    print_line(&format!(
        "{what}: {} changes, median {:.2} s, slowest {:.2} s; /livez silent for at most {:.2} s; {:.2} s of processor time",
        changes.len(),
        median.as_secs_f64(),
        slowest.as_secs_f64(),
        health.take_silence().as_secs_f64(),
        (running.processor()? - processor).as_secs_f64()
    ));
    Ok(())
}

/// Makes a Service, and waits until a connection to it is answered.
fn change(stage: &Stage, number: u8) -> Result<Duration> {
    let name = format!("quota-{number}");
    let (ip, service_port) = (Ipv4Addr::new(10, 96, 0, 20), 1000 + u16::from(number));
    let pod = endpoint(stage.topology.pod(0).ip().v4).on("node-a");
    stage.server.apply(slice(&name, &name).port(port(8080).name("http")).endpoint(pod));
    stage.server.apply(service(&name).cluster_ip(ip).port(port(service_port).name("http")));
    let target = SocketAddr::from((ip, service_port));
    let (began, probe) = (Instant::now(), stage.topology.node().probe().timeout(Duration::from_millis(10)));
    while !probe.tcp(target)?.is_answered() {
        if began.elapsed() > TIMEOUT {
            bail!("a change was not in force after {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(began.elapsed())
}

/// Asks for `/livez` all the time.
struct Health {
    silence: Arc<Mutex<(Instant, Duration)>>,
}

impl Health {
    fn watch(stage: &Stage) -> Result<Health> {
        let silence = Arc::new(Mutex::new((Instant::now(), Duration::ZERO)));
        let noted = Arc::downgrade(&silence);
        stage.topology.node().namespace().spawn(move || {
            while let Some(noted) = noted.upgrade() {
                let answered = ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"));
                let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                noted.1 = noted.1.max(noted.0.elapsed());
                if answered {
                    noted.0 = Instant::now();
                }
                drop(noted);
                std::thread::sleep(Duration::from_millis(20));
            }
        })?;
        Ok(Health { silence })
    }

    /// The longest time without an answer since the last call.
    fn take_silence(&self) -> Duration {
        let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        silence.1 = silence.1.max(silence.0.elapsed());
        std::mem::take(&mut silence.1)
    }
}

fn ask() -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&([127, 0, 0, 1], 10256).into(), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A control group with a quota, of whichever version this machine has.
struct ControlGroup {
    folder: PathBuf,
}

impl ControlGroup {
    fn new(percent: u32) -> Result<ControlGroup> {
        let name = format!("portwarden-quota-{}", std::process::id());
        let quota = PERIOD / 100 * percent;
        let first = Path::new("/sys/fs/cgroup/cpu");
        let (folder, file, text) = if first.is_dir() {
            (first.join(name), "cpu.cfs_quota_us", quota.to_string())
        } else {
            (Path::new("/sys/fs/cgroup").join(name), "cpu.max", format!("{quota} {PERIOD}"))
        };
        std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let group = ControlGroup { folder };
        std::fs::write(group.folder.join(file), text).context("cannot set the quota")?;
        Ok(group)
    }

    fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}
