//! Serves connections within limits.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::IntCounter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tracing::{trace, warn};

use super::answer::Answer;

/// A request; its body is read only if the handler does so.
pub type Request = hyper::Request<Incoming>;

/// The function that answers requests.
pub type Handler = Arc<dyn Fn(Request) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

/// Limits for clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections; a further one closes the oldest.
    pub connections: usize,
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
            connections: 128,
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
    refused: IntCounter,
    handler: Handler,
) -> Infallible {
    let open = Open::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if open.make_room(limits.connections) {
                    refused.inc();
                }
                open.spawn(connection(stream, limits, handler.clone()));
            }
            Err(error) => {
                // Out of descriptors or memory: only time can help.
                warn!(%error, "Cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The open connections, oldest first. Dropping it closes them all.
#[derive(Default)]
struct Open(Arc<Mutex<Connections>>);

#[derive(Default)]
struct Connections {
    tasks: BTreeMap<u64, AbortHandle>,
    next: u64,
}

impl Open {
    /// Closes the oldest connections until there is room for one more. Returns whether that was needed.
    fn make_room(&self, limit: usize) -> bool {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = open.tasks.len() >= limit;
        while open.tasks.len() >= limit.max(1) {
            if let Some((_, task)) = open.tasks.pop_first() {
                task.abort();
            }
        }
        full
    }

    fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.next;
        open.next += 1;
        let all = Arc::downgrade(&self.0);
        let task = tokio::spawn(async move {
            connection.await;
            if let Some(all) = all.upgrade() {
                all.lock().unwrap_or_else(PoisonError::into_inner).tasks.remove(&number);
            }
        });
        open.tasks.insert(number, task.abort_handle());
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut open.tasks).into_values().for_each(|task| task.abort());
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
