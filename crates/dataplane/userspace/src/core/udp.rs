//! UDP: one socket for each service port and pool, and one connected socket for each client, which ends with its endpoint or when idle.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portwarden_model::{Family, PoolKind};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;
use tracing::{debug, trace, warn};

use super::accept::{Shared, Target};
use super::counters::{Counted, Open};
use super::datagrams::{self, Datagrams};
use super::shared_udp::SharedUdp;
use super::socket::dialler_udp;

/// A session whose client waits for a reply may be idle this long, however short the idle limit: name servers that ask others are slow.
const REPLY: Duration = Duration::from_secs(5);

/// An open UDP port with its sessions. All of them end when this is dropped, unless the next process has the socket: then they end when they are idle,
/// so that replies which are on their way reach their clients.
#[derive(Debug)]
pub(crate) struct UdpListener {
    reader: AbortHandle,
    socket: Arc<SharedUdp>,
    sessions: Arc<Mutex<Sessions>>,
}

/// Where the datagrams of a port go.
#[derive(Debug, Clone)]
pub(crate) struct UdpRoute {
    pub(crate) target: Arc<Target>,
    pub(crate) pool: PoolKind,
    /// How long a session may be idle.
    pub(crate) timeout: Duration,
}

#[derive(Debug, Default)]
struct Sessions {
    by_client: HashMap<SocketAddr, Session>,
    /// Sessions of endpoints that left: no datagram goes there any more, but replies that are on their way still reach the client.
    leaving: Vec<Session>,
}

/// A client and its endpoint. The task that carries replies ends when this is dropped.
#[derive(Debug)]
struct Session {
    endpoint: SocketAddr,
    socket: Arc<UdpSocket>,
    activity: Arc<Activity>,
    replies: AbortHandle,
}

/// What happened in a session so far.
#[derive(Debug, Default)]
struct Activity {
    /// Milliseconds from the port's start to the last datagram.
    last: AtomicU64,
    /// Datagrams of the client.
    asked: AtomicU64,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.replies.abort();
    }
}

/// An open port, as its tasks see it.
struct Port {
    socket: Arc<SharedUdp>,
    /// Of clients and endpoints.
    family: Family,
    route: UdpRoute,
    shared: Arc<Shared>,
    sessions: Arc<Mutex<Sessions>>,
    start: Instant,
}

impl UdpListener {
    /// Serves a socket on the worker that it was opened for.
    pub(crate) fn start(
        worker: &Handle,
        (family, socket): (Family, Arc<SharedUdp>),
        route: UdpRoute,
        shared: &Arc<Shared>,
    ) -> Self {
        let sessions = Arc::<Mutex<Sessions>>::default();
        let port = Port {
            socket: Arc::clone(&socket),
            family,
            route,
            shared: Arc::clone(shared),
            sessions: Arc::clone(&sessions),
            start: Instant::now(),
        };
        UdpListener { reader: worker.spawn(read(port)).abort_handle(), socket, sessions }
    }

    /// Takes sessions from endpoints that are not `usable` any more. Their clients get another one with their next datagram; replies to earlier ones
    /// are carried until the session has been idle for as long as any other.
    pub(crate) fn retain(&self, usable: impl Fn(SocketAddr) -> bool) {
        let mut sessions = lock(&self.sessions);
        let Sessions { by_client, leaving } = &mut *sessions;
        leaving.retain(|session| !session.replies.is_finished());
        leaving
            .extend(by_client.extract_if(|_, session| !usable(session.endpoint)).map(|(_, session)| session));
    }
}

impl Drop for UdpListener {
    fn drop(&mut self) {
        self.reader.abort();
        if !self.socket.is_handed_over() {
            *lock(&self.sessions) = Sessions::default();
        }
    }
}

fn lock(sessions: &Mutex<Sessions>) -> MutexGuard<'_, Sessions> {
    // Nothing is half done under this lock.
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what clients send, until it is aborted.
async fn read(port: Port) {
    let port = Arc::new(port);
    loop {
        if let Err(error) = port.socket.readable().await {
            warn!(err = %error, service = %port.route.target.name, "Cannot read from a UDP socket");
            return;
        }
        let received = port.socket.try_read(|| {
            datagrams::receive(&*port.socket, port.family, |client, datagrams| {
                if let Some(client) = client {
                    port.forward(client, datagrams);
                }
            })
        });
        match received {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // An ICMP error for a reply to a client that is gone: nothing to do about it.
                trace!(err = %error, "A client of a UDP service is gone");
            }
            _ => {}
        }
    }
}

impl Port {
    fn forward(self: &Arc<Self>, client: SocketAddr, mut datagrams: Datagrams<'_>) {
        let mut sessions = lock(&self.sessions);
        let session = match sessions.by_client.get(&client) {
            Some(session) => session,
            None => match self.open(client) {
                Some(session) => sessions.by_client.entry(client).or_insert(session),
                None => return,
            },
        };
        session.activity.last.store(self.now(), Ordering::Relaxed);
        session.activity.asked.fetch_add(datagrams.count(), Ordering::Relaxed);
        match datagrams.send(&*session.socket, None) {
            Ok(()) => self.shared.counters.bytes_to_endpoints.add(datagrams.bytes()),
            // An ICMP error that an earlier datagram caused; the task that reads replies may be faster.
            Err(error) => {
                let endpoint = session.endpoint;
                sessions.by_client.remove(&client);
                drop(sessions);
                self.leave(client, endpoint, &error);
                // This datagram did not leave: another endpoint gets it.
                let mut sessions = lock(&self.sessions);
                if let Some(session) = self.open(client) {
                    // A second failure waits for the client's next datagram.
                    let _ = datagrams.send(&*session.socket, None);
                    session.activity.asked.store(datagrams.count(), Ordering::Relaxed);
                    sessions.by_client.insert(client, session);
                }
            }
        }
    }

    /// A session with an endpoint of the pool; `None` if there is none, or no room for one more session.
    fn open(self: &Arc<Self>, client: SocketAddr) -> Option<Session> {
        let (counters, target) = (&self.shared.counters, &self.route.target);
        if target.counters.active.get() >= self.shared.limits.per_service() {
            counters.over_limit.increment();
            return None;
        }
        let Some(room) = self.shared.limits.try_enter() else {
            counters.exhausted.increment();
            return None;
        };
        let endpoint = target.balancer.choose(self.route.pool, client.ip(), Instant::now(), &[])?;
        let socket = match dialler_udp(endpoint, self.shared.mark) {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                debug!(service = %target.name, %endpoint, err = %error, "Cannot reach an endpoint");
                counters.dial_failed.increment();
                return None;
            }
        };
        counters.dialled.increment();
        let activity = Arc::new(Activity { last: AtomicU64::new(self.now()), ..Activity::default() });
        let replies = tokio::spawn(carry_replies(
            Arc::clone(self),
            (client, endpoint),
            Arc::clone(&socket),
            Arc::clone(&activity),
            room,
        ));
        Some(Session { endpoint, socket, activity, replies: replies.abort_handle() })
    }

    /// Ends a session, unless the client has another one by now.
    fn end(&self, client: SocketAddr, socket: &Arc<UdpSocket>) {
        let mut sessions = lock(&self.sessions);
        if sessions.by_client.get(&client).is_some_and(|session| Arc::ptr_eq(&session.socket, socket)) {
            sessions.by_client.remove(&client);
        }
    }

    /// An endpoint refuses datagrams: session affinity moves the client to another one.
    fn leave(&self, client: SocketAddr, endpoint: SocketAddr, error: &io::Error) {
        trace!(service = %self.route.target.name, %client, %endpoint, err = %error, "An endpoint refuses datagrams");
        self.shared.counters.dial_refused.increment();
        self.route.target.balancer.avoid(self.route.pool, client.ip(), endpoint, Instant::now());
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Carries what an endpoint sends to its client, until the session is idle or the endpoint refuses datagrams.
async fn carry_replies(
    port: Arc<Port>,
    (client, endpoint): (SocketAddr, SocketAddr),
    socket: Arc<UdpSocket>,
    activity: Arc<Activity>,
    _room: OwnedSemaphorePermit,
) {
    let counters = &*port.shared.counters;
    let _served = port.shared.limits.serve();
    let _open = Open::new(&port.shared.counters, &port.route.target.counters);
    let _client = Counted::new(&counters.udp_clients);
    let mut answered = 0;
    loop {
        let last = Duration::from_millis(activity.last.load(Ordering::Relaxed));
        // Questions may overtake each other, as those of a resolver that asks for both families through one socket.
        let waits = activity.asked.load(Ordering::Relaxed) > answered;
        let idle_limit = if waits { port.route.timeout.max(REPLY) } else { port.route.timeout };
        let deadline = port.start + last + idle_limit;
        if Instant::now() >= deadline {
            trace!(service = %port.route.target.name, %client, %endpoint, "A UDP session was idle");
            return port.end(client, &socket);
        }
        let readable = tokio::time::timeout_at(deadline.into(), socket.readable()).await;
        if !matches!(readable, Ok(Ok(()))) {
            continue;
        }
        let received = socket.try_io(Interest::READABLE, || {
            datagrams::receive(&*socket, port.family, |_, mut datagrams| {
                counters.bytes_to_clients.add(datagrams.bytes());
                // What an endpoint sends unasked is no answer to the client's next question.
                answered = activity.asked.load(Ordering::Relaxed).min(answered + datagrams.count());
                if let Err(error) = datagrams.send(&*port.socket, Some(client)) {
                    trace!(%client, err = %error, "Cannot send a reply");
                }
            })
        });
        match received {
            Ok(()) => activity.last.store(port.now(), Ordering::Relaxed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                port.leave(client, endpoint, &error);
                return port.end(client, &socket);
            }
        }
    }
}
