//! Figures: printed as they come, as a table in the end, and as a file for other programs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use crate::Effort;

/// Where the file goes, beside what cargo builds.
const FILE: &str = "bench/nftables.json";

/// Whose figure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Portwarden's.
    Ours,
    /// That of kube-proxy's layout, or of the choice not made.
    Baseline,
    /// That of a connection without any service.
    Direct,
}

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// How many in a second.
    PerSecond,
    /// Millions of bytes.
    Megabytes,
}

impl Unit {
    fn as_str(self) -> &'static str {
        match self {
            Unit::Milliseconds => "ms",
            Unit::Microseconds => "us",
            Unit::PerSecond => "/s",
            Unit::Megabytes => "MB",
        }
    }
}

/// A number that counts something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    value: f64,
    unit: Unit,
}

impl Figure {
    pub(crate) fn milliseconds(time: Duration) -> Self {
        Figure { value: time.as_secs_f64() * 1e3, unit: Unit::Milliseconds }
    }

    pub(crate) fn microseconds(time: Duration) -> Self {
        Figure { value: time.as_secs_f64() * 1e6, unit: Unit::Microseconds }
    }

    pub(crate) fn per_second(rate: f64) -> Self {
        Figure { value: rate, unit: Unit::PerSecond }
    }

    pub(crate) fn bytes(bytes: usize) -> Self {
        // Sizes stay far below 2^52.
        Figure { value: bytes as f64 / 1e6, unit: Unit::Megabytes }
    }
}

/// All figures so far.
#[derive(Debug)]
pub(crate) struct Report {
    effort: Effort,
    started: Instant,
    load_before: String,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    section: &'static str,
    subject: String,
    metric: &'static str,
    unit: Unit,
    ours: Option<f64>,
    baseline: Option<f64>,
    direct: Option<f64>,
    goal: Option<f64>,
}

impl Row {
    fn side(&mut self, side: Side) -> &mut Option<f64> {
        match side {
            Side::Ours => &mut self.ours,
            Side::Baseline => &mut self.baseline,
            Side::Direct => &mut self.direct,
        }
    }

    fn print(&self) {
        let label = format!("  {:<34}{}, {}", self.subject, self.metric, self.unit.as_str());
        println!(
            "{label:<72}{:>10} {:>10} {:>8} {:>8} {:>8} {:>7}",
            optional(self.ours),
            optional(self.baseline),
            times(self.ratio()),
            optional(self.direct),
            times(self.ratio_to_direct()),
            optional(self.goal),
        );
    }

    /// How many times the baseline takes as long, or as much, as ours.
    fn ratio(&self) -> Option<f64> {
        let (ours, baseline) = (self.ours?, self.baseline?);
        Some(if self.unit == Unit::PerSecond { ours / baseline } else { baseline / ours })
    }

    /// How many times ours takes as long as a direct connection.
    fn ratio_to_direct(&self) -> Option<f64> {
        let (ours, direct) = (self.ours?, self.direct?);
        Some(if self.unit == Unit::PerSecond { direct / ours } else { ours / direct })
    }
}

impl Report {
    pub(crate) fn new(effort: Effort) -> Self {
        println!("{}, {effort:?} run", machine());
        Report { effort, started: Instant::now(), load_before: load_average(), rows: Vec::new() }
    }

    /// Prints what is measured next.
    pub(crate) fn begin(&self, what: &str) {
        println!("[{:>5.1} s] {what}", self.started.elapsed().as_secs_f64());
    }

    /// Takes a figure in.
    pub(crate) fn record(
        &mut self,
        section: &'static str,
        subject: &str,
        metric: &'static str,
        side: Side,
        figure: Figure,
    ) {
        let Figure { value, unit } = figure;
        println!("    {subject}: {metric} {} {} ({side:?})", number(value), unit.as_str());
        *self.row(section, subject, metric, unit).side(side) = Some(value);
    }

    /// What the figure should not exceed on a quiet machine.
    pub(crate) fn goal(
        &mut self,
        section: &'static str,
        subject: &str,
        metric: &'static str,
        figure: Figure,
    ) {
        self.row(section, subject, metric, figure.unit).goal = Some(figure.value);
    }

    fn row(&mut self, section: &'static str, subject: &str, metric: &'static str, unit: Unit) -> &mut Row {
        let found = self
            .rows
            .iter()
            .position(|row| row.section == section && row.subject == subject && row.metric == metric);
        let index = found.unwrap_or_else(|| {
            let (ours, baseline, direct, goal) = (None, None, None, None);
            let subject = subject.to_owned();
            self.rows.push(Row { section, subject, metric, unit, ours, baseline, direct, goal });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// Prints the table and writes the file.
    pub(crate) fn finish(self) -> Result<()> {
        self.print();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(FILE);
        let folder = path.parent().context("the file is in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let text = serde_json::to_string_pretty(&self.to_json())?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("\nwritten to {}", path.display());
        Ok(())
    }

    fn print(&self) {
        let mut sections: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !sections.contains(&row.section) {
                sections.push(row.section);
            }
        }
        for section in sections {
            println!(
                "\n{section:<72}{:>10} {:>10} {:>8} {:>8} {:>8} {:>7}",
                "ours", "baseline", "ratio", "direct", "ratio", "goal"
            );
            self.rows.iter().filter(|row| row.section == section).for_each(Row::print);
        }
        println!(
            "\n{:.0} s in all; load average {} before, {} after. A baseline ratio above 1 means that ours is faster or smaller.",
            self.started.elapsed().as_secs_f64(),
            self.load_before,
            load_average()
        );
    }

    fn to_json(&self) -> serde_json::Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "section": row.section, "subject": row.subject, "metric": row.metric, "unit": row.unit.as_str(),
                    "ours": row.ours, "baseline": row.baseline, "ratio": row.ratio(),
                    "direct": row.direct, "ratio_to_direct": row.ratio_to_direct(), "goal": row.goal,
                })
            })
            .collect();
        json!({
            "benchmark": "nftables",
            "effort": format!("{:?}", self.effort).to_lowercase(),
            "seconds": self.started.elapsed().as_secs_f64(),
            "machine": machine(),
            "load_average_before": self.load_before,
            "load_average_after": load_average(),
            "rows": rows,
        })
    }
}

fn machine() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("Linux {}, {processors} processors", release.trim())
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Three digits that count, at least.
fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

fn optional(value: Option<f64>) -> String {
    value.map_or(String::new(), number)
}

fn times(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("{} x", number(value)))
}
