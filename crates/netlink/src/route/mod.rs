//! Links, addresses, routes and neighbours of a network namespace, over rtnetlink.

mod decode;
mod monitor;
mod request;

pub use monitor::{RouteChange, RouteMonitor, RouteNotice};
pub use request::{Mac, Request, VethEnd};

use crate::error::{Answer, Error, Result};
use crate::family::IpFamily;
use crate::socket::{Protocol, Socket};
use decode::{is_local_route, kind};
use nix::errno::Errno;
use std::net::IpAddr;

/// The number of the loopback device in every namespace.
pub const LOOPBACK: u32 = 1;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The interface index, unique within the network namespace.
    pub index: u32,
    /// The interface name, at most 15 bytes.
    pub name: String,
    /// Bits as in [`link_flags`].
    pub flags: u32,
    /// The kind of a virtual interface, such as `dummy` or `veth`.
    pub kind: Option<String>,
    /// Whether it passes packets.
    pub operational: bool,
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
    /// Without its prefix, which is a field of its own.
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
        let listed = self.dump("a list of links", kind::GET_LINK, 0, 16)?;
        let link = |change| match change {
            RouteChange::LinkPresent(link) => Some(link),
            _ => None,
        };
        Ok(listed.into_iter().filter_map(link).collect())
    }

    /// Sends requests in order. Returns those that the kernel refused, by index.
    pub fn apply(&mut self, requests: &[Request]) -> Result<Vec<(usize, Answer)>> {
        self.socket.request_all(
            "to change links and addresses",
            requests,
            |writer, flags, sequence, request| {
                request.encode(writer, flags, sequence);
            },
        )
    }

    /// Creates a dummy interface, which stays down; false if there is an interface of that name.
    pub fn create_dummy(&mut self, name: &str) -> Result<bool> {
        self.apply_one(&Request::dummy(name), Errno::EEXIST, || format!("to create the dummy device {name}"))
    }

    /// Removes an interface; false if there is none of that name.
    pub fn delete_link(&mut self, name: &str) -> Result<bool> {
        self.apply_one(&Request::delete_link(name), Errno::ENODEV, || format!("to delete the device {name}"))
    }

    /// Reads one interface by name; `None` if there is none.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        let found = self.read("for a link", &Request::get_link_by_name(name));
        let found = match found {
            Err(error) if error.errno() == Some(Errno::ENODEV) => return Ok(None),
            found => found?,
        };
        let link = |answer| match answer {
            Answered::Change(RouteChange::LinkPresent(link)) => Some(link),
            _ => None,
        };
        Ok(found.into_iter().find_map(link))
    }

    /// Whether an interface passes packets.
    pub fn is_operational(&mut self, index: u32) -> Result<bool> {
        let found = self.read("for a link", &Request::get_link(index))?;
        Ok(found.iter().any(
            |answer| matches!(answer, Answered::Change(RouteChange::LinkPresent(link)) if link.operational),
        ))
    }

    /// Whether packets to an address reach this host itself.
    pub fn is_local(&mut self, address: IpAddr) -> Result<bool> {
        match self.read("for a route", &Request::get_route(address)) {
            Ok(found) => Ok(found.iter().any(|answer| matches!(answer, Answered::Route { local: true }))),
            // There is no route at all, or not yet.
            Err(error) if error.errno() == Some(Errno::ENETUNREACH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists the addresses of all interfaces, of one family or both.
    pub fn addresses(&mut self, family: Option<IpFamily>) -> Result<Vec<InterfaceAddress>> {
        let listed =
            self.dump("a list of addresses", kind::GET_ADDRESS, family.map_or(0, IpFamily::byte), 8)?;
        let address = |change| match change {
            RouteChange::AddressPresent(address) => Some(address),
            _ => None,
        };
        Ok(listed.into_iter().filter_map(address).collect())
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

    /// Sends one question and reads the answers.
    fn read(&mut self, request: &'static str, question: &Request) -> Result<Vec<Answered>> {
        let mut found = Vec::new();
        self.socket.request(
            request,
            |writer, flags, sequence| question.encode(writer, flags, sequence),
            |message| {
                if message.kind == kind::NEW_ROUTE {
                    found.push(Answered::Route { local: is_local_route(message.payload) });
                } else {
                    found.extend(RouteChange::decode(message)?.map(Answered::Change));
                }
                Ok(())
            },
        )?;
        Ok(found)
    }

    fn apply_one(
        &mut self,
        request: &Request,
        harmless: Errno,
        description: impl FnOnce() -> String,
    ) -> Result<bool> {
        match self.apply(std::slice::from_ref(request))?.pop() {
            None => Ok(true),
            Some((_, answer)) if answer.errno == harmless => Ok(false),
            Some((_, answer)) => Err(Error::Refused { request: description(), answer }),
        }
    }
}

/// What the kernel answers to a question.
enum Answered {
    Change(RouteChange),
    Route { local: bool },
}
