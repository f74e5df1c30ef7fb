//! UDP sockets that this process shares with the next one, and which of the two reads them.
//!
//! Both have the same socket: a datagram in its queue is read by whoever reads next, and replies leave through it from either process. A socket of
//! its own on the same port would leave datagrams unread when the old process ends.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket as StdUdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The open UDP sockets of one family. All clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct UdpSockets(Arc<Mutex<HashMap<SocketAddr, Weak<SharedUdp>>>>);

impl UdpSockets {
    /// Adds a bound socket, which a worker will read.
    pub(crate) fn open(&self, worker: &Handle, socket: StdUdpSocket) -> io::Result<Arc<SharedUdp>> {
        let address = socket.local_addr()?;
        let _inside = worker.enter();
        let shared = Arc::new(SharedUdp {
            socket: UdpSocket::from_std(socket)?,
            address,
            handed_over: Mutex::default(),
            taken_back: Notify::new(),
            all: self.clone(),
        });
        self.lock().insert(address, Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Those that are open now.
    pub(super) fn all(&self) -> Vec<Arc<SharedUdp>> {
        self.lock().values().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Weak<SharedUdp>>> {
        // Nothing is half done under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bound UDP socket.
#[derive(Debug)]
pub(crate) struct SharedUdp {
    socket: UdpSocket,
    address: SocketAddr,
    /// The next process reads it. Locked while this one does.
    handed_over: Mutex<bool>,
    taken_back: Notify,
    all: UdpSockets,
}

impl SharedUdp {
    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Leaves reading to the next process. Datagrams that were read before have been forwarded, and their replies are still carried.
    pub(super) fn hand_over(&self) {
        *self.handed_over() = true;
    }

    /// Reads again: the next process is gone.
    pub(super) fn take_back(&self) {
        *self.handed_over() = false;
        self.taken_back.notify_one();
    }

    pub(super) fn is_handed_over(&self) -> bool {
        *self.handed_over()
    }

    /// Waits until there may be a datagram that this process should read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        loop {
            self.socket.readable().await?;
            if !self.is_handed_over() {
                return Ok(());
            }
            self.taken_back.notified().await;
        }
    }

    /// Calls `read`, unless the next process reads.
    pub(super) fn try_read(&self, read: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let handed_over = self.handed_over();
        if *handed_over { Ok(()) } else { self.socket.try_io(Interest::READABLE, read) }
    }

    fn handed_over(&self) -> MutexGuard<'_, bool> {
        // Nothing is half done under this lock.
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedUdp {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        // Another socket on the same address may have taken its place.
        if all.get(&self.address).is_some_and(|socket| socket.strong_count() == 0) {
            all.remove(&self.address);
        }
    }
}

impl AsFd for SharedUdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for SharedUdp {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
