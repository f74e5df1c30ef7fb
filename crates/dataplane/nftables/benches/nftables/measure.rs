//! Clocks and meters.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::ClockId;

/// What some work took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    /// On the clock on the wall.
    pub(crate) wall: Duration,
    /// On a processor.
    pub(crate) cpu: Duration,
}

/// Times the work of this thread.
pub(crate) fn spend<T>(work: impl FnOnce() -> Result<T>) -> Result<(Spent, T)> {
    let (cpu, start) = (thread_time()?, Instant::now());
    let value = work()?;
    Ok((Spent { wall: start.elapsed(), cpu: thread_time()?.saturating_sub(cpu) }, value))
}

/// Times work that other programs do for us.
pub(crate) fn spend_children<T>(work: impl FnOnce() -> Result<T>) -> Result<(Spent, T)> {
    let (cpu, start) = (children_time()?, Instant::now());
    let value = work()?;
    Ok((Spent { wall: start.elapsed(), cpu: children_time()?.saturating_sub(cpu) }, value))
}

/// Durations of one thing done again and again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The duration that this share of all stays below.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(index).copied().unwrap_or_default()
    }

    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }

    pub(crate) fn min(&self) -> Duration {
        self.percentile(0)
    }

    pub(crate) fn max(&self) -> Duration {
        self.percentile(100)
    }
}

impl FromIterator<Duration> for Times {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        Times(times.into_iter().collect())
    }
}

/// The same sequence in every run.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new() -> Self {
        Dice(0x9e37_79b9_7f4a_7c15)
    }

    /// A number below `limit`.
    pub(crate) fn roll(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % limit.max(1)
    }

    /// Puts things into a random order.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.roll(last + 1));
        }
    }
}

/// Bytes of unreclaimable kernel memory, which holds elements, hash tables, chains and rules. It is the whole machine's: a difference of
/// two readings is exact only while no other process uses kernel memory.
pub(crate) fn kernel_memory() -> Result<usize> {
    Ok(field("/proc/meminfo", "SUnreclaim:")? + field("/proc/meminfo", "VmallocUsed:")?)
}

/// The same when the kernel has got rid of what was removed before: it does so at leisure.
pub(crate) fn stable_kernel_memory() -> Result<usize> {
    const NOISE: usize = 1 << 18;
    let (mut last, mut quiet) = (kernel_memory()?, 0);
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(50));
        let now = kernel_memory()?;
        quiet = if now + NOISE < last { 0 } else { quiet + 1 };
        last = now;
        if quiet == 5 {
            break;
        }
    }
    Ok(last)
}

/// A size in bytes from a file that has one in each line.
pub(crate) fn field(path: &str, name: &str) -> Result<usize> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    Ok(number.with_context(|| format!("{path} has no {name}"))? * 1024)
}

/// Processor time of the calling thread.
fn thread_time() -> Result<Duration> {
    Ok(ClockId::CLOCK_THREAD_CPUTIME_ID.now()?.into())
}

/// Processor time of all programs that were started and have ended.
fn children_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let time = usage.user_time() + usage.system_time();
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec())?);
    Ok(seconds + Duration::from_micros(u64::try_from(time.tv_usec())?))
}

/// The largest resident memory of all programs that were started and have ended.
pub(crate) fn children_peak() -> Result<usize> {
    Ok(usize::try_from(getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss())? * 1024)
}
