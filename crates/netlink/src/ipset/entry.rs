//! Sets and their entries as values, and the bytes of both.

use crate::family::{IpFamily, address, octets};
use crate::wire::{Attributes, Malformed, Message, NETWORK_ORDER, Writer};
use std::fmt;
use std::net::IpAddr;

/// Attributes inside the data of a set or an entry.
const IP: u16 = 1;
const PORT: u16 = 4;
const PORT_TO: u16 = 5;
const PROTO: u16 = 7;
const LINE: u16 = 9;
const HASH_SIZE: u16 = 18;
const MAX_ELEMENTS: u16 = 19;
const IP2: u16 = 20;
const CIDR2: u16 = 21;

/// Attributes inside an address.
const IPV4: u16 = 1;
const IPV6: u16 = 2;

/// The types of sets that Portwarden uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetType {
    /// Addresses.
    HashIp,
    /// Addresses with protocol and port.
    HashIpPort,
    /// Addresses with protocol, port and a second address.
    HashIpPortIp,
    /// Addresses with protocol, port and a network.
    HashIpPortNet,
    /// Ports without a protocol.
    BitmapPort,
}

impl SetType {
    /// The kernel's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashIpPort => "hash:ip,port",
            Self::HashIpPortIp => "hash:ip,port,ip",
            Self::HashIpPortNet => "hash:ip,port,net",
            Self::BitmapPort => "bitmap:port",
        }
    }

    /// The number of the family in a request; a bitmap of ports has none.
    pub(super) fn family(self, family: IpFamily) -> u8 {
        if self == Self::BitmapPort { 0 } else { family.byte() }
    }
}

/// A set to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    /// Its name, at most 31 bytes.
    pub name: String,
    /// Decides what an entry consists of.
    pub kind: SetType,
    /// The family of its addresses; of no account in a bitmap of ports.
    pub family: IpFamily,
    /// The size that a hash starts with.
    pub hash_size: u32,
    /// How many entries a hash can hold.
    pub max_elements: u32,
}

impl SetSpec {
    /// A set with the sizes that the `ipset` program takes unless it is given others.
    pub fn new(name: impl Into<String>, kind: SetType, family: IpFamily) -> Self {
        Self { name: name.into(), kind, family, hash_size: 1024, max_elements: 65_536 }
    }

    /// Appends what a create request carries in its data.
    pub(super) fn encode(&self, writer: &mut Writer) {
        if self.kind == SetType::BitmapPort {
            writer.u16(PORT | NETWORK_ORDER, 0);
            writer.u16(PORT_TO | NETWORK_ORDER, u16::MAX);
        } else {
            writer.u32(HASH_SIZE | NETWORK_ORDER, self.hash_size);
            writer.u32(MAX_ELEMENTS | NETWORK_ORDER, self.max_elements);
        }
    }
}

/// An entry of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// Of `hash:ip`.
    Ip(IpAddr),
    /// Of `hash:ip,port`: address, protocol, port.
    IpPort(IpAddr, u8, u16),
    /// Of `hash:ip,port,ip`: address, protocol, port, second address.
    IpPortIp(IpAddr, u8, u16, IpAddr),
    /// Of `hash:ip,port,net`: address, protocol, port, first address of a network and its prefix length.
    IpPortNet(IpAddr, u8, u16, IpAddr, u8),
    /// Of `bitmap:port`.
    Port(u16),
}

impl Entry {
    /// Appends the attributes of the entry.
    pub(super) fn encode(&self, writer: &mut Writer, line: u32) {
        match *self {
            Self::Ip(ip) => encode_address(writer, IP, ip),
            Self::IpPort(ip, protocol, port) => encode_ip_port(writer, ip, protocol, port),
            Self::IpPortIp(ip, protocol, port, second) => {
                encode_ip_port(writer, ip, protocol, port);
                encode_address(writer, IP2, second);
            }
            Self::IpPortNet(ip, protocol, port, network, length) => {
                encode_ip_port(writer, ip, protocol, port);
                encode_address(writer, IP2, network);
                writer.u8(CIDR2, length);
            }
            Self::Port(port) => writer.u16(PORT | NETWORK_ORDER, port),
        }
        writer.u32_host(LINE, line);
    }

    /// Reads an entry of a set of the given type; `None` if it lacks a part.
    pub(super) fn decode(kind: SetType, attributes: Attributes<'_>) -> Result<Option<Self>, Malformed> {
        let (mut ip, mut second, mut protocol, mut port, mut length) = (None, None, None, None, None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                IP => ip = decode_address(attribute.nested())?,
                IP2 => second = decode_address(attribute.nested())?,
                PROTO => protocol = Some(attribute.u8()?),
                PORT => port = Some(attribute.u16()?),
                CIDR2 => length = Some(attribute.u8()?),
                _ => {}
            }
        }
        let ip_port = ip.zip(protocol).zip(port);
        Ok(match kind {
            SetType::HashIp => ip.map(Self::Ip),
            SetType::HashIpPort => ip_port.map(|((ip, protocol), port)| Self::IpPort(ip, protocol, port)),
            SetType::HashIpPortIp => ip_port
                .zip(second)
                .map(|(((ip, protocol), port), second)| Self::IpPortIp(ip, protocol, port, second)),
            SetType::HashIpPortNet => ip_port.zip(second).map(|(((ip, protocol), port), network)| {
                let full = if network.is_ipv4() { 32 } else { 128 };
                Self::IpPortNet(ip, protocol, port, network, length.unwrap_or(full))
            }),
            SetType::BitmapPort => port.map(Self::Port),
        })
    }
}

/// As the `ipset` program writes it.
impl fmt::Display for Entry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = |number: u8| match number {
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            132 => "sctp".to_owned(),
            other => other.to_string(),
        };
        match *self {
            Self::Ip(ip) => write!(formatter, "{ip}"),
            Self::IpPort(ip, number, port) => write!(formatter, "{ip},{}:{port}", protocol(number)),
            Self::IpPortIp(ip, number, port, second) => {
                write!(formatter, "{ip},{}:{port},{second}", protocol(number))
            }
            Self::IpPortNet(ip, number, port, network, length) => {
                write!(formatter, "{ip},{}:{port},{network}/{length}", protocol(number))
            }
            Self::Port(port) => write!(formatter, "{port}"),
        }
    }
}

/// A part of a listing: a set's name and some of its entries. A large set comes in several parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The set's name.
    pub name: String,
    /// The kernel's name of its type; empty in all parts but the first.
    pub type_name: String,
    /// The number of its family.
    pub family: u8,
    /// Entries; those of types that Portwarden does not use are left out.
    pub entries: Vec<Entry>,
}

impl Listed {
    /// Reads one message of a listing whose set has the given type; `None` if it is of another kind.
    pub fn decode(message: &Message<'_>, kind: SetType) -> Result<Option<Self>, Malformed> {
        if message.kind != super::LIST {
            return Ok(None);
        }
        let attributes = message.payload.get(4..).ok_or(Malformed { what: "netfilter header" })?;
        let mut listed = Self::default();
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                super::NAME => listed.name = attribute.text().into_owned(),
                super::TYPE_NAME => listed.type_name = attribute.text().into_owned(),
                super::FAMILY => listed.family = attribute.u8()?,
                super::ENTRIES => {
                    for entry in attribute.nested() {
                        listed.entries.extend(Entry::decode(kind, entry?.nested())?);
                    }
                }
                _ => {}
            }
        }
        Ok(Some(listed))
    }
}

fn encode_ip_port(writer: &mut Writer, ip: IpAddr, protocol: u8, port: u16) {
    encode_address(writer, IP, ip);
    writer.u8(PROTO, protocol);
    writer.u16(PORT | NETWORK_ORDER, port);
}

fn encode_address(writer: &mut Writer, kind: u16, ip: IpAddr) {
    let inner = if ip.is_ipv4() { IPV4 } else { IPV6 };
    writer.nest(kind, |writer| writer.attribute(inner | NETWORK_ORDER, octets(ip).as_ref()));
}

fn decode_address(attributes: Attributes<'_>) -> Result<Option<IpAddr>, Malformed> {
    let mut found = None;
    for attribute in attributes {
        let attribute = attribute?;
        if matches!(attribute.kind, IPV4 | IPV6) {
            found = address(attribute.payload);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Messages;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = (SetType, Entry)> {
        let parts = (any::<IpAddr>(), any::<u8>(), any::<u16>(), any::<IpAddr>(), any::<u8>());
        (0..5, parts).prop_map(|(kind, (ip, protocol, port, second, length))| match kind {
            0 => (SetType::HashIp, Entry::Ip(ip)),
            1 => (SetType::HashIpPort, Entry::IpPort(ip, protocol, port)),
            2 => (SetType::HashIpPortIp, Entry::IpPortIp(ip, protocol, port, second)),
            3 => (SetType::HashIpPortNet, Entry::IpPortNet(ip, protocol, port, second, length)),
            _ => (SetType::BitmapPort, Entry::Port(port)),
        })
    }

    proptest! {
        #[test]
        fn entries_decode_back((kind, entry) in entry()) {
            let mut writer = Writer::new();
            let mark = writer.begin_netfilter(super::super::LIST, 0, 1, 2, 0);
            writer.string(super::super::NAME, "KUBE-CLUSTER-IP");
            writer.string(super::super::TYPE_NAME, kind.name());
            writer.nest(super::super::ENTRIES, |writer| {
                writer.nest(super::super::DATA, |writer| entry.encode(writer, 1));
            });
            writer.end_message(mark);
            let message = Messages::new(writer.bytes()).next().expect("one").expect("a message");
            let listed = Listed::decode(&message, kind).expect("complete").expect("a listing");
            prop_assert_eq!(listed.entries, vec![entry]);
            prop_assert_eq!(listed.name, "KUBE-CLUSTER-IP");
            prop_assert_eq!(listed.type_name, kind.name());
        }
    }
}
