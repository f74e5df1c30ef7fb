//! What dataplanes detect outside of a sync: changes by other processes, and Services that are refused or accepted late.

use std::collections::BTreeSet;

use portwarden_model::{Family, GoneFrontend, NamespacedName, Notification, RefusedService};
use tracing::{error, info, warn};

use super::family_sync::FamilySync;
use super::{Engine, Moment, Notice};

impl Engine {
    pub(super) fn notified(&mut self, notification: Notification, now: Moment) {
        match notification {
            Notification::Tampered { family, what } => self.tampered(family, &what, now),
            Notification::Ready { family } => {
                self.syncs.of(family).for_each(|sync| sync.ready(now.instant));
            }
            Notification::Refused { family, refused } => {
                // During a change of mode there are two of a family, and both must know.
                let report = |sync: &mut FamilySync| sync.refused_late(refused.clone(), now.instant);
                let news: Vec<bool> = self.syncs.of(family).map(report).collect();
                if news.contains(&true) {
                    self.report_refused(family, &refused);
                }
                self.show_refused(family);
            }
            Notification::Accepted { family, service } => {
                let known: Vec<BTreeSet<GoneFrontend>> =
                    self.syncs.of(family).filter_map(|sync| sync.accepted_late(&service)).collect();
                if !known.is_empty() {
                    self.report_accepted(family, &service);
                }
                let gone: BTreeSet<GoneFrontend> = known.into_iter().flatten().collect();
                if !gone.is_empty() {
                    self.cleanup.request(family, false, gone, now.instant);
                }
                self.show_refused(family);
            }
            Notification::Restored { family, written } => self.restored(family, written, now),
            Notification::Counts { family, counts } => self.metrics.mode.count(family, &counts),
        }
    }

    fn tampered(&mut self, family: Family, what: &str, now: Moment) {
        let news: Vec<bool> = self.syncs.of(family).filter_map(|sync| sync.tampered(now.instant)).collect();
        if news.is_empty() {
            return;
        }
        self.metrics.own.tampering.with_label_values(&[family.as_str()]).inc();
        if news.contains(&true) {
            warn!(ipFamily = %family, what, "Another process changed our rules; restoring them");
        }
        self.activity.tampered(family, what, now);
        self.health.queued(family, now.instant);
        self.metrics.sync.queued(family, now.wall);
    }

    /// A comparison found what no notification had named.
    fn restored(&mut self, family: Family, written: usize, now: Moment) {
        let label = &[family.as_str()];
        self.metrics.own.tampering.with_label_values(label).inc();
        self.metrics.own.written.with_label_values(label).inc_by(written as u64);
        warn!(ipFamily = %family, written, "Part of our rules was missing or changed; it is restored");
        self.activity.tampered(family, &format!("{written} elements differed and were restored"), now);
        // While rules were missing, flows may have passed without redirection.
        self.cleanup.request(family, true, BTreeSet::new(), now.instant);
    }

    pub(super) fn report_accepted(&self, family: Family, service: &NamespacedName) {
        info!(ipFamily = %family, %service, "The kernel accepts a Service that it had refused");
        self.activity.accepted(family, service, (self.clock)());
    }

    pub(super) fn report_refused(&self, family: Family, refused: &RefusedService) {
        error!(ipFamily = %family, service = %refused.service, err = refused.reason, "The kernel refuses a Service; all others are in force");
        self.activity.refused(family, refused, (self.clock)());
        self.outputs.notice(Notice::Refused { family, refused: refused.clone() });
    }

    fn show_refused(&mut self, family: Family) {
        let count: usize = self.syncs.of(family).map(|sync| sync.refused_now()).sum();
        self.metrics.own.refused_services.with_label_values(&[family.as_str()]).set(count as f64);
    }
}
