//! kube-proxy's rules for intervals, our own for bursts and failures, and properties of any sequence of requests.

use proptest::prelude::*;

use super::*;

/// The pacer together with a clock and a list of the runs it led to.
struct Bench {
    pacer: Pacer,
    start: Instant,
    now: Duration,
    runs: Vec<Duration>,
}

impl Bench {
    fn new(config: PacerConfig) -> Self {
        let start = Instant::now();
        Bench { pacer: Pacer::new(config, start), start, now: Duration::ZERO, runs: Vec::new() }
    }

    /// As the table of section 7.1: min 1 s, sync period 5 s, max 10 s.
    fn explicit() -> Self {
        Bench::new(PacerConfig { min_interval: s(1.0), sync_period: s(5.0), max_interval: s(10.0) })
    }

    fn adaptive() -> Self {
        Bench::new(PacerConfig::default())
    }

    fn request(&mut self) {
        self.pacer.request(self.start + self.now);
    }

    /// When the next run is due, counted from the start.
    fn due(&self) -> Duration {
        self.pacer.next_run().expect("something is due").saturating_duration_since(self.start)
    }

    /// Waits for the next run and does it. Returns when it started.
    fn run(&mut self, cost: Duration, ok: bool) -> Duration {
        let at = self.due().max(self.now);
        assert!(self.pacer.is_due(self.start + at));
        if let Some(before) = self.due().checked_sub(ms(1)) {
            assert!(!self.pacer.is_due(self.start + before), "not before its time");
        }
        self.now = at;
        self.pacer.started(self.start + self.now);
        assert_eq!(self.pacer.next_run(), None, "one run at a time");
        self.now += cost;
        self.pacer.finished(self.start + self.now, cost, ok);
        self.runs.push(at);
        at
    }

    fn request_at(&mut self, at: Duration) {
        self.now = at;
        self.request();
    }
}

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn requests_within_the_interval_are_served_by_one_run_at_its_end() {
    let mut bench = Bench::explicit();
    bench.request();
    assert_eq!(bench.run(s(0.0), true), s(0.0), "row 1: at once");
    bench.request_at(s(0.5));
    bench.request_at(s(0.999));
    assert_eq!(bench.run(s(0.0), true), s(1.0), "row 2: once, exactly at the end of the interval");
    assert_eq!(bench.due(), s(11.0), "row 3: silence after a success");
}

/// Waking up for each of a thousand changes a second would cost more than the changes.
#[test]
fn a_lasting_burst_of_cheap_changes_is_gathered_and_a_lone_change_is_not() {
    let mut bench = Bench::adaptive();
    let cost = Duration::from_micros(50);
    for change in 0..1000 {
        let at = ms(change);
        while bench.pacer.requested.is_some() && bench.due() < at {
            bench.run(cost, true);
        }
        bench.request_at(at.max(bench.now));
    }
    bench.run(cost, true);
    assert!((300..=510).contains(&bench.runs.len()), "{} runs", bench.runs.len());
    let later = bench.now + ms(10);
    bench.request_at(later);
    assert_eq!(bench.run(cost, true), later, "at once after a quiet time");
}

/// The sync period is only the longest one.
#[test]
fn a_failed_run_is_repeated_with_growing_waits() {
    let mut bench = Bench::explicit();
    bench.request();
    let starts: Vec<Duration> = (0..9).map(|_| bench.run(s(0.0), false)).collect();
    let waits: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits[..5], [s(1.0); 5], "never before the interval has passed");
    assert_eq!(waits[5..], [s(1.6), s(3.2), s(5.0)], "and at last every sync period");
}

#[test]
fn a_success_cancels_the_repetition() {
    let mut bench =
        Bench::new(PacerConfig { sync_period: s(5.0), max_interval: s(10.0), min_interval: s(1.0) });
    bench.request();
    bench.run(s(0.0), false);
    bench.request_at(s(0.2));
    assert_eq!(bench.run(s(0.0), true), s(1.0));
    assert_eq!(bench.due(), s(11.0), "no retry at 5 s");
}

#[test]
fn a_repetition_waits_for_the_interval() {
    let mut bench =
        Bench::new(PacerConfig { min_interval: s(5.0), sync_period: s(1.0), max_interval: s(10.0) });
    bench.request();
    bench.run(s(0.0), false);
    assert_eq!(bench.due(), s(5.0));
}

#[test]
fn the_first_run_waits_for_nothing() {
    for mut bench in [Bench::explicit(), Bench::adaptive()] {
        bench.request_at(s(0.3));
        assert_eq!(bench.due(), s(0.3));
    }
}

#[test]
fn a_request_while_running_is_served_by_another_run() {
    let mut bench = Bench::explicit();
    bench.request();
    bench.pacer.started(bench.start);
    bench.request_at(s(0.1));
    bench.pacer.finished(bench.start + s(0.2), s(0.2), true);
    assert_eq!(bench.due(), s(1.2));
}

#[test]
fn a_maximum_below_the_minimum_is_raised() {
    let mut bench =
        Bench::new(PacerConfig { min_interval: s(5.0), sync_period: s(30.0), max_interval: s(1.0) });
    bench.request();
    bench.run(s(0.0), true);
    assert_eq!(bench.due(), s(5.0));
}

#[test]
fn endless_periods_do_not_overflow() {
    let config =
        PacerConfig { min_interval: Duration::MAX, sync_period: Duration::MAX, max_interval: Duration::MAX };
    let start = Instant::now();
    let mut pacer = Pacer::new(config, start);
    assert_eq!(pacer.next_run(), None);
    pacer.request(start);
    pacer.started(start);
    pacer.finished(start, Duration::MAX, false);
    pacer.request(start);
    assert_eq!(pacer.next_run(), None);
}

#[test]
fn other_periods_count_from_the_last_run() {
    let mut bench = Bench::explicit();
    bench.request();
    bench.run(s(0.0), true);
    bench.pacer.set_config(PacerConfig { min_interval: s(2.0), sync_period: s(5.0), max_interval: s(20.0) });
    assert_eq!(bench.due(), s(20.0));
    bench.request();
    assert_eq!(bench.due(), s(2.0));
}

#[test]
fn after_a_quiet_time_a_change_is_served_at_once() {
    let mut bench = Bench::adaptive();
    bench.request();
    bench.run(ms(2), true);
    for at in [100, 200, 300] {
        bench.request_at(ms(at));
        assert_eq!(bench.run(ms(2), true), ms(at));
    }
}

/// Changes that never end: each pause is longer than the one before, up to ten times what a run costs.
#[test]
fn under_a_burst_pauses_grow_with_the_cost() {
    let pauses = |cost: Duration| -> Vec<Duration> {
        let mut bench = Bench::adaptive();
        bench.request();
        let mut pauses = Vec::new();
        for _ in 0..7 {
            bench.run(cost, true);
            bench.request();
            pauses.push(bench.due() - bench.now);
        }
        pauses
    };
    assert_eq!(pauses(ms(2)), [ms(2), ms(4), ms(8), ms(16), ms(20), ms(20), ms(20)]);
    assert_eq!(pauses(ms(150)), [ms(150), ms(300), ms(600), s(1.0), s(1.0), s(1.0), s(1.0)]);
}

/// As many changes a second as take half of the time to write: what is gathered must not be gathered for longer and longer.
#[test]
fn the_cost_of_each_change_does_not_make_pauses_longer() {
    let (fixed, each) = (Duration::from_micros(200), Duration::from_micros(50));
    let mut bench = Bench::adaptive();
    bench.request();
    bench.run(fixed, true);
    for _ in 0..1000 {
        bench.request();
        let gathered = (bench.due() - bench.now).as_micros() / 200;
        let cost = fixed + each * u32::try_from(gathered).expect("a small number");
        bench.run(cost, true);
    }
    bench.request();
    assert!(bench.due() - bench.now < ms(10), "{:?}", bench.due() - bench.now);
}

/// One request just after each pause must not keep a core busy: it belongs to the burst.
#[test]
fn a_steady_stream_counts_as_a_burst() {
    let mut bench = Bench::adaptive();
    bench.request();
    bench.run(ms(10), true);
    for _ in 0..10 {
        bench.request_at(bench.now + ms(15));
        bench.run(ms(10), true);
    }
    bench.request();
    assert_eq!(bench.due() - bench.now, ms(100));
    bench.request_at(bench.now + ms(100));
    bench.run(ms(10), true);
    bench.request_at(bench.now + ms(100));
    assert_eq!(bench.due(), bench.now, "quiet again");
    bench.run(ms(10), true);
    bench.request();
    assert_eq!(bench.due() - bench.now, ms(10), "and the pauses start small");
}

#[test]
fn a_failure_is_repeated_after_50_ms_and_a_new_change_does_not_wait_for_that() {
    let mut bench = Bench::adaptive();
    bench.request();
    bench.run(ms(1), false);
    assert_eq!(bench.due() - bench.now, ms(50));
    bench.run(ms(1), false);
    assert_eq!(bench.due() - bench.now, ms(100));
    bench.request_at(bench.now + ms(20));
    assert_eq!(bench.due(), bench.now);
    bench.run(ms(1), false);
    assert_eq!(bench.due() - bench.now, ms(200), "it failed again");
    for _ in 0..20 {
        bench.run(ms(1), false);
    }
    assert_eq!(bench.due() - bench.now, s(30.0), "at last every sync period");
    bench.run(ms(1), true);
    assert_eq!(bench.due() - bench.now, s(3600.0));
}

#[test]
fn easy_to_miss_24_intervals_count_from_the_end_of_a_run_and_nothing_runs_by_itself() {
    let mut bench = Bench::explicit();
    assert_eq!(bench.due(), s(10.0), "nothing before the maximum");
    bench.request();
    bench.run(s(3.0), true);
    bench.request();
    assert_eq!(bench.due(), s(4.0), "one second after the end");
    bench.run(s(0.0), true);
    bench.request_at(s(9.0));
    bench.run(s(0.0), true);
    bench.request_at(s(9.1));
    assert_eq!(bench.due(), s(10.0), "a quiet time saves up no burst");
}

/// One step of a random life: wait, perhaps ask, and what a run that is due by then costs and gives.
#[derive(Debug, Clone)]
struct Step {
    wait: Duration,
    asks: bool,
    cost: Duration,
    ok: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![3 => 0..3_000u64, 2 => 0..100_000u64, 1 => 0..20_000_000u64];
    let cost = prop_oneof![3 => 0..5_000u64, 1 => 0..500_000u64];
    let step = (wait, any::<bool>(), cost, prop::bool::weighted(0.7)).prop_map(|(wait, asks, cost, ok)| {
        Step { wait: Duration::from_micros(wait), asks, cost: Duration::from_micros(cost), ok }
    });
    prop::collection::vec(step, 1..80)
}

fn configs() -> impl Strategy<Value = PacerConfig> {
    let min = prop_oneof![Just(0), 1..5_000u64];
    (min, 10..60_000u64, 100..100_000u64).prop_map(|(min, period, max)| PacerConfig {
        min_interval: ms(min),
        sync_period: ms(period),
        max_interval: ms(max),
    })
}

/// A run of a random life.
#[derive(Debug)]
struct Run {
    started: Duration,
    ended: Duration,
    /// When the oldest request was made that it served.
    asked: Option<Duration>,
    ok: bool,
}

fn live(config: PacerConfig, steps: &[Step]) -> Vec<Run> {
    let mut bench = Bench::new(config);
    let mut runs: Vec<Run> = Vec::new();
    let mut asked = None;
    for step in steps {
        let until = bench.now + step.wait;
        while bench.due() <= until {
            let started = bench.run(step.cost, step.ok);
            runs.push(Run { started, ended: bench.now, asked: asked.take(), ok: step.ok });
            assert!(runs.len() < 20_000, "a busy loop");
        }
        bench.now = bench.now.max(until);
        if step.asks {
            bench.request();
            asked.get_or_insert(bench.now);
        }
    }
    if asked.is_some() {
        let started = bench.run(ms(1), true);
        runs.push(Run { started, ended: bench.now, asked: asked.take(), ok: true });
    }
    runs
}

proptest! {
    #[test]
    fn an_explicit_interval_is_always_kept(config in configs(), steps in steps()) {
        for pair in live(config, &steps).windows(2) {
            prop_assert!(pair[1].started >= pair[0].ended + config.min_interval, "{pair:?}");
        }
    }

    /// Served in time: after the explicit interval, or after at most ten times the last cost and never more than a second.
    #[test]
    fn every_request_is_served_in_time(config in configs(), steps in steps()) {
        let runs = live(config, &steps);
        for pair in runs.windows(2) {
            let [before, run] = pair else { unreachable!("windows of two") };
            let Some(asked) = run.asked else { continue };
            let cost = before.ended - before.started;
            let longest =
                if config.min_interval.is_zero() { (cost * 10).min(s(1.0)) } else { config.min_interval };
            prop_assert!(run.started <= asked.max(before.ended + longest), "{pair:?}");
        }
        if let Some(first) = runs.first() {
            prop_assert!(first.asked.is_none_or(|asked| first.started == asked));
        }
    }

    /// A run without a request starts after the maximum interval, or after the backoff of a failure; never sooner.
    #[test]
    fn nothing_runs_without_reason(config in configs(), steps in steps()) {
        for pair in live(config, &steps).windows(2) {
            let [before, run] = pair else { unreachable!("windows of two") };
            if run.asked.is_some() {
                continue;
            }
            let longest = config.max_interval.max(config.min_interval);
            let soonest = if before.ok { longest } else { ms(50).min(config.sync_period).min(longest) };
            prop_assert!(run.started >= before.ended + soonest, "{pair:?}");
        }
    }
}
