//! Reaching an endpoint: several attempts, each at another endpoint where there is one, before the client notices.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use portwarden_model::PoolKind;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tracing::trace;

use super::accept::{Shared, Target};
use super::balancer::Dialling;
use super::clock;
use super::socket::start_connecting;

/// How long each attempt may take; kube-proxy's sequence.
const ATTEMPTS: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// Connects to an endpoint for a client; `None` if none answers.
pub(crate) async fn dial(
    target: &Target,
    pool: PoolKind,
    client: IpAddr,
    shared: &Shared,
) -> Option<(TcpStream, SocketAddr)> {
    let (counters, most) = (&shared.counters, shared.dials_per_endpoint);
    let mut tried = Vec::new();
    for timeout in ATTEMPTS {
        let now = Instant::now();
        let (endpoint, turn) = target.balancer.choose_to_dial(pool, client, now, &tried, most)?;
        if !tried.is_empty() {
            counters.retries.increment();
        }
        let until = now + timeout;
        let Some(turn) = turn_until(until, turn, target, endpoint, most).await else {
            trace!(service = %target.name, %endpoint, "Too many dials to an endpoint are in flight");
            counters.dial_limited.increment();
            tried.push(endpoint);
            continue;
        };
        let outcome = attempt(endpoint, until, shared.mark).await;
        drop(turn);
        match outcome {
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

/// Waits for one of the dials that an endpoint may have in flight; `None` if none ends in time.
async fn turn_until<'a>(
    until: Instant,
    turn: Option<Dialling<'a>>,
    target: &'a Target,
    endpoint: SocketAddr,
    most: u32,
) -> Option<Dialling<'a>> {
    match turn {
        Some(turn) => Some(turn),
        None => timeout_at(until.into(), target.balancer.wait_for_turn(endpoint, most)).await.ok(),
    }
}

async fn attempt(endpoint: SocketAddr, until: Instant, mark: Option<u32>) -> io::Result<TcpStream> {
    let stream = start_connecting(endpoint, mark)?;
    clock::dialling();
    let ready = timeout_at(until.into(), stream.ready(Interest::WRITABLE)).await??;
    // The kernel says so if the attempt failed, which saves a question for each that did not.
    if ready.is_write_closed() || ready.is_error() {
        return Err(stream.take_error()?.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()));
    }
    Ok(stream)
}
