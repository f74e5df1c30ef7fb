//! Which endpoint the next connection goes to: in turn, or the one that session affinity remembers.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portwarden_model::{Pool, PoolKind, ProxiedPort};

/// Affinity records are searched for expired ones whenever there are twice as many as after the last search, and at least this many.
const FIRST_PURGE: usize = 1024;

/// The endpoints of a service port, with the clients that stay with theirs.
#[derive(Debug)]
pub(crate) struct Balancer(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    cluster: Turns,
    local: Turns,
    affinity: Option<Duration>,
    /// One table for both pools: a client stays with its endpoint whichever way it comes, as long as that pool has it.
    clients: HashMap<IpAddr, Record>,
    purge_at: usize,
}

/// The endpoints of one pool, in random order, each in its turn.
#[derive(Debug, Default)]
struct Turns {
    pool: Pool,
    order: Vec<SocketAddr>,
    next: usize,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    endpoint: SocketAddr,
    used: Instant,
}

impl Balancer {
    /// The pools and affinity of a service port.
    pub(crate) fn new(port: &ProxiedPort) -> Self {
        let balancer = Balancer(Mutex::default());
        balancer.update(port);
        balancer
    }

    /// Takes over other endpoints. Clients stay with theirs as long as it is there.
    pub(crate) fn update(&self, port: &ProxiedPort) {
        self.set(&port.cluster, &port.local, port.affinity);
    }

    fn set(&self, cluster: &Pool, local: &Pool, affinity: Option<NonZeroU32>) {
        let state = &mut *self.state();
        let changed = state.cluster.update(cluster) | state.local.update(local);
        state.affinity = affinity.map(|seconds| Duration::from_secs(seconds.get().into()));
        if state.affinity.is_none() {
            state.clients = HashMap::new();
        } else if changed {
            let (cluster, local) = (&state.cluster, &state.local);
            state
                .clients
                .retain(|_, record| cluster.contains(record.endpoint) || local.contains(record.endpoint));
        }
    }

    /// The endpoint for a client; `None` if the pool is empty. Endpoints in `tried` failed for this connection: the client moves to another one
    /// where there is one, and stays there.
    pub(crate) fn choose(
        &self,
        kind: PoolKind,
        client: IpAddr,
        now: Instant,
        tried: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let state = &mut *self.state();
        let turns = match kind {
            PoolKind::Cluster => &mut state.cluster,
            PoolKind::Local => &mut state.local,
        };
        let Some(lasts) = state.affinity else { return turns.take(tried) };
        let remembered = state.clients.get(&client).filter(|record| {
            tried.is_empty()
                && now.saturating_duration_since(record.used) < lasts
                && turns.contains(record.endpoint)
        });
        let endpoint = match remembered {
            Some(record) => record.endpoint,
            None => turns.take(tried)?,
        };
        state.clients.insert(client, Record { endpoint, used: now });
        if state.clients.len() >= state.purge_at.max(FIRST_PURGE) {
            state.clients.retain(|_, record| now.saturating_duration_since(record.used) < lasts);
            state.purge_at = state.clients.len() * 2;
        }
        Some(endpoint)
    }

    /// Moves a client that affinity keeps with a failing endpoint to another one, where there is one.
    pub(crate) fn avoid(&self, kind: PoolKind, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        if self.state().affinity.is_some() {
            self.choose(kind, client, now, &[endpoint]);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is half done under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    /// Returns whether the pool differs. A new order each time, so that the nodes of a cluster do not all start with the same endpoint.
    fn update(&mut self, pool: &Pool) -> bool {
        if self.pool == *pool {
            return false;
        }
        let random = RandomState::new();
        self.order = pool.iter().map(|backend| backend.address()).collect();
        self.order.sort_by_cached_key(|endpoint| random.hash_one(endpoint));
        self.pool = pool.clone();
        self.next = 0;
        true
    }

    fn take(&mut self, tried: &[SocketAddr]) -> Option<SocketAddr> {
        let count = self.order.len();
        let mut first = None;
        for _ in 0..count.min(tried.len() + 1) {
            let endpoint = *self.order.get(self.next)?;
            self.next = (self.next + 1) % count;
            if !tried.contains(&endpoint) {
                return Some(endpoint);
            }
            first = first.or(Some(endpoint));
        }
        first
    }

    fn contains(&self, endpoint: SocketAddr) -> bool {
        self.pool.contains(endpoint)
    }
}
