//! Answers requests. Nothing in here waits for the engine without a limit.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue};
use portwarden_model::{Cluster, NamespacedName};
use serde::Serialize;
use tokio::sync::{Semaphore, oneshot};

use super::activity::SAMPLE_INTERVAL;
use super::api::{ApiError, ServicePage};
use super::explanation::{ServiceExplanation, explain_service, similar_services};
use super::packet::{Packet, PacketExplanation, explain_packet};
use super::request::{Parameters, check};
use super::services::{Index, Query, Selection, at_address, rows};
use super::status::{Identity, Sources, resident_memory, status, stuck_text};
use super::stream::Stream;
use crate::engine::{Handle, Message, Moment};
use crate::http::{Answer, Handler, Request, compressible, json, with_header};
use crate::modes::{Mode, SourceAddress};

/// How long a request waits for the engine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Requests that may wait for the engine at the same time.
const WAITING: usize = 8;

/// Sent with every answer: the page uses nothing but what this server has, and nothing else may use or frame it.
const HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
];

/// The introspection server's handler and what it needs. Cheap to clone.
#[derive(Clone)]
pub struct Introspection(Arc<Inner>);

struct Inner {
    identity: Identity,
    sources: Sources,
    engine: Handle,
    /// Limits what waits in the engine's queue, also while the engine is stuck.
    waiting: Arc<Semaphore>,
    index: Mutex<Option<Arc<Index>>>,
    stream: Stream,
}

/// A request that gets an error as its answer.
type Failure = (StatusCode, ApiError);

impl Introspection {
    /// Serves nothing by itself: see [`Introspection::handler`] and [`Introspection::run`].
    pub fn new(identity: Identity, sources: Sources, engine: Handle) -> Self {
        Introspection(Arc::new(Inner {
            identity,
            sources,
            engine,
            waiting: Arc::new(Semaphore::new(WAITING)),
            index: Mutex::new(None),
            stream: Stream::default(),
        }))
    }

    /// Takes a sample for the plots in every interval, and sends the status to viewers. Ends with the returned future.
    pub async fn run(self) {
        let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let Inner { identity, sources, stream, index, .. } = &*self.0;
        let mut last = None;
        loop {
            ticks.tick().await;
            let now = Moment::now();
            sources.activity.sample(now.wall, resident_memory());
            if stream.has_viewers() {
                let news = sources.activity.series(last);
                last = news.time.last().copied().or(last);
                stream.send(&status(identity, sources, now), &news);
            } else {
                last = None;
            }
            let mut index = index.lock().unwrap_or_else(PoisonError::into_inner);
            if index.as_ref().is_some_and(|index| index.is_old(now.instant)) {
                *index = None;
            }
        }
    }

    /// Answers requests.
    pub fn handler(&self) -> Handler {
        let this = self.clone();
        Arc::new(move |request| {
            let this = this.clone();
            Box::pin(async move {
                let answer = this.answer(&request).await;
                HEADERS.into_iter().fold(answer, |answer, (name, value)| {
                    with_header(answer, HeaderName::from_static(name), HeaderValue::from_static(value))
                })
            })
        })
    }

    async fn answer(&self, request: &Request) -> Answer {
        if let Err(refusal) = check(request.method(), request.headers()) {
            return failure(refusal.status, refusal.text);
        }
        let parameters = Parameters::parse(request.uri().query().unwrap_or_default());
        let Inner { identity, sources, stream, .. } = &*self.0;
        match request.uri().path() {
            "/api/status" => ok(request, &status(identity, sources, Moment::now())),
            "/api/timeline" => ok(request, &sources.activity.timeline()),
            "/api/series" => ok(request, &sources.activity.series(None)),
            "/api/services" => respond(request, self.services(&parameters).await),
            "/api/explain" => self.explain(request, &parameters).await,
            "/api/events" => {
                let now = status(identity, sources, Moment::now());
                match stream.open(&now) {
                    Some(answer) => no_store(answer),
                    None => failure(StatusCode::SERVICE_UNAVAILABLE, "too many viewers"),
                }
            }
            path => super::page::answer(path, request.headers()).unwrap_or_else(|| {
                failure(StatusCode::NOT_FOUND, "unknown path; the page is at / and the status at /api/status")
            }),
        }
    }

    async fn services(&self, parameters: &Parameters) -> Result<ServicePage, Failure> {
        let query = Query {
            text: parameters.get("query").unwrap_or_default().to_owned(),
            troubled: parameters.get("state") == Some("troubled"),
            page: parameters.get("page").and_then(|page| page.parse().ok()).unwrap_or(0),
        };
        let index = self.index().await?;
        let refused = self.0.sources.activity.refused_services();
        let found = match query.address() {
            Some(ip) => Some(self.inspect(move |cluster| at_address(cluster, ip)).await?),
            None => None,
        };
        let selection: Selection = index.select(&query, found.as_deref());
        let names = selection.names.clone();
        let rows = self.inspect(move |cluster| rows(cluster, &names, &refused)).await?;
        Ok(selection.with(rows))
    }

    /// The index of all Services, at most a few seconds old.
    async fn index(&self) -> Result<Arc<Index>, Failure> {
        let known = self.0.index.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.filter(|known| !known.is_stale(Instant::now())) {
            return Ok(known);
        }
        let refused = self.0.sources.activity.refused_services();
        let index = self.inspect(move |cluster| Index::build(cluster, &refused)).await?;
        // On another thread: health checks must not wait until tens of thousands of names are sorted.
        let sorted = tokio::task::spawn_blocking(|| index.sort()).await;
        let index = Arc::new(sorted.map_err(|_| self.engine_failure())?);
        *self.0.index.lock().unwrap_or_else(PoisonError::into_inner) = Some(index.clone());
        Ok(index)
    }

    async fn explain(&self, request: &Request, parameters: &Parameters) -> Answer {
        match (parameters.get("service"), parameters.get("to")) {
            (Some(service), None) => respond(request, self.explain_service(service).await),
            (None, Some(to)) => respond(request, self.explain_packet(to, parameters.get("from")).await),
            _ => failure(
                StatusCode::BAD_REQUEST,
                "what to explain? /api/explain?service=NAMESPACE/NAME or /api/explain?to=IP:PORT/PROTOCOL, with &from=IP if the client matters",
            ),
        }
    }

    async fn explain_service(&self, service: &str) -> Result<ServiceExplanation, Failure> {
        let (namespace, name) = service.split_once('/').unwrap_or(("default", service));
        let service = NamespacedName::new(namespace, name);
        let (wanted, source) = (service.clone(), self.source_address());
        let explained = self.inspect(move |cluster| {
            explain_service(cluster, &wanted, source).ok_or_else(|| similar_services(cluster, &wanted))
        });
        match explained.await? {
            Ok(explanation) => {
                let refused = self.0.sources.activity.refusals_of(&service);
                Ok(ServiceExplanation { refused, ..explanation })
            }
            Err(did_you_mean) => {
                let error = format!(
                    "Service {service} is not proxied: it does not exist, is headless, is of type ExternalName, or is assigned to another proxy"
                );
                Err((StatusCode::NOT_FOUND, ApiError { error, did_you_mean }))
            }
        }
    }

    async fn explain_packet(&self, to: &str, from: Option<&str>) -> Result<PacketExplanation, Failure> {
        let packet = Packet::parse(to, from).map_err(|error| {
            (StatusCode::BAD_REQUEST, ApiError { error: error.to_string(), did_you_mean: Vec::new() })
        })?;
        let source = self.source_address();
        self.inspect(move |cluster| explain_packet(cluster, packet, source)).await
    }

    /// Whose address endpoints see, in the mode that is in force.
    fn source_address(&self) -> SourceAddress {
        let mode = Mode::from_name(&self.0.sources.activity.mode());
        // Before the engine has reported its mode, nothing is forwarded.
        mode.map_or(SourceAddress::Client, Mode::source_address)
    }

    /// Runs a function on the engine's thread, and gives up if that does not come to it in time.
    async fn inspect<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cluster) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = self.0.waiting.clone().try_acquire_owned().map_err(|_| self.engine_failure())?;
        let (reply, answer) = oneshot::channel();
        let sent = self.0.engine.send(Message::Inspect(Box::new(move |cluster| {
            // A client that is gone needs no answer.
            if !reply.is_closed() {
                let _ = reply.send(work(cluster));
            }
            drop(permit);
        })));
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(answer)) if sent => Ok(answer),
            _ => Err(self.engine_failure()),
        }
    }

    fn engine_failure(&self) -> Failure {
        let Inner { identity, sources, .. } = &*self.0;
        let engine = status(identity, sources, Moment::now()).engine;
        let error = match engine.busy {
            Some(_) => {
                format!("{}; the status is at /api/status, for the rest try again later", stuck_text(&engine))
            }
            None => "the engine does not answer; try again later".to_owned(),
        };
        (StatusCode::SERVICE_UNAVAILABLE, ApiError { error, did_you_mean: Vec::new() })
    }
}

fn respond<T: Serialize>(request: &Request, result: Result<T, Failure>) -> Answer {
    match result {
        Ok(value) => ok(request, &value),
        Err((status, error)) => no_store(json(status, to_json(&error))),
    }
}

fn ok<T: Serialize>(request: &Request, value: &T) -> Answer {
    no_store(compressible(request.headers(), StatusCode::OK, "application/json", to_json(value)))
}

fn failure(status: StatusCode, text: &str) -> Answer {
    let error = ApiError { error: text.to_owned(), did_you_mean: Vec::new() };
    no_store(json(status, to_json(&error)))
}

fn no_store(answer: Answer) -> Answer {
    with_header(answer, CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

/// Our types have string keys and finite numbers, so this cannot fail.
pub(super) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}
