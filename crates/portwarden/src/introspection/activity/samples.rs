//! The series for plots: one point per interval, for the last quarter of an hour.

use std::collections::VecDeque;
use std::time::Duration;

use portwarden_model::Timestamp;

use crate::introspection::api::Series;

/// The time between two points.
pub(in crate::introspection) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Points that are kept.
const KEPT: usize = 900;

/// Closed intervals, and the sums of the current one.
#[derive(Default)]
pub(super) struct Samples {
    closed: VecDeque<Sample>,
    open: Open,
}

/// The time of the last point is in nanoseconds; a point takes 32 bytes.
struct Sample {
    at: Timestamp,
    memory: u64,
    sync: Option<f32>,
    change_to_kernel: Option<f32>,
    changes: f32,
}

#[derive(Default)]
struct Open {
    sync: Option<Duration>,
    change_to_kernel: Option<Duration>,
    changes: usize,
}

impl Samples {
    /// Changes of objects arrived.
    pub(super) fn changed(&mut self, count: usize) {
        self.open.changes += count;
    }

    /// A sync ended.
    pub(super) fn synced(&mut self, took: Duration, change_to_kernel: Option<Duration>) {
        self.open.sync = self.open.sync.max(Some(took));
        self.open.change_to_kernel = self.open.change_to_kernel.max(change_to_kernel);
    }

    /// Closes the current interval.
    pub(super) fn close(&mut self, at: Timestamp, memory: u64) {
        let Open { sync, change_to_kernel, changes } = std::mem::take(&mut self.open);
        let millis = |duration: Duration| duration.as_secs_f32() * 1000.0;
        let elapsed = self.closed.back().map_or(1.0, |last| seconds(at) - seconds(last.at)).max(0.1);
        if self.closed.len() == KEPT {
            self.closed.pop_front();
        }
        self.closed.push_back(Sample {
            at,
            memory,
            sync: sync.map(millis),
            change_to_kernel: change_to_kernel.map(millis),
            #[expect(clippy::cast_possible_truncation, reason = "a rate for a plot")]
            changes: (changes as f64 / elapsed) as f32,
        });
    }

    /// The points after a time, in seconds since the epoch.
    pub(super) fn series(&self, after: Option<f64>) -> Series {
        let first = after.map_or(0, |after| self.closed.partition_point(|one| seconds(one.at) <= after));
        let mut series = Series::default();
        for sample in self.closed.range(first..) {
            series.time.push(seconds(sample.at));
            series.sync.push(sample.sync);
            series.change_to_kernel.push(sample.change_to_kernel);
            series.changes.push(sample.changes);
            series.memory.push(sample.memory);
        }
        series
    }
}

/// To the millisecond, which keeps the JSON short.
fn seconds(at: Timestamp) -> f64 {
    (at.as_nanos() / 1_000_000) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn an_interval_shows_its_longest_sync_and_its_rate() {
        let mut samples = Samples::default();
        samples.close(at(0), 1);
        samples.changed(30);
        samples.changed(10);
        samples.synced(Duration::from_millis(2), Some(Duration::from_millis(5)));
        samples.synced(Duration::from_millis(4), None);
        samples.close(at(2000), 2);
        samples.close(at(3000), 3);
        let series = samples.series(None);
        assert_eq!(series.time, [0.0, 2.0, 3.0]);
        assert_eq!(series.sync, [None, Some(4.0), None]);
        assert_eq!(series.change_to_kernel, [None, Some(5.0), None]);
        assert_eq!(series.changes, [0.0, 20.0, 0.0]);
        assert_eq!(samples.series(Some(2.0)).memory, [3]);
        assert!(samples.series(Some(3.0)).time.is_empty());
    }

    #[test]
    fn old_points_are_dropped() {
        let mut samples = Samples::default();
        for second in 0..2000 {
            samples.close(at(second * 1000), 0);
        }
        let series = samples.series(None);
        assert_eq!((series.time.len(), series.time[0]), (KEPT, 1100.0));
    }
}
