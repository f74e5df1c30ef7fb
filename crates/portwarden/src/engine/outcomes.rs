//! What became of a sync, in health, metrics, the log and the introspection server.

use std::collections::BTreeSet;
use std::time::Duration;

use portwarden_model::Family;
use tracing::{debug, error, info, trace, warn};

use super::family_sync::{Done, Failure};
use super::{Engine, ModeWords};
use crate::introspection::SyncRecord;

impl Engine {
    /// One line after the first syncs: what is in force.
    pub(super) fn log_in_force(&self) {
        let families = self.syncs.families();
        let mut services = BTreeSet::new();
        let mut refused = BTreeSet::new();
        for family in &families {
            for (name, _) in self.cluster.desired(*family).services() {
                let list = if self.syncs.is_refused(*family, name) { &mut refused } else { &mut services };
                list.insert(name);
            }
        }
        if !refused.is_empty() {
            warn!(
                services = refused.len(),
                "The kernel refuses Services; see the errors above, and portwarden status"
            );
        }
        if services.is_empty() {
            if refused.is_empty() {
                warn!(
                    "No Service is known, so nothing is proxied; check --manifests, or what the API server lists"
                );
            }
            return;
        }
        let endpoints: Vec<String> = families
            .iter()
            .map(|family| format!("{family}: {}", self.cluster.desired(*family).totals().endpoints))
            .collect();
        info!(services = services.len(), endpoints = endpoints.join(", "), "The rules are in force");
    }

    pub(super) fn succeeded(&mut self, words: ModeWords, family: Family, done: Done) {
        let mode = words.name;
        let now = (self.clock)();
        let desired = self.cluster.desired(family);
        let label = &[family.as_str()];
        self.metrics.sync.attempted(family, done.report.full, done.took);
        self.metrics.sync.succeeded(family, now.wall, desired.totals(), &done.changes.trigger_times);
        self.metrics.mode.show(family, &done.report.gauges);
        self.metrics.mode.count(family, &done.report.counts);
        self.metrics.own.written.with_label_values(label).inc_by(done.report.written as u64);
        self.metrics.own.refused_services.with_label_values(label).set(done.refused_now as f64);
        let waited = self.health.oldest_queued(family);
        let record = SyncRecord {
            at: now,
            family,
            mode,
            full: done.changes.full || done.report.full,
            took: done.took,
            change_to_kernel: waited.map(|since| now.instant.saturating_duration_since(since)),
            written: done.report.written,
            services: done.changes.services.len(),
            error: None,
        };
        self.activity.synced(record, desired);
        self.health.updated(family, now.instant);
        for trigger in &done.changes.trigger_times {
            let nanos = now.wall.as_nanos().saturating_sub(trigger.as_nanos());
            let elapsed = Duration::from_nanos(u64::try_from(nanos).unwrap_or_default());
            trace!(ipFamily = %family, ?elapsed, "Network programming");
        }
        debug!(
            ipFamily = %family, mode, full = done.report.full, services = desired.services().len(),
            endpoints = desired.totals().endpoints, written = done.report.written, elapsed = ?done.took,
            "SyncProxyRules complete"
        );
        if done.failures > 0 {
            info!(ipFamily = %family, mode, failures = done.failures, "Syncs succeed again");
        }
        if let Some(elapsed) = done.repaired {
            let ms = elapsed.as_millis();
            info!(ipFamily = %family, mode, written = done.report.written, "Our rules are complete again: repaired in {ms} ms");
        }
        for refused in &done.refused.fresh {
            self.report_refused(family, refused);
        }
        for service in &done.refused.recovered {
            self.report_accepted(family, service);
        }
        self.outputs.health_checks(desired, &done.changes);
        // Before a full sync rules may have been missing, so flows may have passed without redirection.
        let full = done.changes.full || done.report.full;
        // While a Service was refused, its old rules led flows to endpoints that may have left meanwhile.
        let accepted = !done.refused.recovered.is_empty();
        let concerned = full || accepted || done.changes.udp || !done.changes.gone.is_empty();
        if concerned && !done.report.flows_removed {
            self.cleanup.request(family, full, done.changes.gone, now.instant);
        }
    }

    pub(super) fn unfinished(&self, words: ModeWords, family: Family, failure: &Failure) {
        self.metrics.mode.count(family, &failure.error.report.counts);
        let reason = crate::logging::chain(failure.error.source.as_ref());
        info!(ipFamily = %family, mode = words.name, reason, elapsed = ?failure.took, "The sync continues in the background");
    }

    pub(super) fn failed(&self, words: ModeWords, family: Family, failure: &Failure) {
        let (mode, applied) = (words.name, &failure.error.report);
        self.metrics.sync.attempted(family, failure.full, failure.took);
        self.metrics.mode.count(family, &applied.counts);
        self.metrics.own.written.with_label_values(&[family.as_str()]).inc_by(applied.written as u64);
        let err = crate::logging::chain(failure.error.source.as_ref());
        error!(ipFamily = %family, err = err.as_str(), applied = applied.written, "{}", words.sync_failed);
        self.activity.sync_failed(SyncRecord {
            at: (self.clock)(),
            family,
            mode,
            full: failure.full,
            took: failure.took,
            change_to_kernel: None,
            written: applied.written,
            services: 0,
            error: Some(err),
        });
        let retrying = failure.retry.map(|at| at.saturating_duration_since((self.clock)().instant));
        info!(ipFamily = %family, mode, retryingTime = ?retrying.unwrap_or_default(), "Sync failed");
    }
}
