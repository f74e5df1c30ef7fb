//! JSON: one document for a list, a sequence of documents for a watch.

use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{LARGEST_OBJECT, Manifest, Part, Status, WatchEvent, WireError, bookmark, check_kind};

/// Finds the end of a JSON value in a stream without parsing it.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// Bytes of the buffer that are scanned.
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

    /// The end of the value at the front of the buffer, if it is complete. Numbers and literals end before the next comma, bracket or
    /// white space.
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

/// Splits a list into items while it arrives.
#[derive(Debug, Default)]
pub(super) struct ListSplitter {
    buffer: BytesMut,
    scanner: Scanner,
    state: ParserState,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum ParserState {
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

    /// Whether the list is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.state == ParserState::End && self.buffer.iter().all(u8::is_ascii_whitespace)
    }

    pub(super) fn next(&mut self) -> Result<Option<Part>, WireError> {
        loop {
            // White space may only be skipped between values, not inside one.
            if self.scanner.at == 0 {
                skip_blanks(&mut self.buffer);
            }
            let Some(first) = self.buffer.first().copied() else { return Ok(None) };
            match std::mem::take(&mut self.state) {
                ParserState::Start => self.expect(first == b'{', ParserState::Key)?,
                ParserState::Key if first == b',' => self.expect(true, ParserState::Key)?,
                ParserState::Key if first == b'}' => self.expect(true, ParserState::End)?,
                ParserState::Key => {
                    self.state = ParserState::Key;
                    let Some(key) = self.value()? else { return Ok(None) };
                    self.state = ParserState::Colon(parse(&key)?);
                }
                ParserState::Colon(key) => self.expect(first == b':', ParserState::Value(key))?,
                ParserState::Value(key) if key == "items" && first == b'[' => {
                    self.expect(true, ParserState::Items)?;
                }
                ParserState::Value(key) => {
                    self.state = ParserState::Value(key);
                    let Some(value) = self.value()? else { return Ok(None) };
                    let ParserState::Value(key) = std::mem::replace(&mut self.state, ParserState::Key) else {
                        continue;
                    };
                    match key.as_str() {
                        "kind" => return Ok(Some(Part::Kind(parse(&value)?))),
                        "metadata" => return Ok(Some(Part::Meta(parse(&value)?))),
                        _ => {}
                    }
                }
                ParserState::Items if first == b',' => self.expect(true, ParserState::Items)?,
                ParserState::Items if first == b']' => self.expect(true, ParserState::Key)?,
                ParserState::Items => {
                    self.state = ParserState::Items;
                    return Ok(self.value()?.map(Part::Item));
                }
                ParserState::End => return Err(WireError::malformed("data after the list")),
            }
        }
    }

    /// Consumes one byte and enters the next state, if the byte is valid.
    fn expect(&mut self, valid: bool, then: ParserState) -> Result<(), WireError> {
        if !valid {
            return Err(WireError::malformed("not a JSON list"));
        }
        self.buffer.advance(1);
        self.state = then;
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
