//! How much memory the process and the kernel take.
//!
//! Each size has a process of its own, so that its memory is its own: the model and the dataplanes of both families, as in the
//! daemon, without what a source and the servers take.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use portwarden_model::Family;
use serde_json::{Value, json};

use crate::Effort;
use crate::measure::{self, Dice};
use crate::report::{Figure, Report, Side};
use crate::updates::{LoadedNode, MEMORY};
use crate::workload::{Shape, Workload};

/// The argument that makes this program measure its own memory.
pub(crate) const CHILD: &str = "--memory";

/// The kernel's memory is that of the whole machine, with other processes on it: the median of so many readings counts.
const RUNS: usize = 3;

/// Changes after which memory is measured again.
const CHANGES: usize = 2_000;

pub(crate) fn run(_: Effort, report: &mut Report) -> Result<()> {
    let [_, sizes @ ..] = crate::SHAPES;
    for shape in sizes {
        report.begin(&format!("memory with {shape}"));
        let mut runs = (0..RUNS).map(|_| measure_child(shape)).collect::<Result<Vec<Value>>>()?;
        runs.sort_by_key(|figures| figures[KERNEL].as_u64());
        let figures = runs.swap_remove(RUNS / 2);
        let subject = Workload::new(shape, Family::V4).subject();
        for metric in METRICS {
            let bytes = figures[metric].as_u64().with_context(|| format!("no figure for {metric}"))?;
            report.record(MEMORY, &subject, metric, Side::Ours, Figure::bytes(usize::try_from(bytes)?));
        }
    }
    Ok(())
}

fn measure_child(shape: Shape) -> Result<Value> {
    let program = std::env::current_exe().context("the program knows its own path")?;
    let output = Command::new(program).args([CHILD, &shape.to_string()]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("a process reports its memory")
}

const RESIDENT: &str = "resident";
const ANONYMOUS: &str = "of it anonymous";
const LATER: &str = "resident after 2000 changes";
const PEAK: &str = "peak of the process";
const KERNEL: &str = "kernel";
const METRICS: [&str; 5] = [RESIDENT, ANONYMOUS, LATER, PEAK, KERNEL];

/// Measures this process.
pub(crate) fn child(shape: Shape) -> Result<()> {
    const STATUS: &str = "/proc/self/status";
    let workload = Workload::new(shape, Family::V4);
    let before = measure::stable_kernel_memory()?;
    let (_, mut node) = LoadedNode::load(&workload)?;
    let kernel = measure::kernel_memory()?.saturating_sub(before);
    let (resident, anonymous) = (measure::field(STATUS, "VmRSS:")?, measure::field(STATUS, "RssAnon:")?);
    let mut dice = Dice::new();
    for _ in 0..CHANGES / 2 {
        node.flap(&workload, dice.roll(shape.services))?;
    }
    let later = measure::field(STATUS, "VmRSS:")?;
    let peak = measure::field(STATUS, "VmHWM:")?;
    let figures =
        json!({ RESIDENT: resident, ANONYMOUS: anonymous, LATER: later, PEAK: peak, KERNEL: kernel });
    println!("{figures}");
    Ok(())
}
