//! Simulation: the real engine and model, a modelled kernel, a clock that stands still unless it is moved, and schedules from seeds.
//!
//! A schedule mixes changes of objects, faults of the kernel, changes by other processes, configuration changes and crashes. After every step the
//! invariants of `ARCHITECTURE.md` are checked; a schedule that violates one is reduced to the steps that matter.
//!
//! | file | what |
//! |---|---|
//! | `schedule.rs` | the steps, and the schedule of a seed |
//! | `api.rs` | the objects that exist, and the lists and events that a source sends |
//! | `kernel.rs` | the modelled kernel, which outlives the process |
//! | `dataplane.rs`, `flows.rs` | a dataplane and connection tracking of that kernel |
//! | `process.rs` | an engine with its dataplanes, from start to crash |
//! | `world.rs` | carries out the steps |
//! | `invariants.rs` | what must hold |
//! | `shrink.rs` | reduces a schedule that fails |

mod api;
mod dataplane;
mod flows;
mod invariants;
mod kernel;
mod process;
mod random;
mod schedule;
mod shrink;
mod world;

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use portwarden::metrics::{BuildInfo, Metrics};

pub use schedule::{Edit, Families, Fault, Layer, Mode, Step, schedule};
use world::World;

/// A schedule that violates an invariant.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed of the schedule.
    pub seed: u64,
    /// What was violated.
    pub violation: String,
    /// The steps that are needed to show it.
    pub steps: Vec<Step>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.violation)?;
        writeln!(f, "repeat with: make simulate SEEDS={}..{}", self.seed, self.seed + 1)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "    {step:?}"))
    }
}

/// Runs steps from the start of a process. Returns the first violation.
pub fn run(steps: &[Step], metrics: &Metrics) -> Result<(), String> {
    let mut world = World::new(metrics.clone());
    for (number, step) in steps.iter().enumerate() {
        world.step(*step).map_err(|violation| format!("step {number} ({step:?}): {violation}"))?;
    }
    Ok(())
}

/// Runs the schedules of all these seeds on all processors. Returns a failure, the one with the lowest seed that was found.
pub fn run_seeds(seeds: Range<u64>) -> Result<(), Failure> {
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let work = || {
        let metrics = metrics();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return None;
            }
            let steps = schedule(seed);
            if let Err(violation) = run(&steps, &metrics) {
                next.store(seeds.end, Ordering::Relaxed);
                return Some((seed, steps, violation));
            }
        }
    };
    let found = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("a schedule panicked"));
        results.flatten().min_by_key(|(seed, ..)| *seed)
    });
    match found {
        None => Ok(()),
        Some((seed, steps, violation)) => {
            let (steps, violation) = shrink::shrink(steps, violation, |steps| run(steps, &metrics()).err());
            Err(Failure { seed, violation, steps })
        }
    }
}

/// Metrics for engines; schedules may share them.
pub fn metrics() -> Metrics {
    Metrics::new(&BuildInfo::default()).expect("the metrics of the program")
}
