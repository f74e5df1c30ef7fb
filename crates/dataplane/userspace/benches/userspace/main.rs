//! What the proxy costs, beside a direct connection and beside HAProxy in TCP mode with the same endpoints.
//!
//!     cargo bench -p portwarden-userspace [-- seconds-per-round]
//!
//! Needs root and `haproxy`. Client, node and endpoints have network namespaces of their own on one machine, so that all share its processors: rates
//! show what is left for the load, and processor time per operation shows what the proxy itself takes. Ways are measured in turn, several times, and
//! the median counts.

mod load;

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portwarden_model::{Changes, Cluster, Dataplane, Event, Family, Interner, Kind, Settings};
use portwarden_testkit::build::{endpoint, port, service, slice};
use portwarden_testkit::netns::Process;
use portwarden_testkit::rig::{Object, Rig};
use portwarden_testkit::topology::addresses::NODE;
use portwarden_testkit::{Host, Topology};
use portwarden_userspace::{Counters, Drain, Options, Userspace};

use load::{Measured, Task};

const ROUNDS: usize = 5;
const CLUSTER_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 10));
const HAPROXY_PORT: u16 = 9000;
const ENDPOINT_PORT: u16 = 8080;
const IDLE: usize = 4000;

/// A way from the client to the endpoints.
struct Way {
    target: SocketAddr,
    /// Processor time that the proxy has used so far.
    used: Box<dyn Fn() -> Duration>,
}

fn main() -> Result<()> {
    let seconds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(2.0);
    let round = Duration::from_secs_f64(seconds);
    let topology = Topology::builder().pods(2).remote_pods(0).build()?;
    for pod in topology.pods() {
        load::serve(pod, ENDPOINT_PORT)?;
    }
    let counters = Arc::<Counters>::default();
    let _dataplane = start(&topology, &counters)?;
    let haproxy = start_haproxy(&topology)?;
    let first = topology.pods().first().context("a pod")?;
    let ways = [
        Way {
            target: SocketAddr::new(first.ip().v4.into(), ENDPOINT_PORT),
            used: Box::new(Duration::default),
        },
        Way { target: SocketAddr::new(CLUSTER_IP, 80), used: Box::new(own_time) },
        Way {
            target: SocketAddr::new(NODE.v4.into(), HAPROXY_PORT),
            used: {
                let id = haproxy.id();
                Box::new(move || process_time(id))
            },
        },
    ];
    for way in &ways {
        wait_for(topology.outside(), way.target)?;
    }
    println!("{:<26} {:>12} {:>12} {:>12} {:>12}", "", "direct", "userspace", "haproxy", "us/haproxy");
    for task in Task::ALL {
        measure(task, &ways, topology.outside(), round)?;
    }
    println!(
        "{:<26} {:>25}",
        "own memory per idle conn.",
        format!("{} B", idle_memory(&topology, &counters)?)
    );
    Ok(())
}

fn measure(task: Task, ways: &[Way; 3], client: &Host, round: Duration) -> Result<()> {
    let mut all: [Vec<(Measured, f64)>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (way, results) in ways.iter().zip(&mut all) {
            let before = (way.used)();
            let measured = load::run(client, task, way.target, round)?;
            let used = (way.used)().saturating_sub(before);
            results.push((measured, used.as_secs_f64()));
        }
    }
    let row = |name: &str, value: &dyn Fn(&(Measured, f64)) -> f64, less_is_better: bool| {
        let [direct, own, haproxy] = [0, 1, 2].map(|way: usize| median(all[way].iter().map(value).collect()));
        let ratio = if less_is_better { haproxy / own } else { own / haproxy };
        println!("{name:<26} {direct:>12.1} {own:>12.1} {haproxy:>12.1} {ratio:>11.2}x");
    };
    let per_second = |one: &(Measured, f64)| one.0.operations / one.0.took.as_secs_f64();
    row(task.unit(), &per_second, false);
    row("  proxy's CPU us each", &|one| one.1 * 1e6 / one.0.operations, true);
    if task == Task::Requests {
        row("  p99 us", &|one| one.0.p99.as_secs_f64() * 1e6, true);
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The dataplane on the node, with one Service.
fn start(topology: &Topology, counters: &Arc<Counters>) -> Result<Userspace> {
    let mut cluster = Cluster::new(Settings::new("node-a"));
    let mut names = Interner::default();
    let pods = topology.pods().iter().map(|pod| endpoint(pod.ip().v4).on("node-a"));
    let slice = pods.fold(slice("web", "web-1").port(port(ENDPOINT_PORT)), |slice, pod| slice.endpoint(pod));
    let objects: [Object; 3] =
        [Rig::node().into(), service("web").cluster_ip(CLUSTER_IP).port(port(80)).into(), slice.into()];
    for object in objects {
        cluster.apply(object.event(&mut names));
    }
    for kind in Kind::ALL {
        cluster.apply(Event::ListDone(kind));
    }
    cluster.resolve();
    let _inside = topology.node().namespace().enter()?;
    let mut dataplane = Userspace::new(Options::new(&[Family::V4]), Arc::clone(counters), &Drain::default())?;
    let synced = dataplane.sync(cluster.desired(Family::V4), &Changes::everything(), Instant::now());
    synced.map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(dataplane)
}

fn start_haproxy(topology: &Topology) -> Result<Process> {
    let servers: String = topology
        .pods()
        .iter()
        .map(|pod| format!("    server {} {}:{ENDPOINT_PORT}\n", pod.name(), pod.ip().v4))
        .collect();
    let configuration = format!(
        "global\n    nbthread 2\n    maxconn 4000\ndefaults\n    mode tcp\n    timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n    \
         option splice-auto\n    option tcpka\nlisten web\n    bind {}:{HAPROXY_PORT}\n    balance roundrobin\n{servers}",
        NODE.v4
    );
    let file = std::env::temp_dir().join(format!("portwarden-bench-{}.cfg", std::process::id()));
    fs::write(&file, configuration)?;
    // In the foreground, one process.
    let started = topology.node().command("haproxy").args(["-db", "-f"]).arg(&file).spawn();
    started.context("cannot start haproxy; install Debian's package haproxy")
}

fn wait_for(client: &Host, target: SocketAddr) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(10);
    while client.namespace().run(|| Ok(TcpStream::connect(target).is_err()))? {
        ensure!(Instant::now() < until, "{target} does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Bytes of memory that this process takes for each idle connection. It has the sockets of all ends, but only the proxy's take memory outside of the kernel.
fn idle_memory(topology: &Topology, counters: &Counters) -> Result<usize> {
    let client = topology.outside();
    let target = SocketAddr::new(CLUSTER_IP, 80);
    let before = resident()?;
    let clients = client.namespace().run(|| load::open_idle(target, IDLE))?;
    let until = Instant::now() + Duration::from_secs(10);
    while counters.active() < IDLE as u64 {
        ensure!(Instant::now() < until, "only {} connections are open", counters.active());
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = resident()?;
    drop(clients);
    Ok(after.saturating_sub(before) / IDLE)
}

fn resident() -> Result<usize> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).context("resident pages")?.parse()?;
    Ok(pages * 4096)
}

/// Processor time of the proxy's threads in this process.
fn own_time() -> Duration {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let paths = threads.flatten().map(|thread| thread.path().join("stat"));
    let lines = paths.filter_map(|path| fs::read_to_string(path).ok());
    lines.filter(|line| line.contains("(proxy-")).filter_map(|line| ticks(&line)).sum()
}

fn process_time(id: u32) -> Duration {
    let line = fs::read_to_string(format!("/proc/{id}/stat")).ok();
    line.and_then(|line| ticks(&line)).unwrap_or_default()
}

/// User and system time in a line of `/proc/.../stat`, in hundredths of a second.
fn ticks(line: &str) -> Option<Duration> {
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_millis((user + system) * 10))
}
