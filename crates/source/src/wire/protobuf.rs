//! The protobuf form: `k8s\0`, then an envelope around the object. A watch is a sequence of frames: a length and an event.

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

use super::{ListMeta, Manifest, Part, Status, WatchEvent, WireError, bookmark, check_kind, check_size};

const MAGIC: &[u8] = b"k8s\0";
/// Wire types: a varint, eight bytes, a length and that many bytes, or four bytes.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

/// `runtime.Unknown`: the envelope.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct Frame {
    #[prost(string, tag = "1")]
    r#type: String,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// Takes a whole frame from the front of the buffer.
pub(super) fn next_frame(buffer: &mut BytesMut) -> Result<Option<Bytes>, WireError> {
    let Some(length) = buffer.first_chunk::<4>().copied().map(u32::from_be_bytes) else { return Ok(None) };
    let length = check_size(u64::from(length))?;
    if buffer.len() < length + 4 {
        // Reserves all the room at once, instead of growing in steps.
        buffer.reserve(length + 4 - buffer.len());
        return Ok(None);
    }
    buffer.advance(4);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Decodes the content of a frame.
pub(super) fn watch_event<M: Manifest>(frame: Bytes) -> Result<WatchEvent<M>, WireError> {
    let frame = Frame::decode(frame).map_err(WireError::malformed)?;
    let raw = frame.object.unwrap_or_default().raw;
    match frame.r#type.as_str() {
        "ADDED" | "MODIFIED" => object(raw).map(WatchEvent::Applied),
        "DELETED" => object(raw).map(WatchEvent::Deleted),
        "BOOKMARK" => object(raw).map(|object: M| bookmark(&object)),
        "ERROR" => status(raw).map(WatchEvent::Error),
        other => Err(WireError::malformed(format!("a watch event of type {other:?}"))),
    }
}

/// Decodes an object in its envelope.
pub(super) fn object<M: Manifest>(bytes: Bytes) -> Result<M, WireError> {
    M::decode(open(M::NAME, bytes)?).map_err(WireError::malformed)
}

/// Decodes a status in its envelope.
pub(super) fn status(bytes: Bytes) -> Result<Status, WireError> {
    Status::decode(open("Status", bytes)?).map_err(WireError::malformed)
}

fn open(kind: &str, mut bytes: Bytes) -> Result<Bytes, WireError> {
    if !bytes.starts_with(MAGIC) {
        return Err(no_magic());
    }
    bytes.advance(MAGIC.len());
    let envelope = Envelope::decode(bytes).map_err(WireError::malformed)?;
    check_kind(kind, envelope.type_meta.unwrap_or_default().kind)?;
    Ok(envelope.raw)
}

fn no_magic() -> WireError {
    WireError::malformed("it does not begin with the prefix of Kubernetes protobuf")
}

/// Splits a list into items while it arrives: field 2 of the envelope is the list, and each item is its field 2.
#[derive(Debug, Default)]
pub(super) struct ListSplitter {
    buffer: BytesMut,
    state: ParserState,
    list_seen: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ParserState {
    #[default]
    Start,
    Envelope,
    /// Inside the list, with this many bytes left.
    List(u64),
}

impl ListSplitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether the list is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.buffer.is_empty() && self.list_seen && self.state == ParserState::Envelope
    }

    pub(super) fn next(&mut self) -> Result<Option<Part>, WireError> {
        loop {
            let part = match self.state {
                ParserState::Start => {
                    let seen = self.buffer.len().min(MAGIC.len());
                    if self.buffer.get(..seen) != MAGIC.get(..seen) {
                        return Err(no_magic());
                    }
                    if seen < MAGIC.len() {
                        return Ok(None);
                    }
                    self.buffer.advance(seen);
                    self.state = ParserState::Envelope;
                    continue;
                }
                ParserState::List(0) => {
                    self.state = ParserState::Envelope;
                    continue;
                }
                ParserState::Envelope => self.envelope_field()?,
                ParserState::List(left) => self.list_field(left)?,
            };
            match part {
                Step::Part(part) => return Ok(Some(part)),
                Step::Incomplete => return Ok(None),
                Step::Skipped => {}
            }
        }
    }

    fn envelope_field(&mut self) -> Result<Step, WireError> {
        let Some(field) = Field::read(&self.buffer)? else { return Ok(Step::Incomplete) };
        if field.number == 2 && field.wire_type == DELIMITED {
            self.buffer.advance(field.header);
            self.state = ParserState::List(field.length);
            self.list_seen = true;
            return Ok(Step::Skipped);
        }
        let Some(content) = self.take(field)? else { return Ok(Step::Incomplete) };
        if field.number != 1 {
            return Ok(Step::Skipped);
        }
        let type_meta = TypeMeta::decode(content).map_err(WireError::malformed)?;
        Ok(Step::Part(Part::Kind(type_meta.kind)))
    }

    fn list_field(&mut self, left: u64) -> Result<Step, WireError> {
        let Some(field) = Field::read(&self.buffer)? else { return Ok(Step::Incomplete) };
        let left = left
            .checked_sub(field.header as u64 + field.length)
            .ok_or_else(|| WireError::malformed("an item is longer than its list"))?;
        let Some(content) = self.take(field)? else { return Ok(Step::Incomplete) };
        self.state = ParserState::List(left);
        match (field.number, field.wire_type) {
            (1, DELIMITED) => {
                Ok(Step::Part(Part::Meta(ListMeta::decode(content).map_err(WireError::malformed)?)))
            }
            (2, DELIMITED) => Ok(Step::Part(Part::Item(content))),
            _ => Ok(Step::Skipped),
        }
    }

    /// Takes the content of a field from the front of the buffer, if it is complete.
    fn take(&mut self, field: Field) -> Result<Option<Bytes>, WireError> {
        let length = check_size(field.length)?;
        if self.buffer.len() < field.header + length {
            return Ok(None);
        }
        self.buffer.advance(field.header);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

enum Step {
    Part(Part),
    Skipped,
    Incomplete,
}

/// The header of a field.
#[derive(Debug, Clone, Copy)]
struct Field {
    number: u64,
    wire_type: u64,
    /// Bytes before the content.
    header: usize,
    /// Bytes of the content.
    length: u64,
}

impl Field {
    fn read(buffer: &[u8]) -> Result<Option<Field>, WireError> {
        let Some((tag, tag_length)) = varint(buffer)? else { return Ok(None) };
        let rest = buffer.get(tag_length..).unwrap_or_default();
        let (number, wire_type) = (tag >> 3, tag & 7);
        let (header, length) = match wire_type {
            VARINT => match varint(rest)? {
                Some((_, length)) => (tag_length, length as u64),
                None => return Ok(None),
            },
            FIXED64 => (tag_length, 8),
            FIXED32 => (tag_length, 4),
            DELIMITED => match varint(rest)? {
                Some((length, length_length)) => (tag_length + length_length, length),
                None => return Ok(None),
            },
            other => return Err(WireError::malformed(format!("wire type {other}"))),
        };
        // Far above any list, and small enough that no sum overflows.
        if number == 0 || length > u64::from(u32::MAX) * 1024 {
            return Err(WireError::malformed(format!("field {number} of {length} bytes")));
        }
        Ok(Some(Field { number, wire_type, header, length }))
    }
}

/// The varint at the front of the buffer, and its length in bytes.
fn varint(buffer: &[u8]) -> Result<Option<(u64, usize)>, WireError> {
    let mut value = 0u64;
    for (index, byte) in buffer.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if buffer.len() >= 10 { Err(WireError::malformed("a number longer than ten bytes")) } else { Ok(None) }
}
