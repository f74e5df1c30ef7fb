//! Notifications about changes of the ruleset, whoever made them.

use super::decode::Event;
use crate::error::{Error, Result};
use crate::socket::{Protocol, Socket};
use crate::wire::Messages;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;

/// Room for notifications that nobody has read yet. Each changed element is a notification.
const QUEUE: usize = 8 << 20;

const REQUEST: &str = "nftables notifications";

/// A subscription to changes of the ruleset. Wait on it with poll(2) together with other descriptors, or with
/// [`Monitor::wait`].
///
/// While anyone is subscribed, the kernel builds a notification for each element of a transaction. Leave with
/// [`Monitor::pause`] around a full load.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

/// What a subscriber is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Something changed.
    Event(Event),
    /// Some notifications were lost, as they were not read in time: anything may have changed.
    Missed,
}

impl Monitor {
    /// Subscribes.
    pub fn open() -> Result<Self> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        socket.grow_receive_buffer(QUEUE);
        socket.join(GROUP)?;
        Ok(Self { socket })
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
                // What cannot be read may be anything, so it counts as missed.
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

    /// Stops the notifications; those queued stay readable.
    pub fn pause(&self) -> Result<()> {
        self.socket.leave(GROUP)
    }

    /// Starts the notifications again after [`Monitor::pause`].
    pub fn resume(&self) -> Result<()> {
        self.socket.join(GROUP)
    }
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
