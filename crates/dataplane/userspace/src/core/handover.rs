//! Hands listening sockets over to the next process, or to the next dataplane of this one. The sockets are never closed: connections in their queues, and
//! those whose handshake is under way, are served by whoever has them then. A listener that is closed resets both.
//!
//! ```text
//! predecessor                       successor
//!    <──────────── connects ────────────
//!    ───────────── sockets ────────────>   both accept
//!    <──────────── READY ───────────────   its rules are written
//!    ──── READY, if it is not ending ──>
//!    ─── end, when it has stopped ─────>
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener as StdListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portwarden_model::Family;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::geteuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::debug;

/// More sockets than any process has in one family.
const MOST: usize = 64;

/// The only message.
const READY: u8 = 1;

/// How long a predecessor may take to answer; it is busy with connections.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long a predecessor that is about to end may take to stop: it knows only what was wanted before.
const STOPPING: Duration = Duration::from_millis(250);

/// How often a process tries to become the one that is asked, while another one is.
const RETRY: Duration = Duration::from_millis(200);

/// A process, or dataplane, that had the sockets before.
#[derive(Debug)]
pub(crate) struct Predecessor(StdUnixStream);

impl Predecessor {
    /// Asks for the sockets of a family; `None` if there is no process to ask.
    pub(crate) fn ask(family: Family) -> Option<(Predecessor, Vec<StdListener>)> {
        let stream = StdUnixStream::connect_addr(&name(family).ok()?).ok()?;
        match ask(&stream) {
            Ok(sockets) => Some((Predecessor(stream), sockets)),
            Err(error) => {
                debug!(ipFamily = %family, err = %error, "Cannot take over listening sockets");
                None
            }
        }
    }

    /// Reports that everything is in place. If the predecessor is about to end, waits until it has stopped, but not for long.
    pub(crate) fn relieve(&mut self) {
        let mut answered = || {
            self.0.write_all(&[READY])?;
            self.0.set_read_timeout(Some(STOPPING))?;
            self.0.read(&mut [0])
        };
        // One that is gone needs no notice, and a slow one must not hold up the engine.
        let _: io::Result<usize> = answered();
    }
}

fn ask(stream: &StdUnixStream) -> io::Result<Vec<StdListener>> {
    check_peer(stream)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [IoSliceMut::new(&mut [0])], &mut received, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = received.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().map(|descriptor: OwnedFd| StdListener::from(descriptor)).collect())
}

/// Offers sockets to the next process until this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    task: AbortHandle,
    relieved: watch::Receiver<bool>,
    ending: Arc<AtomicBool>,
}

impl Offer {
    /// Offers these sockets, from now on if no other process offers its own.
    pub(crate) fn start(worker: &Handle, family: Family, sockets: Vec<StdListener>) -> Offer {
        let (report, relieved) = watch::channel(false);
        let ending = Arc::<AtomicBool>::default();
        // At once: the process after the next one may be here soon.
        let first = bind(family).ok();
        let work = offer(family, first, sockets, report, Arc::clone(&ending));
        Offer { task: worker.spawn(work).abort_handle(), relieved, ending }
    }

    /// This process is about to end. The result changes to true when the next one serves.
    pub(crate) fn end(&self) -> watch::Receiver<bool> {
        self.ending.store(true, Ordering::Relaxed);
        self.relieved.clone()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn offer(
    family: Family,
    mut bound: Option<StdUnixListener>,
    sockets: Vec<StdListener>,
    relieved: watch::Sender<bool>,
    ending: Arc<AtomicBool>,
) {
    loop {
        let Some(listener) = bound.take().or_else(|| bind(family).ok()) else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        match next_successor(listener, &sockets).await {
            Ok(mut stream) => {
                relieved.send_replace(true);
                if !ending.load(Ordering::Relaxed) {
                    // The successor does not have to wait. If it is gone, the end says so.
                    let _ = stream.write_u8(READY).await;
                }
                // Ends when the successor does.
                let _ = stream.read_u8().await;
                relieved.send_replace(false);
            }
            Err(error) => debug!(ipFamily = %family, err = %error, "Cannot hand over listening sockets"),
        }
    }
}

/// Waits until a process has taken the sockets over and serves.
async fn next_successor(listener: StdUnixListener, sockets: &[StdListener]) -> io::Result<UnixStream> {
    let listener = UnixListener::from_std(listener)?;
    let (mut stream, _) = listener.accept().await?;
    check_peer(&stream)?;
    // From now on the successor is the one to ask.
    drop(listener);
    send(&stream, sockets)?;
    stream.read_u8().await?;
    Ok(stream)
}

fn send(stream: &UnixStream, sockets: &[StdListener]) -> io::Result<()> {
    let descriptors: Vec<_> = sockets.iter().take(MOST).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut sent = SendAncillaryBuffer::new(&mut space);
    sent.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(stream, &[IoSlice::new(&[READY])], &mut sent, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn bind(family: Family) -> io::Result<StdUnixListener> {
    let listener = StdUnixListener::bind_addr(&name(family)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// An abstract name: it belongs to the network namespace, whatever files a process sees, and ends with its socket.
fn name(family: Family) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("portwarden-userspace-{family}"))
}

/// Any process of the network namespace can use the name.
fn check_peer(stream: &impl AsFd) -> io::Result<()> {
    if socket_peercred(stream)?.uid == geteuid() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the other process has another user"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use portwarden_testkit::Namespace;

    use super::*;
    use crate::core::{Drain, Limits, Workers};

    #[test]
    fn sockets_pass_from_process_to_process_with_their_queues() {
        let namespace = Namespace::new("handover").expect("a namespace");
        namespace.command("ip").args(["link", "set", "lo", "up"]).run().expect("loopback");
        let _inside = namespace.enter().expect("inside");
        let limits = Limits::new(10, 10);
        let workers = Workers::start_some(1, &limits, Duration::ZERO, &Drain::default()).expect("threads");
        let worker = &workers.all()[0].handle;
        assert!(Predecessor::ask(Family::V4).is_none(), "there is none");
        let first = StdListener::bind("127.0.0.1:0").expect("binds");
        let address = first.local_addr().expect("bound");
        let _waiting = TcpStream::connect(address).expect("waits in the queue");
        let offer = Offer::start(worker, Family::V4, vec![first]);
        let (mut predecessor, sockets) = Predecessor::ask(Family::V4).expect("the first");
        assert_eq!(sockets.len(), 1);
        predecessor.relieve();
        assert!(*offer.end().borrow(), "it knows");
        let next = Offer::start(worker, Family::V4, sockets);
        drop(offer);
        let relieved = next.end();
        let (mut predecessor, sockets) = Predecessor::ask(Family::V4).expect("the second");
        assert!(!*relieved.borrow(), "not yet");
        predecessor.relieve();
        assert!(*relieved.borrow());
        drop(next);
        assert_eq!(sockets[0].local_addr().expect("open"), address);
        sockets[0].accept().expect("the connection is still there");
        assert!(Predecessor::ask(Family::V4).is_none(), "no process offers it");
    }
}
