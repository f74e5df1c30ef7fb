//! The bytes of a real API server: both media types give equal objects, and no damage to them does harm.

#[path = "support/decoders.rs"]
mod decoders;

use std::path::PathBuf;

use portwarden_model::manifest::{EndpointSlice, Node, Service, ServiceCidr};
use portwarden_source::wire::{Item, ListMeta, Manifest, Media, WatchDecoder, WatchEvent, WireError};
use proptest::prelude::*;

use decoders::{decode_everything, list, watch};

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/wire").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn names<'a, M: Manifest>(items: &'a [Item<M>]) -> Vec<&'a str> {
    let name = |item: &'a Item<M>| match item {
        Item::Object(object) => object.metadata().name.as_str(),
        Item::Bad(error) => panic!("an object cannot be decoded: {error}"),
    };
    items.iter().map(name).collect()
}

fn both_media_give_equal_lists<M: Manifest>(name: &str) -> (Vec<Item<M>>, ListMeta) {
    let (protobuf, json) = (fixture(&format!("{name}.list.pb")), fixture(&format!("{name}.list.json")));
    let whole = list::<M>(Media::Protobuf, &protobuf, usize::MAX).expect("protobuf decodes");
    assert!(!whole.0.is_empty());
    for piece in [1, 7, 1000, usize::MAX] {
        assert_eq!(list(Media::Json, &json, piece).expect("JSON decodes"), whole, "pieces of {piece}");
        assert_eq!(
            list(Media::Protobuf, &protobuf, piece).expect("protobuf decodes"),
            whole,
            "pieces of {piece}"
        );
    }
    whole
}

#[test]
fn lists_are_equal_in_both_media() {
    let (services, meta) = both_media_give_equal_lists::<Service>("services");
    assert_eq!(meta, ListMeta { resource_version: "16431".into(), r#continue: String::new() });
    assert!(names(&services).contains(&"dual"));
    let (slices, _) = both_media_give_equal_lists::<EndpointSlice>("endpointslices");
    assert!(names(&slices).contains(&"web-2"));
    let (nodes, _) = both_media_give_equal_lists::<Node>("nodes");
    assert_eq!(names(&nodes).len(), 1);
    let (cidrs, _) = both_media_give_equal_lists::<ServiceCidr>("servicecidrs");
    assert!(names(&cidrs).contains(&"kubernetes"));
}

#[test]
fn a_page_says_where_the_next_one_begins() {
    let (items, meta) =
        list::<EndpointSlice>(Media::Protobuf, &fixture("endpointslices.page1.pb"), 100).expect("it decodes");
    assert_eq!(items.len(), 2);
    assert!(!meta.r#continue.is_empty());
}

#[test]
fn watches_are_equal_in_both_media() {
    let (protobuf, json) = (fixture("endpointslices.watch.pb"), fixture("endpointslices.watch.json"));
    let whole = watch::<EndpointSlice>(Media::Protobuf, &protobuf, usize::MAX).expect("protobuf decodes");
    for piece in [1, 5, 100, usize::MAX] {
        assert_eq!(watch(Media::Json, &json, piece).expect("JSON decodes"), whole, "pieces of {piece}");
        assert_eq!(
            watch(Media::Protobuf, &protobuf, piece).expect("protobuf decodes"),
            whole,
            "pieces of {piece}"
        );
    }
    let (events, between_events) = whole;
    assert!(between_events);
    assert!(
        matches!(events.as_slice(), [WatchEvent::Applied(changed), WatchEvent::Applied(_), WatchEvent::Deleted(_), WatchEvent::Bookmark { .. }, ..]
            if changed.metadata.name == "web-2" && changed.metadata.resource_version == "16434"),
        "{events:?}"
    );
}

#[test]
fn a_streaming_list_ends_with_a_bookmark_and_goes_on_as_a_watch() {
    let (events, _) = watch::<EndpointSlice>(Media::Protobuf, &fixture("endpointslices.watchlist.pb"), 64)
        .expect("it decodes");
    let end = events
        .iter()
        .position(|event| matches!(event, WatchEvent::Bookmark { initial_events_end: true, resource_version } if !resource_version.is_empty()))
        .expect("the initial objects end");
    let (listed, _) =
        list::<EndpointSlice>(Media::Protobuf, &fixture("endpointslices.list.pb"), 64).expect("it decodes");
    assert_eq!(end, listed.len(), "as many objects as the list has");
    let later = &events[end + 1..];
    assert!(
        matches!(later, [WatchEvent::Applied(_), WatchEvent::Applied(_), WatchEvent::Deleted(_), ..]),
        "a change, an addition, a deletion: {later:?}"
    );
}

#[test]
fn an_expired_watch_is_reported_in_both_media_types() {
    for (media, name) in
        [(Media::Protobuf, "services.watch-expired.pb"), (Media::Json, "services.watch-expired.json")]
    {
        let (events, _) = watch::<Service>(media, &fixture(name), 10).expect("it decodes");
        let [WatchEvent::Error(status)] = events.as_slice() else { panic!("one error: {events:?}") };
        assert!(status.is_expired());
        assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
        assert_eq!(status.message, "too old resource version: 1 (15220)");
    }
}

#[test]
fn a_list_that_ends_early_is_noticed() {
    for (media, name) in [(Media::Protobuf, "services.list.pb"), (Media::Json, "services.list.json")] {
        let bytes = fixture(name);
        for length in 0..bytes.len() {
            let result = list::<Service>(media, &bytes[..length], usize::MAX);
            // What follows the list in the envelope is two empty fields; whether they are there says nothing.
            let only_the_tail_is_missing = bytes[length..].iter().all(u8::is_ascii_whitespace)
                || bytes[length..] == [0x1a, 0, 0x22, 0]
                || bytes[length..] == [0x22, 0];
            assert_eq!(result.is_ok(), only_the_tail_is_missing, "{name} cut at {length}: {result:?}");
        }
    }
}

#[test]
fn another_kind_of_object_is_refused() {
    let error = list::<Service>(Media::Protobuf, &fixture("nodes.list.pb"), 100).expect_err("not Services");
    assert_eq!(error.to_string(), "has kind \"NodeList\" instead of ServiceList");
    assert!(list::<Service>(Media::Json, &fixture("nodes.list.json"), 100).is_err());
    assert!(list::<Service>(Media::Json, br#"{"error":"log in first"}"#, 100).is_err());
    assert!(watch::<Service>(Media::Protobuf, &fixture("endpointslices.watch.pb"), 100).is_err());
    assert!(watch::<Service>(Media::Json, &fixture("endpointslices.watch.json"), 100).is_err());
}

#[test]
fn one_bad_object_leaves_the_others() {
    let text = br#"{"kind":"ServiceList","items":[{"metadata":{"name":"a"}},{"metadata":7},{"metadata":{"name":"c"}}],"metadata":{"resourceVersion":"5"}}"#;
    let (items, meta) = list::<Service>(Media::Json, text, 3).expect("it decodes");
    assert!(
        matches!(items.as_slice(), [Item::Object(_), Item::Bad(_), Item::Object(c)] if c.metadata.name == "c")
    );
    assert_eq!(meta.resource_version, "5");
}

#[test]
fn a_frame_of_absurd_length_is_refused_at_once() {
    let mut decoder = WatchDecoder::<Service>::new(Media::Protobuf);
    decoder.push(&[0xff, 0xff, 0xff, 0xff]);
    assert_eq!(decoder.next_event(), Err(WireError::TooLarge { size: 0xffff_ffff }));
}

#[test]
fn media_types_are_recognised_with_parameters() {
    assert_eq!(Media::parse("application/vnd.kubernetes.protobuf;stream=watch"), Some(Media::Protobuf));
    assert_eq!(Media::parse("Application/JSON; charset=utf-8"), Some(Media::Json));
    assert_eq!(Media::parse("text/html"), None);
}

const FIXTURES: [&str; 14] = [
    "endpointslices.list.json",
    "endpointslices.list.pb",
    "endpointslices.page1.pb",
    "endpointslices.watch.json",
    "endpointslices.watch.pb",
    "endpointslices.watchlist.pb",
    "nodes.list.json",
    "nodes.list.pb",
    "servicecidrs.list.json",
    "servicecidrs.list.pb",
    "services.list.json",
    "services.list.pb",
    "services.watch-expired.json",
    "services.watch-expired.pb",
];

proptest! {
    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300), magic in any::<bool>(), piece in 1usize..300) {
        let bytes = if magic { [b"k8s\0".as_slice(), &bytes].concat() } else { bytes };
        decode_everything(&bytes, piece);
    }

    #[test]
    fn damaged_bytes_do_no_harm(
        name in prop::sample::select(&FIXTURES[..]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        piece in 1usize..5000,
    ) {
        let mut bytes = fixture(name);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        decode_everything(&bytes, piece);
    }

    #[test]
    fn pieces_do_not_matter_even_for_damaged_bytes(
        name in prop::sample::select(&FIXTURES[..]),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        piece in 1usize..2000,
    ) {
        let mut bytes = fixture(name);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let media = if name.ends_with(".pb") { Media::Protobuf } else { Media::Json };
        prop_assert_eq!(
            list::<Service>(media, &bytes, piece).ok(),
            list::<Service>(media, &bytes, usize::MAX).ok()
        );
        prop_assert_eq!(
            watch::<EndpointSlice>(media, &bytes, piece).ok(),
            watch::<EndpointSlice>(media, &bytes, usize::MAX).ok()
        );
    }
}
