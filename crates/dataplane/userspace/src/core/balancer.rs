//! Which endpoint the next connection goes to: in turn, or the one that session affinity remembers.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portwarden_model::{Pool, PoolKind, ProxiedPort};
use tokio::sync::Notify;

use super::counters::Counters;

/// Affinity records are searched for expired ones whenever there are twice as many as after the last search, and at least this many.
const FIRST_PURGE: usize = 1024;

/// The endpoints of a service port, with the clients that stay with theirs and the dials in flight.
#[derive(Debug, Default)]
pub(crate) struct Balancer {
    state: Mutex<State>,
    /// Notified when an endpoint that had as many dials as it may have has one less.
    freed: Notify,
    /// Has the number of affinity records of all balancers.
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct State {
    cluster: Turns,
    local: Turns,
    affinity: Option<Duration>,
    /// One table for both pools: a client stays with its endpoint whichever way it comes, as long as that pool has it.
    clients: HashMap<IpAddr, Record>,
    purge_at: usize,
    /// How many dials are in flight, for each endpoint that has any.
    dials: HashMap<SocketAddr, u32>,
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

/// A dial in flight. It has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Dialling<'a> {
    balancer: &'a Balancer,
    endpoint: SocketAddr,
    most: u32,
}

impl Balancer {
    /// The pools and affinity of a service port.
    pub(crate) fn new(port: &ProxiedPort, counters: &Arc<Counters>, now: Instant) -> Self {
        let balancer =
            Balancer { state: Mutex::default(), freed: Notify::new(), counters: Arc::clone(counters) };
        balancer.update(port, now);
        balancer
    }

    /// Takes over other endpoints. Clients stay with theirs as long as it is there and their time is not up.
    pub(crate) fn update(&self, port: &ProxiedPort, now: Instant) {
        self.set(&port.cluster, &port.local, port.affinity, now);
    }

    fn set(&self, cluster: &Pool, local: &Pool, affinity: Option<NonZeroU32>, now: Instant) {
        self.change(|state| {
            state.cluster.update(cluster);
            state.local.update(local);
            state.affinity = affinity.map(|seconds| Duration::from_secs(seconds.get().into()));
            let Some(lasts) = state.affinity else {
                state.clients = HashMap::new();
                return;
            };
            let (cluster, local) = (&state.cluster, &state.local);
            state.clients.retain(|_, record| {
                record.is_valid(lasts, now)
                    && (cluster.contains(record.endpoint) || local.contains(record.endpoint))
            });
        });
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
        self.change(|state| state.choose(kind, client, now, tried, u32::MAX))
    }

    /// The same for a dial, which goes past endpoints that have `most` of them in flight. If there is no other endpoint, or affinity keeps the client
    /// there, the dial has to [wait](Balancer::wait_for_turn).
    pub(crate) fn choose_to_dial(
        &self,
        kind: PoolKind,
        client: IpAddr,
        now: Instant,
        tried: &[SocketAddr],
        most: u32,
    ) -> Option<(SocketAddr, Option<Dialling<'_>>)> {
        let (endpoint, free) = self.change(|state| {
            let endpoint = state.choose(kind, client, now, tried, most)?;
            Some((endpoint, state.start_dial(endpoint, most)))
        })?;
        Some((endpoint, free.then(|| Dialling { balancer: self, endpoint, most })))
    }

    /// Waits until an endpoint has less than `most` dials in flight, and starts one.
    pub(crate) async fn wait_for_turn(&self, endpoint: SocketAddr, most: u32) -> Dialling<'_> {
        loop {
            let mut freed = pin!(self.freed.notified());
            // From here on, no notification is missed.
            freed.as_mut().enable();
            if self.state().start_dial(endpoint, most) {
                return Dialling { balancer: self, endpoint, most };
            }
            freed.await;
        }
    }

    /// Moves a client that affinity keeps with a failing endpoint to another one, where there is one.
    pub(crate) fn avoid(&self, kind: PoolKind, client: IpAddr, endpoint: SocketAddr, now: Instant) {
        let affinity = self.state().affinity;
        if affinity.is_some() {
            self.choose(kind, client, now, &[endpoint]);
        }
    }

    /// Changes the state, and counts the affinity records that it has then.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let before = state.clients.len();
        let result = change(&mut state);
        self.counters.affinity_records.correct(before, state.clients.len());
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is half done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.change(|state| state.clients.clear());
    }
}

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        let mut state = self.balancer.state();
        let Some(dials) = state.dials.get_mut(&self.endpoint) else { return };
        let was_full = *dials >= self.most;
        *dials = dials.saturating_sub(1);
        if *dials == 0 {
            state.dials.remove(&self.endpoint);
        }
        drop(state);
        if was_full {
            self.balancer.freed.notify_waiters();
        }
    }
}

impl State {
    fn choose(
        &mut self,
        kind: PoolKind,
        client: IpAddr,
        now: Instant,
        tried: &[SocketAddr],
        most: u32,
    ) -> Option<SocketAddr> {
        let turns = match kind {
            PoolKind::Cluster => &mut self.cluster,
            PoolKind::Local => &mut self.local,
        };
        let dials = &self.dials;
        let Some(lasts) = self.affinity else { return turns.take(tried, dials, most) };
        let remembered = self.clients.get(&client).filter(|record| {
            tried.is_empty() && record.is_valid(lasts, now) && turns.contains(record.endpoint)
        });
        let endpoint = match remembered {
            Some(record) => record.endpoint,
            None => turns.take(tried, dials, most)?,
        };
        self.clients.insert(client, Record { endpoint, used: now });
        if self.clients.len() >= self.purge_at.max(FIRST_PURGE) {
            self.clients.retain(|_, record| record.is_valid(lasts, now));
            self.purge_at = self.clients.len() * 2;
        }
        Some(endpoint)
    }

    /// Counts a dial, unless the endpoint has `most` already.
    fn start_dial(&mut self, endpoint: SocketAddr, most: u32) -> bool {
        let dials = self.dials.entry(endpoint).or_default();
        let free = *dials < most;
        *dials += u32::from(free);
        free
    }
}

impl Record {
    fn is_valid(&self, lasts: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.used) < lasts
    }
}

impl Turns {
    /// A new order each time that the pool changes, so that the nodes of a cluster do not all start with the same endpoint.
    fn update(&mut self, pool: &Pool) {
        if self.pool == *pool {
            return;
        }
        let random = RandomState::new();
        self.order = pool.iter().map(|backend| backend.address()).collect();
        self.order.sort_by_cached_key(|endpoint| random.hash_one(endpoint));
        self.pool = pool.clone();
        self.next = 0;
    }

    /// The next endpoint that is neither `tried` nor has `most` dials in flight; if there is none, one that is not `tried`; else any.
    fn take(
        &mut self,
        tried: &[SocketAddr],
        dials: &HashMap<SocketAddr, u32>,
        most: u32,
    ) -> Option<SocketAddr> {
        let count = self.order.len();
        let (mut busy, mut any) = (None, None);
        for _ in 0..count.min(tried.len() + dials.len() + 1) {
            let endpoint = *self.order.get(self.next)?;
            self.next = (self.next + 1) % count;
            let is_tried = tried.contains(&endpoint);
            if !is_tried && dials.get(&endpoint).is_none_or(|dials| *dials < most) {
                return Some(endpoint);
            }
            if !is_tried {
                busy = busy.or(Some(endpoint));
            }
            any = any.or(Some(endpoint));
        }
        busy.or(any)
    }

    fn contains(&self, endpoint: SocketAddr) -> bool {
        self.pool.contains(endpoint)
    }
}
