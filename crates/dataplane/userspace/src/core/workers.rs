//! The threads that move bytes, apart from the engine and the HTTP servers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tracing::debug;

use super::drain::Drain;
use super::limits::Limits;

/// More threads than this only fight over the listening sockets of a node.
const MOST: usize = 4;

/// Threads with a runtime each, in the network namespace of the thread that started them. Dropping this stops them when connections have ended,
/// or after the drain time.
#[derive(Debug)]
pub(crate) struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    /// Dropped when the workers are to end.
    running: Arc<watch::Sender<()>>,
    timeout: Duration,
    drain: Drain,
}

/// Its threads may go on for a while.
impl Drop for Workers {
    fn drop(&mut self) {
        self.drain.begin(self.handles.len());
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
        let mut handles = Vec::with_capacity(count);
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
            handles.push(runtime.handle().clone());
            let (mut stopped, limits, drain) = (stopped.clone(), limits.clone(), drain.clone());
            let work = move || {
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
            handles,
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
        let Some(worker) = self.handles.first() else { return };
        let (timeout, running) = (self.timeout, Arc::clone(&self.running));
        worker.spawn(async move {
            // Either way it is time to close them.
            let _ = tokio::time::timeout(timeout, done).await;
            drop(listeners);
            drop(running);
        });
    }

    /// Each worker.
    pub(crate) fn all(&self) -> &[Handle] {
        &self.handles
    }

    /// One of the workers, in turn.
    pub(crate) fn next(&self) -> &Handle {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        &self.handles[number]
    }
}
