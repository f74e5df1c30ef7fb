//! A server that retries until it can bind its address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::{debug, error, warn};

use super::listen::{Sockets, bind};
use super::serve::{ConnectionLimit, Handler, Limits, serve};

/// The interval between attempts to bind.
const RETRY: Duration = Duration::from_secs(5);

/// The address cannot be bound, and `bindAddressHardFail` is set.
#[derive(Debug, thiserror::Error)]
#[error("the {name} server cannot listen on {address}; another program may have the port (see `ss -ltnp`)")]
pub struct BindError {
    name: &'static str,
    address: SocketAddr,
    #[source]
    source: io::Error,
}

impl BindError {
    /// Which server it was.
    pub fn server(&self) -> &'static str {
        self.name
    }
}

/// The parts of a server.
pub struct ServerOptions {
    /// For log messages.
    pub name: &'static str,
    /// The log message when it cannot listen.
    pub failure: &'static str,
    /// Where it listens; a wildcard accepts clients of both families.
    pub address: SocketAddr,
    /// Whether to fail if the address cannot be bound, instead of retrying.
    pub hard_fail: bool,
    /// Whether only the first failure to listen is logged: nothing else depends on the server.
    pub log_once: bool,
    /// Limits for clients.
    pub limits: Limits,
    /// The limit of open connections.
    pub connections: ConnectionLimit,
    /// Answers the requests.
    pub handler: Handler,
}

/// A running server; dropping it closes the listener and all connections.
pub struct Server {
    bound: Option<SocketAddr>,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts to listen. If the address cannot be bound, it retries in the background, unless `hard_fail` is set.
    pub fn start(options: ServerOptions) -> Result<Server, BindError> {
        let listener = match bind(options.address, Sockets::DualStack) {
            Ok(listener) => Some(listener),
            Err(source) if options.hard_fail => {
                return Err(BindError { name: options.name, address: options.address, source });
            }
            Err(error) => {
                log_failure(&options, &error);
                None
            }
        };
        let bound = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        debug!(address = %options.address, "Starting {} HTTP server", options.name);
        Ok(Server { bound, task: tokio::spawn(keep_serving(options, listener)) })
    }

    /// Closes the listener and all connections; its address is free afterwards.
    pub async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Where it listens; `None` while it retries.
    pub fn bound(&self) -> Option<SocketAddr> {
        self.bound
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_serving(options: ServerOptions, mut listener: Option<TcpListener>) {
    loop {
        if let Some(listener) = listener.take() {
            serve(listener, options.limits, options.connections.clone(), options.handler.clone()).await;
        }
        tokio::time::sleep(RETRY).await;
        match bind(options.address, Sockets::DualStack) {
            Ok(bound) => listener = Some(bound),
            Err(error) if !options.log_once => log_failure(&options, &error),
            Err(_) => {}
        }
    }
}

fn log_failure(options: &ServerOptions, error: &io::Error) {
    let (address, failure) = (options.address, options.failure);
    if options.log_once {
        return warn!(%address, err = %error, retryingTime = ?RETRY, "{failure}");
    }
    error!(%address, err = %error, retryingTime = ?RETRY, "{failure}");
}
