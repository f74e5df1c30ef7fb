//! Sets of addresses and ports (ipset) that iptables rules can look into.

mod entry;

pub use entry::{Entry, Listed, SetSpec, SetType};

use crate::error::{Answer, Error, Result};
use crate::family::IpFamily;
use crate::socket::{Protocol, Socket};
use crate::wire::{Attributes, Malformed, Message, NETWORK_ORDER, Writer, flags};
use nix::errno::Errno;

/// Subsystem number of ipset, the high byte of message types.
const SUBSYSTEM: u16 = 6;
const CREATE: u16 = SUBSYSTEM << 8 | 2;
const DESTROY: u16 = SUBSYSTEM << 8 | 3;
const FLUSH: u16 = SUBSYSTEM << 8 | 4;
const SWAP: u16 = SUBSYSTEM << 8 | 6;
const LIST: u16 = SUBSYSTEM << 8 | 7;
const ADD: u16 = SUBSYSTEM << 8 | 9;
const DELETE: u16 = SUBSYSTEM << 8 | 10;
const TYPE: u16 = SUBSYSTEM << 8 | 13;

const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
/// Shares its number with [`TYPE_NAME`]: the second name of a swap.
const SECOND_NAME: u16 = 3;
const REVISION: u16 = 4;
const FAMILY: u16 = 5;
const FLAGS: u16 = 6;
const DATA: u16 = 7;
const ENTRIES: u16 = 8;
const LINE: u16 = 9;

/// The version of ipset's protocol that every kernel since 2.6.39 speaks.
const VERSION: u8 = 6;
/// Asks for names alone, without entries.
const NAMES_ONLY: u32 = 1 << 1;
/// The header needs a family, which ipset does not look at.
const ANY_FAMILY: u8 = 2;

/// Entries in one message. An entry takes at most 84 bytes, and an attribute at most 64 KiB.
const ENTRIES_AT_ONCE: usize = 512;

/// Codes of ipset's own.
mod code {
    pub(super) const TYPE_UNKNOWN: i32 = 4098;
    pub(super) const BUSY: i32 = 4100;
    pub(super) const TYPE_MISMATCH: i32 = 4102;
    pub(super) const ENTRY_EXISTS_OR_MISSING: i32 = 4103;
    pub(super) const REFERENCED: i32 = 4108;
    pub(super) const FULL: i32 = 4352;
}

/// Whether entries are added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Add; an entry that is there stays.
    Add,
    /// Remove; an entry that is missing is no error.
    Delete,
}

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
                let mark = writer.begin_netfilter(LIST, flags, sequence, ANY_FAMILY, 0);
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

    /// The newest revision of a type that the kernel knows. The kernel loads the type's module.
    pub fn revision(&mut self, kind: SetType, family: IpFamily) -> Result<u8> {
        let mut found = None;
        let answer = self.socket.request(
            "for the revision of an ipset type",
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(TYPE, flags, sequence, ANY_FAMILY, 0);
                writer.u8(PROTOCOL, VERSION);
                writer.string(TYPE_NAME, kind.name());
                writer.u8(FAMILY, kind.family(family));
                writer.end_message(mark);
            },
            |message| {
                found = found.or(revision(message)?);
                Ok(())
            },
        );
        named(answer, || format!("the ipset type {}", kind.name()))?;
        Ok(found.unwrap_or(0))
    }

    /// Creates a set; one that exists with the same parameters stays.
    pub fn create(&mut self, set: &SetSpec) -> Result<()> {
        let revision = self.revision(set.kind, set.family)?;
        let answer = self.socket.request(
            "to create an ipset",
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(CREATE, flags | flags::CREATE, sequence, ANY_FAMILY, 0);
                writer.u8(PROTOCOL, VERSION);
                writer.string(NAME, &set.name);
                writer.string(TYPE_NAME, set.kind.name());
                writer.u8(REVISION, revision);
                writer.u8(FAMILY, set.kind.family(set.family));
                writer.nest(DATA, |writer| set.encode(writer));
                writer.end_message(mark);
            },
            |_| Ok(()),
        );
        named(answer, || format!("to create the ipset {} of type {}", set.name, set.kind.name()))
    }

    /// Lists a set; `None` if there is no set of that name, or if it has another type or family.
    pub fn list(&mut self, set: &SetSpec) -> Result<Option<Vec<Entry>>> {
        let listed = self.socket.dump_consistently(
            "to list an ipset",
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(LIST, flags, sequence, ANY_FAMILY, 0);
                writer.u8(PROTOCOL, VERSION);
                writer.string(NAME, &set.name);
                writer.end_message(mark);
            },
            || (false, Vec::new()),
            |(same_type, entries), message| {
                if let Some(part) = Listed::decode(message, set.kind)? {
                    *same_type |=
                        part.type_name == set.kind.name() && part.family == set.kind.family(set.family);
                    entries.extend(part.entries);
                }
                Ok(())
            },
        );
        match listed {
            Ok((same_type, entries)) => Ok(same_type.then_some(entries)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => named(Err(error), || format!("to list the ipset {}", set.name)),
        }
    }

    /// Adds or removes entries, many in one message. Returns those that the kernel refused.
    pub fn change(
        &mut self,
        name: &str,
        operation: Operation,
        entries: &[Entry],
    ) -> Result<Vec<(Entry, Answer)>> {
        let mut refused = Vec::new();
        for chunk in entries.chunks(ENTRIES_AT_ONCE) {
            let answers = self.change_in_messages(name, operation, &[chunk])?;
            if answers.is_empty() {
                continue;
            }
            // The kernel stops at the first entry that it refuses. One by one, all others are applied; what the first attempt has
            // done already is no error.
            let single: Vec<&[Entry]> = chunk.chunks(1).collect();
            for (index, mut answer) in self.change_in_messages(name, operation, &single)? {
                explain(&mut answer);
                refused.extend(chunk.get(index).map(|entry| (*entry, answer)));
            }
        }
        Ok(refused)
    }

    /// Removes all entries of a set.
    pub fn flush(&mut self, name: &str) -> Result<()> {
        let answer = self.command("to flush an ipset", FLUSH, &[(NAME, name)]);
        named(answer, || format!("to flush the ipset {name}"))
    }

    /// Exchanges the entries of two sets at once; rules that look into either see the other's.
    pub fn swap(&mut self, first: &str, second: &str) -> Result<()> {
        let answer = self.command("to swap ipsets", SWAP, &[(NAME, first), (SECOND_NAME, second)]);
        named(answer, || format!("to swap the ipsets {first} and {second}"))
    }

    /// Removes a set with all its entries. The kernel refuses while a rule refers to it; a set that does not exist is no error.
    pub fn destroy(&mut self, name: &str) -> Result<()> {
        let answer = self.command("to destroy an ipset", DESTROY, &[(NAME, name)]);
        if answer.as_ref().is_err_and(Error::is_not_found) {
            return Ok(());
        }
        named(answer, || format!("to destroy the ipset {name}"))
    }

    fn command(&mut self, request: &'static str, kind: u16, names: &[(u16, &str)]) -> Result<()> {
        self.socket.request(
            request,
            |writer, flags, sequence| {
                let mark = writer.begin_netfilter(kind, flags, sequence, ANY_FAMILY, 0);
                writer.u8(PROTOCOL, VERSION);
                for (attribute, name) in names {
                    writer.string(*attribute, name);
                }
                writer.end_message(mark);
            },
            |_| Ok(()),
        )
    }

    fn change_in_messages(
        &mut self,
        name: &str,
        operation: Operation,
        messages: &[&[Entry]],
    ) -> Result<Vec<(usize, Answer)>> {
        let kind = match operation {
            Operation::Add => ADD,
            Operation::Delete => DELETE,
        };
        self.socket.request_all("to change an ipset", messages, |writer, flags, sequence, entries| {
            encode_entries(writer, kind, flags, sequence, name, entries);
        })
    }
}

fn encode_entries(writer: &mut Writer, kind: u16, flags: u16, sequence: u32, name: &str, entries: &[Entry]) {
    let mark = writer.begin_netfilter(kind, flags, sequence, ANY_FAMILY, 0);
    writer.u8(PROTOCOL, VERSION);
    writer.string(NAME, name);
    writer.u32_host(LINE, 0);
    writer.nest(ENTRIES, |writer| {
        for (line, entry) in (1..).zip(entries) {
            writer.nest(DATA, |writer| entry.encode(writer, line));
        }
    });
    writer.end_message(mark);
}

/// Puts the set's name into a refusal, and the meaning of ipset's own codes.
fn named<T>(answer: Result<T>, request: impl FnOnce() -> String) -> Result<T> {
    answer.map_err(|error| match error {
        Error::Refused { mut answer, .. } => {
            explain(&mut answer);
            Error::Refused { request: request(), answer }
        }
        other => other,
    })
}

fn explain(answer: &mut Answer) {
    let text = match answer.code {
        code::TYPE_UNKNOWN => "the kernel does not know this type of set; load its module",
        code::BUSY | code::REFERENCED => "a rule or another set refers to it",
        code::TYPE_MISMATCH => "the types of the sets differ",
        code::ENTRY_EXISTS_OR_MISSING => "the entry exists already, or is missing",
        code::FULL => "the set is full",
        _ => return,
    };
    answer.text.get_or_insert_with(|| text.to_owned());
}

/// The name of the set that a message describes, if it describes one.
fn name(message: &Message<'_>) -> Result<Option<String>, Malformed> {
    if message.kind != LIST {
        return Ok(None);
    }
    find(message, NAME, |attribute| Ok(attribute.text().into_owned()))
}

fn revision(message: &Message<'_>) -> Result<Option<u8>, Malformed> {
    if message.kind != TYPE {
        return Ok(None);
    }
    find(message, REVISION, |attribute| attribute.u8())
}

fn find<'a, T>(
    message: &Message<'a>,
    kind: u16,
    read: impl Fn(&crate::wire::Attribute<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    let attributes = message.payload.get(4..).ok_or(Malformed { what: "netfilter header" })?;
    for attribute in Attributes::new(attributes) {
        let attribute = attribute?;
        if attribute.kind == kind {
            return read(&attribute).map(Some);
        }
    }
    Ok(None)
}
