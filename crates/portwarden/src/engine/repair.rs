//! When changes by other processes are undone: at once, but two programs that undo each other's work must not keep the node busy.

use std::time::{Duration, Instant};

/// Repairs are at least this far apart, so that the next one still comes within a second.
const SHORTEST_GAP: Duration = Duration::from_millis(800);

/// How much of one processor repairs may take: one part in this many.
const SHARE: u32 = 10;

/// When a family may be repaired.
#[derive(Debug, Default)]
pub(super) struct Repair {
    /// Since when a repair is needed.
    wanted: Option<Instant>,
    /// Whether that was news.
    news: bool,
    not_before: Option<Instant>,
    /// Repairs since the last quiet time.
    in_a_row: u32,
}

impl Repair {
    /// Another process changed something. Returns whether this is news, and not one more round of two programs that undo each other's work.
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        let quiet = self.not_before.is_none_or(|at| at + 10 * SHORTEST_GAP <= now);
        if quiet {
            self.in_a_row = 0;
        }
        let news = self.wanted.is_none() && self.in_a_row == 0;
        if self.wanted.is_none() {
            (self.wanted, self.news) = (Some(now), news);
        }
        news
    }

    /// When the repair may happen, if one is needed.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        self.wanted.map(|_| self.not_before.map_or(now, |at| at.max(now)))
    }

    /// A full sync succeeded. Returns how long after it was detected a change was undone, if that was news.
    pub(super) fn done(&mut self, now: Instant, took: Duration) -> Option<Duration> {
        let since = self.wanted.take()?;
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.not_before = Some(now + SHORTEST_GAP.max(took * SHARE));
        self.news.then(|| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_repair_is_at_once_and_the_next_ones_are_apart() {
        let start = Instant::now();
        let mut repair = Repair::default();
        assert_eq!(repair.next(start), None);
        assert!(repair.ask(start));
        assert_eq!(repair.next(start), Some(start));
        let repaired = start + Duration::from_millis(5);
        assert_eq!(repair.done(repaired, Duration::from_millis(1)), Some(Duration::from_millis(5)));
        repair.not_before = Some(start + SHORTEST_GAP);
        assert_eq!(repair.next(start), None);
        assert!(!repair.ask(start), "a lasting conflict is not logged every time");
        assert_eq!(repair.next(start), Some(start + SHORTEST_GAP));
        let later = start + 20 * SHORTEST_GAP;
        assert_eq!(repair.done(start, Duration::ZERO), None, "nor is its repair");
        assert!(repair.ask(later), "after a quiet time it is news again");
        assert_eq!(repair.next(later), Some(later));
    }

    #[test]
    fn costly_repairs_are_rarer() {
        let start = Instant::now();
        let mut repair = Repair::default();
        repair.ask(start);
        repair.done(start, Duration::from_secs(2));
        repair.ask(start);
        assert_eq!(repair.next(start), Some(start + Duration::from_secs(20)));
    }
}
