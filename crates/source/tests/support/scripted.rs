//! An HTTP server whose responses a test scripts, request by request.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::certificates::Identity;
use super::follower::DEADLINE;

pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub const PROTOBUF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";
pub const JSON: &str = "application/json";

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub path: String,
    pub query: String,
    pub headers: HeaderMap,
    pub version: Version,
    pub connection: usize,
    pub at: tokio::time::Instant,
}

impl Seen {
    pub fn is_watch(&self) -> bool {
        self.query.contains("watch=true")
    }

    pub fn is_streaming_list(&self) -> bool {
        self.query.contains("sendInitialEvents=true")
    }

    /// A query parameter, not decoded.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

/// What happens after the head of an answer.
pub enum Step {
    Send(Bytes),
    /// Nothing more, but the connection stays.
    Hang,
    /// The connection breaks.
    Break,
    Pause(Duration),
}

/// An answer.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub steps: Vec<Step>,
}

impl Reply {
    /// A complete answer.
    pub fn ok(content_type: &str, body: impl Into<Bytes>) -> Reply {
        Reply::steps(content_type, vec![Step::Send(body.into())])
    }

    pub fn steps(content_type: &str, steps: Vec<Step>) -> Reply {
        Reply { status: 200, headers: vec![("content-type", content_type.to_owned())], steps }
    }

    /// A refusal with a status as JSON.
    pub fn status(code: u16, reason: &str, message: &str) -> Reply {
        let body = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": message});
        Reply { status: code, ..Reply::ok(JSON, body.to_string()) }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Reply {
        self.headers.push((name, value.to_owned()));
        self
    }
}

type Script = Box<dyn FnMut(&Seen) -> Reply + Send>;

/// The running server; dropping it ends it and all its connections.
pub struct Scripted {
    pub url: String,
    state: Arc<Mutex<State>>,
    _task: JoinSet<()>,
}

struct State {
    script: Script,
    seen: Vec<Seen>,
    connections: usize,
}

impl Scripted {
    /// Plain HTTP.
    pub async fn start(script: impl FnMut(&Seen) -> Reply + Send + 'static) -> Scripted {
        Scripted::run(None, Box::new(script)).await
    }

    /// HTTPS, with HTTP/2 offered.
    pub async fn start_tls(
        identity: &Identity,
        script: impl FnMut(&Seen) -> Reply + Send + 'static,
    ) -> Scripted {
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let certificate =
            CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("they belong together");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Scripted::run(Some(TlsAcceptor::from(Arc::new(config))), Box::new(script)).await
    }

    async fn run(tls: Option<TlsAcceptor>, script: Script) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().expect("it has an address"));
        let state = Arc::new(Mutex::new(State { script, seen: Vec::new(), connections: 0 }));
        let mut task = JoinSet::new();
        task.spawn(accept(listener, tls, state.clone()));
        Scripted { url, state, _task: task }
    }

    /// All requests so far, once there is one that satisfies the condition.
    pub async fn until_seen(&self, what: &str, condition: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while !self.seen().iter().any(&condition) {
            assert!(tokio::time::Instant::now() < deadline, "timed out:  {what}: {:?}", self.seen());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.seen()
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().expect("no test panicked inside").seen.clone()
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a TCP socket");
        let number = {
            let mut state = state.lock().expect("no test panicked inside");
            state.connections += 1;
            state.connections
        };
        connections.spawn(serve(stream, tls.clone(), state.clone(), number));
    }
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, state: Arc<Mutex<State>>, connection: usize) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let seen = Seen {
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            headers: request.headers().clone(),
            version: request.version(),
            connection,
            at: tokio::time::Instant::now(),
        };
        let mut state = state.lock().expect("no test panicked inside");
        let reply = (state.script)(&seen);
        state.seen.push(seen);
        std::future::ready(Ok::<_, Infallible>(response(reply)))
    });
    // A client that goes away in the middle is what these tests are about.
    let server = auto::Builder::new(TokioExecutor::new());
    let _ = match tls {
        None => server.serve_connection(TokioIo::new(stream), service).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => server.serve_connection(TokioIo::new(stream), service).await,
            Err(_) => return,
        },
    };
}

type Body = StreamBody<Pin<Box<dyn Stream<Item = io::Result<Frame<Bytes>>> + Send>>>;

fn response(reply: Reply) -> Response<Body> {
    let steps = futures::stream::iter(reply.steps).then(|step| async {
        match step {
            Step::Send(bytes) => Some(Ok(Frame::data(bytes))),
            Step::Hang => std::future::pending().await,
            Step::Break => Some(Err(io::Error::other("scripted break"))),
            Step::Pause(time) => {
                tokio::time::sleep(time).await;
                None
            }
        }
    });
    let body: Body = StreamBody::new(Box::pin(steps.filter_map(std::future::ready)));
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    debug_assert!(response.headers_ref().is_some_and(|headers| headers.contains_key(CONTENT_TYPE)));
    response.body(body).expect("a response")
}
