//! What was measured, as it stands in `target/bench/report.json`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Everything.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) date: String,
    /// `full` or `quick`.
    pub(crate) kind: String,
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<String>,
    pub(crate) runs: Vec<Run>,
}

/// Where.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory_gb: f64,
    /// How many processes wanted to run just before: on a machine that is busy with other things, figures say little.
    pub(crate) load: f64,
}

/// One program in one mode with one size of cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) subject: String,
    pub(crate) ours: bool,
    pub(crate) mode: String,
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    /// From the start of the process to the first answered connection, in seconds: the median of several starts.
    pub(crate) start_seconds: Option<f64>,
    /// It was not synced within so many seconds.
    #[serde(default)]
    pub(crate) start_at_least_seconds: Option<f64>,
    pub(crate) starts: usize,
    /// Processor time of one start.
    pub(crate) start_processor_seconds: Option<f64>,
    pub(crate) change: Option<Times>,
    /// Time between two single changes.
    pub(crate) change_pause_ms: f64,
    pub(crate) churn: Vec<Churn>,
    pub(crate) rolling: Option<Rolling>,
    pub(crate) memory: Memory,
    /// What was wrong with the rules at the end; nothing if they were right.
    pub(crate) wrong: Vec<String>,
    /// Why something was not measured.
    pub(crate) notes: Vec<String>,
}

impl Run {
    /// The rolling update, if it did arrive: one that is not in the kernel at the end took no time that means anything.
    pub(crate) fn rolled(&self) -> Option<Rolling> {
        self.rolling.filter(|_| self.wrong.is_empty())
    }
}

/// Some times, in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) samples: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// Many changes over some time.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Churn {
    /// Changes per second that were wanted, and that were made.
    pub(crate) rate: u32,
    pub(crate) achieved: f64,
    pub(crate) seconds: f64,
    pub(crate) lag: Times,
    /// Changes that took longer than a second.
    pub(crate) late: usize,
    /// Changes that never came.
    pub(crate) lost: usize,
    /// Changes that were overtaken by later ones before they could come.
    pub(crate) overtaken: usize,
    pub(crate) processor_seconds_per_1000: f64,
    /// Processor time over time.
    pub(crate) share_of_core: f64,
}

/// All pods of many Services are replaced.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Rolling {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    pub(crate) writes: usize,
    /// From the first write to the last change in the kernel.
    pub(crate) seconds: f64,
    /// From the last write to the last change in the kernel, in milliseconds.
    pub(crate) behind: f64,
}

/// Resident memory in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) start: u64,
    pub(crate) synced: u64,
    pub(crate) churned: u64,
}

impl Times {
    /// Of some times; nothing if there are none.
    pub(crate) fn of(mut times: Vec<Duration>) -> Option<Times> {
        times.sort();
        let at = |share: f64| -> Option<f64> {
            // The smallest time that at least this share of all is not above.
            let rank = (share * times.len() as f64).ceil().max(1.0);
            let index = (0..times.len()).find(|index| (*index + 1) as f64 >= rank)?;
            times.get(index).map(|time| milliseconds(*time))
        };
        Some(Times { samples: times.len(), p50: at(0.5)?, p99: at(0.99)?, max: at(1.0)? })
    }
}

/// A time in milliseconds.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
