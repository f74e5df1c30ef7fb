//! Every way in which bytes of the network are decoded; shared by property tests and fuzzing.

use bytes::Bytes;
use portwarden_model::manifest::{EndpointSlice, Node, Service, ServiceCidr};
use portwarden_source::wire::{
    Item, ListDecoder, ListMeta, Manifest, Media, WatchDecoder, WatchEvent, WireError, decode_object,
    decode_status,
};

/// Runs every decoder over the bytes, which arrive in pieces of this size.
pub(crate) fn decode_everything(bytes: &[u8], piece: usize) {
    decode_as::<Service>(bytes, piece);
    decode_as::<EndpointSlice>(bytes, piece);
    decode_as::<Node>(bytes, piece);
    decode_as::<ServiceCidr>(bytes, piece);
}

fn decode_as<M: Manifest>(bytes: &[u8], piece: usize) {
    for media in [Media::Protobuf, Media::Json] {
        let _ = list::<M>(media, bytes, piece);
        let _ = watch::<M>(media, bytes, piece);
        let _ = decode_object::<M>(media, &Bytes::copy_from_slice(bytes));
        let _ = decode_status(media, &Bytes::copy_from_slice(bytes));
    }
}

/// Decodes a list that arrives in pieces of this size.
pub(crate) fn list<M: Manifest>(
    media: Media,
    bytes: &[u8],
    piece: usize,
) -> Result<(Vec<Item<M>>, ListMeta), WireError> {
    let mut decoder = ListDecoder::new(media);
    let mut items = Vec::new();
    for bytes in bytes.chunks(piece.max(1)) {
        decoder.push(bytes);
        while let Some(item) = decoder.next_item()? {
            items.push(item);
        }
    }
    Ok((items, decoder.finish()?))
}

/// Decodes a watch that arrives in pieces of this size; says whether it ended between two events.
pub(crate) fn watch<M: Manifest>(
    media: Media,
    bytes: &[u8],
    piece: usize,
) -> Result<(Vec<WatchEvent<M>>, bool), WireError> {
    let mut decoder = WatchDecoder::new(media);
    let mut events = Vec::new();
    for bytes in bytes.chunks(piece.max(1)) {
        decoder.push(bytes);
        while let Some(event) = decoder.next_event()? {
            events.push(event);
        }
    }
    Ok((events, decoder.is_between_events()))
}
