//! What the nftables dataplane costs, beside kube-proxy's own layout with the same services, loaded through `nft -f` in the same run.
//!
//!     cargo bench -p portwarden-nftables --bench nftables
//!     BENCH=quick cargo bench -p portwarden-nftables --bench nftables
//!     cargo bench -p portwarden-nftables --bench nftables -- connect      (only that part: updates, connect, memory, choices)
//!
//! Prints figures as they come, then a table, and writes them to `bench/nftables.json` in the target folder; judges nothing. Needs root:
//! everything happens in network namespaces of its own. The baseline is the `nft` program alone: what kube-proxy itself does before
//! and after it is left out. Each figure is the median of several runs unless it says otherwise; processor time (`cpu`) stands beside
//! wall time (`time`), because machines are hardly ever quiet. Any other process that listens to nftables' notifications (`nft monitor`), in whatever
//! namespace, makes the kernel build them, which slows every load down.

mod choices;
mod connect;
mod kube_proxy;
mod measure;
mod memory;
mod report;
mod updates;
mod workload;

use anyhow::{Context, Result, bail};

use report::Report;
use workload::Shape;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// About a minute: the baseline only where it loads in seconds.
    Quick,
    /// Some minutes.
    Full,
}

impl Effort {
    fn from_environment() -> Result<Effort> {
        match std::env::var("BENCH").as_deref() {
            Ok("quick") => Ok(Effort::Quick),
            Ok("full") | Err(_) => Ok(Effort::Full),
            Ok(other) => bail!("BENCH={other}: there is only quick, and full, which is the default"),
        }
    }

    /// One of two numbers.
    fn choose<T>(self, quick: T, full: T) -> T {
        match self {
            Effort::Quick => quick,
            Effort::Full => full,
        }
    }
}

/// Clusters that are loaded and changed.
const SHAPES: [Shape; 3] = [Shape::new(1_000, 10), Shape::new(5_000, 50), Shape::new(30_000, 4)];

/// A part of the benchmark.
type Part = fn(Effort, &mut Report) -> Result<()>;

/// Memory comes first: the kernel takes seconds to free what the others leave behind.
const PARTS: [(&str, Part); 4] = [
    ("memory", memory::run),
    ("updates", updates::run),
    ("connect", connect::run),
    ("choices", choices::run),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, shape] = arguments.as_slice()
        && flag == memory::CHILD
    {
        return memory::child(shape.parse()?);
    }
    // Cargo adds a flag of its own.
    let wanted: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = wanted.iter().find(|name| PARTS.iter().all(|(part, _)| part != *name)) {
        bail!("there is no part {unknown}; the parts are {}", PARTS.map(|(name, _)| name).join(", "));
    }
    let effort = Effort::from_environment()?;
    let mut report = Report::new(effort);
    for (name, part) in PARTS {
        if wanted.is_empty() || wanted.contains(&name) {
            part(effort, &mut report).with_context(|| format!("the part {name}"))?;
        }
    }
    report.finish()
}
