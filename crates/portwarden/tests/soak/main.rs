//! Random events, faults of the API server, damaged rules, kills and reloads under steady TCP and UDP traffic: not one request fails that
//! must succeed.
//!
//! What must succeed is defined in `ledger.rs`. A failure shows the seed; `SEED=… make soak` does the same things again, in the same order.
//!
//! | file | what |
//! |---|---|
//! | `actions.rs` | what happens, from a seed |
//! | `world.rs`, `damage.rs` | how it happens |
//! | `traffic.rs` | the requests |
//! | `ledger.rs`, `timeline.rs` | which of them must succeed |
//! | `evidence.rs` | what the kernel holds about one that did not |

mod actions;
mod damage;
mod evidence;
mod ledger;
mod timeline;
mod traffic;
mod world;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use portwarden::config::duration::GoDuration;

use actions::Script;
use traffic::Pace;
use world::World;

/// The running time unless `DURATION` is set.
const USUALLY: Duration = Duration::from_secs(60);
/// Actions that are shown with a failure.
const SHOWN: usize = 25;
/// Failed requests that are shown.
const EXAMPLES: usize = 10;

#[test]
fn nothing_is_lost_under_random_events_and_faults() {
    if let Err(error) = soak() {
        panic!("{error:#}");
    }
}

fn soak() -> Result<()> {
    let duration = match std::env::var("DURATION") {
        Ok(text) => GoDuration::parse(&text)
            .ok()
            .and_then(GoDuration::to_std)
            .with_context(|| format!("DURATION: {text:?} is no duration such as 90s or 10m"))?,
        Err(_) => USUALLY,
    };
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().with_context(|| format!("SEED: {text:?} is not a number"))?,
        Err(_) => {
            std::time::UNIX_EPOCH.elapsed().map_or(1, |time| u64::from(time.subsec_nanos()) ^ time.as_secs())
        }
    };
    let binary = std::env::var_os("PORTWARDEN")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_portwarden")), PathBuf::from);
    let binary = binary
        .canonicalize()
        .with_context(|| format!("no binary at {}; run `make build`", binary.display()))?;
    println!("soak: seed {seed}, for {duration:?}");
    let folder = tempfile::tempdir()?;
    let mut last = VecDeque::new();
    let outcome = run(&binary, folder.path(), seed, duration, &mut last);
    outcome.with_context(|| {
        let last = Vec::from(last).join("\n  ");
        format!("seed {seed} (SEED={seed} make soak does it again); the last actions:\n  {last}\n")
    })
}

fn run(
    binary: &std::path::Path,
    folder: &std::path::Path,
    seed: u64,
    duration: Duration,
    last: &mut VecDeque<String>,
) -> Result<()> {
    let beginning = Instant::now();
    let pace = pace()?;
    let mut script = Script::new(seed, std::env::var_os("CALM").is_some());
    let mut world = World::start(binary, folder, first_mode()?, pace)?;
    let (mut actions, mut shown) = (0u64, Instant::now());
    while beginning.elapsed() < duration {
        let (action, pause) = script.next();
        actions += 1;
        if last.len() == SHOWN {
            last.pop_front();
        }
        last.push_back(format!("{:>9.3} s  #{actions} {action}", beginning.elapsed().as_secs_f64()));
        let done = world.perform(&action).with_context(|| format!("action {actions}: {action}"));
        if let Err(error) = done {
            world.judge()?;
            bail!("{error:#}\n{}\nthe process logged:\n{}", failures(&world), world.log());
        }
        std::thread::sleep(pace.between_changes(pause));
        world.judge()?;
        if !world.ledger.count.failures.is_empty() {
            bail!("{}\nthe process logged:\n{}", failures(&world), world.log());
        }
        if shown.elapsed() > Duration::from_secs(10) {
            shown = Instant::now();
            println!(
                "soak: {:>5.0} s, {actions} actions, {}",
                beginning.elapsed().as_secs_f64(),
                summary(&world)
            );
        }
    }
    world.finish()?;
    if !world.ledger.count.failures.is_empty() {
        bail!("{}\nthe process logged:\n{}", failures(&world), world.log());
    }
    let figures = &world.figures;
    println!(
        "soak: done, {actions} actions, {}\n  {} starts, {} times of API faults, {} reloads, {} damages, {} stalls of this machine, \
         slowest repair {:?}, slowest change {:?} (faults and restarts included)",
        summary(&world),
        figures.starts,
        figures.faults,
        figures.reloads,
        figures.damages,
        figures.stalls,
        figures.slowest_repair,
        figures.slowest_change
    );
    for (mode, history) in &world.ledger.count.history {
        println!("  {mode}: {history}");
    }
    Ok(())
}

/// Requests per second: `RATE`, or the usual number.
fn pace() -> Result<Pace> {
    let rate = std::env::var("RATE").ok().map(|text| {
        text.parse().with_context(|| format!("RATE: {text:?} is no number of requests per second"))
    });
    Pace::new(rate.transpose()?)
}

/// The mode to start in: `MODE`, or nftables.
fn first_mode() -> Result<&'static str> {
    let wanted = std::env::var("MODE").unwrap_or_else(|_| "nftables".to_owned());
    let known = ["nftables", "iptables", "ipvs", "userspace", "ebpf"];
    known
        .into_iter()
        .find(|mode| *mode == wanted)
        .with_context(|| format!("MODE: {wanted:?} is none of {known:?}"))
}

fn summary(world: &World) -> String {
    let count = &world.ledger.count;
    format!(
        "{} requests, {} had to succeed, {} of them failed; {} more failed in the instant of an exchange of all rules; {} did not count, \
         as rules were damaged or the machine stood still ({} of them failed)",
        count.requests,
        count.due,
        count.failures.len(),
        count.exchanged,
        count.excluded,
        count.excluded_failures
    )
}

fn failures(world: &World) -> String {
    let failures = &world.ledger.count.failures;
    let examples: Vec<&str> = failures.iter().take(EXAMPLES).map(String::as_str).collect();
    format!("{} requests went wrong that must not:\n  {}", failures.len(), examples.join("\n  "))
}
