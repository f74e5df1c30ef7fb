//! Answers of an API server, without the source between: what the testkit's server must have in common with a real one.

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use portwarden_model::manifest::{EndpointSlice, Service};
use portwarden_source::wire::{
    Item, ListDecoder, ListMeta, Manifest, Media, WatchDecoder, WatchEvent, decode_status,
};
use serde_json::{Value, json};

use super::server::{Server, admin};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// Asks both servers the same and expects the same.
pub async fn are_as_they_should_be(server: &Server) {
    for index in 0..5 {
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("page-{index}"), "labels": {"number": index.to_string()}},
            "endpoints": [{"addresses": [format!("10.244.9.{index}")]}], "ports": [{"name": "", "port": 80}]});
        server.send(Method::POST, SLICES, slice).await;
    }
    for media in [Media::Protobuf, Media::Json] {
        let asking = Asking { client: admin(&server.kubeconfig("admin", "token: admin")).await, media };
        pages(&asking).await;
        versions(&asking).await;
        selectors(&asking).await;
        watches(&asking).await;
        refusals(&asking).await;
    }
    writes(server).await;
    for index in 0..5 {
        server.send(Method::DELETE, &format!("{SLICES}/page-{index}"), Value::Null).await;
    }
}

struct Asking {
    client: kube::Client,
    media: Media,
}

impl Asking {
    async fn get(&self, path: &str) -> (StatusCode, bytes::Bytes) {
        let request = Request::get(path).header("accept", self.media.as_str()).body(Body::empty());
        let answer = self.client.send(request.expect("a request")).await.expect("an answer");
        let (status, body) = (answer.status(), answer.into_body().collect().await.expect("a body"));
        (status, body.to_bytes())
    }

    async fn list<M: Manifest>(&self, path: &str) -> (Vec<String>, ListMeta) {
        let (status, body) = self.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body:?}");
        let mut decoder = ListDecoder::<M>::new(self.media);
        decoder.push(&body);
        let mut names = Vec::new();
        while let Some(item) = decoder.next_item().expect("a list") {
            let Item::Object(object) = item else { panic!("{path}: a bad object") };
            names.push(object.metadata().name.clone());
        }
        (names, decoder.finish().expect("a whole list"))
    }

    /// The first events of a watch; fewer if the server ends it.
    async fn watch<M: Manifest>(&self, path: &str, wanted: usize) -> Vec<WatchEvent<M>> {
        let request = Request::get(path).header("accept", self.media.as_str()).body(Body::empty());
        let answer = self.client.send(request.expect("a request")).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let (mut body, mut decoder) = (answer.into_body(), WatchDecoder::<M>::new(self.media));
        let mut events = Vec::new();
        while events.len() < wanted {
            let Some(frame) = body.frame().await else { break };
            decoder.push(&frame.expect("a body").into_data().unwrap_or_default());
            events.extend(std::iter::from_fn(|| decoder.next_event().expect("a watch")));
        }
        events
    }

    async fn refusal(&self, path: &str) -> (u16, String) {
        let (status, body) = self.get(path).await;
        let refusal = decode_status(self.media, &body).unwrap_or_else(|| panic!("{path}: {status} {body:?}"));
        assert_eq!(i32::from(status.as_u16()), refusal.code, "{path}");
        (status.as_u16(), refusal.reason)
    }
}

const ALL: [&str; 5] = ["page-0", "page-1", "page-2", "page-3", "page-4"];

async fn pages(asking: &Asking) {
    let (first, meta) = asking.list::<EndpointSlice>(&format!("{SLICES}?limit=2")).await;
    assert_eq!(first, ALL[..2]);
    let next = format!("{SLICES}?limit=2&continue={}", meta.r#continue);
    let (second, next) = asking.list::<EndpointSlice>(&next).await;
    assert_eq!(second, ALL[2..4]);
    assert_eq!(next.resource_version, meta.resource_version);
    let last = format!("{SLICES}?limit=2&continue={}", next.r#continue);
    let (third, end) = asking.list::<EndpointSlice>(&last).await;
    assert_eq!((third.as_slice(), end.r#continue.as_str()), ([ALL[4].to_owned()].as_slice(), ""));
    // What comes from the cache comes whole.
    let (whole, meta) = asking.list::<EndpointSlice>(&format!("{SLICES}?limit=2&resourceVersion=0")).await;
    assert_eq!((whole.len(), meta.r#continue.as_str()), (5, ""));
}

async fn versions(asking: &Asking) {
    let (_, meta) = asking.list::<EndpointSlice>(SLICES).await;
    let version = meta.resource_version;
    for query in ["resourceVersion=0", &format!("resourceVersion={version}"), "resourceVersion=1"] {
        assert_eq!(asking.list::<EndpointSlice>(&format!("{SLICES}?{query}")).await.0, ALL, "{query}");
    }
    let exact = format!("{SLICES}?limit=2&resourceVersion={version}");
    let (names, meta) = asking.list::<EndpointSlice>(&exact).await;
    assert_eq!(
        (names.len(), &meta.resource_version),
        (2, &version),
        "with a limit, a version is meant exactly"
    );
    let future = format!("{SLICES}?resourceVersion=9999999999");
    assert_eq!(asking.refusal(&future).await, (504, "Timeout".to_owned()));
}

async fn selectors(asking: &Asking) {
    for (query, wanted) in [
        ("labelSelector=number", &ALL[..]),
        ("labelSelector=%21number", &[]),
        ("labelSelector=number%3D3", &ALL[3..4]),
        ("labelSelector=number%20notin%20%280%2C1%2C2%29", &ALL[3..]),
        ("fieldSelector=metadata.name%3Dpage-1", &ALL[1..2]),
    ] {
        assert_eq!(asking.list::<EndpointSlice>(&format!("{SLICES}?{query}")).await.0, wanted, "{query}");
    }
    let (names, _) = asking.list::<Service>("/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone").await;
    assert!(names.contains(&"kubernetes".to_owned()), "{names:?}");
}

async fn watches(asking: &Asking) {
    let applied = |events: &[WatchEvent<EndpointSlice>]| {
        events.iter().filter(|event| matches!(event, WatchEvent::Applied(_))).count()
    };
    let streaming = format!(
        "{SLICES}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=60"
    );
    let events = asking.watch::<EndpointSlice>(&streaming, 6).await;
    match events.as_slice() {
        // A server over an old etcd knows streaming lists, but does not support them.
        [WatchEvent::Error(status)] if status.code == 500 => {
            println!("no streaming lists: {}", status.message);
        }
        _ => {
            let end = events.get(5);
            assert!(matches!(end, Some(WatchEvent::Bookmark { initial_events_end: true, .. })), "{events:?}");
            assert_eq!(applied(&events), 5);
        }
    }
    let events = asking.watch::<EndpointSlice>(&format!("{SLICES}?watch=true&timeoutSeconds=60"), 5).await;
    assert_eq!(applied(&events), 5, "without a version, all objects come first");
    let (_, meta) = asking.list::<EndpointSlice>(SLICES).await;
    let after = format!("{SLICES}?watch=true&timeoutSeconds=1&resourceVersion={}", meta.resource_version);
    assert_eq!(applied(&asking.watch::<EndpointSlice>(&after, 1).await), 0);
    let unmatched = format!("{SLICES}?watch=true&sendInitialEvents=true&timeoutSeconds=1");
    assert_eq!(asking.refusal(&unmatched).await, (422, "Invalid".to_owned()));
}

async fn refusals(asking: &Asking) {
    for (path, code, reason) in [
        (format!("{SLICES}/none"), 404, "NotFound"),
        (format!("{SLICES}?fieldSelector=spec.x%3Dy"), 400, "BadRequest"),
        (format!("{SLICES}?continue=nonsense"), 400, "BadRequest"),
        (format!("{SLICES}?resourceVersion=x"), 400, "BadRequest"),
    ] {
        assert_eq!(asking.refusal(&path).await, (code, reason.to_owned()), "{path}");
    }
}

/// Two of the ways in which a write comes too late.
async fn writes(server: &Server) {
    let client = admin(&server.kubeconfig("admin", "token: admin")).await;
    let send = async |method: Method, path: &str, object: &Value| {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(Body::from(object.to_string().into_bytes())).expect("a request");
        client.send(request).await.expect("an answer").status().as_u16()
    };
    let mut slice = server.send(Method::GET, &format!("{SLICES}/page-0"), Value::Null).await;
    assert_eq!(
        send(
            Method::POST,
            SLICES,
            &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": "IPv4", "metadata": {"name": "page-0"}, "endpoints": []})
        )
        .await,
        409
    );
    slice["metadata"]["labels"]["new"] = json!("one");
    assert_eq!(send(Method::PUT, &format!("{SLICES}/page-0"), &slice).await, 200);
    slice["metadata"]["labels"]["new"] = json!("two");
    assert_eq!(send(Method::PUT, &format!("{SLICES}/page-0"), &slice).await, 409, "it has changed since");
}
