//! Serves connections within limits.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use prometheus::IntCounter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tracing::{trace, warn};

use super::answer::Answer;

/// A request; its body is read only if the handler does so.
pub type Request = hyper::Request<Incoming>;

/// The function that answers requests.
pub type Handler = Arc<dyn Fn(Request) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

/// Limits for each client.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes in the head of a request.
    pub header_bytes: usize,
    /// Header lines in a request.
    pub headers: usize,
    /// Time for a complete head, also on an idle connection.
    pub header_time: Duration,
    /// The age at which a connection is closed after its current answer.
    pub connection_time: Duration,
    /// Further time for that answer to be sent.
    pub closing_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            header_bytes: 16 * 1024,
            headers: 64,
            header_time: Duration::from_secs(30),
            connection_time: Duration::from_secs(300),
            closing_time: Duration::from_secs(60),
        }
    }
}

/// Serves the connections of a listener. Dropping the future closes the listener and all connections.
pub async fn serve(
    listener: TcpListener,
    limits: Limits,
    connections: ConnectionLimit,
    handler: Handler,
) -> Infallible {
    let ConnectionLimit { limit, refused, open: all, reserve } = connections;
    let open = Open { all, own: Arc::default() };
    let reserve = Arc::new(Reserve::new(&listener, reserve));
    let mut failures = AcceptFailures::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if open.make_room(limit) {
                    refused.inc();
                }
                let (connection, reserve) = (connection(stream, limits, handler.clone()), reserve.clone());
                open.spawn(async move {
                    connection.await;
                    reserve.refill();
                });
            }
            Err(error) if is_exhaustion(&error) && reserve.release() => {}
            Err(error) => {
                failures.log(&error, Instant::now());
                // Out of descriptors or memory: only time can help.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A limit for the open connections of one or several servers together; a further connection closes the oldest.
#[derive(Clone)]
pub struct ConnectionLimit {
    limit: usize,
    /// Counts connections that were closed to make room.
    refused: IntCounter,
    open: Arc<Mutex<Connections>>,
    /// Descriptors that each server holds back for itself.
    reserve: usize,
}

impl ConnectionLimit {
    /// No connection is open yet.
    pub fn new(limit: usize, refused: IntCounter) -> Self {
        ConnectionLimit { limit, refused, open: Arc::default(), reserve: 0 }
    }

    /// Holds back so many descriptors, with which a server accepts connections after everything else in the process has used up the others.
    #[must_use]
    pub fn with_reserve(self, reserve: usize) -> Self {
        ConnectionLimit { reserve, ..self }
    }
}

/// Descriptors that are open only so that they can be closed when no others are left.
struct Reserve {
    spare: Mutex<Vec<OwnedFd>>,
    /// What the spare ones are copies of.
    original: Option<OwnedFd>,
    size: usize,
}

impl Reserve {
    fn new(listener: &TcpListener, size: usize) -> Self {
        let original = (size > 0).then(|| listener.as_fd().try_clone_to_owned().ok()).flatten();
        let reserve = Reserve { spare: Mutex::default(), original, size };
        reserve.refill();
        reserve
    }

    /// Closes one, so that a connection can be accepted. Returns whether there was one.
    fn release(&self) -> bool {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }

    /// Opens what was closed, as far as possible.
    fn refill(&self) {
        let Some(original) = &self.original else { return };
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        while spare.len() < self.size
            && let Ok(copy) = original.try_clone()
        {
            spare.push(copy);
        }
    }
}

/// Whether the process or the host has no descriptors left.
fn is_exhaustion(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE))
}

/// Failures to accept come by the thousands when descriptors run out. One line a minute is enough.
#[derive(Debug, Default)]
struct AcceptFailures {
    logged: Option<Instant>,
    since: u64,
}

impl AcceptFailures {
    const INTERVAL: Duration = Duration::from_secs(60);

    fn log(&mut self, error: &std::io::Error, now: Instant) {
        self.since += 1;
        if self.logged.is_none_or(|at| now.saturating_duration_since(at) >= Self::INTERVAL) {
            let failures = std::mem::take(&mut self.since);
            warn!(%error, failures, "Cannot accept connections; Portwarden tries again. Check the limit of open files");
            self.logged = Some(now);
        }
    }
}

/// The open connections of one server. Dropping it closes them.
struct Open {
    /// Those of all servers under the same limit, oldest first.
    all: Arc<Mutex<Connections>>,
    own: Arc<Mutex<BTreeSet<u64>>>,
}

#[derive(Default)]
struct Connections {
    tasks: BTreeMap<u64, AbortHandle>,
    next: u64,
}

impl Open {
    /// Closes the oldest connections until there is room for one more. Returns whether that was needed.
    fn make_room(&self, limit: usize) -> bool {
        let mut open = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let full = open.tasks.len() >= limit;
        while open.tasks.len() >= limit.max(1) {
            if let Some((_, task)) = open.tasks.pop_first() {
                task.abort();
            }
        }
        full
    }

    fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let mut open = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.next;
        open.next += 1;
        let (all, own) = (Arc::downgrade(&self.all), Arc::downgrade(&self.own));
        let task = tokio::spawn(async move {
            connection.await;
            if let Some(all) = all.upgrade() {
                all.lock().unwrap_or_else(PoisonError::into_inner).tasks.remove(&number);
            }
            if let Some(own) = own.upgrade() {
                own.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
            }
        });
        open.tasks.insert(number, task.abort_handle());
        self.own.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        for number in std::mem::take(&mut *self.own.lock().unwrap_or_else(PoisonError::into_inner)) {
            if let Some(task) = open.tasks.remove(&number) {
                task.abort();
            }
        }
    }
}

async fn connection(stream: TcpStream, limits: Limits, handler: Handler) {
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_buf_size(limits.header_bytes)
        .max_headers(limits.headers)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => Ok(result),
        () = tokio::time::sleep(limits.connection_time) => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(limits.closing_time, connection).await
        }
    };
    if let Ok(Err(error)) = result {
        trace!(%error, "A connection ended with an error");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::captured::logged;

    #[test]
    fn failures_to_accept_are_logged_once_a_minute_with_their_number() {
        let (start, error) = (Instant::now(), std::io::Error::other("too many open files"));
        let lines = logged(|| {
            let mut failures = AcceptFailures::default();
            for tenth in 0..1300 {
                failures.log(&error, start + Duration::from_millis(100) * tenth);
            }
        });
        assert_eq!(lines.lines().count(), 3, "{lines}");
        assert!(lines.contains("failures=600"), "{lines}");
    }
}
