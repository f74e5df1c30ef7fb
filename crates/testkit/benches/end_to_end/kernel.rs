//! Notifications of the kernel about changed rules: the end of the path, observed by a third process.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket,
    sockopt,
};
use portwarden_netlink::nftables::{Client, Family, TableId, Value};
use portwarden_testkit::Namespace;

use crate::cluster::{MARKED, Mark, is_endpoint, marks_in};

/// The buffer for notifications that are not read yet.
const BUFFER: usize = 512 << 20;
/// The group of messages about nf_tables, 7, as a bit.
const NFTABLES_GROUP: u32 = 1 << 6;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// Messages that say that something is there (rule, element).
const COMES: [u8; 2] = [6, 12];
/// Messages that say that something is gone.
const GOES: [u8; 2] = [8, 14];

/// Receives notifications until it is dropped. While a process receives them, large changes take the kernel several times as long, so this is for small
/// ones.
pub(crate) struct Listener {
    received: Arc<Mutex<Received>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Result<()>>>>,
}

/// The notifications so far.
pub(crate) struct Received {
    /// When each mark was first said to be there, since it was last asked for.
    first: Vec<Option<Instant>>,
    /// How many objects with each mark are there.
    present: Vec<i32>,
    /// When the kernel last said anything.
    pub(crate) last: Instant,
    /// The kernel had to leave something out.
    pub(crate) overruns: u32,
}

impl Listener {
    /// Listens in a namespace.
    pub(crate) fn start(namespace: &Namespace) -> Result<Listener> {
        let descriptor = {
            let _inside = namespace.enter()?;
            open()?
        };
        let marked = usize::try_from(MARKED)?;
        let received = Received {
            first: vec![None; marked],
            present: vec![0; marked],
            last: Instant::now(),
            overruns: 0,
        };
        let (received, stop) = (Arc::new(Mutex::new(received)), Arc::new(AtomicBool::new(false)));
        let (noted, stopped) = (received.clone(), stop.clone());
        let thread = namespace.spawn(move || listen(&descriptor, &noted, &stopped))?;
        Ok(Listener { received, stop, thread: Some(thread) })
    }

    pub(crate) fn received(&self) -> MutexGuard<'_, Received> {
        lock(&self.received)
    }

    /// Waits until a mark is there.
    pub(crate) fn wait_for(&self, mark: Mark, timeout: Duration) -> Option<Instant> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(at) = self.received().first(mark) {
                return Some(at);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until the kernel has said nothing for a while.
    pub(crate) fn wait_for_quiet(&self, quiet: Duration, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while self.received().last.elapsed() < quiet && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops listening.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| anyhow!("the listener panicked"))??,
            None => Ok(()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Received {
    /// Forgets that a mark was ever seen: it is about to be used (again).
    pub(crate) fn ask_for(&mut self, mark: Mark) {
        self.first[mark.index()] = None;
    }

    /// When a mark came.
    pub(crate) fn first(&self, mark: Mark) -> Option<Instant> {
        self.first[mark.index()]
    }

    /// The marks that are there.
    pub(crate) fn present(&self) -> BTreeSet<Mark> {
        (0u32..).zip(&self.present).filter(|(_, count)| **count > 0).map(|(number, _)| Mark(number)).collect()
    }

    fn note(&mut self, message: u8, mark: Mark, now: Instant) {
        if COMES.contains(&message) {
            self.first[mark.index()].get_or_insert(now);
            self.present[mark.index()] += 1;
        } else if GOES.contains(&message) {
            self.present[mark.index()] -= 1;
        }
    }
}

/// The IPv4 endpoints in the maps of Portwarden's table.
pub(crate) fn installed_endpoints(namespace: &Namespace) -> Result<BTreeSet<Ipv4Addr>> {
    namespace.run(|| {
        let mut client = Client::open()?;
        let table = TableId::new(Family::Ip, "kube-proxy");
        let mut found = BTreeSet::new();
        for set in client.sets(&table)? {
            for element in client.elements(&table, &set.object.name)? {
                if let Some(Value::Data(bytes)) = element.value
                    && let Some(address) = bytes.first_chunk::<4>().copied().map(Ipv4Addr::from)
                    && is_endpoint(address)
                {
                    found.insert(address);
                }
            }
        }
        Ok(found)
    })
}

fn open() -> Result<OwnedFd> {
    let descriptor = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::NetlinkNetFilter,
    )
    .context("cannot open a netlink socket")?;
    setsockopt(&descriptor, sockopt::RcvBufForce, &BUFFER).context("cannot make room for notifications")?;
    bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, NFTABLES_GROUP))
        .context("cannot listen to the kernel's notifications")?;
    Ok(descriptor)
}

fn listen(descriptor: &OwnedFd, received: &Mutex<Received>, stop: &AtomicBool) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    while !stop.load(Ordering::Relaxed) {
        let mut wanted = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        poll(&mut wanted, PollTimeout::from(50u8)).context("cannot wait for notifications")?;
        loop {
            match recv(descriptor.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => {
                    let now = Instant::now();
                    let mut received = lock(received);
                    received.last = now;
                    for (kind, message) in messages(&buffer[..length]) {
                        marks_in(message).for_each(|mark| received.note(kind, mark, now));
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::ENOBUFS) => lock(received).overruns += 1,
                Err(error) => return Err(error).context("cannot read notifications"),
            }
        }
    }
    Ok(())
}

/// The messages in a datagram: the lower byte of each type, and its content.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let length =
            usize::try_from(u32::from_ne_bytes([header[0], header[1], header[2], header[3]])).ok()?;
        let content = bytes.get(HEADER..length)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]).to_le_bytes()[0];
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

fn lock(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}
