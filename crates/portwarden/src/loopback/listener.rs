//! One node port on a loopback address: takes in connections and passes bytes on in both directions.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use portwarden_model::Pool;
use prometheus::IntCounter;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tracing::{debug, trace};

use super::choice::Choice;

/// How long an endpoint may take to accept a connection.
const DIAL_TIME: Duration = Duration::from_secs(5);

/// So many connections one port may have at a time. Each takes two descriptors and 16 KiB of buffers.
const CONNECTIONS_OF_ONE_PORT: usize = 256;

/// How long to wait when the host has no descriptor left for one more connection.
const BREATHER: Duration = Duration::from_millis(200);

/// Seconds without a byte until a peer is asked whether it is still there, and between two such questions.
const KEEP_ALIVE: u32 = 15;

/// What all listeners share.
#[derive(Clone)]
pub(super) struct Shared {
    /// Room for connections of all ports.
    pub(super) room: Arc<Semaphore>,
    /// Counts connections for which there was none.
    pub(super) turned_away: IntCounter,
}

/// An open port. It and its connections end with this value.
pub(super) struct Listener {
    choice: Arc<Mutex<Choice>>,
    work: JoinSet<()>,
}

impl Listener {
    /// Serves a listening socket.
    pub(super) fn start(
        socket: TcpListener,
        endpoints: Pool,
        affinity: Option<NonZeroU32>,
        shared: Shared,
    ) -> Self {
        let choice = Arc::new(Mutex::new(Choice::new(endpoints, affinity)));
        let mut work = JoinSet::new();
        work.spawn(accept(socket, choice.clone(), shared));
        Listener { choice, work }
    }

    /// Sends new connections elsewhere. Those that are established go on.
    pub(super) fn update(&self, endpoints: Pool, affinity: Option<NonZeroU32>) {
        lock(&self.choice).update(endpoints, affinity);
    }

    /// Closes the port and its connections. The port is free afterwards.
    pub(super) async fn close(mut self) {
        self.work.shutdown().await;
    }
}

/// Runs until it is dropped, and its connections with it.
async fn accept(socket: TcpListener, choice: Arc<Mutex<Choice>>, shared: Shared) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((client, _)) => match place(&connections, &shared) {
                    Some(place) => {
                        let endpoint = lock(&choice).choose(Instant::now(), RandomState::new().hash_one(()));
                        connections.spawn(serve(client, endpoint, place));
                    }
                    // Closed at once: waiting in the queue would look like a dead service.
                    None => shared.turned_away.inc(),
                },
                Err(error) => {
                    debug!(err = %error, "Cannot take in a connection to a localhost nodeport");
                    tokio::time::sleep(BREATHER).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

fn place(connections: &JoinSet<()>, shared: &Shared) -> Option<OwnedSemaphorePermit> {
    if connections.len() >= CONNECTIONS_OF_ONE_PORT {
        return None;
    }
    shared.room.clone().try_acquire_owned().ok()
}

async fn serve(client: TcpStream, endpoint: Option<SocketAddr>, _place: OwnedSemaphorePermit) {
    let Some(endpoint) = endpoint else { return };
    match relay(client, endpoint).await {
        Ok((sent, received)) => trace!(%endpoint, sent, received, "A localhost nodeport connection ended"),
        Err(error) => trace!(%endpoint, err = %error, "A localhost nodeport connection failed"),
    }
}

/// Passes bytes on until both sides have said that they are done. The end of one direction is passed on like everything else.
async fn relay(mut client: TcpStream, endpoint: SocketAddr) -> io::Result<(u64, u64)> {
    let mut backend = tokio::time::timeout(DIAL_TIME, TcpStream::connect(endpoint)).await??;
    for stream in [&client, &backend] {
        stream.set_nodelay(true)?;
        keep_alive(stream)?;
    }
    copy_bidirectional(&mut client, &mut backend).await
}

/// A peer that went without a word must not hold its place for ever.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEP_ALIVE)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEP_ALIVE)?;
    Ok(())
}

fn lock(choice: &Mutex<Choice>) -> MutexGuard<'_, Choice> {
    // Nothing is half done under this lock.
    choice.lock().unwrap_or_else(PoisonError::into_inner)
}
