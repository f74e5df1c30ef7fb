//! Services that the kernel refuses: told once, tried again ever more rarely, forgotten when they are taken.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portwarden_model::{Changes, Isolated, NamespacedName};

const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The refused Services of one family.
#[derive(Debug, Default)]
pub(super) struct Isolation {
    refused: BTreeMap<NamespacedName, Refused>,
}

#[derive(Debug)]
struct Refused {
    reason: String,
    wait: Duration,
    retry: Instant,
}

/// What a report changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Refused now for the first time, or for another reason than before.
    pub(super) fresh: Vec<Isolated>,
    /// Taken now, or gone.
    pub(super) recovered: Vec<NamespacedName>,
}

impl Isolation {
    /// Takes in the report of a sync that tried `changes`. No retry is put off longer than `longest`.
    pub(super) fn report(
        &mut self,
        changes: &Changes,
        isolated: Vec<Isolated>,
        now: Instant,
        longest: Duration,
    ) -> Difference {
        let mut before = std::mem::take(&mut self.refused);
        let mut difference = Difference::default();
        for one in isolated {
            let known = before.remove(&one.service);
            let wait =
                known.as_ref().map_or(FIRST_RETRY, |known| (known.wait * 2).min(longest.max(FIRST_RETRY)));
            if known.is_none_or(|known| known.reason != one.reason) {
                difference.fresh.push(one.clone());
            }
            self.refused.insert(one.service, Refused { reason: one.reason, wait, retry: now + wait });
        }
        for (service, known) in before {
            if changes.full || changes.services.contains(&service) {
                difference.recovered.push(service);
            } else {
                self.refused.insert(service, known);
            }
        }
        difference
    }

    /// The Services to try again now.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = &NamespacedName> {
        self.refused.iter().filter(move |(_, refused)| refused.retry <= now).map(|(service, _)| service)
    }

    /// When the next one is to be tried.
    pub(super) fn next(&self) -> Option<Instant> {
        self.refused.values().map(|refused| refused.retry).min()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.refused.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, reason: &str) -> Isolated {
        Isolated { service: NamespacedName::new("demo", name), reason: reason.to_owned() }
    }

    fn tried(name: &str) -> Changes {
        Changes { services: [NamespacedName::new("demo", name)].into(), ..Changes::default() }
    }

    #[test]
    fn a_refusal_is_told_once_and_retried_ever_more_rarely() {
        let (start, longest) = (Instant::now(), Duration::from_secs(3));
        let mut isolation = Isolation::default();
        let mut now = start;
        for (wait, fresh) in [(1, 1), (2, 0), (3, 0), (3, 0)] {
            let difference = isolation.report(&tried("web"), vec![refused("web", "no room")], now, longest);
            assert_eq!(difference.fresh.len(), fresh);
            assert_eq!(isolation.next(), Some(now + Duration::from_secs(wait)));
            assert_eq!(isolation.due(now).count(), 0);
            now += Duration::from_secs(wait);
            assert_eq!(isolation.due(now).count(), 1);
        }
        let other = isolation.report(&tried("web"), vec![refused("web", "bad key")], now, longest);
        assert_eq!(other.fresh.len(), 1, "another reason is told again");
    }

    #[test]
    fn only_a_sync_that_tried_a_service_can_clear_it() {
        let (now, longest) = (Instant::now(), Duration::from_secs(30));
        let mut isolation = Isolation::default();
        isolation.report(&Changes::everything(), vec![refused("web", "no room")], now, longest);
        assert_eq!(isolation.report(&tried("other"), vec![], now, longest), Difference::default());
        assert_eq!(isolation.len(), 1);
        let difference = isolation.report(&tried("web"), vec![], now, longest);
        assert_eq!(difference.recovered, [NamespacedName::new("demo", "web")]);
        assert_eq!(isolation.next(), None);
    }
}
