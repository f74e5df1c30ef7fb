//! Notifications about changes of the ruleset, by this and other processes.

use super::decode::Event;
use crate::error::{Error, Result};
use crate::socket::{Protocol, Socket};
use crate::sys::{NetlinkOption, set_netlink_option};
use crate::wire::Messages;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;

/// The size of the queue of unread notifications. Each changed element is a notification.
const QUEUE: usize = 8 << 20;

const REQUEST: &str = "nftables notifications";

/// A subscription to changes of the ruleset. Wait on it with poll(2) together with other descriptors, or with
/// [`Monitor::wait`].
///
/// While any socket is subscribed, in whatever network namespace, the kernel builds a notification for each element of
/// a transaction. That takes longer than the transaction itself, and those that do not fit into the queue are lost.
/// Hence [`Monitor::with_notifications_paused`] for large transactions.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    subscription: Arc<Subscription>,
}

/// What a subscriber receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Something changed.
    Event(Event),
    /// Notifications were lost because they were not read in time: anything may have changed.
    Missed,
}

impl Monitor {
    /// Subscribes.
    pub fn open() -> Result<Self> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        socket.grow_receive_buffer(QUEUE);
        socket.join(GROUP)?;
        let subscription = Subscription::register(&socket)?;
        Ok(Self { socket, subscription })
    }

    /// Hands all notifications that are there to `on_notice`, without waiting; returns how many.
    pub fn read(&mut self, mut on_notice: impl FnMut(Notice)) -> Result<usize> {
        let mut count = 0;
        loop {
            let datagram = match self.socket.receive(REQUEST, false) {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return Ok(count),
                Err(Error::Overrun { .. } | Error::Truncated { .. }) => {
                    count += 1;
                    on_notice(Notice::Missed);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for message in Messages::new(datagram) {
                // A notification that cannot be decoded may be about anything, so it counts as missed.
                let notice = match message.and_then(|message| Event::decode(&message)) {
                    Ok(Some(event)) => Notice::Event(event),
                    Ok(None) => continue,
                    Err(_) => Notice::Missed,
                };
                count += 1;
                on_notice(notice);
            }
        }
    }

    /// Waits until there is something to read; false if the time is over before.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        self.socket.wait(REQUEST, timeout)
    }

    /// Runs `work` while notifications are paused, those of this process's other monitors in the same network namespace
    /// too. Changes in the meantime are not reported.
    pub fn with_notifications_paused<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.pause()?;
        let result = work();
        self.resume()?;
        Ok(result)
    }

    /// Stops the notifications, also of this process's other monitors in the same network namespace; those queued
    /// stay readable.
    pub fn pause(&self) -> Result<()> {
        self.subscription.all_of_namespace(|pauses| {
            *pauses += 1;
            (*pauses == 1).then_some(NetlinkOption::DropMembership)
        })
    }

    /// Starts the notifications again after [`Monitor::pause`]; changes in between are not reported.
    pub fn resume(&self) -> Result<()> {
        self.subscription.all_of_namespace(|pauses| {
            let last = *pauses == 1;
            *pauses = pauses.saturating_sub(1);
            last.then_some(NetlinkOption::AddMembership)
        })
    }
}

/// The subscriptions of this process. The kernel knows only whether there are any at all, so they have to know of
/// each other.
static SUBSCRIPTIONS: Mutex<Vec<Weak<Subscription>>> = Mutex::new(Vec::new());

/// One subscription, as the other subscriptions see it.
#[derive(Debug)]
struct Subscription {
    fd: OwnedFd,
    /// Device and inode of the network namespace.
    namespace: (u64, u64),
    /// How often it was paused without being resumed.
    pauses: Mutex<u32>,
}

impl Subscription {
    fn register(socket: &Socket) -> Result<Arc<Self>> {
        let failed = |source: std::io::Error| Error::Open {
            action: "note the network namespace of",
            protocol: "netfilter",
            source: nix::errno::Errno::from_raw(source.raw_os_error().unwrap_or_default()),
        };
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_err(failed)?;
        let subscription = Arc::new(Self {
            fd: socket.as_fd().try_clone_to_owned().map_err(failed)?,
            namespace: (namespace.dev(), namespace.ino()),
            pauses: Mutex::new(0),
        });
        let mut all = lock(&SUBSCRIPTIONS);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&subscription));
        Ok(subscription)
    }

    /// Asks every subscription of the same namespace what to do, and does it. Goes on after a failure.
    fn all_of_namespace(&self, what: impl Fn(&mut u32) -> Option<NetlinkOption>) -> Result<()> {
        let all: Vec<Arc<Self>> = lock(&SUBSCRIPTIONS).iter().filter_map(Weak::upgrade).collect();
        let mut outcome = Ok(());
        for other in all.iter().filter(|other| other.namespace == self.namespace) {
            let Some(option) = what(&mut lock(&other.pauses)) else { continue };
            let done = set_netlink_option(other.fd.as_fd(), option, GROUP);
            outcome = outcome.and(done);
        }
        outcome.map_err(|source| Error::Open {
            action: "pause or resume notifications of",
            protocol: "netfilter",
            source,
        })
    }
}

/// Nothing panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
