//! Reaching an endpoint: several attempts, each at another endpoint where there is one, before the client notices.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use portwarden_model::PoolKind;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tracing::trace;

use super::accept::Target;
use super::counters::Counters;
use super::socket::start_connecting;

/// How long each attempt may take; kube-proxy's sequence.
const ATTEMPTS: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// Connects to an endpoint for a client; `None` if none answers.
pub(crate) async fn dial(
    target: &Target,
    pool: PoolKind,
    client: IpAddr,
    mark: Option<u32>,
    counters: &Counters,
) -> Option<(TcpStream, SocketAddr)> {
    let mut tried = Vec::new();
    for timeout in ATTEMPTS {
        let endpoint = target.balancer.choose(pool, client, Instant::now(), &tried)?;
        if !tried.is_empty() {
            counters.retries.increment();
        }
        match attempt(endpoint, timeout, mark).await {
            Ok(stream) => {
                counters.dialled.increment();
                return Some((stream, endpoint));
            }
            Err(error) => {
                trace!(service = %target.name, %endpoint, err = %error, "Cannot reach an endpoint");
                match error.kind() {
                    io::ErrorKind::ConnectionRefused => counters.dial_refused.increment(),
                    io::ErrorKind::TimedOut => counters.dial_timeout.increment(),
                    _ => counters.dial_failed.increment(),
                }
            }
        }
        tried.push(endpoint);
    }
    None
}

async fn attempt(endpoint: SocketAddr, timeout: Duration, mark: Option<u32>) -> io::Result<TcpStream> {
    let stream = start_connecting(endpoint, mark)?;
    let ready = tokio::time::timeout(timeout, stream.ready(Interest::WRITABLE)).await??;
    // The kernel says so if the attempt failed, which saves a question for each that did not.
    if ready.is_write_closed() || ready.is_error() {
        return Err(stream.take_error()?.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()));
    }
    Ok(stream)
}
