//! Which endpoint the next connection of a node port goes to.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use portwarden_model::Pool;

/// The endpoints of a node port. With session affinity all connections go to one of them: all clients have the same address here.
#[derive(Debug)]
pub(super) struct Choice {
    endpoints: Pool,
    affinity: Option<NonZeroU32>,
    pin: Option<Pin>,
}

/// The endpoint of all clients, until it has not been asked for longer than affinity lasts.
#[derive(Debug)]
struct Pin {
    endpoint: SocketAddr,
    used: Instant,
}

impl Choice {
    /// `affinity` is in seconds.
    pub(super) fn new(endpoints: Pool, affinity: Option<NonZeroU32>) -> Self {
        Choice { endpoints, affinity, pin: None }
    }

    /// Takes over other endpoints. The pin stays, as long as affinity means the same.
    pub(super) fn update(&mut self, endpoints: Pool, affinity: Option<NonZeroU32>) {
        self.endpoints = endpoints;
        if self.affinity != affinity {
            self.affinity = affinity;
            self.pin = None;
        }
    }

    /// The endpoint for a new connection; nothing if there is none.
    pub(super) fn choose(&mut self, now: Instant, random: u64) -> Option<SocketAddr> {
        let lasts = self.affinity.map(|seconds| Duration::from_secs(seconds.get().into()));
        let pinned = self.pin.as_ref().filter(|pin| {
            lasts.is_some_and(|lasts| now.saturating_duration_since(pin.used) <= lasts)
                && self.endpoints.contains(pin.endpoint)
        });
        let endpoint = match pinned {
            Some(pin) => pin.endpoint,
            None => {
                let count = u64::try_from(self.endpoints.len()).unwrap_or(u64::MAX);
                let index = usize::try_from(random.checked_rem(count)?).ok()?;
                self.endpoints.get(index)?.address()
            }
        };
        if lasts.is_some() {
            self.pin = Some(Pin { endpoint, used: now });
        }
        Some(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use portwarden_model::Backend;

    use super::*;

    fn pool(last: &[u8]) -> Pool {
        let backend = |last: &u8| Backend::new(([10, 0, 0, *last], 80).into(), false);
        Pool::new(&last.iter().map(backend).collect::<Vec<_>>())
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn every_endpoint_has_its_turn() {
        let mut choice = Choice::new(pool(&[1, 2, 3]), None);
        let now = Instant::now();
        let chosen: Vec<_> = (0..3).filter_map(|random| choice.choose(now, random)).collect();
        assert_eq!(chosen.len(), 3);
        assert!(chosen.windows(2).all(|pair| pair[0] != pair[1]), "{chosen:?}");
        assert_eq!(Choice::new(Pool::default(), None).choose(now, 7), None, "nothing to choose from");
    }

    #[test]
    fn affinity_holds_until_it_has_not_been_used_for_its_time() {
        let mut choice = Choice::new(pool(&[1, 2, 3]), NonZeroU32::new(10));
        let start = Instant::now();
        let first = choice.choose(start, 0);
        assert_eq!(choice.choose(start + seconds(10), 1), first);
        assert_eq!(choice.choose(start + seconds(20), 1), first, "each use renews it");
        assert_ne!(choice.choose(start + seconds(31), 1), first);
    }

    #[test]
    fn affinity_ends_with_its_endpoint_or_when_it_means_something_else() {
        let now = Instant::now();
        let mut choice = Choice::new(pool(&[1, 2, 3]), NonZeroU32::new(10));
        let first = choice.choose(now, 1);
        choice.update(pool(&[1, 2, 3, 4]), NonZeroU32::new(10));
        assert_eq!(choice.choose(now, 0), first, "other endpoints do not matter");
        choice.update(pool(&[1, 3]), NonZeroU32::new(10));
        let second = choice.choose(now, 1);
        assert!(second.is_some() && second != first);
        choice.update(pool(&[1, 3]), NonZeroU32::new(20));
        assert_ne!(choice.choose(now, 0), second, "another time is another affinity");
    }
}
