//! Links and addresses of the node.

use crate::error::{Error, Result};
use crate::family::{IpFamily, address};
use crate::socket::{Protocol, Socket};
use crate::wire::{Attributes, Malformed, Message, Messages};
use nix::errno::Errno;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
/// The attribute of a link that holds its name.
const LINK_NAME: u16 = 3;

const NOTIFICATIONS: &str = "notifications of links and addresses";

/// Multicast groups of links, IPv4 addresses and IPv6 addresses.
const GROUPS: [u32; 3] = [1, 5, 9];

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Bits as in [`link_flags`].
    pub flags: u32,
}

/// Bits of [`Link::flags`].
pub mod link_flags {
    /// Switched on.
    pub const UP: u32 = 0x1;
    /// The loopback interface.
    pub const LOOPBACK: u32 = 0x8;
}

/// An address of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Number of the interface.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of its prefix.
    pub prefix_length: u8,
    /// How far it is valid, see [`scope`].
    pub scope: u8,
    /// Bits such as deprecated or tentative, `IFA_F_*` of linux/if_addr.h.
    pub flags: u32,
}

/// Values of [`InterfaceAddress::scope`].
pub mod scope {
    /// Everywhere.
    pub const UNIVERSE: u8 = 0;
    /// On the link only.
    pub const LINK: u8 = 253;
    /// On this host only.
    pub const HOST: u8 = 254;
}

/// An address together with its interface's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAddress {
    /// The interface's name.
    pub interface: String,
    /// The address.
    pub address: InterfaceAddress,
}

/// A connection to the kernel's routing of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Route {
    socket: Socket,
}

impl Route {
    /// Opens a connection.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// Lists the interfaces.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let listed = self.dump("a list of links", GET_LINK, 0, 16)?;
        let link = |change| match change {
            RouteChange::LinkPresent(link) => Some(link),
            _ => None,
        };
        Ok(listed.into_iter().filter_map(link).collect())
    }

    /// Removes an interface; false if there is none of that name.
    pub fn delete_link(&mut self, name: &str) -> Result<bool> {
        let answer = self.socket.request(
            "to delete a link",
            |writer, flags, sequence| {
                let mark = writer.begin_message(DELETE_LINK, flags, sequence);
                // A header that names no interface by number.
                writer.raw(&[0; 16]);
                writer.string(LINK_NAME, name);
                writer.end_message(mark);
            },
            |_| Ok(()),
        );
        match answer {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists the addresses of all interfaces, of one family or both.
    pub fn addresses(&mut self, family: Option<IpFamily>) -> Result<Vec<InterfaceAddress>> {
        let listed = self.dump("a list of addresses", GET_ADDRESS, family.map_or(0, IpFamily::byte), 8)?;
        let address = |change| match change {
            RouteChange::AddressPresent(address) => Some(address),
            _ => None,
        };
        Ok(listed.into_iter().filter_map(address).collect())
    }

    /// Lists the addresses together with the names of their interfaces.
    ///
    /// An address whose interface went away between the two listings is left out.
    pub fn named_addresses(&mut self, family: Option<IpFamily>) -> Result<Vec<NamedAddress>> {
        let addresses = self.addresses(family)?;
        let names: HashMap<u32, String> =
            self.links()?.into_iter().map(|link| (link.index, link.name)).collect();
        let named = |address: InterfaceAddress| {
            Some(NamedAddress { interface: names.get(&address.index)?.clone(), address })
        };
        Ok(addresses.into_iter().filter_map(named).collect())
    }

    /// Sends a dump request whose header has `header` bytes, the first being the family.
    fn dump(
        &mut self,
        request: &'static str,
        kind: u16,
        family: u8,
        header: usize,
    ) -> Result<Vec<RouteChange>> {
        self.socket.dump_consistently(
            request,
            |writer, flags, sequence| {
                let mark = writer.begin_message(kind, flags, sequence);
                writer.raw(&[family]);
                writer.raw(&[0; 15][..header.saturating_sub(1).min(15)]);
                writer.end_message(mark);
            },
            Vec::new,
            |found, message| {
                found.extend(RouteChange::decode(message)?);
                Ok(())
            },
        )
    }
}

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
    /// Reads a message; `None` if it tells of neither a link nor an IP address.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        match message.kind {
            NEW_LINK => Ok(Some(Self::LinkPresent(decode_link(message.payload)?))),
            DELETE_LINK => Ok(Some(Self::LinkGone(decode_link(message.payload)?))),
            NEW_ADDRESS => Ok(decode_address(message.payload)?.map(Self::AddressPresent)),
            DELETE_ADDRESS => Ok(decode_address(message.payload)?.map(Self::AddressGone)),
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

/// What a subscriber is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteNotice {
    /// Something changed.
    Change(RouteChange),
    /// Some notifications were lost, as they were not read in time: list everything again.
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

/// Reads `struct ifinfomsg` and the name behind it.
fn decode_link(payload: &[u8]) -> Result<Link, Malformed> {
    const NAME: u16 = 3;
    let (header, attributes) = payload.split_first_chunk::<16>().ok_or(Malformed { what: "link message" })?;
    let [_, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *header;
    let mut link = Link {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        name: String::new(),
        flags: u32::from_ne_bytes([f0, f1, f2, f3]),
    };
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        if attribute.kind == NAME {
            link.name = attribute.text().into_owned();
        }
    }
    Ok(link)
}

/// Reads `struct ifaddrmsg` and the address behind it.
fn decode_address(payload: &[u8]) -> Result<Option<InterfaceAddress>, Malformed> {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const FLAGS: u16 = 8;
    let (header, attributes) =
        payload.split_first_chunk::<8>().ok_or(Malformed { what: "address message" })?;
    let [_, prefix_length, flags, scope, i0, i1, i2, i3] = *header;
    let (mut remote, mut local, mut all_flags) = (None, None, None);
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        match attribute.kind {
            ADDRESS => remote = address(attribute.payload),
            LOCAL => local = address(attribute.payload),
            FLAGS => all_flags = Some(attribute.u32_host()?),
            _ => {}
        }
    }
    // On a point-to-point link the first attribute is the peer's address and the second one ours.
    Ok(local.or(remote).map(|address| InterfaceAddress {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        address,
        prefix_length,
        scope,
        flags: all_flags.unwrap_or_else(|| u32::from(flags)),
    }))
}
