//! Decoders for responses of an API server: lists, watches and statuses, in protobuf and JSON.
//!
//! They take bytes as the network delivers them and return each object as soon as it is complete, so that no list is ever held in memory
//! as a whole. They do no IO and never panic, whatever the bytes are.

mod json;
mod protobuf;
mod status;

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use prost::Message;
use serde::Deserialize;

pub use crate::manifest::Manifest;
pub use status::{Cause, Details, Status};

/// The limit for one object: etcd refuses far smaller ones.
pub const LARGEST_OBJECT: usize = 16 << 20;
/// The annotation of the bookmark that ends the initial objects of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An encoding of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// Kubernetes' protobuf envelope.
    Protobuf,
    /// JSON.
    Json,
}

impl Media {
    /// The name of the media type.
    pub fn as_str(self) -> &'static str {
        match self {
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
            Media::Json => "application/json",
        }
    }

    /// Parses a `Content-Type`; parameters such as `stream=watch` are ignored.
    pub fn parse(content_type: &str) -> Option<Media> {
        let name = content_type.split(';').next().unwrap_or_default().trim();
        [Media::Protobuf, Media::Json].into_iter().find(|media| name.eq_ignore_ascii_case(media.as_str()))
    }
}

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not the envelope, not JSON, or an invalid structure.
    #[error("cannot be decoded: {0}")]
    Malformed(String),
    /// An object is larger than [`LARGEST_OBJECT`].
    #[error("one object with {size} bytes, more than the limit of {LARGEST_OBJECT}")]
    TooLarge {
        /// The announced size.
        size: u64,
    },
    /// Another kind of object than requested.
    #[error("has kind {got:?} instead of {wanted}")]
    OtherKind {
        /// The requested kind.
        wanted: String,
        /// The kind of the object.
        got: String,
    },
    /// The response is incomplete.
    #[error("is incomplete")]
    Truncated,
}

impl WireError {
    #[expect(clippy::needless_pass_by_value, reason = "map_err hands errors out by value")]
    fn malformed(reason: impl ToString) -> Self {
        WireError::Malformed(reason.to_string())
    }
}

/// `metadata` of a list.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    /// The version of the whole list, from which to watch.
    #[prost(string, tag = "2")]
    pub resource_version: String,
    /// Where the next page begins; empty on the last one.
    #[prost(string, tag = "3")]
    pub r#continue: String,
}

/// One object of a list.
#[derive(Debug, Clone, PartialEq)]
pub enum Item<M> {
    /// One object of a list.
    Object(M),
    /// An object that cannot be decoded; the others of the list are not affected.
    Bad(WireError),
}

/// One event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent<M> {
    /// The object is new or has changed.
    Applied(M),
    /// The object was deleted, or no longer matches the selectors.
    Deleted(M),
    /// All changes up to this version were sent.
    Bookmark {
        /// A watch can continue from here.
        resource_version: String,
        /// Whether the initial objects of a streaming list are complete.
        initial_events_end: bool,
    },
    /// The server ends the watch.
    Error(Status),
}

/// A part of a list.
enum Part {
    Kind(String),
    Meta(ListMeta),
    Item(Bytes),
}

/// Decodes a list while it arrives.
#[derive(Debug)]
pub struct ListDecoder<M> {
    splitter: Splitter,
    meta: ListMeta,
    kind_seen: bool,
    object: PhantomData<M>,
}

#[derive(Debug)]
enum Splitter {
    Protobuf(protobuf::ListSplitter),
    Json(json::ListSplitter),
}

impl<M: Manifest> ListDecoder<M> {
    /// For a response of this media type.
    pub fn new(media: Media) -> Self {
        let splitter = match media {
            Media::Protobuf => Splitter::Protobuf(protobuf::ListSplitter::default()),
            Media::Json => Splitter::Json(json::ListSplitter::default()),
        };
        ListDecoder { splitter, meta: ListMeta::default(), kind_seen: false, object: PhantomData }
    }

    /// Adds bytes from the network.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.splitter {
            Splitter::Protobuf(splitter) => splitter.push(bytes),
            Splitter::Json(splitter) => splitter.push(bytes),
        }
    }

    /// The next object, if it is complete.
    pub fn next_item(&mut self) -> Result<Option<Item<M>>, WireError> {
        loop {
            let part = match &mut self.splitter {
                Splitter::Protobuf(splitter) => splitter.next()?,
                Splitter::Json(splitter) => splitter.next()?,
            };
            match part {
                None => return Ok(None),
                Some(Part::Meta(meta)) => self.meta = meta,
                Some(Part::Kind(kind)) => {
                    check_kind(&format!("{}List", M::NAME), kind)?;
                    self.kind_seen = true;
                }
                Some(Part::Item(bytes)) => {
                    let item = self.item(bytes);
                    return Ok(Some(item.map_or_else(Item::Bad, Item::Object)));
                }
            }
        }
    }

    /// The metadata of the list. Fails if the list is incomplete.
    pub fn finish(self) -> Result<ListMeta, WireError> {
        let complete = match &self.splitter {
            Splitter::Protobuf(splitter) => splitter.is_complete(),
            Splitter::Json(splitter) => splitter.is_complete(),
        };
        match (complete, self.kind_seen) {
            (false, _) => Err(WireError::Truncated),
            (true, false) => {
                Err(WireError::OtherKind { wanted: format!("{}List", M::NAME), got: String::new() })
            }
            (true, true) => Ok(self.meta),
        }
    }

    fn item(&self, bytes: Bytes) -> Result<M, WireError> {
        match &self.splitter {
            Splitter::Protobuf(_) => M::decode(bytes).map_err(WireError::malformed),
            Splitter::Json(_) => serde_json::from_slice(&bytes).map_err(WireError::malformed),
        }
    }
}

/// Decodes a watch while it arrives.
#[derive(Debug)]
pub struct WatchDecoder<M> {
    media: Media,
    buffer: BytesMut,
    scanner: json::Scanner,
    object: PhantomData<M>,
}

impl<M: Manifest> WatchDecoder<M> {
    /// For a response of this media type.
    pub fn new(media: Media) -> Self {
        WatchDecoder {
            media,
            buffer: BytesMut::new(),
            scanner: json::Scanner::default(),
            object: PhantomData,
        }
    }

    /// Adds bytes from the network.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event, if it is complete.
    pub fn next_event(&mut self) -> Result<Option<WatchEvent<M>>, WireError> {
        match self.media {
            Media::Protobuf => protobuf::next_frame(&mut self.buffer)?.map(protobuf::watch_event).transpose(),
            Media::Json => {
                let document = self.scanner.next_document(&mut self.buffer)?;
                document.map(|document| json::watch_event(&document)).transpose()
            }
        }
    }

    /// Whether no incomplete event is left.
    pub fn is_between_events(&self) -> bool {
        self.buffer.iter().all(u8::is_ascii_whitespace)
    }
}

/// Decodes a single object.
pub fn decode_object<M: Manifest>(media: Media, bytes: &Bytes) -> Result<M, WireError> {
    match media {
        Media::Protobuf => protobuf::object(bytes.clone()),
        Media::Json => json::object(bytes),
    }
}

/// Decodes the status that an API server sends with an error, if it is one.
pub fn decode_status(media: Media, bytes: &Bytes) -> Option<Status> {
    match media {
        Media::Protobuf => protobuf::status(bytes.clone()).ok(),
        Media::Json => json::status(bytes).ok(),
    }
}

fn bookmark<M: Manifest>(object: &M) -> WatchEvent<M> {
    let metadata = object.metadata();
    WatchEvent::Bookmark {
        resource_version: metadata.resource_version.clone(),
        initial_events_end: metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true"),
    }
}

fn check_kind(wanted: &str, got: String) -> Result<(), WireError> {
    if got == wanted { Ok(()) } else { Err(WireError::OtherKind { wanted: wanted.to_owned(), got }) }
}

fn check_size(size: u64) -> Result<usize, WireError> {
    usize::try_from(size).ok().filter(|size| *size <= LARGEST_OBJECT).ok_or(WireError::TooLarge { size })
}
