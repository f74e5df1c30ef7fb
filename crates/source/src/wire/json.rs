//! JSON as an API server sends it: one document for a list, one document after the other for a watch.

use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{LARGEST_OBJECT, Manifest, Part, Status, WatchEvent, WireError, bookmark, check_kind};

/// Finds the end of a JSON value in a stream, without looking at what it means.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// How much of the buffer has been looked at.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scanner {
    /// Takes the object at the front of the buffer, if it is complete.
    pub(super) fn next_document(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, WireError> {
        if self.at == 0 {
            skip_blanks(buffer);
            if buffer.first().is_some_and(|first| *first != b'{') {
                return Err(WireError::malformed("not a JSON object"));
            }
        }
        Ok(self.find_end(buffer)?.map(|end| buffer.split_to(end).freeze()))
    }

    /// Where the value at the front of the buffer ends, if it does. Objects, arrays and strings say so themselves; anything
    /// else ends before the next comma, bracket or blank.
    fn find_end(&mut self, buffer: &[u8]) -> Result<Option<usize>, WireError> {
        while let Some(byte) = buffer.get(self.at).copied() {
            let first = self.at == 0;
            self.at += 1;
            let ended = match byte {
                _ if self.escaped => {
                    self.escaped = false;
                    false
                }
                b'\\' if self.in_string => {
                    self.escaped = true;
                    false
                }
                b'"' => {
                    self.in_string = !self.in_string;
                    !self.in_string && self.depth == 0
                }
                _ if self.in_string => false,
                b'{' | b'[' => {
                    self.depth += 1;
                    false
                }
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    self.depth == 0
                }
                b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => {
                    if first {
                        return Err(WireError::malformed("a JSON value is missing"));
                    }
                    self.at -= 1;
                    true
                }
                _ => false,
            };
            if ended {
                let end = self.at;
                *self = Scanner::default();
                return Ok(Some(end));
            }
        }
        if self.at > LARGEST_OBJECT {
            return Err(WireError::TooLarge { size: self.at as u64 });
        }
        Ok(None)
    }
}

fn skip_blanks(buffer: &mut BytesMut) {
    let blanks = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    buffer.advance(blanks);
}

/// Takes a list apart while it arrives.
#[derive(Debug, Default)]
pub(super) struct ListSplitter {
    buffer: BytesMut,
    scanner: Scanner,
    place: Place,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Place {
    /// Before the opening brace.
    #[default]
    Start,
    /// Before a key or the closing brace.
    Key,
    /// After a key.
    Colon(String),
    /// Before the value of a key.
    Value(String),
    /// In the array of items, before an item or the closing bracket.
    Items,
    /// After the closing brace.
    End,
}

impl ListSplitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether everything that began has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.place == Place::End && self.buffer.iter().all(u8::is_ascii_whitespace)
    }

    pub(super) fn next(&mut self) -> Result<Option<Part>, WireError> {
        loop {
            // Blanks may only be dropped between values, not while one is being scanned.
            if self.scanner.at == 0 {
                skip_blanks(&mut self.buffer);
            }
            let Some(first) = self.buffer.first().copied() else { return Ok(None) };
            match std::mem::take(&mut self.place) {
                Place::Start => self.expect(first == b'{', Place::Key)?,
                Place::Key if first == b',' => self.expect(true, Place::Key)?,
                Place::Key if first == b'}' => self.expect(true, Place::End)?,
                Place::Key => {
                    self.place = Place::Key;
                    let Some(key) = self.value()? else { return Ok(None) };
                    self.place = Place::Colon(parse(&key)?);
                }
                Place::Colon(key) => self.expect(first == b':', Place::Value(key))?,
                Place::Value(key) if key == "items" && first == b'[' => self.expect(true, Place::Items)?,
                Place::Value(key) => {
                    self.place = Place::Value(key);
                    let Some(value) = self.value()? else { return Ok(None) };
                    let Place::Value(key) = std::mem::replace(&mut self.place, Place::Key) else { continue };
                    match key.as_str() {
                        "kind" => return Ok(Some(Part::Kind(parse(&value)?))),
                        "metadata" => return Ok(Some(Part::Meta(parse(&value)?))),
                        _ => {}
                    }
                }
                Place::Items if first == b',' => self.expect(true, Place::Items)?,
                Place::Items if first == b']' => self.expect(true, Place::Key)?,
                Place::Items => {
                    self.place = Place::Items;
                    return Ok(self.value()?.map(Part::Item));
                }
                Place::End => return Err(WireError::malformed("something follows the list")),
            }
        }
    }

    /// Takes one byte and goes on, if that is right.
    fn expect(&mut self, right: bool, then: Place) -> Result<(), WireError> {
        if !right {
            return Err(WireError::malformed("not a JSON list"));
        }
        self.buffer.advance(1);
        self.place = then;
        Ok(())
    }

    fn value(&mut self) -> Result<Option<Bytes>, WireError> {
        Ok(self.scanner.find_end(&self.buffer)?.map(|end| self.buffer.split_to(end).freeze()))
    }
}

/// Decodes one event of a watch.
pub(super) fn watch_event<M: Manifest>(document: &[u8]) -> Result<WatchEvent<M>, WireError> {
    let outline: Frame<Outline> = parse(document)?;
    let kind = outline.object.kind;
    let object = || -> Result<M, WireError> {
        check_kind(M::NAME, kind.clone())?;
        Ok(parse::<Frame<M>>(document)?.object)
    };
    match outline.r#type.as_str() {
        "ADDED" | "MODIFIED" => object().map(WatchEvent::Applied),
        "DELETED" => object().map(WatchEvent::Deleted),
        "BOOKMARK" => object().map(|object| bookmark(&object)),
        "ERROR" => Ok(WatchEvent::Error(parse::<Frame<Status>>(document)?.object)),
        other => Err(WireError::malformed(format!("a watch event of type {other:?}"))),
    }
}

/// Decodes an object.
pub(super) fn object<M: Manifest>(bytes: &[u8]) -> Result<M, WireError> {
    check_kind(M::NAME, parse::<Outline>(bytes)?.kind)?;
    parse(bytes)
}

/// Decodes a status.
pub(super) fn status(bytes: &[u8]) -> Result<Status, WireError> {
    check_kind("Status", parse::<Outline>(bytes)?.kind)?;
    parse(bytes)
}

#[derive(Deserialize)]
struct Frame<T> {
    r#type: String,
    object: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Outline {
    kind: String,
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(bytes).map_err(WireError::malformed)
}
