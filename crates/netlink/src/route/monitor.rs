//! Notifications of changed links and addresses.

use super::decode::{decode_address, decode_link, kind};
use super::{InterfaceAddress, Link};
use crate::error::{Error, Result};
use crate::socket::{Protocol, Socket};
use crate::wire::{Malformed, Message, Messages};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

const NOTIFICATIONS: &str = "notifications of links and addresses";

/// Multicast groups of links, IPv4 addresses and IPv6 addresses.
const GROUPS: [u32; 3] = [1, 5, 9];

/// A link or address that came, changed or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// The interface exists, new or changed.
    LinkPresent(Link),
    /// The interface is gone.
    LinkGone(Link),
    /// The address exists, new or changed.
    AddressPresent(InterfaceAddress),
    /// The address is gone.
    AddressGone(InterfaceAddress),
}

impl RouteChange {
    /// Reads a message; `None` if it describes neither a link nor an IP address.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        match message.kind {
            kind::NEW_LINK => Ok(Some(Self::LinkPresent(decode_link(message.payload)?))),
            kind::DELETE_LINK => Ok(Some(Self::LinkGone(decode_link(message.payload)?))),
            kind::NEW_ADDRESS => Ok(decode_address(message.payload)?.map(Self::AddressPresent)),
            kind::DELETE_ADDRESS => Ok(decode_address(message.payload)?.map(Self::AddressGone)),
            _ => Ok(None),
        }
    }
}

/// A subscription to changes of links and addresses. Wait on it with poll(2) together with other
/// descriptors, or with [`RouteMonitor::wait`].
#[derive(Debug)]
pub struct RouteMonitor {
    socket: Socket,
}

/// A change of a link or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteNotice {
    /// Something changed.
    Change(RouteChange),
    /// Notifications were lost because they were not read in time: list everything again.
    Missed,
}

impl RouteMonitor {
    /// Subscribes.
    pub fn open() -> Result<Self> {
        let mut socket = Socket::open(Protocol::Route)?;
        socket.grow_receive_buffer(1 << 20);
        for group in GROUPS {
            socket.join(group)?;
        }
        Ok(Self { socket })
    }

    /// Hands all notifications that are there to `on_notice`, without waiting; returns how many.
    pub fn read(&mut self, mut on_notice: impl FnMut(RouteNotice)) -> Result<usize> {
        let mut count = 0;
        loop {
            let datagram = match self.socket.receive(NOTIFICATIONS, false) {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return Ok(count),
                Err(Error::Overrun { .. } | Error::Truncated { .. }) => {
                    count += 1;
                    on_notice(RouteNotice::Missed);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for message in Messages::new(datagram) {
                let notice = match message.and_then(|message| RouteChange::decode(&message)) {
                    Ok(Some(change)) => RouteNotice::Change(change),
                    Ok(None) => continue,
                    Err(_) => RouteNotice::Missed,
                };
                count += 1;
                on_notice(notice);
            }
        }
    }

    /// Waits until there is something to read; false if the time is over before.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        self.socket.wait(NOTIFICATIONS, timeout)
    }
}

impl AsFd for RouteMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for RouteMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
