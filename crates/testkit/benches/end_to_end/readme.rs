//! What the documentation says on performance, from the same report: five figures in `README.md`, the tables in `docs/performance.md`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::{Metric, circumstances, grouped, metrics, sizes, table};
use crate::result::Report;

const BEGIN: &str = "<!-- performance:";
const END: &str = "<!-- end of performance -->";
/// The rows of the README, by name: of the largest cluster in nftables mode.
const HIGHLIGHTS: [&str; 5] = [
    "start to synced",
    "change to kernel, p99",
    "lag at 1,000 changes/s, p99",
    "rolling update of 500 services",
    "memory after churn",
];
/// The rows of the tables on the page, by name.
const ROWS: [&str; 9] = [
    "start to synced",
    "change to kernel, p50",
    "change to kernel, p99",
    "lag at 1,000 changes/s, p99",
    "one core at 1,000 changes/s",
    "lag at 5,000 changes/s, p99",
    "rolling update of 500 services",
    "memory after sync",
    "memory after churn",
];

/// Writes the figures of a report into both files.
pub(crate) fn write(report: &Report, readme: &Path, page: &Path) -> Result<()> {
    replace(readme, &highlights(report)?, &report.date)?;
    replace(page, &section(report), &report.date)
}

/// Replaces what is between the marks.
fn replace(file: &Path, section: &str, date: &str) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let missing = || format!("{} lacks the line {BEGIN} or {END}", file.display());
    let begin = text.find(BEGIN).with_context(missing)?;
    let line = text[begin..].find('\n').with_context(missing)?;
    let end = text.find(END).with_context(missing)?;
    let new = format!("{}\n{}\n{}", &text[..begin + line], section, &text[end..]);
    std::fs::write(file, new).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{} has the figures of {date}", file.display());
    Ok(())
}

fn highlights(report: &Report) -> Result<String> {
    let largest = sizes(report).into_iter().filter(|(mode, ..)| mode == "nftables");
    let largest = largest.max_by_key(|(_, services, endpoints)| u64::from(*services) * u64::from(*endpoints));
    let (mode, services, endpoints) = largest.context("the report has nothing about nftables mode")?;
    let rows: Vec<Metric> =
        metrics().into_iter().filter(|metric| HIGHLIGHTS.contains(&metric.name.as_str())).collect();
    let mut text = format!(
        "{} Services with {endpoints} endpoints each, mode {mode}, measured on {} on {} cores:\n\n",
        grouped(services),
        report.date,
        report.machine.cores
    );
    text.push_str(&table(report, &mode, services, endpoints, &rows));
    Ok(text)
}

fn section(report: &Report) -> String {
    let mut text = format!("{}\n", circumstances(report));
    let rows: Vec<Metric> =
        metrics().into_iter().filter(|metric| ROWS.contains(&metric.name.as_str())).collect();
    for (mode, services, endpoints) in sizes(report) {
        let _ = writeln!(text, "\n**{mode}, {} services x {endpoints} endpoints**\n", grouped(services));
        text.push_str(&table(report, &mode, services, endpoints, &rows));
    }
    let lost: usize = ours(report).flat_map(|run| &run.churn).map(|churn| churn.lost).sum();
    let late: usize = ours(report)
        .filter(|run| run.mode == "nftables")
        .flat_map(|run| &run.churn)
        .map(|churn| churn.late)
        .sum();
    let _ = writeln!(
        text,
        "\nA change is one endpoint that is replaced. Time counts from the API server's write to the kernel's notification. Of all changes, \
         {lost} were lost and {late} came later than after a second in nftables mode."
    );
    text
}

fn ours(report: &Report) -> impl Iterator<Item = &crate::result::Run> {
    report.runs.iter().filter(|run| run.ours)
}
