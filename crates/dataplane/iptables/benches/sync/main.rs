//! How long syncs take, and whose time it is: ours or that of the iptables programs.
//!
//!     cargo bench -p portwarden-iptables [-- 1000 5000]
//!
//! Needs root: each run has a network namespace of its own. The legend that it prints says what the columns are.

mod running;

use std::fmt;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use portwarden_iptables::{DryRun, IptablesDataplane, Options};
use portwarden_model::{Changes, Cluster, Event, Family, Interner, Settings};
use portwarden_testkit::Namespace;
use portwarden_testkit::build::{self, ToEvent, port};
use portwarden_testkit::drive::sync_to_end;
use portwarden_xtables::Variant;
use running::Running;

const ENDPOINTS: usize = 10;
const FAMILY: Family = Family::V4;

const LEGEND: &str = "\
input, lines: what iptables-restore reads
render:       wall time of the pure part, apart from any program
cpu:          processor time of this process: rendering, comparing, writing to the programs, reading from them, starting them
their cpu:    processor time of the iptables programs
wall:         from the call of the sync to its end
alone:        wall time in which no iptables program was running, from its start until it has closed its outputs
cpu %, alone %: their parts of the wall time; programs and this process run side by side on several cores";

fn main() -> anyhow::Result<()> {
    let sizes: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![1000, 5000] } else { sizes };
    let running = Running::install()?;
    println!("{LEGEND}\nservices x {ENDPOINTS} endpoints, {FAMILY}");
    println!(
        "{:<33} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "", "input", "lines", "render", "cpu", "their cpu", "wall", "alone", "cpu %", "alone %"
    );
    for size in sizes {
        for variant in [Variant::Nft, Variant::Legacy] {
            run(size, variant, running)?;
        }
    }
    Ok(())
}

fn run(size: usize, variant: Variant, running: &Running) -> anyhow::Result<()> {
    let mut cluster = Cluster::new(Settings::new("node-a"));
    let mut names = Interner::default();
    for number in 0..size {
        cluster.apply(service(number, &mut names));
        cluster.apply(slice(number, 0, &mut names));
    }
    cluster.resolve();
    let namespace = Namespace::new("bench")?;
    let _inside = namespace.enter()?;
    let mut dataplane = IptablesDataplane::new(&[FAMILY], &Options { variant, ..Options::default() })?;
    let mut dry_run = DryRun::new(FAMILY, &Options::default())?;
    let mut line = |what: &str, cluster: &Cluster, changes: &Changes, written: bool| -> anyhow::Result<()> {
        let desired = cluster.desired(FAMILY);
        let start = Instant::now();
        let transaction = dry_run.sync(desired, changes);
        let render = start.elapsed();
        let times = Times::measure(running, || {
            sync_to_end(&mut dataplane, desired, changes).map(drop).map_err(|e| anyhow::anyhow!("{e}"))
        })?;
        let (bytes, lines) =
            if written { (transaction.to_string().len(), transaction.len()) } else { (0, 0) };
        let label = format!("{size} {variant:?}: {what}");
        println!("{label:<33} {bytes:>9} {lines:>7} {render:>9.1?} {times}");
        Ok(())
    };
    line("full, empty node", &cluster, &Changes::everything(), true)?;
    for round in 1..=3 {
        cluster.apply(slice(size / 2, round, &mut names));
        let changes = cluster.resolve();
        line("one endpoint", &cluster, &changes[FAMILY], true)?;
    }
    cluster.apply(service(size, &mut names));
    cluster.apply(slice(size, 0, &mut names));
    let changes = cluster.resolve();
    line("one new service", &cluster, &changes[FAMILY], true)?;
    line("full, nothing differs", &cluster, &Changes::everything(), false)
}

/// Where the time of a sync went.
struct Times {
    cpu: Duration,
    their_cpu: Duration,
    wall: Duration,
    alone: Duration,
}

impl Times {
    fn measure(running: &Running, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Times> {
        let before = (processor_time(UsageWho::RUSAGE_SELF)?, processor_time(UsageWho::RUSAGE_CHILDREN)?);
        let (start, running_before) = (Instant::now(), running.total());
        work()?;
        let (wall, run) = (start.elapsed(), running.total() - running_before);
        Ok(Times {
            cpu: processor_time(UsageWho::RUSAGE_SELF)? - before.0,
            their_cpu: processor_time(UsageWho::RUSAGE_CHILDREN)? - before.1,
            wall,
            alone: wall.saturating_sub(run),
        })
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Times { cpu, their_cpu, wall, alone } = self;
        let share = |time: &Duration| 100.0 * time.as_secs_f64() / wall.as_secs_f64();
        write!(f, "{cpu:>9.1?} {their_cpu:>9.1?} {wall:>9.1?} {alone:>9.1?}")?;
        write!(f, " {:>6.2}% {:>6.2}%", share(cpu), share(alone))
    }
}

/// Of this process, or of those that it started and that have ended.
fn processor_time(whose: UsageWho) -> anyhow::Result<Duration> {
    let usage = getrusage(whose)?;
    let time = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(u64::try_from(time.num_microseconds())?))
}

fn service(number: usize, names: &mut Interner) -> Event {
    let service = build::service(&format!("service-{number}"));
    let service = service.cluster_ip(format!("10.96.{}.{}", number / 250, number % 250 + 1));
    service.port(port(80).name("http")).build().event_with(names)
}

/// Another `round` has another first endpoint.
fn slice(number: usize, round: usize, names: &mut Interner) -> Event {
    let endpoint = |index: usize| {
        let host = number * ENDPOINTS + index;
        let round = if index == 0 { round } else { 0 };
        let ip = format!("10.{}.{}.{}", 128 + host / 62_500 + round, host / 250 % 250, host % 250 + 1);
        build::endpoint(ip).on(&format!("node-{index}"))
    };
    let slice = build::slice(&format!("service-{number}"), &format!("service-{number}-1"));
    let slice = slice.port(port(8080).name("http"));
    (0..ENDPOINTS).map(endpoint).fold(slice, build::SliceBuilder::endpoint).build().event_with(names)
}
