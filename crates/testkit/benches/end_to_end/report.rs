//! The report for people: `target/bench/report.md` and its plots.

use std::fmt::Write;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::plot::{Chart, Line};
use crate::result::{Churn, Machine, Report, Run};

/// Gets a figure from a run, if it has it.
type Figure = Box<dyn Fn(&Run) -> Option<f64>>;

/// One row of a table: what it is, and how to get it from a run.
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) value: Figure,
}

/// The name of the row that may have a lower bound instead of a figure.
const START: &str = "start to synced";

/// What is promised for 5,000 x 50 in nftables mode.
const PROMISES: [(&str, f64); 6] = [
    (START, 1.5),
    ("change to kernel, p50", 5.0),
    ("change to kernel, p99", 10.0),
    ("memory after sync", 40.0),
    ("lag at 1,000 changes/s, p99", 50.0),
    ("one core at 1,000 changes/s", 30.0),
];

/// Writes the report and its plots into a folder.
pub(crate) fn write(report: &Report, folder: &Path) -> Result<()> {
    let mut text = String::from("# Benchmark\n\n");
    writeln!(text, "{}\n", circumstances(report))?;
    for version in &report.versions {
        writeln!(text, "* {version}")?;
    }
    text.push_str("\n## What is promised\n\n");
    text.push_str(&promises(report));
    for (mode, services, endpoints) in sizes(report) {
        writeln!(text, "\n## {mode}, {} services x {endpoints} endpoints\n", grouped(services))?;
        text.push_str(&table(report, &mode, services, endpoints, &metrics()));
        for run in runs(report, &mode, services, endpoints) {
            for note in run.notes.iter().chain(&run.wrong) {
                writeln!(text, "\n{}: {note}.", run.subject)?;
            }
        }
    }
    text.push_str("\n## Plots\n\n");
    for (file, svg) in plots(report) {
        std::fs::write(folder.join(&file), svg)?;
        writeln!(text, "![{file}]({file})\n")?;
    }
    for part in ["model", "source", "nftables", "iptables"] {
        if let Ok(output) = std::fs::read_to_string(folder.join(format!("{part}.txt"))) {
            writeln!(text, "## The part {part} by itself\n\n```text\n{}\n```\n", output.trim_end())?;
        }
    }
    let file = folder.join("report.md");
    std::fs::write(&file, &text)?;
    println!("{text}\nwritten to {}", file.display());
    Ok(())
}

/// When and where it was measured.
pub(crate) fn circumstances(report: &Report) -> String {
    let Machine { kernel, cores, processor, memory_gb, load } = &report.machine;
    // The parts that `make bench` measures before have their share in it.
    let busy = if *load > *cores as f64 / 2.0 {
        format!(" The load average was {load:.1} when it began.")
    } else {
        String::new()
    };
    format!(
        "Measured on {} with Linux {kernel} on {cores} cores ({processor}) and {memory_gb:.0} GB of memory, which also run the API server \
         and the measuring; {} run.{busy}",
        report.date, report.kind
    )
}

/// All rows.
pub(crate) fn metrics() -> Vec<Metric> {
    let megabytes = |bytes: u64| Some(bytes as f64 / 1e6).filter(|size| *size > 0.0);
    let mut all = vec![
        metric(START, "s", |run| run.start_seconds),
        metric("processor time of the start", "s", |run| run.start_processor_seconds),
        metric("change to kernel, p50", "ms", |run| run.change.map(|times| times.p50)),
        metric("change to kernel, p99", "ms", |run| run.change.map(|times| times.p99)),
        metric("change to kernel, max", "ms", |run| run.change.map(|times| times.max)),
    ];
    for rate in [100, 1_000, 5_000] {
        let at = move |run: &Run| run.churn.iter().copied().find(|churn| churn.rate == rate);
        let mut row = |name: &str, unit, value: fn(Churn) -> f64| {
            all.push(metric(&name.replace("RATE", &grouped(rate)), unit, move |run| at(run).map(value)));
        };
        row("lag at RATE changes/s, p50", "ms", |churn| churn.lag.p50);
        row("lag at RATE changes/s, p99", "ms", |churn| churn.lag.p99);
        row("lag at RATE changes/s, max", "ms", |churn| churn.lag.max);
        row("changes/s achieved of RATE", "", |churn| churn.achieved);
        row("late at RATE changes/s (over 1 s)", "", |churn| churn.late as f64);
        row("lost at RATE changes/s", "", |churn| churn.lost as f64);
        row("overtaken by later ones at RATE changes/s", "", |churn| churn.overtaken as f64);
        row("processor time per 1,000 changes at RATE/s", "s", |churn| churn.processor_seconds_per_1000);
        row("one core at RATE changes/s", "%", |churn| churn.share_of_core * 100.0);
    }
    all.extend([
        metric("rolling update of 500 services", "s", |run| run.rolled().map(|rolling| rolling.seconds)),
        metric("its end behind the last write", "ms", |run| run.rolled().map(|rolling| rolling.behind)),
        metric("memory at start", "MB", move |run| megabytes(run.memory.start)),
        metric("memory after sync", "MB", move |run| megabytes(run.memory.synced)),
        metric("memory after churn", "MB", move |run| megabytes(run.memory.churned)),
    ]);
    all
}

/// A table of some rows: a column for each program, and how many times as much the second one takes.
pub(crate) fn table(report: &Report, mode: &str, services: u32, endpoints: u32, rows: &[Metric]) -> String {
    let runs: Vec<&Run> = runs(report, mode, services, endpoints).collect();
    let mut names: Vec<&str> = runs.iter().map(|run| run.subject.as_str()).collect();
    if runs.len() == 2 {
        names.push("ratio");
    }
    let mut text = format!("| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for Metric { name, unit, value } in rows {
        let values: Vec<Option<f64>> = runs.iter().map(|run| value(run)).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let bounds = runs.iter().map(|run| run.start_at_least_seconds.filter(|_| name == START));
        let bounds: Vec<Option<f64>> = bounds.collect();
        let cell = |(value, bound): (&Option<f64>, &Option<f64>)| match bound {
            Some(bound) => format!("≥ {}", shown(Some(*bound), unit)),
            None => shown(*value, unit),
        };
        let mut cells: Vec<String> = values.iter().zip(&bounds).map(cell).collect();
        if let ([ours, theirs], [None, bound]) = (values.as_slice(), bounds.as_slice()) {
            cells.push(match (ours, theirs, bound) {
                (Some(ours), _, Some(bound)) if *ours > 0.0 => {
                    format!("≥ {}", shown(Some(bound / ours), "x"))
                }
                (Some(ours), Some(theirs), None) if *ours > 0.0 => shown(Some(theirs / ours), "x"),
                _ => String::new(),
            });
        }
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}

/// Modes and sizes, in the order in which they were measured.
pub(crate) fn sizes(report: &Report) -> Vec<(String, u32, u32)> {
    let mut sizes: Vec<_> =
        report.runs.iter().map(|run| (run.mode.clone(), run.services, run.endpoints)).collect();
    sizes.dedup();
    sizes
}

/// 5,000.
pub(crate) fn grouped(number: u32) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}

/// Today's date (UTC).
pub(crate) fn today() -> Result<String> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    // Days since the first of March of the year 0: leap days then come last in a year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    Ok(format!("{:04}-{month:02}-{day_of_month:02}", year + era * 400 + later))
}

/// This machine.
pub(crate) fn machine() -> Result<Machine> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let memory = read("/proc/meminfo")?;
    let kilobytes: f64 =
        memory.split_whitespace().nth(1).and_then(|number| number.parse().ok()).context("no MemTotal")?;
    let (processors, load) = (read("/proc/cpuinfo")?, read("/proc/loadavg")?);
    let name = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(Machine {
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        cores: available_parallelism()?.get(),
        processor: name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned()),
        memory_gb: kilobytes * 1024.0 / 1e9,
        load: load.split_whitespace().next().and_then(|number| number.parse().ok()).context("no load")?,
    })
}

fn runs<'a>(
    report: &'a Report,
    mode: &'a str,
    services: u32,
    endpoints: u32,
) -> impl Iterator<Item = &'a Run> {
    report
        .runs
        .iter()
        .filter(move |run| (run.mode.as_str(), run.services, run.endpoints) == (mode, services, endpoints))
}

fn metric(name: &str, unit: &'static str, value: impl Fn(&Run) -> Option<f64> + 'static) -> Metric {
    Metric { name: name.to_owned(), unit, value: Box::new(value) }
}

/// Three digits are enough.
fn shown(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return "not measured".to_owned() };
    let number = match value.abs() {
        size if value.fract() == 0.0 || size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

fn promises(report: &Report) -> String {
    let Some(run) = runs(report, "nftables", 5_000, 50).find(|run| run.ours) else {
        return "5,000 services x 50 endpoints in nftables mode were not measured.\n".to_owned();
    };
    let mut text =
        "5,000 services x 50 endpoints in nftables mode.\n\n| | promised | measured | |\n|---|---|---|---|\n"
            .to_owned();
    let metrics = metrics();
    for (name, most) in PROMISES {
        let Some(metric) = metrics.iter().find(|metric| metric.name == name) else { continue };
        let value = (metric.value)(run);
        let met = if value.is_some_and(|value| value <= most) { "yes" } else { "**no**" };
        let _ = writeln!(
            text,
            "| {name} | at most {} | {} | {met} |",
            shown(Some(most), metric.unit),
            shown(value, metric.unit)
        );
    }
    let (late, lost) =
        run.churn.iter().fold((0, 0), |(late, lost), churn| (late + churn.late, lost + churn.lost));
    let met = |fine: bool| if fine { "yes" } else { "**no**" };
    let _ = writeln!(text, "| late or lost changes | 0 | {} | {} |", late + lost, met(late + lost == 0));
    let growth = run.memory.churned as f64 / (run.memory.synced as f64).max(1.0) * 100.0 - 100.0;
    let _ = writeln!(
        text,
        "| growth of memory by churn | at most 10 % | {growth:.1} % | {} |",
        met(growth <= 10.0)
    );
    let _ = writeln!(
        text,
        "| rules right at the end | yes | {} | {} |",
        met(run.wrong.is_empty()),
        met(run.wrong.is_empty())
    );
    text
}

fn plots(report: &Report) -> Vec<(String, String)> {
    let latency = Chart { title: "Change to kernel", x: "services", y: "ms" };
    let memory = Chart { title: "Resident memory after sync", x: "endpoints", y: "MB" };
    let lag = Chart { title: "Lag, p99", x: "endpoint changes per second", y: "ms" };
    let subjects =
        |ours: bool| report.runs.iter().filter(move |run| run.ours == ours && run.mode == "nftables");
    let (mut latencies, mut memories, mut lags) = (Vec::new(), Vec::new(), Vec::new());
    for ours in [true, false] {
        let Some(name) = subjects(ours).next().map(|run| run.subject.clone()) else { continue };
        let line = |what: &str, point: &dyn Fn(&Run) -> Option<(f64, f64)>| Line {
            name: format!("{name}{what}"),
            points: subjects(ours).filter_map(point).collect(),
        };
        latencies.push(line(", p50", &|run| Some((f64::from(run.services), run.change?.p50))));
        latencies.push(line(", p99", &|run| Some((f64::from(run.services), run.change?.p99))));
        memories.push(line("", &|run| {
            let endpoints = f64::from(run.services) * f64::from(run.endpoints);
            Some((endpoints, run.memory.synced as f64 / 1e6))
        }));
        for run in subjects(ours) {
            let points = run.churn.iter().map(|churn| (f64::from(churn.rate), churn.lag.p99)).collect();
            lags.push(Line {
                name: format!("{name}, {} x {}", grouped(run.services), run.endpoints),
                points,
            });
        }
    }
    let charts = [
        ("latency.svg", latency.draw(&latencies)),
        ("memory.svg", memory.draw(&memories)),
        ("lag.svg", lag.draw(&lags)),
    ];
    charts.into_iter().filter_map(|(file, svg)| Some((file.to_owned(), svg?))).collect()
}
