//! Services that the kernel refuses: reported once, retried at growing intervals, removed when they work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portwarden_model::{Changes, GoneFrontend, NamespacedName, RefusedService};

const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The refused Services of one family.
#[derive(Debug, Default)]
pub(super) struct RefusedServices {
    refused: BTreeMap<NamespacedName, Known>,
    /// Frontends that went in syncs that refused something. The old rules of a refused Service stay in force, so flows may still come through them.
    gone: BTreeSet<GoneFrontend>,
}

#[derive(Debug)]
struct Known {
    reason: String,
    wait: Duration,
    retry: Instant,
}

/// What a report changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Refused now for the first time, or for another reason than before.
    pub(super) fresh: Vec<RefusedService>,
    /// Accepted now, or deleted.
    pub(super) recovered: Vec<NamespacedName>,
    /// Frontends whose rules the recovered Services may have kept until now.
    pub(super) gone: BTreeSet<GoneFrontend>,
}

impl RefusedServices {
    /// Applies the report of a sync of `changes`. No retry is delayed longer than `longest`.
    pub(super) fn report(
        &mut self,
        changes: &Changes,
        refused: Vec<RefusedService>,
        now: Instant,
        longest: Duration,
    ) -> Difference {
        let mut before = std::mem::take(&mut self.refused);
        let mut difference = Difference::default();
        if !refused.is_empty() {
            self.gone.extend(&changes.gone);
        }
        for one in refused {
            let known = before.remove(&one.service);
            let wait =
                known.as_ref().map_or(FIRST_RETRY, |known| (known.wait * 2).min(longest.max(FIRST_RETRY)));
            if known.is_none_or(|known| known.reason != one.reason) {
                difference.fresh.push(one.clone());
            }
            self.refused.insert(one.service, Known { reason: one.reason, wait, retry: now + wait });
        }
        for (service, known) in before {
            if changes.full || changes.services.contains(&service) {
                difference.recovered.push(service);
            } else {
                self.refused.insert(service, known);
            }
        }
        if !difference.recovered.is_empty() {
            difference.gone = self.released();
        }
        difference
    }

    /// The frontends of [`Difference::gone`], which are forgotten when nothing is refused any more.
    fn released(&mut self) -> BTreeSet<GoneFrontend> {
        if self.refused.is_empty() { std::mem::take(&mut self.gone) } else { self.gone.clone() }
    }

    /// A Service was refused after its sync. Returns whether that is news.
    pub(super) fn add(&mut self, refused: RefusedService, now: Instant, longest: Duration) -> bool {
        let changes = Changes { services: [refused.service.clone()].into(), ..Changes::default() };
        !self.report(&changes, vec![refused], now, longest).fresh.is_empty()
    }

    /// A Service works now. Returns frontends as in [`Difference::gone`] if it was refused before.
    pub(super) fn remove(&mut self, service: &NamespacedName) -> Option<BTreeSet<GoneFrontend>> {
        self.refused.remove(service)?;
        Some(self.released())
    }

    /// All frontends whose rules refused Services may have kept.
    pub(super) fn gone(&self) -> &BTreeSet<GoneFrontend> {
        &self.gone
    }

    /// The Services whose retry is due.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = &NamespacedName> {
        self.refused.iter().filter(move |(_, refused)| refused.retry <= now).map(|(service, _)| service)
    }

    /// When the next retry is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.refused.values().map(|refused| refused.retry).min()
    }

    pub(super) fn contains(&self, service: &NamespacedName) -> bool {
        self.refused.contains_key(service)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.refused.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, reason: &str) -> RefusedService {
        RefusedService { service: NamespacedName::new("demo", name), reason: reason.to_owned() }
    }

    fn tried(name: &str) -> Changes {
        Changes { services: [NamespacedName::new("demo", name)].into(), ..Changes::default() }
    }

    #[test]
    fn a_refusal_is_reported_once_and_retried_at_growing_intervals() {
        let (start, longest) = (Instant::now(), Duration::from_secs(3));
        let mut services = RefusedServices::default();
        let mut now = start;
        for (wait, fresh) in [(1, 1), (2, 0), (3, 0), (3, 0)] {
            let difference = services.report(&tried("web"), vec![refused("web", "no room")], now, longest);
            assert_eq!(difference.fresh.len(), fresh);
            assert_eq!(services.next(), Some(now + Duration::from_secs(wait)));
            assert_eq!(services.due(now).count(), 0);
            now += Duration::from_secs(wait);
            assert_eq!(services.due(now).count(), 1);
        }
        let other = services.report(&tried("web"), vec![refused("web", "bad key")], now, longest);
        assert_eq!(other.fresh.len(), 1, "another reason is reported again");
    }

    #[test]
    fn only_a_sync_that_tried_a_service_can_clear_it() {
        let (now, longest) = (Instant::now(), Duration::from_secs(30));
        let mut services = RefusedServices::default();
        services.report(&Changes::everything(), vec![refused("web", "no room")], now, longest);
        assert_eq!(services.report(&tried("other"), vec![], now, longest), Difference::default());
        assert_eq!(services.len(), 1);
        let difference = services.report(&tried("web"), vec![], now, longest);
        assert_eq!(difference.recovered, [NamespacedName::new("demo", "web")]);
        assert_eq!(services.next(), None);
    }
}
