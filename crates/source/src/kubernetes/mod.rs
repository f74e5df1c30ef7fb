//! A Kubernetes API server as the source of objects.
//!
//! | file | what |
//! |---|---|
//! | `credentials/` | kubeconfig, credential plugins, service account, token files |
//! | `proxy_environment.rs` | `HTTPS_PROXY`, `NO_PROXY` |
//! | `connect.rs`, `any_connection.rs`, `dns.rs` | TLS, HTTP/2 with pings, proxies, timed DNS look-ups |
//! | `client.rs`, `rate_limiter.rs`, `error.rs` | requests, their rate, and their errors |
//! | `resource.rs` | the paths and selectors of each kind of object |
//! | `list.rs`, `watch.rs` | one page of a list, one watch |
//! | `event_batches.rs` | decoded objects to batches of model events |
//! | `reflector.rs`, `retry_policy.rs`, `backoff.rs` | one kind of object, listed and watched through every failure |
//! | `missing_node.rs` | which Nodes exist, if ours does not |
//! | `event_recorder.rs` | Kubernetes Events |
//! | `startup_taint.rs` | the removal of a taint from the Node |

mod any_connection;
mod backoff;
mod client;
mod connect;
mod credentials;
mod dns;
mod error;
mod event_batches;
mod event_recorder;
mod list;
mod missing_node;
mod proxy_environment;
mod rate_limiter;
mod reflector;
mod resource;
mod retry_policy;
mod startup_taint;
mod watch;

use portwarden_model::manifest;

pub use client::{Client, ClientOptions, Observation, Observer};
pub use credentials::{AccessError, TokenError, check_kubeconfig};
pub use error::RequestError;
pub use event_recorder::{EventRecorder, NewEvent, Regarding, Severity};
pub use startup_taint::remove_startup_taint;

use crate::manifest::Manifest;
use crate::sink::{Running, Sink};
use reflector::Reflector;

/// The source that lists and watches an API server.
#[derive(Debug)]
pub struct Kubernetes {
    client: Client,
    node_name: String,
    streaming_lists: bool,
    most_pages: u32,
}

/// A list with more pages has no end: a million objects have a fifth of them.
const MOST_PAGES: u32 = 10_000;

impl Kubernetes {
    /// Services, EndpointSlices and ServiceCIDRs of the cluster, and the Node of this name.
    pub fn new(client: Client, node_name: impl Into<String>) -> Self {
        Kubernetes { client, node_name: node_name.into(), streaming_lists: true, most_pages: MOST_PAGES }
    }

    /// Whether to request lists as streams of watch events first, which is the default. A server that does not support them gets requests
    /// for ordinary lists in any case.
    #[must_use]
    pub fn streaming_lists(self, wanted: bool) -> Self {
        Kubernetes { streaming_lists: wanted, ..self }
    }

    /// How many pages a list may have before it counts as one without end.
    #[must_use]
    pub fn most_pages(self, most_pages: u32) -> Self {
        Kubernetes { most_pages, ..self }
    }

    /// Sends all objects and then every change, until the sink is closed.
    ///
    /// No error of an API server ends this: the source reports its state and retries. Objects stay until the server reports a change.
    pub fn run(self, sink: Sink) -> Running {
        Box::pin(self.follow(sink))
    }

    async fn follow(self, sink: Sink) {
        tokio::join!(
            self.reflector::<manifest::Service>(&sink).run(),
            self.reflector::<manifest::EndpointSlice>(&sink).run(),
            self.reflector::<manifest::Node>(&sink).run(),
            self.reflector::<manifest::ServiceCidr>(&sink).run(),
        );
    }

    fn reflector<M: Manifest>(&self, sink: &Sink) -> Reflector<M> {
        Reflector::new(
            self.client.clone(),
            &self.node_name,
            sink.clone(),
            self.streaming_lists,
            self.most_pages,
        )
    }
}
