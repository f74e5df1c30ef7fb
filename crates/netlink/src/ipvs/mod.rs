//! IPVS: virtual servers, their real servers, and the timeouts of connections, over generic netlink.

mod codec;
mod server;

pub use codec::{Reply, decode};
pub use server::{Connections, RealServer, ServerKey, VirtualServer, flags, method};

use crate::error::{Answer, Error, Result};
use crate::generic::{self, begin};
use crate::socket::Socket;
use crate::wire::{Message, Writer};
use codec::{command, encode_key, encode_real, encode_real_key, encode_timeouts, encode_virtual};
use nix::errno::Errno;

/// How long IPVS keeps idle connections, in seconds. In a request, 0 leaves the kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// An established TCP connection.
    pub tcp: u32,
    /// A TCP connection after a FIN.
    pub tcp_fin: u32,
    /// UDP, since the last packet.
    pub udp: u32,
}

/// What IPVS says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Version, one byte each for major, minor and patch level.
    pub version: u32,
    /// Size of the hash table of connections.
    pub connection_table: u32,
}

/// A change of one object. Requests are values, so that many of them can be sent at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Create a virtual server.
    AddServer(VirtualServer),
    /// Replace the settings of a virtual server.
    EditServer(VirtualServer),
    /// Remove a virtual server with all its real servers.
    DeleteServer(ServerKey),
    /// Create a real server.
    AddReal(ServerKey, RealServer),
    /// Replace the settings of a real server.
    EditReal(ServerKey, RealServer),
    /// Remove a real server.
    DeleteReal(ServerKey, std::net::SocketAddr),
}

/// A connection to IPVS of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    kind: u16,
}

impl Ipvs {
    /// Opens a connection; `None` if the kernel has no IPVS. Where it is a module, the kernel loads it.
    pub fn open() -> Result<Option<Self>> {
        Ok(generic::open("IPVS")?.map(|(socket, kind)| Self { socket, kind }))
    }

    /// Lists the virtual servers of both families. Those of packet marks, which have no address, are left out.
    pub fn servers(&mut self) -> Result<Vec<VirtualServer>> {
        self.list("a list of virtual servers", command::GET_SERVICE, None, |reply| match reply {
            Reply::Virtual(server) => Some(server),
            _ => None,
        })
    }

    /// Lists the real servers of a virtual server. A virtual server that does not exist has none.
    pub fn real_servers(&mut self, server: &ServerKey) -> Result<Vec<RealServer>> {
        self.list("a list of real servers", command::GET_DEST, Some(server), |reply| match reply {
            Reply::Real(real) => Some(real),
            _ => None,
        })
    }

    /// Applies changes in order. Returns those that the kernel refused, by index.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Vec<(usize, Answer)>> {
        let kind = self.kind;
        self.socket.request_all("to change virtual servers", changes, |writer, flags, sequence, change| {
            encode_change(writer, kind, flags, sequence, change);
        })
    }

    /// Creates a virtual server.
    pub fn add(&mut self, server: &VirtualServer) -> Result<()> {
        self.apply_one(Change::AddServer(server.clone()))
    }

    /// Removes a virtual server with its real servers; false if there was none.
    pub fn delete(&mut self, server: &ServerKey) -> Result<bool> {
        match self.apply_one(Change::DeleteServer(*server)) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::ESRCH)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads the timeouts.
    pub fn timeouts(&mut self) -> Result<Timeouts> {
        self.read("for the timeouts of IPVS", command::GET_CONFIG, |reply| match reply {
            Reply::Timeouts(timeouts) => Some(timeouts),
            _ => None,
        })
    }

    /// Sets the timeouts; those that are 0 stay.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<()> {
        let kind = self.kind;
        self.socket.request(
            "to set the timeouts of IPVS",
            |writer, flags, sequence| {
                let mark = begin(writer, kind, flags, sequence, command::SET_CONFIG);
                encode_timeouts(writer, timeouts);
                writer.end_message(mark);
            },
            |_| Ok(()),
        )
    }

    /// Reads the version and the size of the connection table.
    pub fn info(&mut self) -> Result<Info> {
        self.read("for the version of IPVS", command::GET_INFO, |reply| match reply {
            Reply::Info(info) => Some(info),
            _ => None,
        })
    }

    fn apply_one(&mut self, change: Change) -> Result<()> {
        let request = describe(&change);
        match self.apply(&[change])?.pop() {
            None => Ok(()),
            Some((_, answer)) => Err(Error::Refused { request, answer }),
        }
    }

    fn list<T>(
        &mut self,
        request: &'static str,
        command: u8,
        server: Option<&ServerKey>,
        wanted: impl Fn(Reply) -> Option<T>,
    ) -> Result<Vec<T>> {
        let kind = self.kind;
        self.socket.dump_consistently(
            request,
            |writer, flags, sequence| {
                let mark = begin(writer, kind, flags, sequence, command);
                if let Some(server) = server {
                    encode_key(writer, server);
                }
                writer.end_message(mark);
            },
            Vec::new,
            |found, message| {
                found.extend(reply(kind, message)?.and_then(&wanted));
                Ok(())
            },
        )
    }

    fn read<T: Default>(
        &mut self,
        request: &'static str,
        command: u8,
        wanted: impl Fn(Reply) -> Option<T>,
    ) -> Result<T> {
        let kind = self.kind;
        let mut found = None;
        self.socket.request(
            request,
            |writer, flags, sequence| {
                let mark = begin(writer, kind, flags, sequence, command);
                writer.end_message(mark);
            },
            |message| {
                found = found.take().or(reply(kind, message)?.and_then(&wanted));
                Ok(())
            },
        )?;
        Ok(found.unwrap_or_default())
    }
}

fn reply(kind: u16, message: &Message<'_>) -> Result<Option<Reply>, crate::wire::Malformed> {
    if message.kind == kind { decode(message) } else { Ok(None) }
}

fn encode_change(writer: &mut Writer, kind: u16, flags: u16, sequence: u32, change: &Change) {
    let command = match change {
        Change::AddServer(_) => command::NEW_SERVICE,
        Change::EditServer(_) => command::SET_SERVICE,
        Change::DeleteServer(_) => command::DEL_SERVICE,
        Change::AddReal(..) => command::NEW_DEST,
        Change::EditReal(..) => command::SET_DEST,
        Change::DeleteReal(..) => command::DEL_DEST,
    };
    let mark = begin(writer, kind, flags, sequence, command);
    match change {
        Change::AddServer(server) | Change::EditServer(server) => encode_virtual(writer, server),
        Change::DeleteServer(server) => encode_key(writer, server),
        Change::AddReal(server, real) | Change::EditReal(server, real) => {
            encode_key(writer, server);
            encode_real(writer, real);
        }
        Change::DeleteReal(server, address) => {
            encode_key(writer, server);
            encode_real_key(writer, *address);
        }
    }
    writer.end_message(mark);
}

/// The change as the object of "the kernel refused ...".
pub fn describe(change: &Change) -> String {
    match change {
        Change::AddServer(server) => format!("to create the virtual server {}", server.key),
        Change::EditServer(server) => format!("to change the virtual server {}", server.key),
        Change::DeleteServer(server) => format!("to delete the virtual server {server}"),
        Change::AddReal(server, real) => format!("to add the real server {} to {server}", real.address),
        Change::EditReal(server, real) => format!("to change the real server {} of {server}", real.address),
        Change::DeleteReal(server, real) => format!("to delete the real server {real} of {server}"),
    }
}
