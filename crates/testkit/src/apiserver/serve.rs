//! Connections and requests.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::access::{authenticate, authorise};
use super::body::{AnswerBody, Pieces, Shape, body};
use super::encode::{Media, error_event};
use super::fault::{Fault, GoneAs, When};
use super::query::Query;
use super::read::{get, list, watch};
use super::resource::{Resource, Target};
use super::selector::Selection;
use super::shared::{Behaviour, Shared, lock};
use super::status::Refusal;
use super::switch::{Switch, Switched};
use super::write::write;

/// Serves until the stop signal, which closes all connections.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, mut stop: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stop => return,
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, shared.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// A socket at an address that is about to become free.
pub(super) async fn listen_again(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let mut disconnects = shared.disconnects.subscribe();
    let switch = Switch::default();
    let fault = shared.note_connection();
    tokio::select! {
        () = converse(stream, &shared, fault, switch.clone()) => {}
        () = switch.closed() => {}
        _ = disconnects.changed() => {}
    }
}

async fn converse(mut stream: TcpStream, shared: &Arc<Shared>, fault: Option<Fault>, switch: Switch) {
    let _ = stream.set_nodelay(true);
    match fault {
        Some(Fault::Refuse) => return,
        Some(Fault::Mute) => return pending().await,
        Some(Fault::Noise) => {
            let _ = stream.write_all(b"\x00\xff this is neither TLS nor HTTP\r\n\r\n").await;
            return;
        }
        _ => {}
    }
    let stream = Switched::new(stream, switch.clone());
    let Some(tls) = &shared.tls else { return http(stream, shared, switch).await };
    let acceptor = if fault == Some(Fault::UntrustedCertificate) { &tls.untrusted } else { &tls.trusted };
    if let Ok(stream) = acceptor.accept(stream).await {
        http(stream, shared, switch).await;
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    shared: &Arc<Shared>,
    switch: Switch,
) {
    let answer = service_fn(|request| {
        let (shared, switch) = (shared.clone(), switch.clone());
        async move { Ok::<_, Infallible>(answer(request, &shared, switch).await) }
    });
    // Errors are those of clients that went away.
    let _ = auto::Builder::new(Tasks::default()).serve_connection(TokioIo::new(stream), answer).await;
}

/// Runs what belongs to one connection, and ends it with the connection.
#[derive(Debug, Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        lock(&self.0).spawn(async {
            future.await;
        });
    }
}

/// What is answered, before anything is done to it.
struct Answer {
    code: u16,
    content_type: &'static str,
    retry_after: Option<u32>,
    shape: Shape,
    pieces: Pieces,
}

impl Answer {
    fn ok(media: Media, watch: bool, pieces: Pieces) -> Answer {
        let content_type = media.content_type(watch);
        Answer { code: 200, content_type, retry_after: None, shape: Shape { media, watch }, pieces }
    }

    fn refusal(media: Media, refusal: &Refusal) -> Answer {
        let pieces = Pieces::All(vec![refusal.encode(media)]);
        Answer { code: refusal.code, retry_after: refusal.retry_after, ..Answer::ok(media, false, pieces) }
    }

    fn text(code: u16, content_type: &'static str, text: &'static str) -> Answer {
        let pieces = Pieces::All(vec![Bytes::from_static(text.as_bytes())]);
        Answer { code, content_type, ..Answer::ok(Media::Json, false, pieces) }
    }
}

async fn answer(request: Request<Incoming>, shared: &Arc<Shared>, switch: Switch) -> Response<AnswerBody> {
    let (head, request_body) = request.into_parts();
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let accept = head.headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = Media::negotiate(accept);
    let query_read = Query::parse(query);
    let watch = query_read.as_ref().is_ok_and(|query| query.watch);
    let fault = shared.note_request(head.method.as_str(), path, query, watch);
    let instead = match fault {
        Some(fault) => strike(fault, media.unwrap_or(Media::Json), watch, &switch).await,
        None => None,
    };
    let answer = match (instead, media, query_read) {
        (Some(answer), _, _) => answer,
        (None, None, _) => {
            let refusal = Refusal::new(406, "NotAcceptable", "only JSON and protobuf are offered");
            Answer::refusal(Media::Json, &refusal)
        }
        (None, Some(media), Err(refusal)) => Answer::refusal(media, &refusal),
        (None, Some(media), Ok(query)) => {
            let asked = Asked { method: &head.method, path, headers: &head.headers, query, media };
            let request_body = request_body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            route(shared, asked, &request_body)
        }
    };
    let mut response = Response::new(body(answer.pieces, answer.shape, fault, switch));
    *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(answer.content_type));
    if let Some(seconds) = answer.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// What a fault does before there is an answer; it may give another one.
async fn strike(fault: Fault, media: Media, watch: bool, switch: &Switch) -> Option<Answer> {
    match fault {
        Fault::Drop(When::Answer) => switch.close(),
        Fault::Reset(When::Answer) => switch.reset(),
        Fault::Freeze(When::Answer) => switch.freeze(),
        Fault::Silence(When::Answer) => {}
        Fault::Delay(time) => {
            tokio::time::sleep(time).await;
            return None;
        }
        Fault::Status { code, retry_after } => {
            let reason = if code == 429 { "TooManyRequests" } else { "InternalError" };
            let refusal = Refusal { retry_after, ..Refusal::new(code, reason, "as the schedule says") };
            return Some(Answer::refusal(media, &refusal));
        }
        Fault::WebPage => {
            return Some(Answer::text(200, "text/html", "<html><body>Please log in</body></html>"));
        }
        Fault::Behind => return Some(Answer::refusal(media, &Refusal::too_large(u64::MAX, 1))),
        Fault::Expired(GoneAs::Event) if watch => {
            let pieces = Pieces::All(vec![error_event(media, &Refusal::too_old(1, u64::MAX))]);
            return Some(Answer::ok(media, true, pieces));
        }
        Fault::Expired(_) => return Some(Answer::refusal(media, &Refusal::old_page())),
        _ => return None,
    }
    pending().await
}

/// A request that can be answered.
struct Asked<'a> {
    method: &'a Method,
    path: &'a str,
    headers: &'a HeaderMap,
    query: Query,
    media: Media,
}

fn route(shared: &Arc<Shared>, asked: Asked<'_>, request_body: &[u8]) -> Answer {
    let behaviour = shared.behaviour();
    if matches!(asked.path, "/healthz" | "/readyz" | "/livez") {
        return Answer::text(200, "text/plain", "ok");
    }
    let target =
        Target::parse(asked.path).ok().filter(|target| !behaviour.missing.contains(&target.resource));
    let Some(target) = target else { return Answer::text(404, "text/plain", "404 page not found\n") };
    let media = asked.media;
    perform(shared, &behaviour, &target, asked, request_body)
        .unwrap_or_else(|refusal| Answer::refusal(media, &refusal))
}

fn perform(
    shared: &Arc<Shared>,
    behaviour: &Behaviour,
    target: &Target,
    asked: Asked<'_>,
    request_body: &[u8],
) -> Result<Answer, Refusal> {
    let Asked { method, headers, query, media, .. } = asked;
    let user = authenticate(behaviour, headers)?;
    let wrong = |error: anyhow::Error| Refusal::bad_request(error.to_string());
    let selection =
        Selection::parse(target.resource, &target.namespace, &query.label_selector, &query.field_selector)
            .map_err(wrong)?;
    let name = selection.name().unwrap_or(&target.name);
    authorise(behaviour, user, verb(method, target, &query), target, name)?;
    let all = |bytes| Answer::ok(media, false, Pieces::All(vec![bytes]));
    match *method {
        Method::GET if target.resource == Resource::Events => {
            let events: Vec<Value> = shared.store().events.values().cloned().collect();
            let list = json!({"kind": "EventList", "apiVersion": "events.k8s.io/v1", "metadata": {}, "items": events});
            Ok(Answer::ok(Media::Json, false, Pieces::All(vec![list.to_string().into()])))
        }
        Method::GET if !target.name.is_empty() => get(&shared.store(), target, media).map(all),
        Method::GET if query.watch => {
            watch(shared, target, selection, &query, media).map(|pieces| Answer::ok(media, true, pieces))
        }
        Method::GET => {
            let pieces = list(&shared.store(), behaviour, target, &selection, &query, media)?;
            Ok(Answer::ok(media, false, Pieces::All(pieces)))
        }
        _ => {
            let media = if target.resource == Resource::Events { Media::Json } else { media };
            let written = shared.write(|store| write(store, method, target, headers, request_body, media))?;
            let code = if *method == Method::POST { 201 } else { 200 };
            Ok(Answer { code, ..Answer::ok(media, false, Pieces::All(vec![written])) })
        }
    }
}

fn verb(method: &Method, target: &Target, query: &Query) -> &'static str {
    match *method {
        Method::GET if query.watch => "watch",
        Method::GET if target.name.is_empty() => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => "delete",
    }
}
