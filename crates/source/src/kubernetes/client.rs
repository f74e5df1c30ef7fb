//! Requests to the API server: credentials, limits, and errors that say what to do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use tokio::sync::MutexGuard;
use tokio::time::Instant;

use super::connect;
use super::credentials::{Access, AccessError, Environment, TokenFile};
use super::dns::{Resolutions, TimedResolver};
use super::error::{RequestError, chain};
use super::rate_limiter::RateLimiter;
use crate::wire::{Media, Status, decode_status};

/// Timeout for the head of a response; the server has the same.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest error text that is read.
const MAX_ERROR_TEXT: usize = 64 << 10;
/// The rate when the configuration says 0.
const DEFAULT_QPS: f32 = 5.0;

/// How to connect to an API server: the fields of `clientConnection` in kube-proxy's configuration.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Without it, `master` or the service account of the pod is used.
    pub kubeconfig: Option<PathBuf>,
    /// Replaces the server of the kubeconfig.
    pub master: Option<String>,
    /// The preferred media type.
    pub content_type: String,
    /// The whole `Accept` header, if not empty.
    pub accept_content_types: String,
    /// Requests per second; 0 means 5, a negative number means no limit.
    pub qps: f32,
    /// Requests above the rate that may be sent at once.
    pub burst: u32,
    /// The `User-Agent` header.
    pub user_agent: String,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            kubeconfig: None,
            master: None,
            content_type: Media::Protobuf.as_str().to_owned(),
            accept_content_types: String::new(),
            qps: DEFAULT_QPS,
            burst: 10,
            user_agent: format!("portwarden/{}", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// One request, for metrics.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// The HTTP method.
    pub method: &'a str,
    /// The server's host and port.
    pub host: &'a str,
    /// The status code; `None` without a response.
    pub code: Option<u16>,
    /// Time from the request to the head of the response.
    pub duration: Duration,
    /// Time that the request waited for the rate limit.
    pub limited: Duration,
    /// Bytes in the body of the request.
    pub request_size: usize,
    /// `Content-Length` of the response; a stream has none.
    pub response_size: Option<u64>,
    /// If this request repeats a failed one: the status code of that failure, or `None` if it got no response.
    pub repeats: Option<Option<u16>>,
    /// DNS look-ups since the last request, with their duration.
    pub resolutions: &'a [(String, Duration)],
}

/// Called after each request.
pub type Observer = Arc<dyn Fn(&Observation<'_>) + Send + Sync>;

/// A connection to an API server. Cheap to clone; all clones share connection, credentials and limits.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    options: ClientOptions,
    accept: HeaderValue,
    user_agent: HeaderValue,
    limiter: RateLimiter,
    observer: Option<Observer>,
    /// Failed reads that were not repeated yet: path and status code.
    failed: Mutex<BTreeMap<String, Option<u16>>>,
    connection: Mutex<Slot>,
    /// Held while a connection is rebuilt, so that a credential plugin runs once and not once for every watch.
    rebuilding: tokio::sync::Mutex<()>,
}

/// The connection, and whether it should be replaced before it is used again.
struct Slot {
    connection: Arc<Connection>,
    stale: bool,
}

struct Connection {
    http: kube::Client,
    server: String,
    host: String,
    identity: String,
    trust: String,
    token: Option<TokenFile>,
    resolutions: Resolutions,
    /// Whether a request succeeded. Until then requests go one at a time: over HTTP/2 they then share the connection that the first one
    /// opened, where concurrent ones would each open another.
    open: AtomicBool,
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path_and_query: &'a str,
    pub(crate) content_type: Option<&'static str>,
    /// The media type of the response, if it must be a certain one.
    pub(crate) accept: Option<&'static str>,
    pub(crate) body: Bytes,
}

impl<'a> Call<'a> {
    pub(crate) fn get(path_and_query: &'a str) -> Self {
        Call { method: Method::GET, path_and_query, content_type: None, accept: None, body: Bytes::new() }
    }
}

impl Client {
    /// Reads the kubeconfig or the service account and runs a credential plugin if there is one. Opens no connection yet.
    pub async fn new(options: ClientOptions, observer: Option<Observer>) -> Result<Client, AccessError> {
        let connection = Connection::build(&options).await?;
        let wrong = |text: &str, what| AccessError::Address { text: text.to_owned(), what };
        let accept = accept(&options);
        let accept = HeaderValue::from_str(&accept).map_err(|_| wrong(&accept, "a media type"))?;
        let user_agent = HeaderValue::from_str(&options.user_agent)
            .map_err(|_| wrong(&options.user_agent, "a user agent"))?;
        let qps = if options.qps == 0.0 { DEFAULT_QPS } else { options.qps };
        let limiter = RateLimiter::new(qps, options.burst);
        let connection = Mutex::new(Slot { connection: Arc::new(connection), stale: false });
        let shared = Shared {
            options,
            accept,
            user_agent,
            limiter,
            observer,
            failed: Mutex::default(),
            connection,
            rebuilding: tokio::sync::Mutex::default(),
        };
        Ok(Client { shared: Arc::new(shared) })
    }

    /// The server's address.
    pub fn server(&self) -> String {
        self.slot(|slot| slot.connection.server.clone())
    }

    /// Describes our credentials.
    pub fn identity(&self) -> String {
        self.slot(|slot| slot.connection.identity.clone())
    }

    /// Sends a request; a response without success becomes an error.
    pub(crate) async fn send(&self, call: Call<'_>) -> Result<Response<Body>, RequestError> {
        let limited = self.shared.limiter.acquire().await;
        let result = self.attempt(call, limited).await;
        if let Err(error) = &result
            && error.needs_new_credentials()
        {
            self.slot(|slot| slot.stale = true);
        }
        result
    }

    async fn attempt(&self, call: Call<'_>, limited: Duration) -> Result<Response<Body>, RequestError> {
        let connection = self.connection().await?;
        let path = call.path_and_query.split('?').next().unwrap_or_default().to_owned();
        let (method, request_size) = (call.method.clone(), call.body.len());
        let request = self.request(call, &connection)?;
        let turn = connection.turn_to_open().await;
        let start = Instant::now();
        let answer = tokio::time::timeout(RESPONSE_TIMEOUT, connection.http.send(request)).await;
        connection.open.store(matches!(answer, Ok(Ok(_))), Ordering::Relaxed);
        drop(turn);
        let resolutions = connection.resolutions.take();
        if let Some(observer) = &self.shared.observer {
            let code = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok());
            let status = code.map(|answer| answer.status());
            observer(&Observation {
                method: method.as_str(),
                host: &connection.host,
                code: status.map(|status| status.as_u16()),
                repeats: if method == Method::GET { self.repeats(&path, status) } else { None },
                resolutions: &resolutions,
                duration: start.elapsed(),
                limited,
                request_size,
                response_size: code.and_then(length),
            });
        }
        match answer {
            Err(_) => {
                Err(RequestError::Timeout { server: connection.server.clone(), after: RESPONSE_TIMEOUT })
            }
            Ok(Err(error)) => {
                Err(RequestError::from_transport(&error, &connection.server, &connection.trust))
            }
            Ok(Ok(answer)) if answer.status().is_success() => Ok(answer),
            Ok(Ok(answer)) => Err(connection.refusal(answer, &path).await),
        }
    }

    /// The status code of the failure that this request repeats, if any; remembers whether it fails now.
    fn repeats(&self, path: &str, status: Option<StatusCode>) -> Option<Option<u16>> {
        let mut failed = self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let before = failed.remove(path);
        // Other errors are not repeated: the request itself is wrong.
        let code = status.map(|status| status.as_u16());
        if code.is_none_or(|code| code == 429 || code >= 500) {
            failed.insert(path.to_owned(), code);
        }
        before
    }

    fn request(&self, call: Call<'_>, connection: &Connection) -> Result<Request<Body>, RequestError> {
        let accept = call.accept.map_or_else(|| self.shared.accept.clone(), HeaderValue::from_static);
        let mut request = Request::builder()
            .method(call.method)
            .uri(call.path_and_query)
            .header(ACCEPT, accept)
            .header(USER_AGENT, self.shared.user_agent.clone());
        if let Some(content_type) = call.content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(token) = &connection.token {
            request = request.header(AUTHORIZATION, token.header()?);
        }
        request.body(Body::from(call.body)).map_err(|error| RequestError::Broken(error.to_string()))
    }

    /// The connection, rebuilt after a refusal: files may have been rotated.
    async fn connection(&self) -> Result<Arc<Connection>, RequestError> {
        let current = || self.slot(|slot| (!slot.stale).then(|| slot.connection.clone()));
        if let Some(connection) = current() {
            return Ok(connection);
        }
        let _guard = self.shared.rebuilding.lock().await;
        if let Some(connection) = current() {
            return Ok(connection);
        }
        let fresh = Connection::build(&self.shared.options).await;
        let fresh = Arc::new(fresh.map_err(|error| RequestError::Credentials(chain(&error)))?);
        self.slot(|slot| *slot = Slot { connection: fresh.clone(), stale: false });
        Ok(fresh)
    }

    fn slot<T>(&self, with: impl FnOnce(&mut Slot) -> T) -> T {
        with(&mut self.shared.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.server()).finish_non_exhaustive()
    }
}

impl Connection {
    async fn build(options: &ClientOptions) -> Result<Connection, AccessError> {
        let options = options.clone();
        let build = move || {
            let master = options.master.as_deref().filter(|master| !master.is_empty());
            let kubeconfig = options.kubeconfig.as_deref().filter(|path| !path.as_os_str().is_empty());
            let access = Access::load(kubeconfig, master, &Environment::of_process())?;
            let resolutions = Resolutions::default();
            let http = connect::client(&access, TimedResolver::new(resolutions.clone()))?;
            let url = &access.config.cluster_url;
            Ok(Connection {
                http,
                server: url.to_string().trim_end_matches('/').to_owned(),
                host: url.authority().map(ToString::to_string).unwrap_or_default(),
                identity: access.identity,
                trust: access.trust,
                token: access.token_file.map(TokenFile::new),
                resolutions,
                open: AtomicBool::new(false),
                opening: tokio::sync::Mutex::default(),
            })
        };
        // Runs plugins and reads files, which must not block the single thread of the runtime.
        let built = tokio::task::spawn_blocking(build).await;
        built.unwrap_or_else(|error| Err(AccessError::Interrupted(error.to_string())))
    }

    /// Waits until the connection is open, or until this request may open it.
    async fn turn_to_open(&self) -> Option<MutexGuard<'_, ()>> {
        if self.open.load(Ordering::Relaxed) {
            return None;
        }
        let turn = self.opening.lock().await;
        (!self.open.load(Ordering::Relaxed)).then_some(turn)
    }

    /// Reads the error of a refused request.
    async fn refusal(&self, answer: Response<Body>, path: &str) -> RequestError {
        let (head, body) = answer.into_parts();
        if head.status == StatusCode::UNAUTHORIZED {
            return RequestError::Unauthorized {
                server: self.server.clone(),
                identity: self.identity.clone(),
            };
        }
        let header = |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let retry_after =
            header(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let media = header(CONTENT_TYPE).and_then(Media::parse);
        let text = tokio::time::timeout(RESPONSE_TIMEOUT, Limited::new(body, MAX_ERROR_TEXT).collect()).await;
        let text = text.ok().and_then(Result::ok).map(|text| text.to_bytes()).unwrap_or_default();
        let status = media
            .and_then(|media| decode_status(media, &text))
            .unwrap_or_else(|| Status { message: first_line(&text, head.status), ..Status::default() });
        let status = Status { code: i32::from(head.status.as_u16()), ..status };
        RequestError::from_status(&status, path, retry_after)
    }
}

fn length(answer: &Response<Body>) -> Option<u64> {
    answer.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn first_line(text: &[u8], status: StatusCode) -> String {
    let text = String::from_utf8_lossy(text);
    let line: String = text.lines().next().unwrap_or_default().chars().take(200).collect();
    if line.trim().is_empty() { status.canonical_reason().unwrap_or_default().to_owned() } else { line }
}

/// The configured type, and otherwise any that the server prefers.
fn accept(options: &ClientOptions) -> String {
    if !options.accept_content_types.is_empty() {
        return options.accept_content_types.clone();
    }
    match options.content_type.as_str() {
        "" => format!("{}, */*", Media::Json.as_str()),
        first => format!("{first}, */*"),
    }
}

pub(crate) fn media_of(answer: &Response<Body>) -> Result<Media, RequestError> {
    let header = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    Media::parse(header).ok_or_else(|| RequestError::OtherMedia(header.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_response_is_its_header() {
        let answer = |length: &'static str| {
            Response::builder().header(CONTENT_LENGTH, length).body(Body::empty()).expect("an answer")
        };
        assert_eq!(length(&answer("443")), Some(443));
        assert_eq!(length(&answer("many")), None);
        assert_eq!(length(&Response::new(Body::empty())), None);
    }
}
