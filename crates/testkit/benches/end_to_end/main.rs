//! From the API server's write to the kernel, with the release binary in a namespace; and a report on it.
//!
//!     cargo bench -p portwarden-testkit --bench end_to_end -- run [quick]     measures, writes target/bench/report.json
//!     scripts/uml BINARY ipvs [quick]                                         mode ipvs in user-mode Linux, added to report.json
//!     scripts/uml BINARY takeover                                             kube-proxy, Portwarden, kube-proxy, under connections
//!     cargo bench -p portwarden-testkit --bench end_to_end -- quota MODE [SERVICES ENDPOINTS [PERCENT]]   with a quota of processor time
//!     cargo bench -p portwarden-testkit --bench end_to_end -- report          report.md and plots from report.json
//!     cargo bench -p portwarden-testkit --bench end_to_end -- readme          README.md and docs/performance.md from report.json
//!
//! `ONLY`, as in `nftables:5000x50`, chooses one mode and size; `BOUND` is how many seconds a start in mode ipvs may take (600).
//! Needs root. `REFERENCE_KUBE_PROXY` may name a kube-proxy to measure beside it.
//!
//! | file | what |
//! |---|---|
//! | `cluster.rs` | objects, and changes that can be recognised |
//! | `subject.rs` | the programs |
//! | `kernel.rs` | notifications and rules of the kernel |
//! | `measure.rs` | the measurements |
//! | `ipvs.rs` | those of mode ipvs |
//! | `quota.rs` | those with a quota of processor time |
//! | `takeover.rs` | no connection is lost when one program takes over from the other |
//! | `result.rs`, `report.rs`, `plot.rs`, `readme.rs` | what came out |

mod cluster;
mod ipvs;
mod kernel;
mod measure;
mod plot;
mod quota;
mod readme;
mod report;
mod result;
mod subject;
mod takeover;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use cluster::Size;
use measure::{Plan, measure};
use result::{Report, Run};
use subject::Subject;

const SMALL: Size = Size { services: 1_000, endpoints: 10 };
const LARGE: Size = Size { services: 5_000, endpoints: 50 };
const WIDE: Size = Size { services: 30_000, endpoints: 4 };

fn main() -> Result<()> {
    // Benchmarks are run in the folder of their crate.
    std::env::set_current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?;
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["run"] | ["run", "full"] => run(false),
        ["run", "quick"] => run(true),
        ["ipvs"] | ["ipvs", "full"] => run_ipvs(false),
        ["ipvs", "quick"] => run_ipvs(true),
        ["takeover"] => {
            let reference =
                Subject::reference()?.context("REFERENCE_KUBE_PROXY must name a kube-proxy binary")?;
            takeover::run(&Subject::portwarden()?, &reference)
        }
        ["quota", mode] => quota::run(&Subject::portwarden()?, mode, LARGE, 5),
        ["quota", mode, services, endpoints, rest @ ..] => {
            let size = Size { services: services.parse()?, endpoints: endpoints.parse()? };
            let percent = rest.first().map_or(Ok(5), |percent| percent.parse())?;
            quota::run(&Subject::portwarden()?, mode, size, percent)
        }
        ["report"] => report::write(&load()?, &folder()),
        ["readme"] => readme::write(&load()?, Path::new("README.md"), Path::new("docs/performance.md")),
        _ => bail!("run, run quick, ipvs, ipvs quick, takeover, report or readme; not {}", words.join(" ")),
    }
}

fn run(quick: bool) -> Result<()> {
    let (began, machine) = (Instant::now(), report::machine()?);
    let ours = Subject::portwarden()?;
    let reference = Subject::reference()?;
    let mut versions = vec![format!("{}: {}", ours.name, ours.version)];
    versions.extend(reference.iter().map(|subject| format!("{}: {}", subject.name, subject.version)));
    let mut runs: Vec<Run> = Vec::new();
    for (mode, size) in wanted(quick) {
        for subject in [Some(&ours), reference.as_ref()].into_iter().flatten() {
            if quick && !subject.ours && size != SMALL {
                continue;
            }
            println!(
                "== {:.0} s: {}, {mode}, {} services x {} endpoints",
                began.elapsed().as_secs_f64(),
                subject.name,
                size.services,
                size.endpoints
            );
            let run = measure(subject, mode, size, &plan(quick, subject.ours, mode));
            runs.push(run.with_context(|| format!("{} in mode {mode}", subject.name))?);
        }
    }
    let kind = if quick { "quick" } else { "full" }.to_owned();
    let report = Report { date: report::today()?, kind, machine, versions, runs };
    std::fs::create_dir_all(folder())?;
    std::fs::write(folder().join("report.json"), serde_json::to_string_pretty(&report)?)?;
    println!("== {:.0} s: measured", began.elapsed().as_secs_f64());
    Ok(())
}

/// Mode ipvs on the kernel that this runs on. The runs are added to those of the other modes, if there are any.
fn run_ipvs(quick: bool) -> Result<()> {
    let began = Instant::now();
    let ours = Subject::portwarden()?;
    let reference = Subject::reference()?;
    let mut runs: Vec<Run> = Vec::new();
    // kube-proxy takes many minutes for the large cluster.
    let bound: u64 = std::env::var("BOUND").ok().and_then(|text| text.parse().ok()).unwrap_or(600);
    let subjects: Vec<&Subject> = [Some(&ours), reference.as_ref()].into_iter().flatten().collect();
    for subject in &subjects {
        let plan = Plan { timeout: Duration::from_secs(bound), ..Plan::default() };
        ipvs::warm_up(subject, &plan)?;
    }
    let mut sizes = if quick { vec![SMALL] } else { vec![SMALL, LARGE] };
    if let Ok(only) = std::env::var("ONLY") {
        sizes = [SMALL, LARGE].into_iter().filter(|size| only == format!("ipvs:{size}")).collect();
    }
    for size in sizes {
        for subject in &subjects {
            println!(
                "== {:.0} s: {}, ipvs, {} services x {} endpoints",
                began.elapsed().as_secs_f64(),
                subject.name,
                size.services,
                size.endpoints
            );
            let (changes, pause) = if subject.ours { (200, 20) } else { (20, 1100) };
            let plan = Plan {
                starts: 1,
                changes: if quick { changes / 4 } else { changes },
                pause: Duration::from_millis(pause),
                timeout: Duration::from_secs(bound),
                ..Plan::default()
            };
            runs.push(
                ipvs::measure(subject, size, &plan)
                    .with_context(|| format!("{} in mode ipvs", subject.name))?,
            );
        }
    }
    let machine = report::machine()?;
    runs.iter_mut()
        .for_each(|run| run.notes.push(format!("on one processor of user-mode Linux {}", machine.kernel)));
    let mut report = load().unwrap_or_else(|_| Report {
        date: String::new(),
        kind: if quick { "quick" } else { "full" }.to_owned(),
        machine,
        versions: vec![format!("{}: {}", ours.name, ours.version)],
        runs: Vec::new(),
    });
    report.date = report::today()?;
    let same = |one: &Run, other: &Run| one.mode == other.mode && one.services == other.services;
    report.runs.retain(|old| !runs.iter().any(|run| same(old, run)));
    report.runs.extend(runs);
    std::fs::create_dir_all(folder())?;
    std::fs::write(folder().join("report.json"), serde_json::to_string_pretty(&report)?)?;
    Ok(())
}

/// Modes and sizes. `ONLY`, as in `nftables:5000x50`, chooses one.
fn wanted(quick: bool) -> Vec<(&'static str, Size)> {
    // iptables programs take time in proportion to all rules; more than this says nothing about us.
    let mut wanted = vec![("nftables", SMALL), ("nftables", LARGE), ("nftables", WIDE), ("iptables", SMALL)];
    if quick {
        wanted.retain(|(mode, size)| *mode == "nftables" && *size != WIDE);
    }
    if let Ok(only) = std::env::var("ONLY") {
        wanted.retain(|(mode, size)| only == format!("{mode}:{size}"));
    }
    wanted
}

fn plan(quick: bool, ours: bool, mode: &str) -> Plan {
    let rates = if mode == "iptables" { vec![100, 1_000] } else { vec![100, 1_000, 5_000] };
    // kube-proxy waits a second between syncs, by default; that second shows in its lag, and is left out of its single changes.
    let (changes, pause) = match (ours && mode == "nftables", quick) {
        (true, false) => (500, Duration::from_millis(20)),
        (true, true) => (150, Duration::from_millis(20)),
        (false, false) => (20, Duration::from_millis(1100)),
        (false, true) => (8, Duration::from_millis(1100)),
    };
    Plan {
        starts: if quick || !ours { 1 } else { 3 },
        changes,
        pause,
        churn_rates: rates,
        churn_seconds: if quick { 5 } else { 30 },
        timeout: Duration::from_secs(if quick { 30 } else { 150 }),
    }
}

fn folder() -> PathBuf {
    PathBuf::from("target/bench")
}

fn load() -> Result<Report> {
    let file = folder().join("report.json");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("no report at {}; run `make bench`", file.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is of another version; run `make bench`", file.display()))
}
