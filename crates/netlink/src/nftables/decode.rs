//! Messages of nf_tables to values: answers to listings and notifications. Attributes and messages this
//! program does not know are passed over.

use super::codes::{self, LIST_ELEMENT, SUBSYSTEM, message};
use super::element::Element;
use super::expr::{Expr, Rule};
use super::set::{Set, SetFlags, SetKind, fields_of};
use super::table::{BaseChain, Chain, ChainKind, Family, Hook, Listed, Name, Policy, Table, TableId};
use super::transaction::Counter;
use super::userdata;
use crate::wire::{Attribute, Attributes, Malformed, Message};
use std::time::Duration;

/// What a message of nf_tables says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether the object came, was changed, or went.
    pub change: Change,
    /// What it is about.
    pub subject: Subject,
    /// The netlink port of the socket whose transaction made the change, see [`super::Client::port`].
    pub port: u32,
}

impl Event {
    /// The change in a few words, such as `chain services was removed`; `None` if it concerns another table.
    pub fn describe(&self, table: &TableId) -> Option<String> {
        let (owner, what) = match &self.subject {
            Subject::Table(listed) => (&listed.object.id, "the table".to_owned()),
            Subject::Chain(listed) => (&listed.object.table, format!("chain {}", listed.object.name)),
            Subject::Rule(listed) => {
                (&listed.object.table, format!("a rule of chain {}", listed.object.chain))
            }
            Subject::Set(listed) => (&listed.object.table, format!("set {}", listed.object.name)),
            Subject::Elements(elements) => (&elements.table, format!("an element of {}", elements.set)),
            Subject::Counter(_) | Subject::Generation(_) | Subject::Other { .. } => return None,
        };
        let done = match self.change {
            Change::Present => "was added or changed",
            Change::Gone => "was removed",
        };
        (owner == table).then(|| format!("{what} {done}"))
    }
}

/// Whether an object is there or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object exists, new or changed.
    Present,
    /// The object was deleted. Only the fields that identify it are certain to be present.
    Gone,
}

/// What a message of nf_tables is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A table with its flags and handle.
    Table(Listed<Table>),
    /// A chain with its hook, if it has one, and handle.
    Chain(Listed<Chain>),
    /// A rule with its expressions and handle.
    Rule(Listed<Rule>),
    /// A set or map.
    Set(Listed<Set>),
    /// Elements of a set or map.
    Elements(SetElements),
    /// A named counter.
    Counter(Listed<Counter>),
    /// The generation that a transaction made; it stands at the end of the transaction's messages.
    Generation(Generation),
    /// A message this program has no name for.
    Other {
        /// The message's number within nf_tables.
        kind: u16,
    },
}

/// Elements and the set they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetElements {
    /// The set's table.
    pub table: TableId,
    /// The set's name.
    pub set: Name,
    /// In the kernel's order, which is not sorted.
    pub elements: Vec<Element>,
}

/// A generation of the ruleset: the kernel counts transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// Grows by one with each transaction.
    pub id: u32,
    /// The thread whose transaction made it, by its number outside of all pid namespaces. For people: to
    /// recognise one's own changes use [`Event::port`].
    pub thread: Option<u32>,
    /// That thread's name, at most 15 bytes.
    pub thread_name: Option<String>,
}

impl Event {
    /// Reads a message; `None` if it does not belong to nf_tables.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        if message.kind >> 8 != SUBSYSTEM {
            return Ok(None);
        }
        let (family, attributes) = split(message)?;
        let kind = message.kind & 0xff;
        let subject = match kind {
            message::NEW_TABLE | message::DELETE_TABLE => Subject::Table(table(family, attributes)?),
            message::NEW_CHAIN | message::DELETE_CHAIN => Subject::Chain(chain(family, attributes)?),
            message::NEW_RULE | message::DELETE_RULE => Subject::Rule(rule(family, attributes)?),
            message::NEW_SET | message::DELETE_SET => Subject::Set(set(family, attributes)?),
            message::NEW_ELEMENTS | message::DELETE_ELEMENTS => {
                Subject::Elements(elements(family, attributes)?)
            }
            message::NEW_OBJECT | message::DELETE_OBJECT => match counter(family, attributes)? {
                Some(counter) => Subject::Counter(counter),
                None => Subject::Other { kind },
            },
            message::NEW_GENERATION => Subject::Generation(generation(attributes)?),
            kind => Subject::Other { kind },
        };
        let gone = matches!(
            kind,
            message::DELETE_TABLE
                | message::DELETE_CHAIN
                | message::DELETE_RULE
                | message::DELETE_SET
                | message::DELETE_ELEMENTS
                | message::DELETE_OBJECT
        );
        let change = if gone { Change::Gone } else { Change::Present };
        Ok(Some(Self { change, subject, port: message.port }))
    }
}

/// Splits the four bytes that every netfilter message starts with from its attributes.
fn split<'a>(message: &Message<'a>) -> Result<(Family, Attributes<'a>), Malformed> {
    let (header, attributes) =
        message.payload.split_first_chunk::<4>().ok_or(Malformed { what: "netfilter header" })?;
    let [family, ..] = *header;
    Ok((Family::from_code(family.into()), Attributes::new(attributes)))
}

fn table(family: Family, attributes: Attributes<'_>) -> Result<Listed<Table>, Malformed> {
    use codes::table::{HANDLE, NAME, USERDATA};
    let mut listed = Listed { object: Table::new(&TableId::new(family, "")), handle: 0 };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NAME => listed.object.id.name = Name::from(attribute.text()),
            HANDLE => listed.handle = attribute.u64()?,
            USERDATA => listed.object.comment = userdata::read_comment(attribute.payload),
            _ => {}
        }
    }
    Ok(listed)
}

fn chain(family: Family, attributes: Attributes<'_>) -> Result<Listed<Chain>, Malformed> {
    use codes::chain::{HANDLE, HOOK, KIND, NAME, POLICY, TABLE, USERDATA};
    let mut listed = Listed { object: Chain::new(&TableId::new(family, ""), ""), handle: 0 };
    let mut hook = None;
    let mut kind = ChainKind::Filter;
    let mut policy = Policy::Accept;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            TABLE => listed.object.table.name = Name::from(attribute.text()),
            NAME => listed.object.name = Name::from(attribute.text()),
            HANDLE => listed.handle = attribute.u64()?,
            HOOK => hook = Some(hook_of(&attribute)?),
            POLICY => policy = Policy::from_code(attribute.u32()?),
            KIND => kind = ChainKind::from_name(&attribute.text()),
            USERDATA => listed.object.comment = userdata::read_comment(attribute.payload),
            _ => {}
        }
    }
    listed.object.base = hook.map(|(hook, priority)| BaseChain { kind, hook, priority, policy });
    Ok(listed)
}

fn hook_of(nest: &Attribute<'_>) -> Result<(Hook, i32), Malformed> {
    use codes::chain::{HOOK_NUMBER, HOOK_PRIORITY};
    let mut hook = Hook::Prerouting;
    let mut priority = 0;
    for attribute in nest.nested() {
        let attribute = attribute?;
        match attribute.kind {
            HOOK_NUMBER => hook = Hook::from_code(attribute.u32()?),
            HOOK_PRIORITY => priority = attribute.i32()?,
            _ => {}
        }
    }
    Ok((hook, priority))
}

fn rule(family: Family, attributes: Attributes<'_>) -> Result<Listed<Rule>, Malformed> {
    use codes::rule::{CHAIN, EXPRESSIONS, HANDLE, TABLE, USERDATA};
    let mut listed = Listed { object: Rule::new(&TableId::new(family, ""), "", Vec::new()), handle: 0 };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            TABLE => listed.object.table.name = Name::from(attribute.text()),
            CHAIN => listed.object.chain = Name::from(attribute.text()),
            HANDLE => listed.handle = attribute.u64()?,
            EXPRESSIONS => {
                for expression in attribute.nested() {
                    listed.object.expressions.push(Expr::decode(&expression?)?);
                }
            }
            USERDATA => listed.object.comment = userdata::read_comment(attribute.payload),
            _ => {}
        }
    }
    Ok(listed)
}

fn set(family: Family, attributes: Attributes<'_>) -> Result<Listed<Set>, Malformed> {
    use codes::set::{
        DATA_LENGTH, DATA_TYPE, DESCRIPTION, DESCRIPTION_SIZE, FLAGS, HANDLE, KEY_LENGTH, KEY_TYPE, NAME,
        TABLE, TIMEOUT, USERDATA,
    };
    let mut listed = Listed { object: Set::new(&TableId::new(family, ""), "", []), handle: 0 };
    let set = &mut listed.object;
    let (mut key_type, mut key_length, mut data_type, mut data_length, mut flags) = (0, 0, 0, 0, 0);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            TABLE => set.table.name = Name::from(attribute.text()),
            NAME => set.name = Name::from(attribute.text()),
            HANDLE => listed.handle = attribute.u64()?,
            FLAGS => flags = attribute.u32()?,
            KEY_TYPE => key_type = attribute.u32()?,
            KEY_LENGTH => key_length = attribute.u32()?,
            DATA_TYPE => data_type = attribute.u32()?,
            DATA_LENGTH => data_length = attribute.u32()?,
            TIMEOUT => {
                let timeout = attribute.u64()?;
                set.timeout = (timeout != 0).then(|| Duration::from_millis(timeout));
            }
            DESCRIPTION => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    if attribute.kind == DESCRIPTION_SIZE {
                        set.size = Some(attribute.u32()?);
                    }
                }
            }
            USERDATA => set.comment = userdata::read_set_comment(attribute.payload),
            _ => {}
        }
    }
    set.key = fields_of(key_type, key_length);
    set.kind = set_kind(flags, data_type, data_length);
    // What the kind and the key already say is no property of its own.
    const IMPLIED: u32 = codes::set::FLAG_MAP | codes::set::FLAG_OBJECT | codes::set::FLAG_CONCAT;
    set.flags = SetFlags(flags & !IMPLIED);
    Ok(listed)
}

fn set_kind(flags: u32, data_type: u32, data_length: u32) -> SetKind {
    if flags & codes::set::FLAG_OBJECT != 0 {
        SetKind::ObjectMap
    } else if flags & codes::set::FLAG_MAP == 0 {
        SetKind::Set
    } else if data_type == codes::set::TYPE_VERDICT {
        SetKind::VerdictMap
    } else {
        SetKind::Map(fields_of(data_type, data_length))
    }
}

fn elements(family: Family, attributes: Attributes<'_>) -> Result<SetElements, Malformed> {
    use codes::element::{LIST_ELEMENTS, LIST_SET, LIST_TABLE};
    let mut found =
        SetElements { table: TableId::new(family, ""), set: Name::from(""), elements: Vec::new() };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            LIST_TABLE => found.table.name = Name::from(attribute.text()),
            LIST_SET => found.set = Name::from(attribute.text()),
            LIST_ELEMENTS => {
                for element in attribute.nested() {
                    let element = element?;
                    if element.kind == LIST_ELEMENT {
                        found.elements.push(Element::decode(element.nested())?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// The name of a set and how many elements it has; `None` if the kernel does not count them for others.
pub(crate) fn set_count(message: &Message<'_>, table: &TableId) -> Result<Option<(String, u32)>, Malformed> {
    if message.kind != SUBSYSTEM << 8 | message::NEW_SET {
        return Ok(None);
    }
    let (family, attributes) = split(message)?;
    let (mut of_table, mut name, mut count) = (false, String::new(), None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            codes::set::TABLE => of_table = family == table.family && *attribute.text() == *table.name,
            codes::set::NAME => name = attribute.text().into(),
            codes::set::COUNT => count = Some(attribute.u32()?),
            _ => {}
        }
    }
    Ok(count.filter(|_| of_table).map(|count| (name, count)))
}

/// Hands the elements of a message to `on_element` without collecting them.
pub(crate) fn each_element(
    message: &Message<'_>,
    mut on_element: impl FnMut(Element),
) -> Result<(), Malformed> {
    if message.kind != SUBSYSTEM << 8 | message::NEW_ELEMENTS {
        return Ok(());
    }
    let (_, attributes) = split(message)?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == codes::element::LIST_ELEMENTS {
            for element in attribute.nested() {
                on_element(Element::decode(element?.nested())?);
            }
        }
    }
    Ok(())
}

fn counter(family: Family, attributes: Attributes<'_>) -> Result<Option<Listed<Counter>>, Malformed> {
    use codes::object::{DATA, HANDLE, KIND, KIND_COUNTER, NAME, TABLE, USERDATA};
    let mut listed = Listed { object: Counter::new(&TableId::new(family, ""), ""), handle: 0 };
    let mut kind = 0;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            TABLE => listed.object.table.name = Name::from(attribute.text()),
            NAME => listed.object.name = Name::from(attribute.text()),
            KIND => kind = attribute.u32()?,
            HANDLE => listed.handle = attribute.u64()?,
            // Other objects keep other things there.
            DATA if kind == KIND_COUNTER => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    match attribute.kind {
                        1 => listed.object.bytes = attribute.u64()?,
                        2 => listed.object.packets = attribute.u64()?,
                        _ => {}
                    }
                }
            }
            USERDATA => listed.object.comment = userdata::read_comment(attribute.payload),
            _ => {}
        }
    }
    Ok((kind == KIND_COUNTER).then_some(listed))
}

fn generation(attributes: Attributes<'_>) -> Result<Generation, Malformed> {
    let mut generation = Generation::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            1 => generation.id = attribute.u32()?,
            2 => generation.thread = Some(attribute.u32()?),
            3 => generation.thread_name = Some(attribute.text().into_owned()),
            _ => {}
        }
    }
    Ok(generation)
}
