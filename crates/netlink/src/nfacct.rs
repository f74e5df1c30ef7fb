//! Accounting objects (nfacct): named counters that iptables rules can count with.

use crate::error::{Error, Result};
use crate::socket::{Protocol, Socket};
use crate::wire::{Attributes, Malformed, Message, flags};
use nix::errno::Errno;

/// Longest name that the kernel takes.
pub const NAME_MAX: usize = 31;

/// Subsystem number of nfacct, the high byte of message types.
const SUBSYSTEM: u16 = 7;
const NEW: u16 = SUBSYSTEM << 8;
const GET: u16 = SUBSYSTEM << 8 | 1;

const NAME: u16 = 1;
const PACKETS: u16 = 2;
const BYTES: u16 = 3;

/// What an accounting object has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The object's name.
    pub name: String,
    /// Packets so far.
    pub packets: u64,
    /// Bytes so far.
    pub bytes: u64,
}

impl Counted {
    /// Reads a message; `None` if it contains no accounting object.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        if message.kind != NEW {
            return Ok(None);
        }
        let mut counted = Self::default();
        let attributes = message.payload.get(4..).ok_or(Malformed { what: "netfilter header" })?;
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                NAME => counted.name = attribute.text().into_owned(),
                PACKETS => counted.packets = attribute.u64()?,
                BYTES => counted.bytes = attribute.u64()?,
                _ => {}
            }
        }
        Ok(Some(counted))
    }
}

/// A connection to nfacct of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Accounting {
    socket: Socket,
}

impl Accounting {
    /// Opens a connection.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// Reads an accounting object; `None` if there is none of that name.
    ///
    /// Any error means that this kernel, or this process, cannot use accounting objects.
    pub fn read(&mut self, name: &str) -> Result<Option<Counted>> {
        let mut found = None;
        let answer = self.socket.request(
            "to read an accounting object",
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(GET, flags, sequence, 0, 0);
                writer.string(NAME, name);
                writer.end_message(mark);
            },
            |message| {
                found = Counted::decode(message)?;
                Ok(())
            },
        );
        match answer {
            Ok(()) => Ok(found),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            Err(error) => Err(about(error, "read", name)),
        }
    }

    /// Creates an accounting object unless there is one of that name.
    pub fn ensure(&mut self, name: &str) -> Result<()> {
        if self.read(name)?.is_some() {
            return Ok(());
        }
        let answer = self.socket.request(
            "to create an accounting object",
            |writer, base, sequence| {
                let mark = writer.begin_netfilter(NEW, base | flags::CREATE, sequence, 0, 0);
                writer.string(NAME, name);
                writer.end_message(mark);
            },
            |_| Ok(()),
        );
        match answer {
            // Someone else was faster, which is as good.
            Err(error) if error.errno() == Some(Errno::EEXIST) => Ok(()),
            answer => answer.map_err(|error| about(error, "create", name)),
        }
    }
}

fn about(error: Error, action: &str, name: &str) -> Error {
    match error {
        Error::Refused { answer, .. } => {
            Error::Refused { request: format!("to {action} the accounting object {name}"), answer }
        }
        other => other,
    }
}
