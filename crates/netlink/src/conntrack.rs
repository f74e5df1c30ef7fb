//! Connection tracking: list flows and delete some of them.

use crate::error::{Error, Result};
use crate::family::{IpFamily, address};
use crate::nftables::expr::ct_status;
use crate::socket::{Consistency, DUMP_ATTEMPTS, Protocol, Socket};
use crate::wire::{Attribute, Attributes, Malformed, Message};
use nix::errno::Errno;
use std::net::IpAddr;
use std::time::Duration;

/// Subsystem number of conntrack, the high byte of message types.
const SUBSYSTEM: u16 = 1;
const NEW: u16 = SUBSYSTEM << 8;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;

const LIST: &str = "a list of conntrack entries";

/// `CTA_*`.
mod code {
    pub(super) const TUPLE_ORIGINAL: u16 = 1;
    pub(super) const TUPLE_REPLY: u16 = 2;
    pub(super) const STATUS: u16 = 3;
    pub(super) const TIMEOUT: u16 = 7;
    pub(super) const MARK: u16 = 8;
    pub(super) const ID: u16 = 12;
    pub(super) const ZONE: u16 = 18;
    pub(super) const TUPLE_IP: u16 = 1;
    pub(super) const TUPLE_PROTOCOL: u16 = 2;
    pub(super) const PROTOCOL_NUMBER: u16 = 1;
    pub(super) const SOURCE_PORT: u16 = 2;
    pub(super) const DESTINATION_PORT: u16 = 3;
}

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// Where its packets come from.
    pub source: IpAddr,
    /// Where its packets go to.
    pub destination: IpAddr,
    /// Transport protocol number.
    pub protocol: u8,
    /// Source port; 0 for protocols without ports.
    pub source_port: u16,
    /// Destination port; 0 for protocols without ports.
    pub destination_port: u16,
}

/// A tracked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The direction in which it was opened, before translation.
    pub original: Tuple,
    /// The way back, as packets arrive from the other side: shows what was translated.
    pub reply: Tuple,
    /// Bits as in [`crate::nftables::expr::ct_status`].
    pub status: u32,
    /// The connection mark.
    pub mark: u32,
    /// The zone; 0 unless rules set one.
    pub zone: u16,
    /// How long it stays without another packet.
    pub timeout: Option<Duration>,
    /// The kernel's number for it.
    pub id: Option<u32>,
}

impl Flow {
    /// Whether a packet of the way back was ever seen.
    pub fn is_answered(&self) -> bool {
        self.status & ct_status::SEEN_REPLY != 0
    }

    /// Reads a flow from a message; `None` if the message contains none.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        match attributes_of(message) {
            Some(attributes) => decode_attributes(attributes),
            None => Ok(None),
        }
    }
}

/// What a listing found.
#[derive(Clone, Debug)]
pub struct Listing<T> {
    /// What was chosen of it.
    pub found: Vec<T>,
    /// Whether flows came or went while they were listed, so that some may be missing.
    pub consistency: Consistency,
}

/// The result of a deletion.
#[derive(Debug)]
pub struct Deletion {
    /// Flows that are gone, also those that went by themselves meanwhile.
    pub deleted: usize,
    /// Why others could not be deleted; they were all tried.
    pub errors: Vec<Error>,
    /// Whether flows came or went while they were listed, so that some may be left.
    pub consistency: Consistency,
}

/// A connection to conntrack of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
    most_at_once: usize,
}

/// Flows that one pass of a deletion remembers, which takes about 200 bytes for each.
const MOST_AT_ONCE: usize = 50_000;

impl Conntrack {
    /// Opens a connection.
    pub fn open() -> Result<Self> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        // A busy node has a hundred thousand flows and more; a larger queue means fewer interruptions.
        socket.grow_receive_buffer(1 << 20);
        Ok(Self { socket, most_at_once: MOST_AT_ONCE })
    }

    /// Sets how many flows one pass of a deletion remembers.
    #[must_use]
    pub fn most_at_once(self, most_at_once: usize) -> Self {
        Self { most_at_once, ..self }
    }

    /// Lists the flows of a family that `choose` returns something for.
    ///
    /// If flows keep changing, the last attempt counts, as it is.
    pub fn list<T>(
        &mut self,
        family: IpFamily,
        mut choose: impl FnMut(&Flow) -> Option<T>,
    ) -> Result<Listing<T>> {
        let mut found = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            found.clear();
            let consistency = self.dump(family, |flow, _| found.extend(choose(flow)))?;
            if consistency == Consistency::Complete {
                return Ok(Listing { found, consistency });
            }
        }
        Ok(Listing { found, consistency: Consistency::Interrupted })
    }

    /// Deletes the flows of a family that are `unwanted`.
    ///
    /// If flows change while they are listed, what was found is deleted and the list is read again. The same happens if there are very many:
    /// the memory in use has a limit, even for a million.
    pub fn delete(&mut self, family: IpFamily, mut unwanted: impl FnMut(&Flow) -> bool) -> Result<Deletion> {
        let mut deletion = Deletion { deleted: 0, errors: Vec::new(), consistency: Consistency::Interrupted };
        let most_at_once = self.most_at_once;
        let mut attempts = 0;
        while attempts < DUMP_ATTEMPTS {
            let mut entries: Vec<Vec<u8>> = Vec::new();
            let mut more = false;
            deletion.consistency = self.dump(family, |flow, attributes| {
                if unwanted(flow) {
                    if entries.len() < most_at_once {
                        entries.push(attributes.to_vec());
                    } else {
                        more = true;
                    }
                }
            })?;
            let before = deletion.deleted;
            for entry in &entries {
                match self.delete_entry(family, entry) {
                    Ok(()) => deletion.deleted += 1,
                    Err(error) => deletion.errors.push(error),
                }
            }
            if more && deletion.deleted > before {
                continue;
            }
            if deletion.consistency == Consistency::Complete {
                break;
            }
            attempts += 1;
        }
        Ok(deletion)
    }

    /// Lists the flows of a family once, with each flow's attributes as the kernel sent them.
    fn dump(&mut self, family: IpFamily, mut on_flow: impl FnMut(&Flow, &[u8])) -> Result<Consistency> {
        self.socket.dump(
            LIST,
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(GET, flags, sequence, family.byte(), 0);
                writer.end_message(mark);
            },
            |message| {
                if let Some(attributes) = attributes_of(message)
                    && let Some(flow) = decode_attributes(attributes)?
                {
                    on_flow(&flow, attributes);
                }
                Ok(())
            },
        )
    }

    /// Deletes one entry; all attributes are sent back, so that zone and number must match too.
    fn delete_entry(&mut self, family: IpFamily, attributes: &[u8]) -> Result<()> {
        let answer = self.socket.request(
            "to delete a conntrack entry",
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(DELETE, flags, sequence, family.byte(), 0);
                writer.raw(attributes);
                writer.end_message(mark);
            },
            |_| Ok(()),
        );
        match answer {
            // It went by itself.
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            answer => answer,
        }
    }
}

/// The attributes of a message that contains a flow.
fn attributes_of<'a>(message: &Message<'a>) -> Option<&'a [u8]> {
    if message.kind != NEW {
        return None;
    }
    message.payload.get(4..)
}

fn decode_attributes(attributes: &[u8]) -> Result<Option<Flow>, Malformed> {
    let (mut original, mut reply, mut status, mut mark, mut zone) = (None, None, 0, 0, 0);
    let (mut timeout, mut id) = (None, None);
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        match attribute.kind {
            code::TUPLE_ORIGINAL => original = decode_tuple(&attribute)?,
            code::TUPLE_REPLY => reply = decode_tuple(&attribute)?,
            code::STATUS => status = attribute.u32()?,
            code::TIMEOUT => timeout = Some(Duration::from_secs(attribute.u32()?.into())),
            code::MARK => mark = attribute.u32()?,
            code::ID => id = Some(attribute.u32()?),
            code::ZONE => zone = attribute.u16()?,
            _ => {}
        }
    }
    let (Some(original), Some(reply)) = (original, reply) else { return Ok(None) };
    Ok(Some(Flow { original, reply, status, mark, zone, timeout, id }))
}

fn decode_tuple(nest: &Attribute<'_>) -> Result<Option<Tuple>, Malformed> {
    let (mut source, mut destination, mut protocol) = (None, None, None);
    let (mut source_port, mut destination_port) = (0, 0);
    for part in nest.nested() {
        let part = part?;
        // Other parts, such as a zone of one direction, are no nests.
        if !matches!(part.kind, code::TUPLE_IP | code::TUPLE_PROTOCOL) {
            continue;
        }
        for attribute in part.nested() {
            let attribute = attribute?;
            match (part.kind, attribute.kind) {
                // Source and destination of IPv4, then of IPv6.
                (code::TUPLE_IP, 1 | 3) => source = address(attribute.payload),
                (code::TUPLE_IP, 2 | 4) => destination = address(attribute.payload),
                (code::TUPLE_PROTOCOL, code::PROTOCOL_NUMBER) => protocol = Some(attribute.u8()?),
                (code::TUPLE_PROTOCOL, code::SOURCE_PORT) => source_port = attribute.u16()?,
                (code::TUPLE_PROTOCOL, code::DESTINATION_PORT) => destination_port = attribute.u16()?,
                _ => {}
            }
        }
    }
    let (Some(source), Some(destination), Some(protocol)) = (source, destination, protocol) else {
        return Ok(None);
    };
    Ok(Some(Tuple { source, destination, protocol, source_port, destination_port }))
}
