//! Generic netlink: families whose numbers the kernel gives out at run time.

use crate::error::Result;
use crate::socket::{Protocol, Socket};
use crate::wire::{Attributes, Malformed, Mark, Message, Writer};
use nix::errno::Errno;

/// The family that resolves the names of all others.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_NUMBER: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Bytes between the netlink header and the first attribute: command, version and two reserved ones.
pub(crate) const HEADER: usize = 4;

/// Opens a socket and resolves a family; `None` if the kernel does not have it. The kernel loads the module if there is one.
pub(crate) fn open(name: &str) -> Result<Option<(Socket, u16)>> {
    let mut socket = Socket::open(Protocol::Generic)?;
    let mut number = None;
    let answer = socket.request(
        "for the number of a generic netlink family",
        |writer, flags, sequence| {
            let mark = begin(writer, CONTROL, flags, sequence, GET_FAMILY);
            writer.string(FAMILY_NAME, name);
            writer.end_message(mark);
        },
        |message| {
            number = number.or(family_number(message)?);
            Ok(())
        },
    );
    match answer {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        answer => answer.map(|()| number.map(|number| (socket, number))),
    }
}

/// Starts a message of generic netlink.
pub(crate) fn begin(writer: &mut Writer, family: u16, flags: u16, sequence: u32, command: u8) -> Mark {
    let mark = writer.begin_message(family, flags, sequence);
    writer.raw(&[command, 1, 0, 0]);
    mark
}

/// Splits a message into its command and its attributes.
pub(crate) fn split<'a>(message: &Message<'a>) -> Result<(u8, Attributes<'a>), Malformed> {
    let (&[command, ..], attributes) =
        message.payload.split_first_chunk::<HEADER>().ok_or(Malformed { what: "generic netlink header" })?;
    Ok((command, Attributes::new(attributes)))
}

fn family_number(message: &Message<'_>) -> Result<Option<u16>, Malformed> {
    for attribute in split(message)?.1 {
        let attribute = attribute?;
        if attribute.kind == FAMILY_NUMBER {
            return attribute.u16_host().map(Some);
        }
    }
    Ok(None)
}
