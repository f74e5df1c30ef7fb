//! Sets of addresses and ports (ipset) that iptables rules can look into: only to find and remove them.

use crate::error::{Error, Result};
use crate::socket::{Protocol, Socket};
use crate::wire::{Attributes, Malformed, Message};
use nix::errno::Errno;

/// Subsystem number of ipset, the high byte of message types.
const SUBSYSTEM: u16 = 6;
const DESTROY: u16 = SUBSYSTEM << 8 | 3;
const LIST: u16 = SUBSYSTEM << 8 | 7;

const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const FLAGS: u16 = 6;

/// The version of ipset's protocol that every kernel since 2.6.39 speaks.
const VERSION: u8 = 6;
/// Names alone are wanted, not what the sets hold.
const NAMES_ONLY: u32 = 1 << 1;
/// Says that a number is in network byte order, which ipset insists on.
const NETWORK_ORDER: u16 = 0x4000;
/// ipset wants a family in the header, whatever it is.
const FAMILY: u8 = 2;

/// A connection to ipset of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Sets {
    socket: Socket,
}

impl Sets {
    /// Opens a connection.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// The names of all sets; none if the kernel has no ipset.
    pub fn names(&mut self) -> Result<Vec<String>> {
        let listed = self.socket.dump_consistently(
            "a list of ipsets",
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(LIST, flags, sequence, FAMILY, 0);
                writer.u8(PROTOCOL, VERSION);
                writer.u32(FLAGS | NETWORK_ORDER, NAMES_ONLY);
                writer.end_message(mark);
            },
            Vec::new,
            |names, message| {
                names.extend(name(message)?);
                Ok(())
            },
        );
        match listed {
            Err(error) if matches!(error.errno(), Some(Errno::EINVAL | Errno::EOPNOTSUPP)) => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// Removes a set with everything in it. The kernel refuses that while a rule looks into it; one that is gone already is no error.
    pub fn destroy(&mut self, name: &str) -> Result<()> {
        let answer = self.socket.request(
            "to destroy an ipset",
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(DESTROY, flags, sequence, FAMILY, 0);
                writer.u8(PROTOCOL, VERSION);
                writer.string(NAME, name);
                writer.end_message(mark);
            },
            |_| Ok(()),
        );
        if answer.as_ref().is_err_and(|error| error.errno() == Some(Errno::ENOENT)) {
            return Ok(());
        }
        answer.map_err(|error| match error {
            Error::Refused { answer, .. } => {
                Error::Refused { request: format!("to destroy the ipset {name}"), answer }
            }
            other => other,
        })
    }
}

/// The name of the set that a message tells of, if it tells of one.
fn name(message: &Message<'_>) -> Result<Option<String>, Malformed> {
    if message.kind != LIST {
        return Ok(None);
    }
    let attributes = message.payload.get(4..).ok_or(Malformed { what: "netfilter header" })?;
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        if attribute.kind == NAME {
            return Ok(Some(attribute.text().into_owned()));
        }
    }
    Ok(None)
}
