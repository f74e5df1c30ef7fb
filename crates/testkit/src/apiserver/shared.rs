//! What the server's owner and its connections share.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::access::User;
use super::fault::{Fault, GoneAs, Schedule};
use super::log::Seen;
use super::resource::Resource;
use super::store::Store;
use super::tls::Tls;

/// How a server deals with `sendInitialEvents`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamingLists {
    /// It sends what is asked for.
    #[default]
    Supported,
    /// It refuses, as servers do that have it switched off.
    Refused,
    /// It accepts, and fails with an `ERROR` event, as servers over an old etcd do.
    Failing,
    /// It does not know it: all objects are sent, but no bookmark ends them.
    Unknown,
}

/// How the server behaves. Can be changed while it runs.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// The users. If empty, every client may do everything.
    pub users: Vec<User>,
    /// Resources that no user may access.
    pub forbidden: BTreeSet<Resource>,
    /// What this server does not have.
    pub missing: BTreeSet<Resource>,
    /// What becomes of `sendInitialEvents`.
    pub streaming_lists: StreamingLists,
    /// How a watch from a version that is too old is refused.
    pub gone_as: GoneAs,
    /// Whether lists of `resourceVersion=0` come as a whole, from a cache, whatever limit is asked for.
    pub watch_cache: bool,
    /// The most objects on one page, whatever limit is asked for.
    pub largest_page: usize,
    /// Time between two bookmarks.
    pub bookmark_every: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            users: Vec::new(),
            forbidden: BTreeSet::new(),
            missing: BTreeSet::new(),
            streaming_lists: StreamingLists::Supported,
            gone_as: GoneAs::Event,
            watch_cache: true,
            largest_page: usize::MAX,
            bookmark_every: Duration::from_secs(60),
        }
    }
}

/// The state of the server.
#[derive(Debug)]
pub(super) struct Shared {
    store: Mutex<Store>,
    versions: watch::Sender<u64>,
    pub(super) behaviour: Mutex<Behaviour>,
    pub(super) schedule: Mutex<Schedule>,
    pub(super) seen: Mutex<Vec<Seen>>,
    pub(super) connections: Mutex<Vec<Duration>>,
    /// Changes when all connections are to end.
    pub(super) disconnects: watch::Sender<u64>,
    pub(super) tls: Option<Tls>,
    started: Instant,
}

impl Shared {
    pub(super) fn new(behaviour: Behaviour, schedule: Schedule, tls: Option<Tls>) -> Shared {
        let store = Store::default();
        Shared {
            versions: watch::Sender::new(store.version()),
            store: Mutex::new(store),
            behaviour: Mutex::new(behaviour),
            schedule: Mutex::new(schedule),
            seen: Mutex::default(),
            connections: Mutex::default(),
            disconnects: watch::Sender::new(0),
            tls,
            started: Instant::now(),
        }
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// Changes objects and wakes those who watch.
    pub(super) fn write<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store();
        let result = change(&mut store);
        self.versions.send_replace(store.version());
        result
    }

    /// Notifies of each write.
    pub(super) fn versions(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }

    pub(super) fn behaviour(&self) -> Behaviour {
        lock(&self.behaviour).clone()
    }

    /// Decides about a connection, and notes it.
    pub(super) fn note_connection(&self) -> Option<Fault> {
        lock(&self.connections).push(self.started.elapsed());
        lock(&self.schedule).on_connection()
    }

    /// Decides about a request, and notes it.
    pub(super) fn note_request(&self, method: &str, path: &str, query: &str, watch: bool) -> Option<Fault> {
        let fault = lock(&self.schedule).on_request(path, watch);
        lock(&self.seen).push(Seen {
            at: self.started.elapsed(),
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            watch,
            fault,
        });
        fault
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
