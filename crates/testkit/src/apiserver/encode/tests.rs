//! Taken apart and put together again, the bytes of a real server must be the same.

use super::*;
use crate::apiserver::status::Cause;

fn recorded(name: &str) -> Bytes {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../source/tests/fixtures/wire/");
    std::fs::read(format!("{path}{name}")).unwrap_or_else(|error| panic!("{name}: {error}")).into()
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(string, tag = "1")]
    r#type: String,
    #[prost(message, optional, tag = "2")]
    object: Option<Extension>,
}

#[derive(Clone, PartialEq, Message)]
struct Extension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

fn open(bytes: &Bytes) -> (TypeMeta, Bytes) {
    assert!(bytes.starts_with(MAGIC));
    let envelope = Envelope::decode(bytes.slice(4..)).unwrap();
    (envelope.type_meta.unwrap(), envelope.raw)
}

#[test]
fn lists_are_those_of_a_real_server() {
    for name in
        ["services.list", "endpointslices.list", "endpointslices.page1", "nodes.list", "servicecidrs.list"]
    {
        let bytes = recorded(&format!("{name}.pb"));
        let (type_meta, raw) = open(&bytes);
        let list = List::decode(raw).unwrap();
        let kind = type_meta.kind.strip_suffix("List").unwrap();
        let pieces = protobuf_list(&type_meta.api_version, kind, &list.metadata.unwrap(), list.items.iter());
        assert_eq!(pieces.len(), list.items.len() + 2);
        assert_eq!(pieces.concat(), bytes, "{name}");
    }
}

#[test]
fn watches_are_those_of_a_real_server() {
    for name in ["endpointslices.watch.pb", "endpointslices.watchlist.pb", "services.watch-expired.pb"] {
        let bytes = recorded(name);
        let (mut rest, mut again, mut events) = (bytes.clone(), Vec::new(), 0);
        while !rest.is_empty() {
            let length = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
            let event = Event::decode(rest.slice(4..4 + length)).unwrap();
            rest = rest.slice(4 + length..);
            let (type_meta, raw) = open(&event.object.unwrap().raw);
            let object = envelope(&type_meta.api_version, &type_meta.kind, &raw);
            again.extend_from_slice(&frame(Media::Protobuf, &event.r#type, &object));
            events += 1;
        }
        assert_eq!(again, bytes, "{name}");
        assert!(events > 0);
    }
}

#[test]
fn an_expired_watch_is_that_of_a_real_server() {
    let refusal = Refusal::too_old(1, 15220);
    assert_eq!(error_event(Media::Protobuf, &refusal), recorded("services.watch-expired.pb"));
    assert_eq!(error_event(Media::Json, &refusal), recorded("services.watch-expired.json"));
    let late = Refusal::too_large(9, 5);
    assert_eq!(late.causes, [Cause::new("ResourceVersionTooLarge", "Too large resource version")]);
}

#[test]
fn json_lists_and_bookmarks_are_shaped_as_those_of_a_real_server() {
    let meta = ListMeta { resource_version: "16431".into(), ..ListMeta::default() };
    let items = [Bytes::from_static(b"{\"a\":1}"), Bytes::from_static(b"{\"a\":2}")];
    let pieces = json_list(Resource::EndpointSlices, &meta, items.iter());
    let ours: serde_json::Value = serde_json::from_slice(&pieces.concat()).unwrap();
    let mut theirs: serde_json::Value =
        serde_json::from_slice(&recorded("endpointslices.list.json")).unwrap();
    theirs["items"] = json!([{"a": 1}, {"a": 2}]);
    assert_eq!(ours, theirs);

    let recorded = recorded("endpointslices.watch.json");
    let last = recorded.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap();
    let theirs: serde_json::Value = serde_json::from_slice(last).unwrap();
    let ours = bookmark_event(Media::Json, Resource::EndpointSlices, 16436, false);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&ours).unwrap(), theirs);
}

#[test]
fn the_first_media_type_that_we_have_is_used() {
    assert_eq!(Media::negotiate("application/vnd.kubernetes.protobuf, */*"), Some(Media::Protobuf));
    assert_eq!(Media::negotiate("application/cbor,application/json;q=0.9"), Some(Media::Json));
    assert_eq!(Media::negotiate(""), Some(Media::Json));
    assert_eq!(Media::negotiate("text/html"), None);
}
