//! Watches what cannot report for itself: an engine that is stuck, and a log that nothing reads.

use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use crate::engine::{Heartbeat, Moment};
use crate::health::SharedHealth;
use crate::introspection::Activity;
use crate::introspection::api::TimelineKind;
use crate::logging;
use crate::metrics::Metrics;

const INTERVAL: Duration = Duration::from_secs(1);

/// Watches as long as the process runs.
pub(super) async fn watch(health: SharedHealth, heartbeat: Heartbeat, metrics: Metrics, activity: Activity) {
    let mut watchdog = Watchdog { health, heartbeat, metrics, activity, stuck: None, dropped: 0 };
    loop {
        tokio::time::sleep(INTERVAL).await;
        watchdog.check(Instant::now(), logging::dropped_lines());
    }
}

struct Watchdog {
    health: SharedHealth,
    heartbeat: Heartbeat,
    metrics: Metrics,
    activity: Activity,
    /// Since when the engine is stuck, once that was logged.
    stuck: Option<Instant>,
    /// Log lines that were dropped so far.
    dropped: u64,
}

impl Watchdog {
    fn check(&mut self, now: Instant, dropped: u64) {
        match (self.health.stuck_since(now), self.stuck) {
            (Some(since), None) => {
                let (stage, busy) = (self.heartbeat.stage(), now.saturating_duration_since(since));
                error!(
                    stage = stage.as_str(), busyFor = ?busy,
                    "The engine is stuck: no change reaches the kernel, the rules in force stay. A program that hangs, a lock that another \
                     process holds, or too little CPU can be the cause"
                );
                let text = format!("The engine is stuck ({}): no change reaches the kernel", stage.as_str());
                self.activity.happened(TimelineKind::EngineStuck, text, Moment::now());
                self.stuck = Some(since);
            }
            (None, Some(since)) => {
                info!(after = ?now.saturating_duration_since(since), "The engine makes progress again");
                let text =
                    format!("The engine makes progress again after {:.1} s", (now - since).as_secs_f64());
                self.activity.happened(TimelineKind::EngineRecovered, text, Moment::now());
                self.stuck = None;
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        self.metrics.own.engine_stuck.set(f64::from(u8::from(self.stuck.is_some())));
        let lines = dropped.saturating_sub(self.dropped);
        if lines > 0 {
            self.dropped = dropped;
            self.metrics.own.log_lines_dropped.inc_by(lines);
            warn!(lines, "Log lines were dropped: nothing reads standard error, or not fast enough");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Stage;
    use crate::logging::captured::logged;
    use crate::metrics::BuildInfo;

    #[test]
    fn a_stuck_engine_is_logged_once_with_the_stage_and_once_when_it_is_over() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        let health = SharedHealth::new(Duration::from_secs(30));
        health.follow(heartbeat.clone());
        let metrics = Metrics::new(&BuildInfo::default()).expect("metrics");
        let shown = metrics.clone();
        let mut watchdog = Watchdog {
            health,
            heartbeat: heartbeat.clone(),
            metrics,
            activity: Activity::default(),
            stuck: None,
            dropped: 0,
        };
        let lines = logged(|| {
            heartbeat.wake(start);
            heartbeat.enter(Stage::Sync);
            for second in [1, 59, 60, 61, 300] {
                watchdog.check(start + Duration::from_secs(second), 0);
            }
            assert!(shown.text().contains("portwarden_engine_stuck 1\n"));
            heartbeat.sleep();
            watchdog.check(start + Duration::from_secs(301), 7);
        });
        assert_eq!(lines.matches("The engine is stuck").count(), 1, "{lines}");
        assert!(lines.contains("writing rules"), "{lines}");
        assert_eq!(lines.matches("makes progress again").count(), 1, "{lines}");
        assert!(shown.text().contains("portwarden_engine_stuck 0\n"));
        assert!(shown.text().contains("portwarden_log_lines_dropped_total 7\n"));
    }
}
