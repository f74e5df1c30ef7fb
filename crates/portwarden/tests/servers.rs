//! The servers survive garbage, slow and too many clients, and answer as kube-proxy does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portwarden::config::options::{VERBOSITY, Value, Values};
use portwarden::config::{Mode, to_configz};
use portwarden::flags::{Flags, Program};
use portwarden::http::{ConnectionLimit, Handler, Limits, Server, ServerOptions, Sockets, bind, serve, text};
use portwarden::logging::Verbosity;
use portwarden::metrics::{BuildInfo, Metrics};
use portwarden::status::{Identity, Pages, Shown};
use prometheus::IntCounter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Long enough for a loaded machine; only a failure waits for it.
const TIMEOUT: Duration = Duration::from_secs(20);

fn hello() -> Handler {
    Arc::new(|_| Box::pin(async { text(hyper::StatusCode::OK, "hello") }))
}

fn counter() -> IntCounter {
    IntCounter::new("refused", "for this test").expect("a counter")
}

/// Serves on a free port.
fn start(limits: Limits, handler: Handler) -> SocketAddr {
    start_within(&ConnectionLimit::new(128, counter()), limits, handler)
}

/// The same, with a limit of connections that other servers may share.
fn start_within(connections: &ConnectionLimit, limits: Limits, handler: Handler) -> SocketAddr {
    let listener = bind("127.0.0.1:0".parse().expect("an address"), Sockets::OneFamily).expect("binds");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(serve(listener, limits, connections.clone(), handler));
    address
}

/// Sends bytes and reads until the server closes the connection.
async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    // The server may close before everything is sent.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await;
    let _ = read.expect("the server answers or closes");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    exchange(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").as_bytes(),
    )
    .await
}

async fn is_well(address: SocketAddr) -> bool {
    get(address, "/", "").await.ends_with("\r\n\r\nhello")
}

#[tokio::test]
async fn garbage_is_refused_and_harms_no_other_client() {
    let address = start(Limits::default(), hello());
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\r\n\r\n\r\n\r\n\0\0\0\0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut request = garbage.to_vec();
        request.extend_from_slice(&[0xff; 100]);
        let answer = exchange(address, &request).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{garbage:?}: {answer}");
        assert!(is_well(address).await);
    }
}

#[tokio::test]
async fn heads_are_bounded_in_size_and_number() {
    let address = start(Limits::default(), hello());
    let long = format!("X-Long: {}\r\n", "a".repeat(64 << 10));
    assert!(get(address, "/", &long).await.starts_with("HTTP/1.1 431"));
    let many = "X-Many: a\r\n".repeat(100);
    assert!(get(address, "/", &many).await.starts_with("HTTP/1.1 431"));
    let path = format!("/{}", "a".repeat(64 << 10));
    let answer = get(address, &path, "").await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(is_well(address).await);
}

#[tokio::test]
async fn an_endless_body_is_not_read() {
    let address = start(Limits::default(), hello());
    let head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000000000\r\n\r\n";
    let answer = exchange(address, head).await;
    assert!(answer.contains("hello"), "{answer}");
}

#[tokio::test]
async fn slow_clients_are_disconnected() {
    let limits = Limits { header_time: Duration::from_millis(200), ..Limits::default() };
    let address = start(limits, hello());
    let mut slow = TcpStream::connect(address).await.expect("connects");
    slow.write_all(b"GET / HT").await.expect("writes");
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(TIMEOUT, slow.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "a head that never ends is not waited for");
    let mut silent = TcpStream::connect(address).await.expect("connects");
    let closed = tokio::time::timeout(TIMEOUT, silent.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "nor one that never begins");
}

/// The body of an answer; notifies when it is dropped.
struct Held(Vec<u8>, tokio::sync::mpsc::UnboundedSender<()>);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    let limits = Limits {
        connection_time: Duration::from_millis(100),
        closing_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let (dropped, mut drops) = tokio::sync::mpsc::unbounded_channel();
    let large: Handler = Arc::new(move |_| {
        // More than all the buffers on the way can take.
        let body = bytes::Bytes::from_owner(Held(vec![b'x'; 64 << 20], dropped.clone()));
        Box::pin(async { text(hyper::StatusCode::OK, body) })
    });
    let address = start(limits, large);
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("writes");
    stream.readable().await.expect("the answer begins");
    tokio::time::timeout(TIMEOUT, drops.recv()).await.expect("the answer is given up");
}

#[tokio::test]
async fn too_many_clients_push_out_the_oldest_and_never_the_newest() {
    let refused = counter();
    let address = start_within(&ConnectionLimit::new(8, refused.clone()), Limits::default(), hello());
    let mut held = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(b"GET / HTTP/1.1\r\n").await.expect("writes");
        held.push(stream);
        assert!(is_well(address).await, "a new client is always answered");
    }
    let mut oldest = held.remove(0);
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(TIMEOUT, oldest.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the oldest was closed");
    assert!(refused.get() >= 92, "{} refused", refused.get());
}

/// Twelve health-check ports with many half-open requests each must not use up the descriptors of the process.
#[tokio::test]
async fn servers_under_one_limit_share_it() {
    let refused = counter();
    let limit = ConnectionLimit::new(16, refused.clone());
    let addresses: Vec<SocketAddr> =
        (0..12).map(|_| start_within(&limit, Limits::default(), hello())).collect();
    let mut held = Vec::new();
    for address in addresses.iter().cycle().take(120) {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(b"GET / HTTP/1.1\r\n").await.expect("writes");
        held.push(stream);
        assert!(is_well(*address).await, "a new client is always answered");
    }
    assert!(refused.get() >= 104, "{} refused", refused.get());
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error_or_waited_for() {
    let taken = bind("127.0.0.1:0".parse().expect("an address"), Sockets::DualStack).expect("binds");
    let address = taken.local_addr().expect("bound");
    let options = |hard_fail| ServerOptions {
        log_once: false,
        name: "test",
        failure: "the test's server failed",
        address,
        hard_fail,
        limits: Limits::default(),
        connections: ConnectionLimit::new(128, counter()),
        handler: hello(),
    };
    let error = Server::start(options(true)).err().expect("the port is taken");
    let text = error.to_string();
    assert!(text.contains("test") && text.contains(&address.to_string()), "{text}");
    let server = Server::start(options(false)).expect("waits");
    assert_eq!(server.bound(), None);
    drop(taken);
    let answered = async {
        while TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, answered).await.expect("the server gets its port in the end");
    assert!(is_well(address).await);
}

fn pages(profiling: bool) -> Pages {
    let mut flags = Flags::default();
    flags.values.set(VERBOSITY, Some(Value::Int(3)));
    let identity = Identity {
        component: "kube-proxy",
        version: "v1.37.0+portwarden.0.1.0".to_owned(),
        flags: flags.listing(Program::KubeProxy),
        started: 1_794_782_288.5,
    };
    let document = Values::default();
    let shown = Shown {
        mode: Mode::Nftables.as_str(),
        configz: to_configz(&document),
        profiling,
        flagz: true,
        statusz: true,
    };
    let metrics = Metrics::new(&BuildInfo::default()).expect("metrics");
    Pages::new(identity, shown, metrics, Verbosity::new(0, Vec::new()))
}

#[tokio::test]
async fn the_metrics_port_has_the_pages_of_kube_proxy() {
    let address = start(Limits::default(), pages(false).handler());
    let metrics = get(address, "/metrics", "").await;
    assert!(
        metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8; escaping=underscores\r\n"),
        "{metrics}"
    );
    assert!(metrics.contains("process-start-time-unix: 1.7947822885e+09\r\n"));
    assert!(metrics.contains("\nkubeproxy_sync_proxy_rules_service_changes_total 0\n"));
    for (path, wanted) in [
        ("/proxyMode", "nftables"),
        ("/healthz", "ok"),
        ("/healthz/ping", "ok"),
        ("/healthz?verbose", "[+]ping ok\nhealthz check passed\n"),
        ("/healthz?verbose&exclude=ping", "[+]ping excluded: ok\nhealthz check passed\n"),
    ] {
        let answer = get(address, path, "").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(answer.contains("content-type: text/plain; charset=utf-8\r\n"), "{path}: {answer}");
        assert!(answer.contains("x-content-type-options: nosniff\r\n"), "{path}");
        assert_eq!(answer.split("\r\n\r\n").nth(1), Some(wanted), "{path}");
    }
    let configz = get(address, "/configz", "").await;
    assert!(configz.contains("content-type: application/json\r\n"));
    assert!(
        configz.contains("\r\n\r\n{\"kubeproxy.config.k8s.io\":{\"kind\":\"KubeProxyConfiguration\""),
        "{configz}"
    );
    for missing in [
        "/",
        "/metrics/",
        "/configz/",
        "/debug/pprof/",
        "/debug/pprof/heap",
        "/debug/pprof/profile",
        "/debug/flags/v",
        "/nothing",
    ] {
        assert!(get(address, missing, "").await.starts_with("HTTP/1.1 404"), "{missing}");
    }
}

#[tokio::test]
async fn metrics_are_compressed_if_the_client_accepts_it() {
    let address = start(Limits::default(), pages(false).handler());
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: gzip\r\n\r\n";
    stream.write_all(request).await.expect("writes");
    let mut answer = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("answers").expect("reads");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&answer[..end]);
    assert!(head.contains("content-encoding: gzip") && head.contains("process-start-time-unix: "), "{head}");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&answer[end + 4..]), &mut text)
        .expect("gzip");
    assert!(text.contains("\nkubeproxy_sync_proxy_rules_service_changes_total 0\n"), "{text}");
}

#[tokio::test]
async fn slis_appear_after_a_health_check_and_can_be_reset() {
    let address = start(Limits::default(), pages(false).handler());
    assert!(!get(address, "/metrics/slis", "").await.contains("kubernetes_healthcheck"));
    get(address, "/healthz", "").await;
    let slis = get(address, "/metrics/slis", "").await;
    assert!(
        slis.contains("kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1\n"),
        "{slis}"
    );
    let reset =
        exchange(address, b"DELETE /metrics/slis HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(reset.ends_with("metrics reset\n"));
    assert!(!get(address, "/metrics/slis", "").await.contains("kubernetes_healthcheck"));
}

#[tokio::test]
async fn flags_and_status_are_text_or_objects() {
    let address = start(Limits::default(), pages(false).handler());
    let flagz = get(address, "/flagz", "").await;
    assert!(flagz.contains("\nkube-proxy flagz\n") && flagz.contains("\nv=3\n"), "{flagz}");
    let accept = "Accept: application/json;v=v1beta1;g=config.k8s.io;as=Statusz\r\n";
    let statusz = get(address, "/statusz", accept).await;
    let object: serde_json::Value =
        serde_json::from_str(statusz.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    assert_eq!(object["kind"], "Statusz");
    assert_eq!(object["metadata"]["name"], "kube-proxy");
    assert_eq!(object["binaryVersion"], "1.37.0");
    assert_eq!(object["emulationVersion"], "1.37");
    assert_eq!(object["paths"][0], "/configz");
    let old =
        get(address, "/flagz", "Accept: application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz\r\n").await;
    assert!(old.contains("warning: 299 - ") && old.contains("content-type: application/yaml"), "{old}");
    assert!(get(address, "/flagz", "Accept: application/json\r\n").await.starts_with("HTTP/1.1 406"));
}

#[tokio::test]
async fn pages_behind_a_gate_go_with_it() {
    let pages = pages(false);
    let address = start(Limits::default(), pages.handler());
    let statusz = get(address, "/statusz", "").await;
    assert!(statusz.contains("\nPaths: /configz /flagz /healthz /metrics /proxyMode\n"), "{statusz}");
    pages.show(Shown { mode: "iptables", statusz: true, ..Shown::default() });
    assert!(get(address, "/flagz", "").await.starts_with("HTTP/1.1 404"));
    let statusz = get(address, "/statusz", "").await;
    assert!(statusz.contains("\nPaths: /configz /healthz /metrics /proxyMode\n"), "{statusz}");
    assert!(get(address, "/proxyMode", "").await.ends_with("\r\n\r\niptables"));
    pages.show(Shown::default());
    assert!(get(address, "/statusz", "").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn the_verbosity_can_be_set_where_profiling_is_on() {
    let address = start(Limits::default(), pages(true).handler());
    let put = |body: String| async move {
        let length = body.len();
        let head = format!(
            "PUT /debug/flags/v HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        exchange(address, format!("{head}{body}").as_bytes()).await
    };
    assert!(put("4".to_owned()).await.ends_with("successfully set klog.logging.verbosity to 4\n"));
    assert!(get(address, "/debug/flags", "").await.contains("v: 4"));
    assert!(put("four".to_owned()).await.starts_with("HTTP/1.1 400"));
    assert!(put("4".repeat(100_000)).await.starts_with("HTTP/1.1 400"), "no body is read for ever");
    assert!(get(address, "/debug/flags/v", "").await.starts_with("HTTP/1.1 406"));
}

#[tokio::test]
async fn with_profiling_on_the_process_describes_itself() {
    let address = start(Limits::default(), pages(true).handler());
    let moved = get(address, "/debug/pprof", "").await;
    assert!(moved.starts_with("HTTP/1.1 302") && moved.contains("location: /debug/pprof/\r\n"), "{moved}");
    let threads = get(address, "/debug/pprof/threads", "").await;
    assert!(threads.lines().count() > 3, "{threads}");
    let memory = get(address, "/debug/pprof/memory", "").await;
    assert!(memory.contains("VmRSS:"), "{memory}");
    assert!(get(address, "/debug/pprof/goroutine", "").await.starts_with("HTTP/1.1 404"));
    let index = get(address, "/debug/pprof/", "").await;
    assert!(index.contains("href=\"memory\""), "{index}");
    if cfg!(feature = "profiling") {
        assert!(index.contains("href=\"profile?seconds=30\"") && index.contains("href=\"heap\""), "{index}");
        return;
    }
    for page in ["profile", "heap", "allocs", "symbol"] {
        let answer = get(address, &format!("/debug/pprof/{page}"), "").await;
        assert!(answer.starts_with("HTTP/1.1 501"), "{page}: {answer}");
        for text in [&index, &answer] {
            assert!(text.contains("cargo build --release --features profiling"), "{page}: {text}");
        }
    }
}
