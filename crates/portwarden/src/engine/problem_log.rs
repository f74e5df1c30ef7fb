//! Logs problems of objects, but not all of them: thousands of bad objects must not flood the log, and those of one kind must not hide others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portwarden_model::Problem;
use tracing::warn;

/// Lines of each kind in each interval; the metric counts all problems.
const LINES: u64 = 20;
const INTERVAL: Duration = Duration::from_secs(60);

/// Kinds that are counted one by one. There are some dozens; more would be a flood of its own, and share one count.
const MOST_KINDS: usize = 64;

/// Logs the first problems of each kind in each interval, and how many more there were.
#[derive(Debug, Default)]
pub(super) struct ProblemLog {
    interval: Option<Instant>,
    /// How many problems of each kind there were in this interval.
    kinds: BTreeMap<String, u64>,
}

impl ProblemLog {
    /// Logs a problem, or counts it.
    pub(super) fn log(&mut self, problem: &Problem, now: Instant) {
        if self.interval.is_none_or(|since| now.saturating_duration_since(since) >= INTERVAL) {
            self.finish();
            self.interval = Some(now);
        }
        let mut kind = kind(problem);
        if self.kinds.len() >= MOST_KINDS && !self.kinds.contains_key(&kind) {
            kind = "others".to_owned();
        }
        let count = self.kinds.entry(kind.clone()).or_default();
        *count += 1;
        if *count > LINES {
            return;
        }
        warn!(
            object = problem.object,
            field = problem.field,
            problem = problem.text,
            "Part of an object cannot be used"
        );
        if *count == LINES {
            warn!(kind, interval = ?INTERVAL, "Many objects have problems of this kind; further ones are counted only (portwarden_object_problems_total)");
        }
    }

    fn finish(&mut self) {
        for (kind, count) in std::mem::take(&mut self.kinds) {
            if count > LINES {
                warn!(kind, count = count - LINES, "More objects had problems of this kind than were logged");
            }
        }
    }
}

/// The kind of the object and the field, without names and indices: `Service spec.ports[].port`.
fn kind(problem: &Problem) -> String {
    let object = problem.object.split(' ').next().unwrap_or_default();
    let mut kind = format!("{object} ");
    let mut inside = false;
    for character in problem.field.chars() {
        match character {
            '[' => {
                inside = true;
                kind.push_str("[]");
            }
            ']' => inside = false,
            _ if inside => {}
            other => kind.push(other),
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::captured::logged;

    fn problem(object: &str, field: &str) -> Problem {
        Problem { object: object.to_owned(), field: field.to_owned(), text: "bad".to_owned() }
    }

    #[test]
    fn many_problems_are_a_few_lines_and_a_count() {
        let start = Instant::now();
        let one = |number: u32| problem(&format!("Service demo/web-{number}"), "spec.ports[0].port");
        let lines = logged(|| {
            let mut log = ProblemLog::default();
            for number in 0..34_000 {
                log.log(&one(number), start);
            }
            log.log(&one(34_000), start + INTERVAL);
        });
        assert_eq!(lines.lines().count(), 20 + 1 + 1 + 1, "{lines}");
        assert!(lines.contains("count=33980"), "{lines}");
    }

    /// A flood of bad Services must not hide the one bad slice.
    #[test]
    fn problems_of_one_kind_do_not_hide_others() {
        let start = Instant::now();
        let lines = logged(|| {
            let mut log = ProblemLog::default();
            for number in 0..1000 {
                log.log(&problem(&format!("Service demo/web-{number}"), "spec.ports[7].port"), start);
            }
            log.log(&problem("EndpointSlice demo/web-abc", "endpoints[3].addresses[0]"), start);
            log.log(&problem("Service demo/other", "spec.externalIPs[2]"), start);
        });
        assert!(lines.contains("EndpointSlice demo/web-abc"), "{lines}");
        assert!(lines.contains("Service demo/other"), "{lines}");
    }

    /// Names are free text in places, so the number of kinds is limited, too.
    #[test]
    fn a_flood_of_kinds_is_limited() {
        let start = Instant::now();
        let lines = logged(|| {
            let mut log = ProblemLog::default();
            for number in 0..10_000 {
                log.log(&problem("Service demo/web", &format!("field-{number}")), start);
            }
        });
        assert_eq!(lines.lines().count(), MOST_KINDS + 20 + 1, "{lines}");
    }
}
