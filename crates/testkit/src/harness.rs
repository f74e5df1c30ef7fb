//! A test binary whose tests are known only when it runs: one for each scenario and dataplane.
//!
//! Understands what `cargo test` and `cargo nextest` say to test binaries: `--list`, `--exact`, `--skip`, `--ignored`,
//! `--test-threads` and filters. Options that make no difference here are accepted.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// One test.
pub struct Trial {
    /// Its group, for the summary; its full name is `group::name`.
    pub group: String,
    /// Its name within the group.
    pub name: String,
    /// What it does.
    pub work: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

impl Trial {
    fn full_name(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }
}

/// Executes the command line, and reports at the end how many passed in which group; `remarks` come with that.
pub fn main(trials: &[Trial], remarks: &[String]) -> ExitCode {
    match Request::parse(std::env::args().skip(1)) {
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
        Ok(request) => request.obey(trials, remarks),
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    list: bool,
    exact: bool,
    ignored_only: bool,
    quiet: bool,
    threads: Option<NonZero<usize>>,
    filters: Vec<String>,
    skip: Vec<String>,
}

impl Request {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Request> {
        let mut request = Request::default();
        while let Some(argument) = arguments.next() {
            let (option, inline) = match argument.split_once('=') {
                Some((option, value)) if option.starts_with("--") => {
                    (option.to_owned(), Some(value.to_owned()))
                }
                _ => (argument, None),
            };
            let mut value = || {
                inline.clone().or_else(|| arguments.next()).with_context(|| format!("{option} needs a value"))
            };
            match option.as_str() {
                "--list" => request.list = true,
                "--exact" => request.exact = true,
                "--ignored" => request.ignored_only = true,
                "--quiet" | "-q" => request.quiet = true,
                "--test-threads" => {
                    let text = value()?;
                    request.threads = Some(
                        text.parse().with_context(|| format!("--test-threads: {text:?} is not a number"))?,
                    );
                }
                "--skip" => request.skip.push(value()?),
                "--format" | "--color" | "--logfile" | "-Z" => drop(value()?),
                "--nocapture" | "--no-capture" | "--include-ignored" | "--show-output" | "--report-time" => {}
                unknown if unknown.starts_with('-') => bail!("this test binary does not know {unknown}"),
                _ => request.filters.push(option),
            }
        }
        Ok(request)
    }

    fn obey(&self, trials: &[Trial], remarks: &[String]) -> ExitCode {
        // Nothing is ignored here: asked for ignored tests only, there are none.
        let wanted: Vec<&Trial> =
            trials.iter().filter(|trial| !self.ignored_only && self.wants(&trial.full_name())).collect();
        if self.list {
            for trial in wanted {
                println!("{}: test", trial.full_name());
            }
            return ExitCode::SUCCESS;
        }
        let started = Instant::now();
        let failed = self.run(&wanted);
        summary(&wanted, &failed, started.elapsed());
        if self.filters.is_empty() {
            remarks.iter().for_each(|remark| println!("  {remark}"));
        }
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
    }

    fn wants(&self, name: &str) -> bool {
        let fits =
            |pattern: &String| if self.exact { pattern == name } else { name.contains(pattern.as_str()) };
        (self.filters.is_empty() || self.filters.iter().any(fits)) && !self.skip.iter().any(fits)
    }

    /// Runs all and returns the names and errors of those that failed.
    fn run(&self, trials: &[&Trial]) -> BTreeMap<String, String> {
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(BTreeMap::new());
        let worker = || {
            while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let result = catch_unwind(AssertUnwindSafe(&trial.work))
                    .unwrap_or_else(|_| Err(anyhow!("it panicked")));
                let (name, took) = (trial.full_name(), started.elapsed());
                match result {
                    Ok(()) if self.quiet => {}
                    Ok(()) => println!("test {name} ... ok ({:.1} s)", took.as_secs_f32()),
                    Err(error) => {
                        println!("test {name} ... FAILED ({:.1} s)", took.as_secs_f32());
                        failed
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(name, format!("{error:#}"));
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.threads.unwrap_or_else(default_threads).get() {
                scope.spawn(worker);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most of a test's time is spent waiting, so there may be more of them than processors.
fn default_threads() -> NonZero<usize> {
    let processors = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    processors.saturating_add(processors.get())
}

fn summary(trials: &[&Trial], failed: &BTreeMap<String, String>, took: Duration) {
    for (name, error) in failed {
        println!("\n---- {name}\n{error}");
    }
    let mut groups: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for trial in trials {
        let (passed, all) = groups.entry(&trial.group).or_default();
        *passed += usize::from(!failed.contains_key(&trial.full_name()));
        *all += 1;
    }
    println!("\n{} tests, {} failed, {:.1} s", trials.len(), failed.len(), took.as_secs_f32());
    for (group, (passed, all)) in groups {
        println!("  {group}: {passed} of {all} passed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> Result<Request> {
        Request::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_nextest_says_is_understood() {
        let list = request("--list --format terse").unwrap();
        assert!(list.list && list.wants("nftables::anything"));
        assert!(request("--list --format terse --ignored").unwrap().ignored_only);
        let one = request("nftables::cluster-ip --exact --nocapture").unwrap();
        assert!(one.wants("nftables::cluster-ip") && !one.wants("nftables::cluster-ip-from-a-pod"));
    }

    #[test]
    fn filters_choose_and_skips_leave_out() {
        let some = request("node-port --skip iptables --test-threads=3").unwrap();
        assert!(some.wants("nftables::node-port") && !some.wants("iptables-nft::node-port"));
        assert!(!some.wants("nftables::cluster-ip"));
        assert_eq!(some.threads.map(NonZero::get), Some(3));
    }

    #[test]
    fn unknown_options_are_named() {
        let error = request("--frobnicate").unwrap_err().to_string();
        assert!(error.contains("--frobnicate"), "{error}");
        assert!(request("--test-threads none").is_err());
    }

    #[test]
    fn failures_and_panics_differ_from_success() {
        let trial = |name: &str, work: fn() -> Result<()>| Trial {
            group: "group".to_owned(),
            name: name.to_owned(),
            work: Box::new(work),
        };
        let trials = [
            trial("good", || Ok(())),
            trial("bad", || bail!("broken")),
            trial("worse", || panic!("on purpose")),
        ];
        let failed = Request { quiet: true, ..Request::default() }.run(&trials.iter().collect::<Vec<_>>());
        assert_eq!(failed.keys().collect::<Vec<_>>(), ["group::bad", "group::worse"]);
        assert_eq!(failed["group::bad"], "broken");
    }
}
