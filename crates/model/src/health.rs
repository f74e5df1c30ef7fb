//! Whether the proxy keeps up: a family is unhealthy when a change has waited too long for its sync.
//!
//! Time is an argument. Callers that display times convert these instants to dates by their distance from now.

use std::time::{Duration, Instant};

use crate::ip::{Family, PerFamily};

/// How many sync periods a change may wait.
const PERIODS: u32 = 2;

/// The health of all families.
#[derive(Debug, Clone)]
pub struct ProxyHealth {
    limit: Duration,
    families: PerFamily<Progress>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    last_updated: Option<Instant>,
    oldest_queued: Option<Instant>,
}

/// The health at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthReport {
    /// No family is unhealthy. `/livez` and the health-check ports of Services report this.
    pub healthy: bool,
    /// The latest update of any family.
    pub last_updated: Option<Instant>,
    /// Families that were never up to date are `None` and do not count.
    pub families: PerFamily<Option<FamilyHealth>>,
}

/// The health of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyHealth {
    /// When the family was last up to date.
    pub last_updated: Instant,
    /// No change has waited too long.
    pub healthy: bool,
}

impl ProxyHealth {
    /// Nothing is queued, and no family has started.
    pub fn new(sync_period: Duration) -> Self {
        ProxyHealth { limit: sync_period.saturating_mul(PERIODS), families: PerFamily::default() }
    }

    /// Changes the sync period; changes that already wait are judged by the new one.
    pub fn set_sync_period(&mut self, sync_period: Duration) {
        self.limit = sync_period.saturating_mul(PERIODS);
    }

    /// A change waits for its sync. Only the oldest waiting change counts.
    pub fn queued(&mut self, family: Family, now: Instant) {
        self.families[family].oldest_queued.get_or_insert(now);
    }

    /// A family is up to date: its loop has started, or a sync has succeeded.
    pub fn updated(&mut self, family: Family, now: Instant) {
        self.families[family] = Progress { last_updated: Some(now), oldest_queued: None };
    }

    /// A family is served from now on. One that was served before goes on as it was.
    pub fn started(&mut self, family: Family, now: Instant) {
        self.families[family].last_updated.get_or_insert(now);
    }

    /// Since when the oldest change of a family waits.
    pub fn oldest_queued(&self, family: Family) -> Option<Instant> {
        self.families[family].oldest_queued
    }

    /// A family is no longer served: nothing of it waits.
    pub fn stopped(&mut self, family: Family) {
        self.families[family] = Progress::default();
    }

    /// Whether something that waits since then has waited too long.
    pub fn is_late(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.limit
    }

    /// The health at this moment. While the engine is busy, changes may wait that it has not seen: `busy` counts like a queued change of every family.
    pub fn report(&self, now: Instant, busy: Option<Instant>) -> HealthReport {
        let families = PerFamily::from_fn(|family| self.family(family, now, busy));
        let known = || families.iter().filter_map(|(_, health)| health.as_ref());
        HealthReport {
            healthy: known().all(|health| health.healthy),
            last_updated: known().map(|health| health.last_updated).max(),
            families,
        }
    }

    /// `None` for a family that never started.
    fn family(&self, family: Family, now: Instant, busy: Option<Instant>) -> Option<FamilyHealth> {
        let Progress { last_updated, oldest_queued } = self.families[family];
        let late = |since: Option<Instant>| since.is_some_and(|since| self.is_late(since, now));
        Some(FamilyHealth { last_updated: last_updated?, healthy: !late(oldest_queued) && !late(busy) })
    }
}

impl HealthReport {
    /// Whether load balancers should send new traffic here, as `/healthz` reports: healthy, and the node is not being removed
    /// ([`crate::Cluster::is_node_eligible`]).
    pub fn takes_traffic(&self, node_eligible: bool) -> bool {
        self.healthy && node_eligible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);
    const LIMIT: Duration = Duration::from_secs(60);
    const NANO: Duration = Duration::from_nanos(1);

    #[test]
    fn a_change_may_wait_for_two_periods() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.updated(Family::V4, start);
        assert!(health.report(start + LIMIT * 100, None).healthy, "nothing is queued");
        health.queued(Family::V4, start);
        assert!(health.report(start + LIMIT - NANO, None).healthy);
        assert!(!health.report(start + LIMIT, None).healthy);
        health.updated(Family::V4, start + LIMIT);
        assert!(health.report(start + LIMIT, None).healthy);
    }

    #[test]
    fn a_family_that_starts_later_is_judged_from_then_on() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.started(Family::V6, start);
        health.queued(Family::V6, start);
        health.started(Family::V6, start + LIMIT);
        assert!(!health.report(start + LIMIT, None).healthy, "starting again forgives nothing");
    }

    #[test]
    fn an_engine_that_is_busy_for_too_long_makes_every_family_late() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.updated(Family::V4, start);
        health.updated(Family::V6, start);
        assert!(health.report(start + LIMIT - NANO, Some(start)).healthy);
        let report = health.report(start + LIMIT, Some(start));
        assert!(
            !report.healthy && report.families.iter().all(|(_, family)| family.is_some_and(|f| !f.healthy))
        );
        assert!(health.report(start + LIMIT, None).healthy);
    }

    #[test]
    fn a_family_that_is_no_longer_served_is_not_judged() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.updated(Family::V4, start);
        health.updated(Family::V6, start);
        health.queued(Family::V6, start);
        health.stopped(Family::V6);
        let report = health.report(start + LIMIT, None);
        assert!(report.healthy && report.families[Family::V6].is_none());
    }

    #[test]
    fn only_the_oldest_change_counts() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.updated(Family::V4, start);
        health.queued(Family::V4, start);
        health.queued(Family::V4, start + PERIOD);
        assert!(!health.report(start + LIMIT, None).healthy);
        health.updated(Family::V4, start + LIMIT);
        health.queued(Family::V4, start + LIMIT);
        assert!(health.report(start + LIMIT + PERIOD, None).healthy);
    }

    #[test]
    fn one_late_family_is_enough() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.updated(Family::V4, start);
        health.updated(Family::V6, start + NANO);
        health.queued(Family::V4, start);
        let report = health.report(start + LIMIT, None);
        assert!(!report.healthy);
        assert_eq!(report.last_updated, Some(start + NANO));
        assert_eq!(report.families.v4, Some(FamilyHealth { last_updated: start, healthy: false }));
        assert_eq!(report.families.v6, Some(FamilyHealth { last_updated: start + NANO, healthy: true }));
    }

    #[test]
    fn an_update_of_a_family_that_is_not_late_does_not_help_the_other() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        for family in Family::BOTH {
            health.updated(family, start);
        }
        health.queued(Family::V4, start);
        health.updated(Family::V6, start + LIMIT);
        let report = health.report(start + LIMIT, None);
        assert!(!report.healthy, "IPv4 still waits");
        assert!(report.families.v6.is_some_and(|family| family.healthy));
        health.updated(Family::V4, start + LIMIT);
        assert!(health.report(start + LIMIT, None).healthy);
    }

    #[test]
    fn both_families_can_be_late_and_recover_one_after_the_other() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        for family in Family::BOTH {
            health.updated(family, start);
            health.queued(family, start);
        }
        let late = |report: &HealthReport| {
            Family::BOTH
                .into_iter()
                .filter(|family| report.families[*family].is_some_and(|f| !f.healthy))
                .count()
        };
        let report = health.report(start + LIMIT, None);
        assert!(!report.healthy && late(&report) == 2);
        health.updated(Family::V6, start + LIMIT);
        let report = health.report(start + LIMIT, None);
        assert!(!report.healthy && late(&report) == 1);
        health.updated(Family::V4, start + LIMIT);
        let report = health.report(start + LIMIT, None);
        assert!(report.healthy && late(&report) == 0);
    }

    #[test]
    fn another_period_holds_for_what_already_waits() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.updated(Family::V4, start);
        health.queued(Family::V4, start);
        health.set_sync_period(PERIOD * 2);
        assert!(health.report(start + LIMIT, None).healthy);
        assert!(!health.report(start + LIMIT * 2, None).healthy);
    }

    /// A change of topology before the first lists are in, once the loop has started.
    #[test]
    fn easy_to_miss_27_a_change_before_the_first_sync_counts() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.updated(Family::V4, start);
        health.queued(Family::V4, start + NANO);
        assert!(!health.report(start + LIMIT + NANO, None).healthy);
    }

    #[test]
    fn easy_to_miss_28_a_family_that_never_started_is_not_judged() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.queued(Family::V6, start);
        let report = health.report(start + LIMIT * 2, None);
        assert!(report.healthy);
        assert_eq!((report.last_updated, report.families), (None, PerFamily::default()));
    }

    #[test]
    fn easy_to_miss_28_eligibility_concerns_new_traffic_only() {
        let start = Instant::now();
        let mut health = ProxyHealth::new(PERIOD);
        health.updated(Family::V4, start);
        let report = health.report(start, None);
        assert!(report.healthy && report.takes_traffic(true) && !report.takes_traffic(false));
        health.queued(Family::V4, start);
        assert!(!health.report(start + LIMIT, None).takes_traffic(true));
    }
}
