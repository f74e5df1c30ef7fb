//! How many connections there may be at a time: all together, and of one Service.

use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::debug;

use super::counters::Number;

/// What kube-proxy's userspace mode asked for, and what it refused to start without.
const WANTED_DESCRIPTORS: u64 = 64_000;

/// Watches, HTTP servers, health checks, pipes of bulk transfers and standard streams need descriptors, too.
const OTHER_DESCRIPTORS: u64 = 512;

/// Room for connections.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    room: Arc<Semaphore>,
    total: u32,
    per_service: u64,
    /// Connections and sessions that are served now; permits are also held by those that are about to accept one.
    open: Arc<Number>,
}

impl Limits {
    /// At most `total` connections, where the process may open enough descriptors, and `per_service` of one Service.
    pub(crate) fn new(total: u32, per_service: u64) -> Self {
        let total = total.min(connections_of(descriptors())).max(1);
        Limits { room: Arc::new(Semaphore::new(total as usize)), total, per_service, open: Arc::default() }
    }

    /// As many as descriptors allow after the limit is raised; one Service gets three quarters of them at most.
    pub(crate) fn of_process() -> Self {
        raise();
        let total = connections_of(descriptors());
        Limits::new(total, (u64::from(total) * 3 / 4).max(1))
    }

    /// Waits until there is room for one more connection.
    pub(crate) async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    /// Room for one more session, if there is any now.
    pub(crate) fn try_enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }

    /// Counts a connection or session for as long as it is served.
    pub(crate) fn serve(&self) -> Served {
        self.open.increment();
        Served(Arc::clone(&self.open))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    /// Waits until no connection is left.
    pub(crate) async fn empty(&self) {
        // Only fails when the semaphore is closed, which never happens.
        let _ = self.room.acquire_many(self.total).await;
    }

    pub(crate) fn per_service(&self) -> u64 {
        self.per_service
    }
}

/// A connection or session that is served.
#[derive(Debug)]
pub(crate) struct Served(Arc<Number>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.decrement();
    }
}

/// A connection takes two descriptors.
fn connections_of(descriptors: u64) -> u32 {
    // A semaphore of tokio holds at most `usize::MAX >> 3` permits, and `acquire_many` takes a `u32`.
    u32::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS) / 2).unwrap_or(u32::MAX).clamp(1, 1 << 20)
}

fn descriptors() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// Raises the soft limit of descriptors to the hard one, and both to [`WANTED_DESCRIPTORS`] if that is more and allowed.
fn raise() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if hard < WANTED_DESCRIPTORS
        && setrlimit(Resource::RLIMIT_NOFILE, WANTED_DESCRIPTORS, WANTED_DESCRIPTORS).is_ok()
    {
        return;
    }
    if soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        debug!(err = %error, soft, hard, "Cannot raise the limit of file descriptors");
    }
}
