//! Kubernetes Events about the Node and about Services.
//!
//! Recording never waits. An Event that cannot be sent after some retries is dropped.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Limited};
use portwarden_model::{NamespacedName, Timestamp};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::backoff::random;
use super::client::{Call, Client};
use super::error::RequestError;
use super::rate_limiter::RateLimiter;

/// The length of the queue; Events beyond it are dropped.
const QUEUE: usize = 1000;
/// Attempts to send one Event, and the time between them.
const ATTEMPTS: usize = 12;
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(10);
/// A repetition within this time belongs to the same series.
const SERIES: Duration = Duration::from_secs(360);
/// The most series to remember.
const MAX_SERIES: usize = 1000;
/// The rate of requests for Events: a burst, then one every ten seconds.
const QPS: f32 = 0.1;
const BURST: u32 = 25;
/// The longest response that is read.
const MAX_RESPONSE: usize = 64 << 10;
/// The API's limit for the length of a note.
const MAX_NOTE: usize = 1024;

/// The object of an Event: its field `regarding`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Regarding {
    /// By its name.
    Node(String),
    /// By namespace and name.
    Service(NamespacedName),
}

/// The type of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Information only.
    Normal,
    /// Asks for attention.
    Warning,
}

/// An Event to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// The object that it is about.
    pub regarding: Regarding,
    /// Normal or warning.
    pub severity: Severity,
    /// The cause as one machine-readable word, such as `Starting`.
    pub reason: String,
    /// The action as one machine-readable word, such as `StartKubeProxy`.
    pub action: String,
    /// A sentence for people.
    pub note: String,
}

/// Queues Events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<NewEvent>,
}

impl EventRecorder {
    /// A recorder, and the task that sends its Events, which ends when the last recorder is dropped.
    ///
    /// `instance` identifies this process among those of the same controller.
    pub fn new(
        client: Client,
        controller: &str,
        instance: &str,
    ) -> (EventRecorder, impl Future<Output = ()> + Send + use<>) {
        let (queue, events) = mpsc::channel(QUEUE);
        let worker = Worker {
            client,
            limiter: RateLimiter::new(QPS, BURST),
            controller: controller.to_owned(),
            instance: instance.to_owned(),
            series: HashMap::new(),
        };
        (EventRecorder { queue }, worker.run(events))
    }

    /// Queues an Event, or drops it if the queue is full.
    pub fn record(&self, event: NewEvent) {
        if let Err(error) = self.queue.try_send(event) {
            tracing::debug!(%error, "Dropped an Event");
        }
    }
}

struct Worker {
    client: Client,
    limiter: RateLimiter,
    controller: String,
    instance: String,
    series: HashMap<Key, Series>,
}

/// Events with the same key are a series.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    regarding: Regarding,
    severity: Severity,
    reason: String,
    action: String,
}

#[derive(Debug)]
struct Series {
    name: String,
    count: u32,
    last: Instant,
    /// The time of the last request about it.
    sent: Instant,
}

impl Worker {
    async fn run(mut self, mut events: mpsc::Receiver<NewEvent>) {
        while let Some(event) = events.recv().await {
            let now = Instant::now();
            self.series.retain(|_, series| now.saturating_duration_since(series.last) < SERIES);
            let key = Key {
                regarding: event.regarding.clone(),
                severity: event.severity,
                reason: event.reason.clone(),
                action: event.action.clone(),
            };
            match self.series.get_mut(&key) {
                Some(series) => {
                    series.count += 1;
                    series.last = now;
                    // The first repetition makes it a series; later ones only update its count, every few minutes.
                    if series.count == 2 || now.saturating_duration_since(series.sent) >= SERIES {
                        series.sent = now;
                        let (name, count) = (series.name.clone(), series.count);
                        self.patch(&event.regarding, &name, count).await;
                    }
                }
                None => self.create(key, event, now).await,
            }
        }
    }

    async fn create(&mut self, key: Key, event: NewEvent, now: Instant) {
        let time = wall_clock();
        let body = Body::new(&event, &self.controller, &self.instance, time);
        let name = body.metadata.name.clone();
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", body.metadata.namespace);
        let Ok(body) = serde_json::to_vec(&body) else { return };
        self.send(Method::POST, &path, "application/json", body.into()).await;
        if self.series.len() < MAX_SERIES {
            self.series.insert(key, Series { name, count: 1, last: now, sent: now });
        }
    }

    async fn patch(&self, regarding: &Regarding, name: &str, count: u32) {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events/{name}", regarding.event_namespace());
        let series = Patch { series: PatchSeries { count, last_observed_time: micro_time(wall_clock()) } };
        let Ok(body) = serde_json::to_vec(&series) else { return };
        self.send(Method::PATCH, &path, "application/merge-patch+json", body.into()).await;
    }

    /// Sends, and retries while the server cannot be reached; not after a refusal.
    async fn send(&self, method: Method, path: &str, content_type: &'static str, body: Bytes) {
        for attempt in 1..=ATTEMPTS {
            self.limiter.acquire().await;
            let call = Call {
                method: method.clone(),
                path_and_query: path,
                content_type: Some(content_type),
                accept: None,
                body: body.clone(),
            };
            let error = match self.client.send(call).await {
                Ok(answer) => {
                    // Reads to the end, so that the connection can be reused.
                    let _ = Limited::new(answer.into_body(), MAX_RESPONSE).collect().await;
                    return;
                }
                Err(error) => error,
            };
            let can_retry = !matches!(
                error,
                RequestError::Forbidden { .. }
                    | RequestError::NotFound { .. }
                    | RequestError::Refused { code: 400..=499, .. }
            );
            tracing::debug!(%error, attempt, "Cannot send an Event");
            if !can_retry {
                return;
            }
            let wait = BETWEEN_ATTEMPTS.mul_f64(0.5 + random());
            tokio::time::sleep(wait.max(error.retry_after().unwrap_or_default())).await;
        }
    }
}

impl Regarding {
    /// Events about cluster-wide objects live in the namespace `default`.
    fn event_namespace(&self) -> &str {
        match self {
            Regarding::Node(_) => "default",
            Regarding::Service(name) => name.namespace(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: Metadata<'a>,
    event_time: String,
    reporting_controller: &'a str,
    reporting_instance: &'a str,
    action: &'a str,
    reason: &'a str,
    regarding: Reference<'a>,
    note: &'a str,
    r#type: &'a str,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: String,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reference<'a> {
    api_version: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    name: &'a str,
}

#[derive(Serialize)]
struct Patch {
    series: PatchSeries,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PatchSeries {
    count: u32,
    last_observed_time: String,
}

impl<'a> Body<'a> {
    fn new(event: &'a NewEvent, controller: &'a str, instance: &'a str, time: i64) -> Self {
        let (kind, namespace, name) = match &event.regarding {
            Regarding::Node(name) => ("Node", "", name.as_str()),
            Regarding::Service(service) => ("Service", service.namespace(), service.name()),
        };
        Body {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            metadata: Metadata {
                name: format!("{name}.{time:x}"),
                namespace: event.regarding.event_namespace(),
            },
            event_time: micro_time(time),
            reporting_controller: controller,
            reporting_instance: instance,
            action: &event.action,
            reason: &event.reason,
            regarding: Reference { api_version: "v1", kind, namespace, name },
            note: shortened(&event.note),
            r#type: match event.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            },
        }
    }
}

fn shortened(note: &str) -> &str {
    let end = (0..=note.len().min(MAX_NOTE)).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
    note.get(..end).unwrap_or_default()
}

/// Nanoseconds since the epoch.
fn wall_clock() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// RFC 3339 with exactly six digits, the only form that the API accepts.
fn micro_time(nanos: i64) -> String {
    let whole = Timestamp::from_nanos(nanos.div_euclid(1_000_000_000) * 1_000_000_000).to_string();
    format!("{}.{:06}Z", whole.trim_end_matches('Z'), nanos.rem_euclid(1_000_000_000) / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_form_of_the_api() {
        let event = NewEvent {
            regarding: Regarding::Node("node-a".into()),
            severity: Severity::Normal,
            reason: "Starting".into(),
            action: "StartKubeProxy".into(),
            note: "é".repeat(1000),
        };
        let body = Body::new(&event, "kube-proxy", "kube-proxy-host", 1_794_778_989_000_001_000);
        let json = serde_json::to_value(&body).expect("it can be written");
        assert_eq!(json["metadata"]["name"], "node-a.18e855fb39ae05e8");
        assert_eq!(json["metadata"]["namespace"], "default");
        assert_eq!(json["eventTime"], "2026-11-15T21:43:09.000001Z");
        assert_eq!(
            json["regarding"],
            serde_json::json!({"apiVersion": "v1", "kind": "Node", "name": "node-a"})
        );
        assert_eq!(json["note"].as_str().map(str::len), Some(1024));
    }
}
