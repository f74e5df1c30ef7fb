//! The Kubernetes source against a server that misbehaves on purpose.

mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use portwarden_model::Kind;
use portwarden_source::Health;
use portwarden_source::kubernetes::{Client, ClientOptions, Kubernetes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use support::certificates::Authority;
use support::follower::Follower;
use support::scripted::{JSON, PROTOBUF, PROTOBUF_WATCH, Reply, Scripted, Seen, Step};
use support::virtual_time;

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const NODES: &str = "/api/v1/nodes";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

fn fixture(name: &str) -> Bytes {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/wire").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

fn master(url: &str) -> ClientOptions {
    ClientOptions { master: Some(url.to_owned()), qps: -1.0, ..ClientOptions::default() }
}

async fn follow(server: &Scripted) -> Follower {
    let client = Client::new(master(&server.url), None).await.expect("the address is good");
    Follower::start(client, "node-a")
}

fn failing(follower: &Follower, part: &str) -> Option<String> {
    match follower.health.get(part) {
        Some(Health::Failing(text)) => Some(text.clone()),
        _ => None,
    }
}

/// A watch event as a frame of JSON.
fn event(kind: &str, object: &serde_json::Value) -> Bytes {
    format!("{}\n", serde_json::json!({"type": kind, "object": object})).into()
}

fn service(name: &str, version: u32) -> serde_json::Value {
    serde_json::json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "demo", "resourceVersion": version.to_string()},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}})
}

fn bookmark(version: u32, end: bool) -> serde_json::Value {
    let annotations =
        if end { serde_json::json!({"k8s.io/initial-events-end": "true"}) } else { serde_json::Value::Null };
    serde_json::json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"resourceVersion": version.to_string(), "annotations": annotations}})
}

fn services(names: &[&str], version: u32, next: &str) -> Bytes {
    let items: Vec<_> = names.iter().map(|name| service(name, version)).collect();
    serde_json::json!({"kind": "ServiceList", "apiVersion": "v1", "items": items,
        "metadata": {"resourceVersion": version.to_string(), "continue": next}})
    .to_string()
    .into()
}

fn empty_list(kind: &str) -> Reply {
    let list = serde_json::json!({"kind": kind, "metadata": {"resourceVersion": "1"}, "items": []});
    Reply::ok(JSON, list.to_string())
}

fn quiet_watch() -> Reply {
    Reply::steps(JSON, vec![Step::Hang])
}

fn no_streaming() -> Reply {
    Reply::status(
        422,
        "Invalid",
        "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
    )
}

/// Answers for everything but Services: empty lists and watches in which nothing happens.
fn others(seen: &Seen) -> Reply {
    match seen.path.as_str() {
        _ if seen.is_streaming_list() => no_streaming(),
        _ if seen.is_watch() => quiet_watch(),
        SLICES => empty_list("EndpointSliceList"),
        NODES => empty_list("NodeList"),
        CIDRS => empty_list("ServiceCIDRList"),
        other => panic!("unexpected request for {other}"),
    }
}

/// A server whose answers for Services come from a script, with the number of the request for Services.
async fn server(mut script: impl FnMut(usize, &Seen) -> Reply + Send + 'static) -> Scripted {
    let mut number = 0;
    Scripted::start(move |seen| {
        if seen.path != SERVICES {
            return others(seen);
        }
        number += 1;
        script(number - 1, seen)
    })
    .await
}

fn for_services(server: &Scripted) -> Vec<Seen> {
    server.seen().into_iter().filter(|seen| seen.path == SERVICES).collect()
}

#[tokio::test]
async fn streaming_lists_are_not_asked_for_where_they_are_not_wanted() {
    let server = server(|_, seen| match seen.is_watch() {
        true => quiet_watch(),
        false => Reply::ok(JSON, services(&["web"], 5, "")),
    })
    .await;
    let client = Client::new(master(&server.url), None).await.expect("the address is good");
    let mut follower = Follower::of(Kubernetes::new(client, "node-a").streaming_lists(false), "node-a");
    follower.until_listed().await;
    assert_eq!(follower.names(Kind::Service), ["demo/web"]);
    server.until_seen("a watch after the list", |seen| seen.path == SERVICES && seen.is_watch()).await;
    assert!(!server.seen().iter().any(Seen::is_streaming_list), "{:?}", server.seen());
}

#[tokio::test]
async fn a_streaming_list_turns_into_a_watch() {
    let server = Scripted::start(|seen| match (seen.path.as_str(), seen.is_streaming_list()) {
        (SLICES, true) => {
            Reply::steps(PROTOBUF_WATCH, vec![Step::Send(fixture("endpointslices.watchlist.pb")), Step::Hang])
        }
        (SERVICES, true) => no_streaming(),
        (SERVICES, false) if !seen.is_watch() => Reply::ok(PROTOBUF, fixture("services.list.pb")),
        (SERVICES, false) => quiet_watch(),
        _ => others(seen),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until_listed().await;
    follower.until("a slice that came after the list is gone again", |f| f.gone == ["demo/tmp-1"]).await;
    assert!(follower.names(Kind::EndpointSlice).contains(&"demo/web-2"));
    assert!(follower.names(Kind::Service).contains(&"demo/dual"));
    let watched = |seen: &Seen| seen.path == SERVICES && seen.parameter("resourceVersion") == Some("16431");
    let seen = server.until_seen("Services are watched", watched).await;
    let slices = seen.iter().find(|seen| seen.path == SLICES).expect("slices are asked for");
    assert_eq!(slices.parameter("resourceVersionMatch"), Some("NotOlderThan"));
    assert_eq!(slices.parameter("allowWatchBookmarks"), Some("true"));
    assert_eq!(slices.parameter("labelSelector"), Some("%21service.kubernetes.io%2Fheadless"));
    assert_eq!(slices.headers["accept"], "application/vnd.kubernetes.protobuf, */*");
    let seconds: u64 = slices.parameter("timeoutSeconds").expect("a limit").parse().expect("a number");
    assert!((300..=600).contains(&seconds));
}

#[tokio::test]
async fn pages_are_put_together() {
    let server = server(|_, seen| match seen.parameter("continue") {
        _ if seen.is_streaming_list() => no_streaming(),
        _ if seen.is_watch() => quiet_watch(),
        None => Reply::ok(JSON, services(&["a", "b"], 7, "page/2")),
        Some("page%2F2") => Reply::ok(JSON, services(&["c"], 7, "")),
        Some(other) => panic!("there is no page {other}"),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until_listed().await;
    assert_eq!(follower.names(Kind::Service), ["demo/a", "demo/b", "demo/c"]);
    let seen = for_services(&server);
    assert_eq!(seen[1].parameter("limit"), Some("500"));
    assert_eq!(seen[1].parameter("resourceVersion"), Some("0"), "whatever the server has at hand");
    assert_eq!(seen[2].parameter("resourceVersion"), None);
}

/// Each page names a next one, for ever.
#[tokio::test]
async fn a_list_without_end_is_given_up_and_reported() {
    let server = server(|number, seen| match seen.is_streaming_list() {
        true => no_streaming(),
        false => Reply::ok(JSON, services(&[&format!("web-{number}")], 7, &format!("page{number}"))),
    })
    .await;
    let client = Client::new(master(&server.url), None).await.expect("the address is good");
    let mut follower = Follower::of(Kubernetes::new(client, "node-a").most_pages(20), "node-a");
    follower.until("it is reported", |f| failing(f, "Services").is_some()).await;
    let text = failing(&follower, "Services").expect("it is reported");
    assert!(text.contains("the list has no end: 20 pages"), "{text}");
    let lists = for_services(&server).iter().filter(|seen| !seen.is_streaming_list()).count();
    assert_eq!(lists, 20, "the next attempt has to wait");
}

#[tokio::test]
async fn a_page_that_has_expired_leads_to_one_list_without_pages() {
    let server = server(|_, seen| match (seen.parameter("continue"), seen.parameter("limit")) {
        _ if seen.is_streaming_list() => no_streaming(),
        _ if seen.is_watch() => quiet_watch(),
        (Some(_), _) => Reply::status(410, "Expired", "the continue parameter is too old"),
        (None, Some(_)) => Reply::ok(JSON, services(&["gone-by-then", "a"], 7, "page2")),
        (None, None) => Reply::ok(JSON, services(&["a", "b", "c"], 9, "")),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until_listed().await;
    assert_eq!(follower.names(Kind::Service), ["demo/a", "demo/b", "demo/c"]);
    assert_eq!(failing(&follower, "Services"), None);
}

/// Lists, then watches that end in the given way, then lists again without one Service and with a new one.
async fn listed_again_after(bad_watch: impl Fn() -> Reply + Send + 'static) -> (Follower, Scripted) {
    let server = server(move |number, seen| match number {
        0 => no_streaming(),
        1 => Reply::ok(JSON, services(&["stays", "goes"], 5, "")),
        2 => bad_watch(),
        _ if seen.is_watch() => quiet_watch(),
        _ => Reply::ok(JSON, services(&["stays", "comes"], 50, "")),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until("Services are listed again", |f| f.lists.get(&Kind::Service) == Some(&2)).await;
    assert_eq!(follower.names(Kind::Service), ["demo/comes", "demo/stays"]);
    assert_eq!(follower.gone, ["demo/goes"], "what is on both sides never disappears");
    (follower, server)
}

#[tokio::test]
async fn an_expired_version_is_reported_by_the_answer() {
    let (follower, server) =
        listed_again_after(|| Reply::status(410, "Expired", "too old resource version")).await;
    assert_eq!(
        for_services(&server)[3].parameter("resourceVersion"),
        None,
        "the newest state, not the expired one"
    );
    assert_eq!(failing(&follower, "Services"), None, "nothing is wrong");
}

#[tokio::test]
async fn an_expired_version_is_reported_by_an_event() {
    for media in ["json", "pb"] {
        let content_type = if media == "pb" { PROTOBUF_WATCH } else { JSON };
        let body = fixture(&format!("services.watch-expired.{media}"));
        listed_again_after(move || Reply::steps(content_type, vec![Step::Send(body.clone()), Step::Hang]))
            .await;
    }
}

#[tokio::test]
async fn a_version_that_the_server_does_not_understand_leads_to_a_new_list() {
    listed_again_after(|| Reply::status(400, "BadRequest", "invalid resource version")).await;
}

#[test]
fn a_version_from_which_the_server_never_goes_on_leads_to_a_new_list() {
    virtual_time::run(async {
        let server = server(|number, seen| match number {
            _ if seen.is_streaming_list() => no_streaming(),
            1 => Reply::ok(JSON, services(&["a"], 5, "")),
            _ if seen.parameter("resourceVersion") == Some("5") && seen.is_watch() => {
                Reply::status(500, "InternalError", "not from there")
            }
            _ if seen.is_watch() => quiet_watch(),
            _ => Reply::ok(JSON, services(&["a", "b"], 9, "")),
        })
        .await;
        let mut follower = follow(&server).await;
        follower.until("everything is listed again", |f| f.lists.get(&Kind::Service) == Some(&2)).await;
        assert_eq!(follower.names(Kind::Service), ["demo/a", "demo/b"]);
    });
}

#[tokio::test]
async fn nonsense_in_a_watch_leads_to_a_new_list() {
    for nonsense in [&b"\0\0\0\x04abcd"[..], b"\xff\xff\xff\xff", b"<html>"] {
        let steps = move || vec![Step::Send(Bytes::from_static(nonsense)), Step::Hang];
        listed_again_after(move || Reply::steps(PROTOBUF_WATCH, steps())).await;
    }
}

#[tokio::test]
async fn what_came_before_nonsense_counts() {
    let server = server(|number, seen| match number {
        0 => no_streaming(),
        1 => Reply::ok(JSON, services(&["a"], 5, "")),
        2 => {
            let good = event("ADDED", &service("early", 6));
            Reply::steps(JSON, vec![Step::Send([&good, &b"nonsense"[..]].concat().into()), Step::Hang])
        }
        _ if seen.is_watch() => quiet_watch(),
        _ => Reply::ok(JSON, services(&["a"], 50, "")),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until("the early Service came and went", |f| f.gone == ["demo/early"]).await;
}

#[tokio::test]
async fn a_watch_that_breaks_goes_on_from_the_last_version() {
    for end in [|| Step::Break, || Step::Send(Bytes::from_static(b"{\"type\":\"ADD"))] {
        let server = server(move |number, seen| match number {
            0 => no_streaming(),
            1 => Reply::ok(JSON, services(&["a"], 5, "")),
            2 => Reply::steps(
                JSON,
                vec![
                    Step::Send(event("ADDED", &service("b", 6))),
                    Step::Send(event("BOOKMARK", &bookmark(8, false))),
                    // So that these are on their way before the connection goes.
                    Step::Pause(Duration::from_millis(300)),
                    end(),
                ],
            ),
            3 => {
                assert_eq!(seen.parameter("resourceVersion"), Some("8"));
                Reply::steps(JSON, vec![Step::Send(event("DELETED", &service("a", 9))), Step::Hang])
            }
            _ => panic!("more requests than needed: {}", seen.query),
        })
        .await;
        let mut follower = follow(&server).await;
        follower.until("the change after the break comes", |f| f.gone == ["demo/a"]).await;
        assert_eq!(follower.names(Kind::Service), ["demo/b"]);
        assert_eq!(follower.lists[&Kind::Service], 1);
        let reported: Vec<_> = follower.history.iter().filter(|(part, _)| part == "Services").collect();
        assert_eq!(reported.len(), 1, "one break is not reported: {reported:?}");
    }
}

#[tokio::test]
async fn a_server_that_ignores_the_wish_for_a_streaming_list_is_noticed() {
    let server = server(|number, seen| match number {
        0 => Reply::steps(
            JSON,
            vec![
                Step::Send(event("ADDED", &service("a", 5))),
                Step::Send(event("BOOKMARK", &bookmark(6, false))),
                Step::Hang,
            ],
        ),
        _ if seen.is_watch() => quiet_watch(),
        _ => Reply::ok(JSON, services(&["a", "b"], 7, "")),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until_listed().await;
    assert_eq!(follower.names(Kind::Service), ["demo/a", "demo/b"]);
    assert!(follower.gone.is_empty());
}

#[tokio::test]
async fn a_streaming_list_that_breaks_is_not_taken_for_complete() {
    let server = server(|number, seen| match number {
        0 => Reply::steps(JSON, vec![Step::Send(event("ADDED", &service("a", 5))), Step::Break]),
        _ if seen.is_watch() => quiet_watch(),
        _ => Reply::ok(JSON, services(&["b"], 7, "")),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until_listed().await;
    assert_eq!(follower.names(Kind::Service), ["demo/b"]);
}

#[tokio::test]
async fn missing_service_cidrs_hold_nothing_up() {
    let server = Scripted::start(|seen| match seen.path.as_str() {
        CIDRS => Reply::status(404, "NotFound", "the server could not find the requested resource"),
        SERVICES if seen.is_streaming_list() => no_streaming(),
        SERVICES if seen.is_watch() => quiet_watch(),
        SERVICES => Reply::ok(JSON, services(&["a"], 5, "")),
        _ => others(seen),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until_listed().await;
    let text = failing(&follower, "ServiceCIDRs").expect("it is reported");
    assert_eq!(
        text,
        "the API server has no /apis/networking.k8s.io/v1/servicecidrs (404 Not Found); until then connections to cluster \
         IPs of no Service are not refused"
    );
}

#[tokio::test]
async fn a_bad_object_is_left_out_and_reported_once() {
    let list = |version: u32| {
        let items = [service("a", version), serde_json::json!({"metadata": 7})];
        let list = serde_json::json!({"kind": "ServiceList", "items": items, "metadata": {"resourceVersion": version.to_string()}});
        Reply::ok(JSON, list.to_string())
    };
    let server = server(move |number, seen| match number {
        0 => no_streaming(),
        1 => list(5),
        2 => Reply::status(410, "Expired", "too old"),
        _ if seen.is_watch() => quiet_watch(),
        _ => list(9),
    })
    .await;
    let mut follower = follow(&server).await;
    follower.until("Services are listed again", |f| f.lists.get(&Kind::Service) == Some(&2)).await;
    assert_eq!(follower.names(Kind::Service), ["demo/a"]);
    assert_eq!(follower.problems.len(), 1, "{:?}", follower.problems);
}

#[tokio::test]
async fn something_else_at_the_address_is_recognised() {
    let server = Scripted::start(|_| Reply::ok("text/html", "<html>Welcome!</html>")).await;
    let mut follower = follow(&server).await;
    follower.until("it is reported", |f| failing(f, "Services").is_some()).await;
    let text = failing(&follower, "Services").expect("it is reported");
    assert!(text.contains("text/html") && text.contains("something else at its address"), "{text}");
    assert!(!follower.lists.contains_key(&Kind::Service));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_reported_with_its_address() {
    let server = Scripted::start(|_| unreachable!("no request gets here")).await;
    let url = server.url.clone();
    drop(server);
    let client = Client::new(master(&url), None).await.expect("the address is good");
    let mut follower = Follower::start(client, "node-a");
    follower.until("it is reported", |f| failing(f, "Services").is_some()).await;
    let text = failing(&follower, "Services").expect("it is reported");
    assert_eq!(
        text,
        format!(
            "cannot reach the API server at {url}: connection refused; is it running, and is the address right?"
        )
    );
}

/// A folder with a kubeconfig for a server.
struct Kubeconfig {
    folder: tempfile::TempDir,
}

impl Kubeconfig {
    fn new(url: &str, authority: &Authority, cluster: &str, user: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let text = format!(
            "current-context: c\nclusters: [{{name: c, cluster: {{server: '{url}', certificate-authority: ca.crt{cluster}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        std::fs::write(folder.path().join("kubeconfig"), text).expect("a file");
        std::fs::write(folder.path().join("ca.crt"), &authority.certificate).expect("a file");
        Kubeconfig { folder }
    }

    fn options(&self) -> ClientOptions {
        ClientOptions {
            kubeconfig: Some(self.folder.path().join("kubeconfig")),
            qps: -1.0,
            ..ClientOptions::default()
        }
    }

    async fn follow(&self) -> Follower {
        Follower::start(Client::new(self.options(), None).await.expect("the kubeconfig is good"), "node-a")
    }
}

fn all_is_well(seen: &Seen) -> Reply {
    match seen.path.as_str() {
        SERVICES if seen.is_streaming_list() => no_streaming(),
        SERVICES if seen.is_watch() => quiet_watch(),
        SERVICES => Reply::ok(JSON, services(&["a"], 5, "")),
        _ => others(seen),
    }
}

#[tokio::test]
async fn all_watches_share_one_http2_connection() {
    let authority = Authority::new("right");
    let server = Scripted::start_tls(&authority.server(), all_is_well).await;
    let kubeconfig = Kubeconfig::new(&server.url, &authority, "", "token: secret");
    let client = Client::new(kubeconfig.options(), None).await.expect("the kubeconfig is good");
    let mut follower = Follower::start(client, "node-a");
    follower.until_listed().await;
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.version == http::Version::HTTP_2), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.connection == 1), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.headers["authorization"] == "Bearer secret"));
}

#[tokio::test]
async fn certificates_that_are_not_trusted_are_explained() {
    let (right, wrong) = (Authority::new("right"), Authority::new("wrong"));
    let expired = right.sign(|params| {
        params.subject_alt_names = vec![rcgen::SanType::IpAddress([127, 0, 0, 1].into())];
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let cases = [
        (wrong.server(), "its certificate is not signed by the certificate authority in"),
        (
            right.server_named("elsewhere"),
            "use an address that its certificate names, or set tls-server-name",
        ),
        (expired, "its certificate has expired, or this host's clock is wrong"),
    ];
    for (identity, expected) in cases {
        let server = Scripted::start_tls(&identity, |_| unreachable!("no request gets here")).await;
        let kubeconfig = Kubeconfig::new(&server.url, &right, "", "token: secret");
        let mut follower = kubeconfig.follow().await;
        follower.until("it is reported", |f| failing(f, "Services").is_some()).await;
        let text = failing(&follower, "Services").expect("it is reported");
        assert!(text.contains(expected), "{text:?} should say {expected:?}");
    }
}

/// Answers to a TLS handshake of servers that know TLS 1.0 only: an alert, or a ServerHello of that version.
#[tokio::test]
async fn an_old_version_of_tls_is_not_blamed_on_our_certificate() {
    let alert = b"\x15\x03\x01\x00\x02\x02\x46".to_vec();
    let mut hello = b"\x16\x03\x01\x00\x2a\x02\x00\x00\x26\x03\x01".to_vec();
    hello.extend([7; 32]);
    // No session, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, no compression.
    hello.extend(b"\x00\xc0\x13\x00");
    for answer in [alert, hello] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let url = format!("https://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(&answer).await;
                let _ = stream.read(&mut request).await;
            }
        });
        let kubeconfig = Kubeconfig::new(&url, &Authority::new("right"), "", "token: secret");
        let mut follower = kubeconfig.follow().await;
        follower.until("it is reported", |f| failing(f, "Services").is_some()).await;
        let text = failing(&follower, "Services").expect("it is reported");
        assert!(text.contains("probably 1.0 or 1.1") && !text.contains("client certificate"), "{text}");
    }
}

#[tokio::test]
async fn a_server_name_can_be_given() {
    let authority = Authority::new("right");
    let server = Scripted::start_tls(&authority.server_named("elsewhere"), all_is_well).await;
    let kubeconfig =
        Kubeconfig::new(&server.url, &authority, ", tls-server-name: elsewhere", "token: secret");
    kubeconfig.follow().await.until_listed().await;
}

#[tokio::test]
async fn a_token_is_read_again_when_it_is_refused() {
    let authority = Authority::new("right");
    let server =
        Scripted::start_tls(&authority.server(), |seen| match seen.headers["authorization"].to_str() {
            Ok("Bearer new") => all_is_well(seen),
            _ => Reply::status(401, "Unauthorized", "Unauthorized"),
        })
        .await;
    let kubeconfig = Kubeconfig::new(&server.url, &authority, "", "tokenFile: token, token: inline");
    let token = kubeconfig.folder.path().join("token");
    std::fs::write(&token, "old\n").expect("a file");
    let mut follower = kubeconfig.follow().await;
    follower.until("the refusal is reported", |f| failing(f, "Services").is_some()).await;
    let text = failing(&follower, "Services").expect("it is reported");
    assert!(
        text.contains(&format!("does not accept the token in {} (401 Unauthorized)", token.display())),
        "{text}"
    );
    std::fs::write(&token, "new\n").expect("a file");
    follower.until("the new token is used", |f| f.lists.contains_key(&Kind::Service)).await;
}

#[tokio::test]
async fn a_credential_plugin_is_asked_again_when_its_token_is_refused() {
    let authority = Authority::new("right");
    let server = Scripted::start_tls(&authority.server(), |seen| match seen.headers.get("authorization") {
        Some(token) if token == "Bearer new" => all_is_well(seen),
        _ => Reply::status(401, "Unauthorized", "Unauthorized"),
    })
    .await;
    let user =
        "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}";
    let kubeconfig = Kubeconfig::new(&server.url, &authority, "", user);
    let write = |token: &str| {
        let answer = serde_json::json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {"token": token}});
        std::fs::write(kubeconfig.folder.path().join("answer"), answer.to_string()).expect("a file");
    };
    write("old");
    let plugin = kubeconfig.folder.path().join("plugin");
    let answer = kubeconfig.folder.path().join("answer");
    std::fs::write(&plugin, format!("#!/bin/sh\ncat {}\n", answer.display())).expect("a file");
    std::fs::set_permissions(&plugin, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let mut follower = kubeconfig.follow().await;
    follower.until("the refusal is reported", |f| failing(f, "Services").is_some()).await;
    assert!(failing(&follower, "Services").expect("it is reported").contains("credentials from the plugin"));
    write("new");
    follower.until("the new token is used", |f| f.lists.contains_key(&Kind::Service)).await;
}

#[tokio::test]
async fn a_proxy_is_used() {
    let authority = Authority::new("right");
    let server = Scripted::start_tls(&authority.server(), all_is_well).await;
    let target = server.url.trim_start_matches("https://").to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let proxy = listener.local_addr().expect("it has an address");
    let tunnels = Arc::new(AtomicUsize::new(0));
    let counted = tunnels.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (target, counted) = (target.clone(), counted.clone());
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.expect("a head"));
                }
                let head = String::from_utf8(head).expect("text");
                assert!(head.starts_with(&format!("CONNECT {target} ")), "{head}");
                assert!(head.to_lowercase().contains("proxy-authorization: basic dxnlcjpwyxnz"), "{head}");
                counted.fetch_add(1, Ordering::SeqCst);
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("it listens");
                let mut upstream = tokio::net::TcpStream::connect(&target).await.expect("it is there");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            });
        }
    });
    let cluster = format!(", proxy-url: 'http://user:pass@{proxy}'");
    let kubeconfig = Kubeconfig::new(&server.url, &authority, &cluster, "token: secret");
    kubeconfig.follow().await.until_listed().await;
    assert!(tunnels.load(Ordering::SeqCst) > 0);
}

#[tokio::test]
async fn requests_are_observed() {
    let busy = |number: usize, seen: &Seen| match number {
        0 => Reply::status(503, "ServiceUnavailable", "later"),
        _ => all_is_well(seen),
    };
    let server = server(busy).await;
    let codes = Arc::new(Mutex::new(Vec::new()));
    let noted = codes.clone();
    let observer = move |seen: &portwarden_source::kubernetes::Observation<'_>| {
        assert!(seen.resolutions.is_empty(), "the address is a number");
        noted.lock().expect("no panic").push((
            seen.method.to_owned(),
            seen.host.to_owned(),
            seen.code,
            seen.repeats,
        ));
    };
    let client =
        Client::new(master(&server.url), Some(Arc::new(observer))).await.expect("the address is good");
    Follower::start(client, "node-a").until_listed().await;
    let codes = codes.lock().expect("no panic");
    let host = server.url.trim_start_matches("http://").to_owned();
    let get = |code, repeats| ("GET".to_owned(), host.clone(), Some(code), repeats);
    assert!(codes.contains(&get(422, None)) && codes.contains(&get(200, None)), "{codes:?}");
    let repeats = codes.iter().filter(|(.., repeats)| *repeats == Some(Some(503))).count();
    assert_eq!(repeats, 1, "{codes:?}");
}

/// Runs a broken server for half an hour of its time. Returns how many requests for Services came in the worst minute.
async fn busiest_minute(script: impl FnMut(usize, &Seen) -> Reply + Send + 'static) -> usize {
    let server = server(script).await;
    let client = Client::new(master(&server.url), None).await.expect("the address is good");
    let follower = Follower::start(client, "node-a");
    tokio::time::sleep(Duration::from_secs(1800)).await;
    follower.task.abort();
    let times: Vec<_> = for_services(&server).into_iter().map(|seen| seen.at).collect();
    assert!(times.len() > 3, "it is tried again");
    let minute = Duration::from_secs(60);
    times
        .iter()
        .map(|start| times.iter().filter(|at| **at >= *start && **at < *start + minute).count())
        .max()
        .unwrap_or(0)
}

type Fault = fn(usize, &Seen) -> Reply;

/// Lists work, and watches do this.
fn with(seen: &Seen, watch: Reply) -> Reply {
    match seen {
        _ if seen.is_streaming_list() => no_streaming(),
        _ if seen.is_watch() => watch,
        _ => Reply::ok(JSON, services(&["a"], 5, "")),
    }
}

#[test]
fn no_fault_makes_the_source_busy() {
    virtual_time::run(async {
        let faults: [(&str, Fault); 10] = [
            ("internal error", |_, _| Reply::status(500, "InternalError", "no")),
            ("expired for ever", |_, _| Reply::status(410, "Expired", "no")),
            ("forbidden", |_, _| Reply::status(403, "Forbidden", "no")),
            ("unauthorized", |_, _| Reply::status(401, "Unauthorized", "no")),
            ("not found", |_, _| Reply::status(404, "NotFound", "no")),
            ("busy", |_, _| Reply::status(429, "TooManyRequests", "no").header("retry-after", "1")),
            ("watches that end at once", |_, seen| with(seen, Reply::steps(JSON, vec![]))),
            ("watches that break at once", |_, seen| with(seen, Reply::steps(JSON, vec![Step::Break]))),
            ("watches that expire at once", |_, seen| {
                with(seen, Reply::ok(JSON, fixture("services.watch-expired.json")))
            }),
            ("watches of nonsense", |_, seen| with(seen, Reply::ok(PROTOBUF_WATCH, &b"\0\0\0\x01x"[..]))),
        ];
        for (name, fault) in faults {
            let requests = busiest_minute(fault).await;
            println!("{name}: at most {requests} requests for one kind in a minute");
            assert!(requests <= 20, "{name}: {requests} requests in a minute");
        }
    });
}

#[test]
fn a_watch_that_hangs_is_given_up_and_goes_on() {
    virtual_time::run(async {
        let server = server(|number, seen| match number {
            0 => no_streaming(),
            1 => Reply::ok(JSON, services(&["a"], 5, "")),
            2 => quiet_watch(),
            3 => {
                assert_eq!(seen.parameter("resourceVersion"), Some("5"));
                Reply::steps(JSON, vec![Step::Send(event("DELETED", &service("a", 9))), Step::Hang])
            }
            _ => quiet_watch(),
        })
        .await;
        let client = Client::new(master(&server.url), None).await.expect("the address is good");
        let mut follower = Follower::start(client, "node-a");
        follower.until_listed().await;
        let start = tokio::time::Instant::now();
        tokio::time::sleep(Duration::from_secs(900)).await;
        follower.until("the deletion comes", |f| f.gone == ["demo/a"]).await;
        let seen = for_services(&server);
        let waited = seen[3].at.duration_since(start);
        assert!(waited > Duration::from_secs(300), "not before the server's own limit");
    });
}
