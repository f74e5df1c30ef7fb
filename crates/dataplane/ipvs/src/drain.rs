//! Real servers that leave: they get no new connections, and go when their last one has ended. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portwarden_netlink::ipvs::{RealServer, ServerKey};

/// Time between two looks at the connections of real servers that leave, as in kube-proxy.
pub(crate) const INTERVAL: Duration = Duration::from_secs(60);

/// The real servers that leave.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    /// Since when each has been leaving.
    leaving: BTreeMap<(ServerKey, SocketAddr), Instant>,
    next_look: Option<Instant>,
}

/// What is to be done about one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Its connections have ended, or its time is up.
    Remove,
    /// Another process removed it.
    Forget,
    /// It still has connections.
    Wait,
}

impl Drains {
    pub(crate) fn insert(&mut self, server: ServerKey, real: SocketAddr, now: Instant) {
        self.leaving.entry((server, real)).or_insert(now);
        self.next_look.get_or_insert(now + INTERVAL);
    }

    /// It is wanted again, or gone. Returns whether it was leaving.
    pub(crate) fn remove(&mut self, server: ServerKey, real: SocketAddr) -> bool {
        let removed = self.leaving.remove(&(server, real)).is_some();
        if self.leaving.is_empty() {
            self.next_look = None;
        }
        removed
    }

    pub(crate) fn contains(&self, server: ServerKey, real: SocketAddr) -> bool {
        self.leaving.contains_key(&(server, real))
    }

    /// Forgets all real servers of a virtual server.
    pub(crate) fn remove_server(&mut self, server: ServerKey) {
        let reals: Vec<SocketAddr> = self.of(server).collect();
        for real in reals {
            self.remove(server, real);
        }
    }

    /// Those of one virtual server.
    pub(crate) fn of(&self, server: ServerKey) -> impl Iterator<Item = SocketAddr> + '_ {
        // The smallest of all addresses.
        let first = SocketAddr::from(([0, 0, 0, 0], 0));
        let from = self.leaving.range((server, first)..).map(|(key, _)| *key);
        from.take_while(move |(key, _)| *key == server).map(|(_, real)| real)
    }

    /// The virtual servers with real servers that leave.
    pub(crate) fn servers(&self) -> Vec<ServerKey> {
        let mut servers: Vec<ServerKey> = self.leaving.keys().map(|(server, _)| *server).collect();
        servers.dedup();
        servers
    }

    /// When to look next: at regular intervals, and when the time of the first one is up.
    pub(crate) fn next_deadline(&self, limit: Option<Duration>) -> Option<Instant> {
        let oldest = self.leaving.values().min();
        let up = oldest.zip(limit).map(|(since, limit)| *since + limit);
        [self.next_look, up].into_iter().flatten().min()
    }

    /// Whether it is time to look. If so, the next time is set.
    pub(crate) fn is_due(&mut self, now: Instant, limit: Option<Duration>) -> bool {
        let due = self.next_deadline(limit).is_some_and(|deadline| deadline <= now);
        if due {
            self.next_look = Some(now + INTERVAL);
        }
        due
    }

    /// What to do about a real server, of which the kernel says `found`.
    pub(crate) fn decide(
        &self,
        server: ServerKey,
        real: SocketAddr,
        found: Option<&RealServer>,
        now: Instant,
        limit: Option<Duration>,
    ) -> Action {
        let Some(found) = found else { return Action::Forget };
        let since = self.leaving.get(&(server, real)).copied().unwrap_or(now);
        let up = limit.is_some_and(|limit| now.saturating_duration_since(since) >= limit);
        if up || is_idle(found) { Action::Remove } else { Action::Wait }
    }
}

/// Whether a real server has no connections. Entries of session affinity do not count.
pub(crate) fn is_idle(real: &RealServer) -> bool {
    real.connections.active == 0 && real.connections.inactive == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use portwarden_netlink::ipvs::Connections;

    fn key() -> ServerKey {
        ServerKey { address: "10.96.0.10:80".parse().expect("an address"), protocol: 6 }
    }

    fn real(active: u32, inactive: u32) -> RealServer {
        let address = "10.244.0.5:8080".parse().expect("an address");
        RealServer {
            connections: Connections { active, inactive, persistent: 3 },
            ..RealServer::masqueraded(address, 0)
        }
    }

    #[test]
    fn a_real_server_goes_with_its_last_connection() {
        let start = Instant::now();
        let mut drains = Drains::default();
        let address = real(0, 0).address;
        drains.insert(key(), address, start);
        assert_eq!(drains.next_deadline(None), Some(start + INTERVAL));
        assert!(!drains.is_due(start, None) && drains.is_due(start + INTERVAL, None));
        assert_eq!(drains.next_deadline(None), Some(start + INTERVAL * 2));
        let decide =
            |found: Option<&RealServer>| drains.decide(key(), address, found, start + INTERVAL, None);
        assert_eq!(decide(Some(&real(1, 0))), Action::Wait);
        assert_eq!(decide(Some(&real(0, 1))), Action::Wait, "TIME_WAIT counts");
        assert_eq!(decide(Some(&real(0, 0))), Action::Remove, "affinity does not");
        assert_eq!(decide(None), Action::Forget);
        assert!(drains.remove(key(), address));
        assert_eq!(drains.next_deadline(None), None);
    }

    #[test]
    fn with_a_limit_it_goes_in_any_case() {
        let start = Instant::now();
        let limit = Some(Duration::from_secs(10));
        let mut drains = Drains::default();
        let address = real(0, 0).address;
        drains.insert(key(), address, start);
        assert_eq!(drains.next_deadline(limit), Some(start + Duration::from_secs(10)));
        let later = start + Duration::from_secs(10);
        assert_eq!(drains.decide(key(), address, Some(&real(5, 0)), later, limit), Action::Remove);
        assert_eq!(drains.decide(key(), address, Some(&real(5, 0)), later, None), Action::Wait);
    }

    #[test]
    fn the_first_request_counts() {
        let start = Instant::now();
        let mut drains = Drains::default();
        let address = real(0, 0).address;
        drains.insert(key(), address, start);
        drains.insert(key(), address, start + INTERVAL);
        let limit = Some(Duration::from_secs(70));
        assert_eq!(drains.next_deadline(limit), Some(start + INTERVAL));
        drains.remove_server(key());
        assert!(drains.servers().is_empty());
    }
}
