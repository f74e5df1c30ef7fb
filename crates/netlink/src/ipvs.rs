//! Virtual servers of IPVS: only to find and remove them.

use crate::error::{Error, Result};
use crate::family::address;
use crate::socket::{Protocol, Socket};
use crate::wire::{Attribute, Attributes, Malformed, Mark, Message, Writer};
use nix::errno::Errno;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The family of generic netlink that knows the numbers of all others.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_NUMBER: u16 = 1;
const FAMILY_NAME: u16 = 2;

const NAME: &str = "IPVS";
const NEW_SERVER: u8 = 1;
const DELETE_SERVER: u8 = 3;
const GET_SERVER: u8 = 4;

/// The attribute that holds a virtual server, and those inside.
const SERVER: u16 = 1;
const ADDRESS_FAMILY: u16 = 1;
const PROTOCOL: u16 = 2;
const ADDRESS: u16 = 3;
const PORT: u16 = 4;

/// Bytes that a message of generic netlink has before its attributes.
const HEADER: usize = 4;

/// A virtual server with an address. Those of packet marks are not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// The number of its protocol.
    pub protocol: u16,
    /// Its address and port.
    pub address: SocketAddr,
}

impl VirtualServer {
    /// Reads a message; `None` if it does not tell of a virtual server with an address.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        let (header, attributes) =
            message.payload.split_at_checked(HEADER).ok_or(Malformed { what: "generic netlink header" })?;
        if header.first() != Some(&NEW_SERVER) {
            return Ok(None);
        }
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            if attribute.kind == SERVER {
                return server(attribute.nested());
            }
        }
        Ok(None)
    }

    fn encode(&self, writer: &mut Writer) {
        let mut address = [0; 16];
        let (family, octets): (u16, &[u8]) = match &self.address {
            SocketAddr::V4(v4) => (2, &v4.ip().octets()),
            SocketAddr::V6(v6) => (10, &v6.ip().octets()),
        };
        if let Some(start) = address.get_mut(..octets.len()) {
            start.copy_from_slice(octets);
        }
        writer.nest(SERVER, |writer| {
            writer.attribute(ADDRESS_FAMILY, &family.to_ne_bytes());
            writer.attribute(PROTOCOL, &self.protocol.to_ne_bytes());
            writer.attribute(ADDRESS, &address);
            writer.attribute(PORT, &self.address.port().to_be_bytes());
        });
    }
}

impl fmt::Display for VirtualServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            6 => "TCP",
            17 => "UDP",
            132 => "SCTP",
            other => return write!(formatter, "{} of protocol {other}", self.address),
        };
        write!(formatter, "{name} {}", self.address)
    }
}

/// A connection to IPVS of the network namespace in which it was opened.
#[derive(Debug)]
pub struct VirtualServers {
    socket: Socket,
    kind: u16,
}

impl VirtualServers {
    /// Opens a connection; `None` if the kernel has no IPVS. Where it is a module, asking loads it.
    pub fn open() -> Result<Option<Self>> {
        let mut socket = Socket::open(Protocol::Generic)?;
        let mut kind = None;
        let answer = socket.request(
            "for the number of IPVS",
            |writer, flags, sequence| {
                let mark = begin(writer, CONTROL, flags, sequence, GET_FAMILY);
                writer.string(FAMILY_NAME, NAME);
                writer.end_message(mark);
            },
            |message| {
                kind = kind.or(family_number(message)?);
                Ok(())
            },
        );
        match answer {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            answer => answer.map(|()| kind.map(|kind| Self { socket, kind })),
        }
    }

    /// Lists the virtual servers of both families.
    pub fn list(&mut self) -> Result<Vec<VirtualServer>> {
        let kind = self.kind;
        self.socket.dump_consistently(
            "a list of virtual servers",
            |writer, flags, sequence| {
                let mark = begin(writer, kind, flags, sequence, GET_SERVER);
                writer.end_message(mark);
            },
            Vec::new,
            |servers, message| {
                if message.kind == kind {
                    servers.extend(VirtualServer::decode(message)?);
                }
                Ok(())
            },
        )
    }

    /// Removes a virtual server with all its destinations. One that is gone already is no error.
    pub fn delete(&mut self, server: &VirtualServer) -> Result<()> {
        let kind = self.kind;
        let answer = self.socket.request(
            "to delete a virtual server",
            |writer, flags, sequence| {
                let mark = begin(writer, kind, flags, sequence, DELETE_SERVER);
                server.encode(writer);
                writer.end_message(mark);
            },
            |_| Ok(()),
        );
        match answer {
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::ESRCH)) => Ok(()),
            Err(Error::Refused { answer, .. }) => {
                Err(Error::Refused { request: format!("to delete the virtual server {server}"), answer })
            }
            answer => answer,
        }
    }
}

/// Starts a message of generic netlink.
fn begin(writer: &mut Writer, kind: u16, flags: u16, sequence: u32, command: u8) -> Mark {
    let mark = writer.begin_message(kind, flags, sequence);
    writer.raw(&[command, 1, 0, 0]);
    mark
}

fn family_number(message: &Message<'_>) -> Result<Option<u16>, Malformed> {
    let attributes = message.payload.get(HEADER..).ok_or(Malformed { what: "generic netlink header" })?;
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        if attribute.kind == FAMILY_NUMBER {
            return host_order(&attribute).map(Some);
        }
    }
    Ok(None)
}

fn server(attributes: Attributes<'_>) -> Result<Option<VirtualServer>, Malformed> {
    let (mut family, mut protocol, mut bytes, mut port) = (0, 0, None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            ADDRESS_FAMILY => family = host_order(&attribute)?,
            PROTOCOL => protocol = host_order(&attribute)?,
            ADDRESS => bytes = Some(attribute.payload),
            PORT => port = Some(attribute.u16()?),
            _ => {}
        }
    }
    // An address takes sixteen bytes, whatever the family.
    let bytes = if family == 2 { bytes.and_then(|bytes| bytes.get(..4)) } else { bytes };
    let address: Option<IpAddr> = bytes.and_then(address);
    Ok(address.zip(port).map(|(ip, port)| VirtualServer { protocol, address: SocketAddr::new(ip, port) }))
}

fn host_order(attribute: &Attribute<'_>) -> Result<u16, Malformed> {
    let bytes = attribute.payload.first_chunk().ok_or(Malformed { what: "16-bit attribute" })?;
    Ok(u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Messages;

    #[test]
    fn what_is_encoded_decodes_back() {
        for text in ["10.96.0.10:80", "[fd00:10:96::a]:53"] {
            let server = VirtualServer { protocol: 6, address: text.parse().expect("an address") };
            let mut writer = Writer::new();
            let mark = begin(&mut writer, 35, 0, 1, NEW_SERVER);
            server.encode(&mut writer);
            writer.end_message(mark);
            let message = Messages::new(writer.bytes()).next().expect("one").expect("a message");
            assert_eq!(VirtualServer::decode(&message).expect("complete"), Some(server));
        }
    }

    #[test]
    fn servers_of_packet_marks_are_left_out() {
        let mut writer = Writer::new();
        let mark = begin(&mut writer, 35, 0, 1, NEW_SERVER);
        writer.nest(SERVER, |writer| {
            writer.attribute(ADDRESS_FAMILY, &2u16.to_ne_bytes());
            writer.attribute(5, &7u32.to_ne_bytes());
        });
        writer.end_message(mark);
        let message = Messages::new(writer.bytes()).next().expect("one").expect("a message");
        assert_eq!(VirtualServer::decode(&message).expect("complete"), None);
    }
}
