//! Logs what the first sync waits for, repeatedly: a proxy that waits silently looks like one that hangs.

use std::time::{Duration, Instant};

use tracing::info;

/// The time between the first and the second line; it doubles with each further line.
const FIRST_REMINDER: Duration = Duration::from_secs(10);

/// The longest time between two lines.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// What the first sync needs of the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// The Node itself.
    Node,
    /// The Node's addresses.
    Addresses,
    /// The Node's pod ranges.
    PodCidrs,
}

impl Missing {
    fn words(self) -> &'static str {
        match self {
            Missing::Node => {
                "Waiting for node to exist; no rules are written meanwhile. Check that the kubelet runs and registers under this name"
            }
            Missing::Addresses => {
                "Waiting for node to be assigned IPs; no rules are written meanwhile. The kubelet or the cloud provider sets them"
            }
            Missing::PodCidrs => {
                "Waiting for PodCIDR allocation on the node; no rules are written meanwhile. The controller manager allocates them"
            }
        }
    }
}

/// When a line was logged, and when the next one is due.
#[derive(Debug, Default)]
pub(super) struct Reminder {
    last: Option<Line>,
}

#[derive(Debug)]
struct Line {
    missing: Missing,
    gap: Duration,
    next: Instant,
}

impl Reminder {
    /// Logs what is missing if a line is due. Returns when to call again: for the next line, or because the wait is over.
    pub(super) fn remind(&mut self, node: &str, missing: Missing, now: Instant, until: Instant) -> Instant {
        let gap = match &self.last {
            Some(last) if last.missing == missing && now < last.next => return last.next.min(until),
            Some(last) if last.missing == missing => (last.gap * 2).min(LONGEST_SILENCE),
            _ => FIRST_REMINDER,
        };
        let left = until.saturating_duration_since(now);
        info!(node, atMost = ?left, "{}", missing.words());
        let next = now + gap;
        self.last = Some(Line { missing, gap, next });
        next.min(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::captured::logged;

    #[test]
    fn reminders_come_at_growing_intervals_but_at_least_once_a_minute() {
        let (start, until) = (Instant::now(), Duration::from_secs(330));
        let mut at = Vec::new();
        let lines = logged(|| {
            let mut reminder = Reminder::default();
            let mut now = start;
            while now < start + until {
                at.push((now - start).as_secs());
                now = reminder.remind("here", Missing::PodCidrs, now, start + until);
            }
        });
        assert_eq!(at, [0, 10, 30, 70, 130, 190, 250, 310]);
        assert_eq!(lines.lines().count(), at.len(), "{lines}");
    }

    #[test]
    fn something_else_that_is_missing_is_logged_at_once() {
        let now = Instant::now();
        let until = now + Duration::from_secs(30);
        let lines = logged(|| {
            let mut reminder = Reminder::default();
            reminder.remind("here", Missing::Node, now, until);
            reminder.remind("here", Missing::Node, now + Duration::from_secs(1), until);
            reminder.remind("here", Missing::Addresses, now + Duration::from_secs(2), until);
        });
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(lines.contains("Waiting for node to exist") && lines.contains("assigned IPs"), "{lines}");
    }
}
