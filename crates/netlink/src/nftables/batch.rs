//! A transaction in the bytes that are sent, and the way back from an answer to the operation it is about.

use super::codes::{self, SUBSYSTEM, message};
use super::element::Elements;
use super::expr::Rule;
use super::set::Set;
use super::table::{Chain, Table};
use super::transaction::{Counter, Object, Operation, Transaction, Verb};
use super::userdata;
use crate::error::{Error, Result};
use crate::wire::{Attributes, HEADER, Messages, Writer, align, flags};

/// Sequence number of a batch's first message. Answers are read to the end after each batch, so that
/// batches need not have numbers of their own.
const FIRST_SEQUENCE: u32 = 1;

/// Bytes of elements in one message: an attribute holds less than 64 KiB.
const ELEMENTS_MAX: usize = 60_000;

/// A transaction encoded for the kernel.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    messages: Vec<Span>,
}

/// What one message of the batch is about.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Offset of the message in the batch.
    start: usize,
    /// Index of the operation.
    operation: usize,
    /// Index of the message's first element within the operation.
    element: usize,
}

/// The operation, and the element where known, that an answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of the operation.
    pub operation: usize,
    /// Index of the element within the operation.
    pub element: Option<usize>,
}

impl Batch {
    /// Encodes a transaction.
    pub fn encode(transaction: &Transaction) -> Result<Self> {
        Self::encode_into(Vec::new(), transaction)
    }

    /// Encodes a transaction into a buffer used before.
    pub fn encode_into(mut buffer: Vec<u8>, transaction: &Transaction) -> Result<Self> {
        buffer.clear();
        let mut encoder = Encoder { writer: Writer::from_bytes(buffer), messages: Vec::new(), operation: 0 };
        encoder.reserve(transaction);
        encoder.begin();
        for (index, operation) in transaction.operations().iter().enumerate() {
            encoder.operation = index;
            encoder.operation(operation);
            if encoder.writer.take_oversize() {
                let description = operation.describe(None);
                return Err(Error::Oversize { operation: index, description });
            }
        }
        Ok(encoder.finish())
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of messages between the marks of begin and end.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// The buffer, for reuse.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// The operation that the answer with this sequence number belongs to; `None` is the batch as a whole.
    ///
    /// `offset` is the position of the fault in the message, if the kernel reported it.
    pub fn origin(&self, sequence: u32, offset: Option<u32>) -> Option<Origin> {
        let index = sequence.checked_sub(FIRST_SEQUENCE + 1)?;
        let span = self.messages.get(usize::try_from(index).ok()?)?;
        let element = offset
            .and_then(|offset| usize::try_from(offset).ok())
            .and_then(|offset| self.element_at(span, offset))
            .map(|element| span.element + element);
        Some(Origin { operation: span.operation, element })
    }

    /// The element of a message that covers the given offset.
    fn element_at(&self, span: &Span, offset: usize) -> Option<usize> {
        let message = Messages::new(self.bytes.get(span.start..)?).next()?.ok()?;
        if message.kind & 0xff < message::NEW_ELEMENTS || message.kind >> 8 != SUBSYSTEM {
            return None;
        }
        let attributes = message.payload.get(4..)?;
        let mut position = HEADER + 4;
        for attribute in Attributes::new(attributes) {
            let attribute = attribute.ok()?;
            let end = position + 4 + attribute.payload.len();
            if attribute.kind == codes::element::LIST_ELEMENTS && (position + 4..end).contains(&offset) {
                return element_covering(attribute.nested(), offset - position - 4);
            }
            position += align(4 + attribute.payload.len());
        }
        None
    }
}

fn element_covering(elements: Attributes<'_>, offset: usize) -> Option<usize> {
    let mut position = 0;
    for (index, element) in elements.enumerate() {
        position += align(4 + element.ok()?.payload.len());
        if offset < position {
            return Some(index);
        }
    }
    None
}

struct Encoder {
    writer: Writer,
    messages: Vec<Span>,
    operation: usize,
}

impl Encoder {
    /// Grows the buffer once instead of step by step: a full load has megabytes of elements.
    fn reserve(&mut self, transaction: &Transaction) {
        let size = |operation: &Operation| match &operation.object {
            Object::Elements { elements, .. } => elements.bytes().len() + 128 + elements.bytes().len() / 512,
            _ => 256,
        };
        let total: usize = transaction.operations().iter().map(size).sum();
        self.writer.reserve(total + 128);
    }

    fn begin(&mut self) {
        let mark =
            self.writer.begin_netfilter(message::BATCH_BEGIN, flags::REQUEST, FIRST_SEQUENCE, 0, SUBSYSTEM);
        self.writer.end_message(mark);
    }

    fn finish(mut self) -> Batch {
        // One acknowledgement for all: on the last message, as the end mark is not acknowledged.
        if let Some(last) = self.messages.last() {
            self.writer.add_flags(last.start, flags::ACK);
        }
        let sequence = self.next_sequence();
        let mark = self.writer.begin_netfilter(message::BATCH_END, flags::REQUEST, sequence, 0, SUBSYSTEM);
        self.writer.end_message(mark);
        Batch { bytes: self.writer.into_bytes(), messages: self.messages }
    }

    fn next_sequence(&self) -> u32 {
        let sent = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
        (FIRST_SEQUENCE + 1).saturating_add(sent)
    }

    fn message(&mut self, kind: u16, flags: u16, family: u8, element: usize, body: impl FnOnce(&mut Writer)) {
        let sequence = self.next_sequence();
        self.messages.push(Span { start: self.writer.len(), operation: self.operation, element });
        let kind = SUBSYSTEM << 8 | kind;
        let mark = self.writer.begin_netfilter(kind, flags::REQUEST | flags, sequence, family, 0);
        body(&mut self.writer);
        self.writer.end_message(mark);
    }

    fn operation(&mut self, operation: &Operation) {
        let verb = operation.verb;
        match &operation.object {
            Object::Table(table) => self.table(verb, table),
            Object::Chain(chain) => self.chain(verb, chain),
            Object::Rule { rule, handle } => self.rule(verb, rule, *handle),
            Object::Set(set) => self.set(verb, set),
            Object::Elements { set, elements } => self.elements(verb, set, elements),
            Object::Counter(counter) => self.counter(verb, counter),
        }
    }

    fn table(&mut self, verb: Verb, table: &Table) {
        use codes::table::{FLAGS, NAME, USERDATA};
        if verb == Verb::Flush {
            return self.message(message::DELETE_RULE, 0, table.id.family.byte(), 0, |writer| {
                writer.string(codes::rule::TABLE, &table.id.name);
            });
        }
        let (kind, flags) = choose(verb, [message::NEW_TABLE, message::DELETE_TABLE, message::DESTROY_TABLE]);
        self.message(kind, flags, table.id.family.byte(), 0, |writer| {
            writer.string(NAME, &table.id.name);
            if kind == message::NEW_TABLE {
                writer.u32(FLAGS, 0);
                comment(writer, USERDATA, table.comment.as_deref());
            }
        });
    }

    fn chain(&mut self, verb: Verb, chain: &Chain) {
        use codes::chain::{HOOK, HOOK_NUMBER, HOOK_PRIORITY, KIND, NAME, POLICY, TABLE, USERDATA};
        let family = chain.table.family.byte();
        if verb == Verb::Flush {
            return self.message(message::DELETE_RULE, 0, family, 0, |writer| {
                writer.string(codes::rule::TABLE, &chain.table.name);
                writer.string(codes::rule::CHAIN, &chain.name);
            });
        }
        let (kind, flags) = choose(verb, [message::NEW_CHAIN, message::DELETE_CHAIN, message::DESTROY_CHAIN]);
        self.message(kind, flags, family, 0, |writer| {
            writer.string(TABLE, &chain.table.name);
            writer.string(NAME, &chain.name);
            if kind != message::NEW_CHAIN {
                return;
            }
            if let Some(base) = &chain.base {
                writer.nest(HOOK, |writer| {
                    writer.u32(HOOK_NUMBER, base.hook.code());
                    writer.i32(HOOK_PRIORITY, base.priority);
                });
                writer.u32(POLICY, base.policy.code());
                writer.string(KIND, base.kind.as_str());
            }
            comment(writer, USERDATA, chain.comment.as_deref());
        });
    }

    fn rule(&mut self, verb: Verb, rule: &Rule, handle: Option<u64>) {
        use codes::rule::{CHAIN, EXPRESSIONS, HANDLE, POSITION, TABLE, USERDATA};
        let (kind, flags) = match verb {
            Verb::Add | Verb::Create => (message::NEW_RULE, flags::CREATE | flags::APPEND),
            Verb::Insert => (message::NEW_RULE, flags::CREATE),
            Verb::Replace => (message::NEW_RULE, flags::REPLACE),
            Verb::Delete | Verb::Flush => (message::DELETE_RULE, 0),
            Verb::Destroy => (message::DESTROY_RULE, 0),
        };
        self.message(kind, flags, rule.table.family.byte(), 0, |writer| {
            writer.string(TABLE, &rule.table.name);
            writer.string(CHAIN, &rule.chain);
            if let Some(handle) = handle {
                let place =
                    if matches!(verb, Verb::Add | Verb::Create | Verb::Insert) { POSITION } else { HANDLE };
                writer.u64(place, handle);
            }
            if kind == message::NEW_RULE {
                writer.nest(EXPRESSIONS, |writer| {
                    for expression in &rule.expressions {
                        expression.encode(writer);
                    }
                });
                comment(writer, USERDATA, rule.comment.as_deref());
            }
        });
    }

    fn set(&mut self, verb: Verb, set: &Set) {
        let family = set.table.family.byte();
        if verb == Verb::Flush {
            return self.message(message::DELETE_ELEMENTS, 0, family, 0, |writer| {
                writer.string(codes::element::LIST_TABLE, &set.table.name);
                writer.string(codes::element::LIST_SET, &set.name);
            });
        }
        let (kind, flags) = choose(verb, [message::NEW_SET, message::DELETE_SET, message::DESTROY_SET]);
        // The kernel wants a number for each new set, unique in the batch; everything refers to it by name.
        let id = self.next_sequence();
        self.message(kind, flags, family, 0, |writer| {
            if kind == message::NEW_SET {
                set.encode(writer, id);
            } else {
                writer.string(codes::set::TABLE, &set.table.name);
                writer.string(codes::set::NAME, &set.name);
            }
        });
    }

    fn elements(&mut self, verb: Verb, set: &Set, elements: &Elements) {
        let kinds = [message::NEW_ELEMENTS, message::DELETE_ELEMENTS, message::DESTROY_ELEMENTS];
        let (kind, flags) = choose(verb, kinds);
        let mut first = 0;
        for (chunk, count) in Chunks::new(elements.bytes()) {
            self.message(kind, flags, set.table.family.byte(), first, |writer| {
                writer.string(codes::element::LIST_TABLE, &set.table.name);
                writer.string(codes::element::LIST_SET, &set.name);
                writer.nest(codes::element::LIST_ELEMENTS, |writer| writer.raw(chunk));
            });
            first += count;
        }
    }

    fn counter(&mut self, verb: Verb, counter: &Counter) {
        use codes::object::{DATA, KIND, KIND_COUNTER, NAME, TABLE, USERDATA};
        let (kind, flags) =
            choose(verb, [message::NEW_OBJECT, message::DELETE_OBJECT, message::DESTROY_OBJECT]);
        self.message(kind, flags, counter.table.family.byte(), 0, |writer| {
            writer.string(TABLE, &counter.table.name);
            writer.string(NAME, &counter.name);
            writer.u32(KIND, KIND_COUNTER);
            if kind == message::NEW_OBJECT {
                writer.nest(DATA, |writer| {
                    writer.u64(1, counter.bytes);
                    writer.u64(2, counter.packets);
                });
                comment(writer, USERDATA, counter.comment.as_deref());
            }
        });
    }
}

/// Chooses among the messages for new, delete and destroy.
fn choose(verb: Verb, [new, delete, destroy]: [u16; 3]) -> (u16, u16) {
    match verb {
        Verb::Add | Verb::Insert | Verb::Replace => (new, flags::CREATE),
        Verb::Create => (new, flags::CREATE | flags::EXCLUSIVE),
        Verb::Delete | Verb::Flush => (delete, 0),
        Verb::Destroy => (destroy, 0),
    }
}

fn comment(writer: &mut Writer, kind: u16, text: Option<&str>) {
    if let Some(text) = text {
        userdata::write_comment(writer, kind, text);
    }
}

/// Splits encoded elements into pieces that fit into one message each.
struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Chunks<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = (&'a [u8], usize);

    fn next(&mut self) -> Option<Self::Item> {
        let mut end = 0;
        let mut count = 0;
        while let Some(&[low, high]) = self.rest.get(end..end + 2) {
            let length = align(usize::from(u16::from_ne_bytes([low, high]))).max(4);
            if count > 0 && end + length > ELEMENTS_MAX {
                break;
            }
            end = (end + length).min(self.rest.len());
            count += 1;
        }
        let (chunk, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        (count > 0).then_some((chunk, count))
    }
}
