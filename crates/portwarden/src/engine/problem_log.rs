//! Logs problems of objects, but not all of them: thousands of bad objects must not flood the log.

use std::time::{Duration, Instant};

use portwarden_model::Problem;
use tracing::warn;

/// Lines for each interval; the metric counts all problems.
const LINES: u32 = 50;
const INTERVAL: Duration = Duration::from_secs(60);

/// Logs the first problems of each interval, and how many more there were.
#[derive(Debug, Default)]
pub(super) struct ProblemLog {
    interval: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl ProblemLog {
    /// Logs a problem, or counts it.
    pub(super) fn log(&mut self, problem: &Problem, now: Instant) {
        if self.interval.is_none_or(|since| now.saturating_duration_since(since) >= INTERVAL) {
            self.finish();
            (self.interval, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES {
            self.left_out += 1;
            return;
        }
        self.lines += 1;
        warn!(
            object = problem.object,
            field = problem.field,
            problem = problem.text,
            "Part of an object cannot be used"
        );
        if self.lines == LINES {
            warn!(interval = ?INTERVAL, "Many objects have problems; further ones are counted only (portwarden_object_problems_total)");
        }
    }

    fn finish(&mut self) {
        let count = std::mem::take(&mut self.left_out);
        if count > 0 {
            warn!(count, "More objects had problems than were logged");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::captured::logged;

    #[test]
    fn many_problems_are_a_few_lines_and_a_count() {
        let start = Instant::now();
        let problem = |number: u32| Problem {
            object: format!("Service demo/web-{number}"),
            field: "spec.ports".to_owned(),
            text: "bad".to_owned(),
        };
        let lines = logged(|| {
            let mut log = ProblemLog::default();
            for number in 0..34_000 {
                log.log(&problem(number), start);
            }
            log.log(&problem(34_000), start + INTERVAL);
        });
        assert_eq!(lines.lines().count(), 50 + 1 + 1 + 1, "{lines}");
        assert!(lines.contains("count=33950"), "{lines}");
    }
}
