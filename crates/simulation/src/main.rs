//! `simulate FIRST..END`: runs the schedules of these seeds.

use std::ops::Range;
use std::time::Instant;

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let argument = std::env::args().nth(1).unwrap_or_else(|| "0..100000".to_owned());
    let seeds = parse(&argument)
        .with_context(|| format!("{argument:?} is not a range of seeds such as 0..100000"))?;
    let (count, started) = (seeds.end.saturating_sub(seeds.start), Instant::now());
    if let Err(failure) = portwarden_simulation::run_seeds(seeds) {
        eprintln!("{failure}");
        std::process::exit(1);
    }
    println!("{count} schedules, no invariant violated, {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn parse(text: &str) -> anyhow::Result<Range<u64>> {
    let (start, end) = text.split_once("..").context("a range has two dots")?;
    Ok(start.parse()?..end.parse()?)
}
