//! Accepting connections: one task accepts and never waits for an endpoint, one task serves each connection.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use portwarden_model::{PoolKind, PortName, ProxiedPort};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;
use tracing::{debug, trace, warn};

use super::balancer::Balancer;
use super::counters::{Counters, Open, ServiceCounters};
use super::dial::dial;
use super::limits::{Limits, Served};
use super::relay::{Parked, Relay, Step};
use super::workers::{Busy, Worker, choose, choose_lasting};

/// How long accepting pauses when no descriptor is left: it doubles from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(320);

/// A service port that connections go to.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: PortName,
    pub(crate) balancer: Balancer,
    pub(crate) counters: Arc<ServiceCounters>,
}

impl Target {
    pub(crate) fn new(port: &ProxiedPort, counters: &Arc<Counters>, now: Instant) -> Self {
        Target {
            name: port.name.clone(),
            balancer: Balancer::new(port, counters, now),
            counters: counters.service(&port.name.service),
        }
    }
}

/// Where a connection goes.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) target: Arc<Target>,
    pub(crate) pool: PoolKind,
    /// Whom session affinity remembers.
    pub(crate) client: IpAddr,
}

/// Decides where an accepted connection goes.
pub(crate) trait Router: Send + Sync + 'static {
    /// `None` means that the connection has no business here; it is reset.
    fn route(&self, stream: &TcpStream, peer: SocketAddr) -> Option<Route>;
}

/// What all listeners of a proxy share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<Counters>,
    /// The mark of connections to endpoints.
    pub(crate) mark: Option<u32>,
    /// How many dials one endpoint of a service port may have in flight.
    pub(crate) dials_per_endpoint: u32,
}

/// An open port, closed when this is dropped. Its connections go on.
#[derive(Debug)]
pub(crate) struct Listener(AbortHandle);

impl Listener {
    /// Accepts on worker number `own`. Other processes may have the same socket.
    pub(crate) fn start(
        (workers, own): (&Arc<[Worker]>, usize),
        socket: StdListener,
        router: Arc<impl Router>,
        shared: &Arc<Shared>,
    ) -> Self {
        let acceptor = Acceptor { workers: Arc::clone(workers), own, router, shared: Arc::clone(shared) };
        let work = async move {
            match TcpListener::from_std(socket) {
                Ok(socket) => acceptor.accept(&socket).await,
                Err(error) => warn!(err = %error, "Cannot serve a listening socket"),
            }
        };
        Listener(workers[own].handle.spawn(work).abort_handle())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What accepts connections of one listener.
struct Acceptor<R> {
    workers: Arc<[Worker]>,
    own: usize,
    router: Arc<R>,
    shared: Arc<Shared>,
}

impl<R: Router> Acceptor<R> {
    /// Runs until it is aborted.
    async fn accept(&self, socket: &TcpListener) {
        let mut spare = spare_descriptor();
        let mut pause = FIRST_PAUSE;
        // Without room, clients wait in the kernel's queue.
        while let Some(room) = self.shared.limits.enter().await {
            match socket.accept().await {
                Ok((stream, peer)) => {
                    pause = FIRST_PAUSE;
                    self.serve(stream, peer, room);
                }
                Err(error) if is_exhausted(&error) => {
                    self.shared.counters.exhausted.increment();
                    if pause == LAST_PAUSE {
                        // Connections have not ended for a while: clients had better know than wait.
                        drop(spare.take());
                        reject_one(socket).await;
                        spare = spare_descriptor();
                    }
                    debug!(err = %error, "No file descriptor is left for another connection");
                    drop(room);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
                // The client is gone already, or a firewall forbids it: the next one may be fine.
                Err(error) => trace!(err = %error, "Cannot accept a connection"),
            }
        }
    }

    /// Starts a task for a connection, on the worker that should have it.
    fn serve(&self, stream: TcpStream, peer: SocketAddr, room: OwnedSemaphorePermit) {
        let chosen = choose(&self.workers, self.own);
        let worker = &self.workers[chosen];
        let accepted = Accepted {
            peer,
            shared: Arc::clone(&self.shared),
            workers: Arc::clone(&self.workers),
            worker: chosen,
            _room: room,
            busy: worker.enter(),
        };
        let router = Arc::clone(&self.router);
        if chosen == self.own {
            tokio::spawn(serve(stream, router, accepted));
            return;
        }
        let Ok(stream) = stream.into_std() else { return };
        worker.handle.spawn(async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => serve(stream, router, accepted).await,
                Err(error) => debug!(err = %error, "Cannot hand a connection over to another thread"),
            }
        });
    }
}

/// A connection from a client.
struct Accepted {
    peer: SocketAddr,
    shared: Arc<Shared>,
    workers: Arc<[Worker]>,
    /// Which of them has it.
    worker: usize,
    _room: OwnedSemaphorePermit,
    busy: Busy,
}

/// A connection with both its ends.
struct Connection {
    accepted: Accepted,
    target: Arc<Target>,
    endpoint: SocketAddr,
    _served: Served,
    _open: Open,
}

/// Serves one connection from its first byte to its last.
fn serve(
    stream: TcpStream,
    router: Arc<impl Router>,
    accepted: Accepted,
) -> impl Future<Output = ()> + Send + 'static {
    // On the heap: dialling takes more memory than copying, and must not hold it while the connection lasts.
    let connecting = Box::pin(connect(stream, router, accepted));
    async {
        let Some((mut connection, mut relay)) = connecting.await else { return };
        let step = connection.copy(&mut relay).await;
        let Step::Lasting = step else { return connection.ended(&step) };
        let Accepted { workers, worker, .. } = &connection.accepted;
        let chosen = choose_lasting(workers, *worker);
        let lasting = workers[chosen].keep();
        if chosen == *worker {
            let step = connection.copy(&mut relay).await;
            drop(lasting);
            return connection.ended(&step);
        }
        let workers = Arc::clone(workers);
        match relay.park() {
            Ok(parked) => {
                connection.accepted.worker = chosen;
                connection.accepted.busy = workers[chosen].enter();
                workers[chosen].handle.spawn(go_on(connection, parked, lasting));
            }
            Err(error) => connection.ended(&Step::Ended(Err(error))),
        }
    }
}

/// Finds out where a connection goes, and dials; `None` if it was reset.
async fn connect(
    stream: TcpStream,
    router: Arc<impl Router>,
    accepted: Accepted,
) -> Option<(Connection, Relay)> {
    let Accepted { peer, shared, .. } = &accepted;
    let counters = &shared.counters;
    let Some(Route { target, pool, client }) = router.route(&stream, *peer) else {
        counters.not_redirected.increment();
        reset(&stream);
        return None;
    };
    if target.counters.active.get() >= shared.limits.per_service() {
        counters.over_limit.increment();
        reset(&stream);
        return None;
    }
    let (served, open) = (shared.limits.serve(), Open::new(counters, &target.counters));
    let Some((endpoint, address)) = dial(&target, pool, client, shared).await else {
        debug!(service = %target.name, client = %peer, "No endpoint answers");
        counters.unanswered.increment();
        target.counters.unanswered.increment();
        reset(&stream);
        return None;
    };
    let connection = Connection { accepted, target, endpoint: address, _served: served, _open: open };
    Some((connection, Relay::new(stream, endpoint)))
}

/// Copies to the end, on the worker that this is spawned on.
async fn go_on(connection: Connection, parked: Parked, _lasting: Busy) {
    let step = match parked.resume() {
        Ok(mut relay) => connection.copy(&mut relay).await,
        Err(error) => Step::Ended(Err(error)),
    };
    connection.ended(&step);
}

impl Connection {
    /// Copies bytes until there is something to report.
    fn copy(&self, relay: &mut Relay) -> impl Future<Output = Step> {
        let counters = &*self.accepted.shared.counters;
        poll_fn(move |cx| relay.poll(cx, counters))
    }

    fn ended(&self, step: &Step) {
        let Connection { accepted: Accepted { peer, .. }, target, endpoint, .. } = self;
        match step {
            Step::Ended(Err(error)) => {
                trace!(service = %target.name, client = %peer, %endpoint, err = %error, "A connection was reset");
            }
            _ => trace!(service = %target.name, client = %peer, %endpoint, "A connection ended"),
        }
    }
}

/// Closing shows as a reset, not as the end of an empty answer.
fn reset(stream: &TcpStream) {
    // If that fails, the client sees an end.
    let _ = stream.set_zero_linger();
}

fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

/// Kept to have one to reject a client with when all others are taken.
fn spare_descriptor() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

async fn reject_one(socket: &TcpListener) {
    let first = tokio::time::timeout(FIRST_PAUSE, socket.accept()).await;
    if let Ok(Ok((stream, _))) = first {
        reset(&stream);
    }
}
