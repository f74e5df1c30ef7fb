//! A server that keeps trying to get its address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use prometheus::IntCounter;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::{debug, error};

use super::listen::{Sockets, bind};
use super::serve::{Handler, Limits, serve};

/// An address that cannot be had is tried again this often.
const RETRY: Duration = Duration::from_secs(5);

/// The address cannot be had, and the operator wants the process to end then.
#[derive(Debug, thiserror::Error)]
#[error("the {name} server cannot listen on {address}; another program may have the port (see `ss -ltnp`)")]
pub struct BindError {
    name: &'static str,
    address: SocketAddr,
    #[source]
    source: io::Error,
}

impl BindError {
    /// The name of the server.
    pub fn server(&self) -> &'static str {
        self.name
    }
}

/// What a server is made of.
pub struct Plan {
    /// Its name in messages.
    pub name: &'static str,
    /// What is logged when it cannot listen.
    pub failure: &'static str,
    /// Where it listens; a wildcard takes clients of both families.
    pub address: SocketAddr,
    /// Whether to give up at once if the address cannot be had.
    pub hard_fail: bool,
    /// What clients may take.
    pub limits: Limits,
    /// Counts connections that were turned away.
    pub turned_away: IntCounter,
    /// Who answers.
    pub handler: Handler,
}

/// A running server; dropping it closes the listener and all connections.
pub struct Server {
    bound: Option<SocketAddr>,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts to listen. Without the address, it is tried again in the background, unless the operator wants an error.
    pub fn start(plan: Plan) -> Result<Server, BindError> {
        let listener = match bind(plan.address, Sockets::DualStack) {
            Ok(listener) => Some(listener),
            Err(source) if plan.hard_fail => {
                return Err(BindError { name: plan.name, address: plan.address, source });
            }
            Err(error) => {
                complain(&plan, &error);
                None
            }
        };
        let bound = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        debug!(address = %plan.address, "Starting {} HTTP server", plan.name);
        Ok(Server { bound, task: tokio::spawn(keep_serving(plan, listener)) })
    }

    /// Closes the listener and all connections; its address is free afterwards.
    pub async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Where it listens, if it does already.
    pub fn bound(&self) -> Option<SocketAddr> {
        self.bound
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_serving(plan: Plan, mut listener: Option<TcpListener>) {
    loop {
        if let Some(listener) = listener.take() {
            serve(listener, plan.limits, plan.turned_away.clone(), plan.handler.clone()).await;
        }
        tokio::time::sleep(RETRY).await;
        match bind(plan.address, Sockets::DualStack) {
            Ok(bound) => listener = Some(bound),
            Err(error) => complain(&plan, &error),
        }
    }
}

fn complain(plan: &Plan, error: &io::Error) {
    error!(address = %plan.address, err = %error, retryingTime = ?RETRY, "{}", plan.failure);
}
