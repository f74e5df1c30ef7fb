//! The bytes of answers, piece by piece: a piece is an event of a watch, or an item of a list.

use bytes::Bytes;
use prost::Message;
use serde_json::json;

use super::object::{Stored, bookmark, put_field};
use super::resource::Resource;
use super::status::Refusal;

const MAGIC: &[u8] = b"k8s\0";
/// What follows the object in an envelope: its encoding and type, both empty.
const ENVELOPE_END: &[u8] = &[0x1a, 0, 0x22, 0];

/// A way to write objects as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Protobuf,
    Json,
}

impl Media {
    /// Chooses what an `Accept` header asks for first.
    pub(super) fn negotiate(accept: &str) -> Option<Media> {
        accept.split(',').find_map(|item| match item.split(';').next().unwrap_or_default().trim() {
            "application/vnd.kubernetes.protobuf" => Some(Media::Protobuf),
            "application/json" | "application/*" | "*/*" | "" => Some(Media::Json),
            _ => None,
        })
    }

    pub(super) fn content_type(self, watch: bool) -> &'static str {
        match (self, watch) {
            (Media::Protobuf, false) => "application/vnd.kubernetes.protobuf",
            (Media::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch",
            (Media::Json, _) => "application/json",
        }
    }
}

/// What a list says about itself.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListMeta {
    #[prost(string, required, tag = "1")]
    pub(super) self_link: String,
    #[prost(string, required, tag = "2")]
    pub(super) resource_version: String,
    #[prost(string, required, tag = "3")]
    pub(super) r#continue: String,
    #[prost(int64, optional, tag = "4")]
    pub(super) remaining_item_count: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, required, tag = "1")]
    api_version: String,
    #[prost(string, required, tag = "2")]
    kind: String,
}

/// A list: its beginning, every item, its end.
pub(super) fn list<'a>(
    media: Media,
    resource: Resource,
    meta: &ListMeta,
    items: impl Iterator<Item = &'a Stored>,
) -> Vec<Bytes> {
    match media {
        Media::Protobuf => {
            protobuf_list(&resource.api_version(), resource.kind_name(), meta, items.map(Stored::protobuf))
        }
        Media::Json => json_list(resource, meta, items.map(Stored::json)),
    }
}

fn protobuf_list<'a>(
    api_version: &str,
    kind: &str,
    meta: &ListMeta,
    items: impl Iterator<Item = &'a Bytes>,
) -> Vec<Bytes> {
    let mut beginning = Vec::new();
    put_field(&mut beginning, 1, &meta.encode_to_vec());
    let mut pieces = vec![Bytes::new()];
    pieces.extend(items.map(|item| {
        let mut piece = Vec::with_capacity(item.len() + 6);
        put_field(&mut piece, 2, item);
        Bytes::from(piece)
    }));
    let length = beginning.len() + pieces.iter().map(Bytes::len).sum::<usize>();
    let mut head = envelope_head(api_version, &format!("{kind}List"));
    head.push(0x12);
    prost::encoding::encode_varint(length as u64, &mut head);
    head.extend_from_slice(&beginning);
    pieces[0] = head.into();
    pieces.push(Bytes::from_static(ENVELOPE_END));
    pieces
}

fn json_list<'a>(resource: Resource, meta: &ListMeta, items: impl Iterator<Item = &'a Bytes>) -> Vec<Bytes> {
    let mut metadata = json!({"resourceVersion": meta.resource_version});
    if !meta.r#continue.is_empty() {
        metadata["continue"] = json!(meta.r#continue);
    }
    if let Some(remaining) = meta.remaining_item_count {
        metadata["remainingItemCount"] = json!(remaining);
    }
    let head = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
        resource.kind_name(),
        resource.api_version()
    );
    let mut pieces = vec![Bytes::from(head)];
    pieces.extend(items.enumerate().map(|(index, item)| {
        let comma: &[u8] = if index == 0 { b"" } else { b"," };
        Bytes::from([comma, item].concat())
    }));
    pieces.push(Bytes::from_static(b"]}\n"));
    pieces
}

/// One object.
pub(super) fn object(media: Media, stored: &Stored) -> Bytes {
    // Each medium costs time, and a client wants one of them.
    let content = match media {
        Media::Protobuf => stored.protobuf(),
        Media::Json => stored.json(),
    };
    typed(media, stored.resource(), content)
}

/// An event of a watch.
pub(super) fn event(media: Media, kind: &str, stored: &Stored) -> Bytes {
    frame(media, kind, &object(media, stored))
}

/// A watch event that carries nothing but a version.
pub(super) fn bookmark_event(media: Media, resource: Resource, version: u64, ends_initial: bool) -> Bytes {
    let (protobuf, json) = bookmark(resource, version, ends_initial);
    let content = match media {
        Media::Protobuf => protobuf,
        Media::Json => json,
    };
    frame(media, "BOOKMARK", &typed(media, resource, &content))
}

/// The event that ends a watch with an error.
pub(super) fn error_event(media: Media, refusal: &Refusal) -> Bytes {
    frame(media, "ERROR", &refusal.encode(media))
}

fn typed(media: Media, resource: Resource, content: &[u8]) -> Bytes {
    match media {
        Media::Protobuf => envelope(&resource.api_version(), resource.kind_name(), content),
        Media::Json => {
            let head =
                format!(r#"{{"kind":"{}","apiVersion":"{}","#, resource.kind_name(), resource.api_version());
            [head.as_bytes(), content.get(1..).unwrap_or_default()].concat().into()
        }
    }
}

/// An object in its envelope.
pub(super) fn envelope(api_version: &str, kind: &str, content: &[u8]) -> Bytes {
    let mut bytes = envelope_head(api_version, kind);
    put_field(&mut bytes, 2, content);
    bytes.extend_from_slice(ENVELOPE_END);
    bytes.into()
}

fn envelope_head(api_version: &str, kind: &str) -> Vec<u8> {
    let type_meta = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let mut bytes = MAGIC.to_vec();
    put_field(&mut bytes, 1, &type_meta.encode_to_vec());
    bytes
}

fn frame(media: Media, kind: &str, object: &[u8]) -> Bytes {
    match media {
        Media::Protobuf => {
            let mut extension = Vec::with_capacity(object.len() + 6);
            put_field(&mut extension, 1, object);
            let mut event = vec![0; 4];
            put_field(&mut event, 1, kind.as_bytes());
            put_field(&mut event, 2, &extension);
            let length = u32::try_from(event.len() - 4).unwrap_or(u32::MAX);
            event[..4].copy_from_slice(&length.to_be_bytes());
            event.into()
        }
        Media::Json => {
            let head = format!(r#"{{"type":"{kind}","object":"#);
            [head.as_bytes(), object, b"}\n"].concat().into()
        }
    }
}

#[cfg(test)]
mod tests;
