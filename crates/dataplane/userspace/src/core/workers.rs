//! The threads that move bytes, apart from the engine and the HTTP servers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tracing::debug;

use super::clock;
use super::drain::Drain;
use super::limits::Limits;

/// More threads than this only fight over the listening sockets of a node.
const MOST: usize = 4;

/// Threads with a runtime each, in the network namespace of the thread that started them. Dropping this stops them when connections have ended,
/// or after the drain time.
#[derive(Debug)]
pub(crate) struct Workers {
    all: Arc<[Worker]>,
    next: AtomicUsize,
    /// Dropped when the workers are to end.
    running: Arc<watch::Sender<()>>,
    timeout: Duration,
    drain: Drain,
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) handle: Handle,
    /// TCP connections that it serves.
    connections: Arc<AtomicUsize>,
    /// Those of them that last.
    lasting: Arc<AtomicUsize>,
}

impl Worker {
    fn new(handle: Handle) -> Self {
        Worker { handle, connections: Arc::default(), lasting: Arc::default() }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn lasting(&self) -> usize {
        self.lasting.load(Ordering::Relaxed)
    }

    /// Counts a connection for as long as the result lives.
    pub(crate) fn enter(&self) -> Busy {
        Busy::new(&self.connections)
    }

    /// Counts a connection that lasts.
    pub(crate) fn keep(&self) -> Busy {
        Busy::new(&self.lasting)
    }
}

/// A connection of a worker.
#[derive(Debug)]
pub(crate) struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(count))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker may have twice as many connections as another one that has this many more than it has, before it hands new ones over.
/// Most connections are short or idle, and handing one over costs a few microseconds; those that turn out to last are spread evenly later.
const IMBALANCE: usize = 2;

/// The worker that serves a connection which worker `own` has accepted. The kernel spreads connections over listeners by a hash, whatever
/// they have to do already.
pub(crate) fn choose(all: &[Worker], own: usize) -> usize {
    let mine = all.get(own).map_or(0, Worker::connections);
    let least = all.iter().map(Worker::connections).enumerate().min_by_key(|(_, connections)| *connections);
    least.filter(|(_, connections)| mine >= 2 * (connections + IMBALANCE)).map_or(own, |(index, _)| index)
}

/// The worker that should go on with a connection of worker `own` which turns out to last. Moving it costs a few microseconds, once; a worker that has
/// one connection more than another makes all its clients wait longer.
pub(crate) fn choose_lasting(all: &[Worker], own: usize) -> usize {
    let mine = all.get(own).map_or(0, Worker::lasting);
    let least = all.iter().map(Worker::lasting).enumerate().min_by_key(|(_, connections)| *connections);
    least.filter(|(_, connections)| mine > *connections).map_or(own, |(index, _)| index)
}

/// Its threads may go on for a while.
impl Drop for Workers {
    fn drop(&mut self) {
        self.drain.begin(self.all.len());
    }
}

impl Workers {
    /// Starts one thread for each processor, up to [`MOST`].
    pub(crate) fn start(limits: &Limits, timeout: Duration, drain: &Drain) -> io::Result<Workers> {
        let count = thread::available_parallelism().map_or(1, usize::from).min(MOST);
        Workers::start_some(count, limits, timeout, drain)
    }

    /// Starts this many threads.
    pub(crate) fn start_some(
        count: usize,
        limits: &Limits,
        timeout: Duration,
        drain: &Drain,
    ) -> io::Result<Workers> {
        let (running, stopped) = watch::channel(());
        let mut all = Vec::with_capacity(count);
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
            all.push(Worker::new(runtime.handle().clone()));
            let (mut stopped, limits, drain) = (stopped.clone(), limits.clone(), drain.clone());
            let work = move || {
                runtime.spawn(clock::run());
                runtime.block_on(async {
                    // An error means that the sender is gone.
                    while stopped.changed().await.is_ok() {}
                    if tokio::time::timeout(timeout, limits.empty()).await.is_err() {
                        debug!("Closing connections that did not end within the drain time");
                    }
                });
                drop(runtime);
                drain.end();
            };
            // A thread inherits the network namespace of the one that starts it.
            thread::Builder::new().name(format!("proxy-{number}")).spawn(work)?;
        }
        Ok(Workers {
            all: all.into(),
            next: AtomicUsize::new(0),
            running: Arc::new(running),
            timeout,
            drain: drain.clone(),
        })
    }

    /// Keeps `listeners` open until `done`, but not longer than the drain time. Connections get the drain time from then on.
    pub(crate) fn linger(
        &self,
        listeners: impl Send + 'static,
        done: impl Future<Output = ()> + Send + 'static,
    ) {
        let Some(worker) = self.all.first() else { return };
        let (timeout, running) = (self.timeout, Arc::clone(&self.running));
        worker.handle.spawn(async move {
            // Either way it is time to close them.
            let _ = tokio::time::timeout(timeout, done).await;
            drop(listeners);
            drop(running);
        });
    }

    /// Each worker.
    pub(crate) fn all(&self) -> &Arc<[Worker]> {
        &self.all
    }

    /// The number of one of the workers, in turn.
    pub(crate) fn next(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_to_the_worker_with_the_fewest() {
        let workers = Workers::start_some(3, &Limits::new(100, 100), Duration::ZERO, &Drain::default())
            .expect("threads");
        let all = workers.all();
        let mut busy = Vec::new();
        for _ in 0..30 {
            // All of them arrive at the same worker.
            let chosen = choose(all, 0);
            busy.push(all[chosen].enter());
        }
        let counts: Vec<usize> = all.iter().map(Worker::connections).collect();
        assert_eq!(counts.iter().sum::<usize>(), 30);
        assert!(counts.iter().all(|count| (5..=16).contains(count)), "{counts:?}");
        drop(busy);
        assert!(all.iter().all(|worker| worker.connections() == 0));
        // Those that last are spread evenly.
        let lasting: Vec<Busy> = (0..30).map(|_| all[choose_lasting(all, 0)].keep()).collect();
        assert!(all.iter().all(|worker| worker.lasting() == 10));
        drop(lasting);
        assert!(all.iter().all(|worker| worker.lasting() == 0));
    }
}
