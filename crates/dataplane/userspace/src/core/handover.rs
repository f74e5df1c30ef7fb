//! Hands listening sockets and UDP sockets over to the next process, or to the next dataplane of this one. The sockets are never closed: connections and
//! datagrams in their queues, and connections whose handshake is under way, are served by whoever has them then. A listener that is closed resets
//! connections, and a UDP socket that is closed loses datagrams.
//!
//! ```text
//! predecessor                       successor
//!    <──────────── connects ────────────
//!    ─────────── sockets, END ─────────>   both accept and read
//!    <─────── READY, UDP ports ─────────   its rules are written, it reads these
//!    ──── READY, if it is not ending ──>
//!    ─── end, when it has stopped ─────>
//! ```
//!
//! The predecessor leaves the UDP sockets to a successor that is ready, since the datagrams of one client should reach one endpoint. It reads them again
//! if the successor ends first.

use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener as StdListener, UdpSocket as StdUdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use portwarden_model::Family;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::geteuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::debug;

use super::shared_udp::{SharedUdp, UdpSockets};

/// Sockets of one message. The kernel allows 253.
const MOST: usize = 64;

/// The first byte of each message of a predecessor says what sockets it has.
const TCP: u8 = 1;
const UDP: u8 = 2;
const END: u8 = 3;

/// Starts the only message of a successor, and is the answer.
const READY: u8 = 1;

/// How long a predecessor may take to answer, or to stop if it is about to end: it is busy with connections, or waits for its share of a processor. While
/// it has not stopped, it serves as was wanted before.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How often a process tries to become the one that is asked, while another one is.
const RETRY: Duration = Duration::from_millis(200);

/// A process, or dataplane, that had the sockets before.
#[derive(Debug)]
pub(crate) struct Predecessor(StdUnixStream);

/// The sockets of a predecessor.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    pub(crate) tcp: Vec<StdListener>,
    pub(crate) udp: Vec<StdUdpSocket>,
}

impl Predecessor {
    /// Asks for the sockets of a family; `None` if there is no process to ask.
    pub(crate) fn ask(family: Family) -> Option<(Predecessor, HandedOver)> {
        let stream = StdUnixStream::connect_addr(&name(family).ok()?).ok()?;
        match ask(&stream) {
            Ok(sockets) => Some((Predecessor(stream), sockets)),
            Err(error) => {
                debug!(ipFamily = %family, err = %error, "Cannot take over sockets");
                None
            }
        }
    }

    /// Reports that everything is in place, and which of the UDP sockets this process reads. If the predecessor is about to end, waits until it has
    /// stopped, but not for long.
    pub(crate) fn relieve(&mut self, udp: &BTreeSet<u16>) {
        // A family has fewer ports than 16 bits can count: port 0 is none.
        let count = u16::try_from(udp.len()).unwrap_or(u16::MAX);
        let mut ready = vec![READY];
        ready.extend([&count].into_iter().chain(udp).flat_map(|number| number.to_be_bytes()));
        let mut answered = || {
            self.0.write_all(&ready)?;
            self.0.set_read_timeout(Some(TIMEOUT))?;
            self.0.read(&mut [0])
        };
        // One that is gone needs no notice, and one that hangs must not hold up the engine.
        let _: io::Result<usize> = answered();
    }
}

fn ask(stream: &StdUnixStream) -> io::Result<HandedOver> {
    check_peer(stream)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut sockets = HandedOver::default();
    loop {
        match receive(stream)? {
            (TCP, descriptors) => sockets.tcp.extend(descriptors.into_iter().map(StdListener::from)),
            (UDP, descriptors) => sockets.udp.extend(descriptors.into_iter().map(StdUdpSocket::from)),
            _ => return Ok(sockets),
        }
    }
}

/// One message: its byte and its sockets.
fn receive(stream: &StdUnixStream) -> io::Result<(u8, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let mut kind = [0];
    let message = recvmsg(stream, &mut [IoSliceMut::new(&mut kind)], &mut received, RecvFlags::CMSG_CLOEXEC)?;
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let descriptors = received.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((kind[0], descriptors.flatten().collect()))
}

/// Offers sockets to the next process until this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    task: AbortHandle,
    relieved: watch::Receiver<bool>,
    ending: Arc<AtomicBool>,
}

impl Offer {
    /// Offers these listening sockets, and the UDP sockets that are open when they are asked for, from now on if no other process offers its own.
    pub(crate) fn start(worker: &Handle, family: Family, tcp: Vec<StdListener>, udp: UdpSockets) -> Offer {
        let (report, relieved) = watch::channel(false);
        let ending = Arc::<AtomicBool>::default();
        // At once: the process after the next one may be here soon.
        let first = bind(family).ok();
        let work = offer(family, first, Offered { tcp, udp }, report, Arc::clone(&ending));
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

struct Offered {
    tcp: Vec<StdListener>,
    udp: UdpSockets,
}

async fn offer(
    family: Family,
    mut bound: Option<StdUnixListener>,
    sockets: Offered,
    relieved: watch::Sender<bool>,
    ending: Arc<AtomicBool>,
) {
    loop {
        let Some(listener) = bound.take().or_else(|| bind(family).ok()) else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        match next_successor(listener, &sockets).await {
            Ok((mut stream, handed_over)) => {
                relieved.send_replace(true);
                if !ending.load(Ordering::Relaxed) {
                    // The successor does not have to wait. If it is gone, the end says so.
                    let _ = stream.write_u8(READY).await;
                }
                // Ends when the successor does.
                let _ = stream.read_u8().await;
                relieved.send_replace(false);
                for socket in handed_over.iter().filter_map(Weak::upgrade) {
                    socket.take_back();
                }
            }
            Err(error) => debug!(ipFamily = %family, err = %error, "Cannot hand over sockets"),
        }
    }
}

/// Waits until a process has taken the sockets over and serves. Returns the UDP sockets that it reads.
async fn next_successor(
    listener: StdUnixListener,
    sockets: &Offered,
) -> io::Result<(UnixStream, Vec<Weak<SharedUdp>>)> {
    let listener = UnixListener::from_std(listener)?;
    let (mut stream, _) = listener.accept().await?;
    check_peer(&stream)?;
    // From now on the successor is the one to ask.
    drop(listener);
    let udp = sockets.udp.all();
    send(&stream, TCP, &sockets.tcp).await?;
    send(&stream, UDP, &udp).await?;
    send_one(&stream, END, &[]).await?;
    // Services may end before the successor does.
    let udp: Vec<_> = udp.iter().map(Arc::downgrade).collect();
    stream.read_u8().await?;
    let mut taken = BTreeSet::new();
    for _ in 0..stream.read_u16().await? {
        taken.insert(stream.read_u16().await?);
    }
    let is_taken = |socket: &Weak<SharedUdp>| {
        socket.upgrade().filter(|socket| taken.contains(&socket.port())).inspect(|s| s.hand_over()).is_some()
    };
    Ok((stream, udp.into_iter().filter(is_taken).collect()))
}

async fn send(stream: &UnixStream, kind: u8, sockets: &[impl AsFd]) -> io::Result<()> {
    for some in sockets.chunks(MOST) {
        let descriptors: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        send_one(stream, kind, &descriptors).await?;
    }
    Ok(())
}

async fn send_one(stream: &UnixStream, kind: u8, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut sent = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            sent.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(stream, &[IoSlice::new(&[kind])], &mut sent, SendFlags::NOSIGNAL)?;
        Ok(())
    };
    stream.async_io(Interest::WRITABLE, send).await
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

    fn namespace() -> Namespace {
        let namespace = Namespace::new("handover").expect("a namespace");
        namespace.command("ip").args(["link", "set", "lo", "up"]).run().expect("loopback");
        namespace
    }

    fn workers() -> Workers {
        let limits = Limits::new(10, 10);
        Workers::start_some(1, &limits, Duration::ZERO, &Drain::default()).expect("threads")
    }

    #[test]
    fn more_udp_sockets_than_one_message_has_pass_and_those_that_are_taken_are_known() {
        let namespace = namespace();
        let _inside = namespace.enter().expect("inside");
        let workers = workers();
        let worker = &workers.all()[0].handle;
        let udp = UdpSockets::default();
        let open = |_| {
            let socket = StdUdpSocket::bind("127.0.0.1:0").expect("binds");
            socket.set_nonblocking(true).expect("an open socket");
            udp.open(worker, socket).expect("an open socket")
        };
        let mut own: Vec<_> = (0..2 * MOST + 1).map(open).collect();
        let closed = own.pop().expect("the last one").port();
        let offer = Offer::start(worker, Family::V4, Vec::new(), udp.clone());
        let (mut predecessor, sockets) = Predecessor::ask(Family::V4).expect("the first");
        let ports = |sockets: &[StdUdpSocket]| -> BTreeSet<u16> {
            sockets.iter().map(|socket| socket.local_addr().expect("bound").port()).collect()
        };
        let received = ports(&sockets.udp);
        assert_eq!(received, own.iter().map(|socket| socket.port()).collect());
        assert!(!received.contains(&closed), "it is not open any more");
        assert!(own.iter().all(|socket| !socket.is_handed_over()), "no other process reads them yet");
        predecessor.relieve(&ports(&sockets.udp[1..]));
        assert!(*offer.end().borrow());
        let left: Vec<u16> =
            own.iter().filter(|socket| !socket.is_handed_over()).map(|socket| socket.port()).collect();
        assert_eq!(left, [sockets.udp[0].local_addr().expect("bound").port()]);
    }

    #[test]
    fn sockets_pass_from_process_to_process_with_their_queues() {
        let namespace = namespace();
        let _inside = namespace.enter().expect("inside");
        let workers = workers();
        let worker = &workers.all()[0].handle;
        assert!(Predecessor::ask(Family::V4).is_none(), "there is none");
        let first = StdListener::bind("127.0.0.1:0").expect("binds");
        let address = first.local_addr().expect("bound");
        let _waiting = TcpStream::connect(address).expect("waits in the queue");
        let offer = Offer::start(worker, Family::V4, vec![first], UdpSockets::default());
        let (mut predecessor, HandedOver { tcp: sockets, .. }) =
            Predecessor::ask(Family::V4).expect("the first");
        assert_eq!(sockets.len(), 1);
        predecessor.relieve(&BTreeSet::new());
        assert!(*offer.end().borrow(), "it knows");
        let next = Offer::start(worker, Family::V4, sockets, UdpSockets::default());
        drop(offer);
        let relieved = next.end();
        let (mut predecessor, HandedOver { tcp: sockets, .. }) =
            Predecessor::ask(Family::V4).expect("the second");
        assert!(!*relieved.borrow(), "not yet");
        predecessor.relieve(&BTreeSet::new());
        assert!(*relieved.borrow());
        drop(next);
        assert_eq!(sockets[0].local_addr().expect("open"), address);
        sockets[0].accept().expect("the connection is still there");
        assert!(Predecessor::ask(Family::V4).is_none(), "no process offers it");
    }
}
