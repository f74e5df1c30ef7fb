//! A Kubernetes API server as the source of objects.
//!
//! | file | what |
//! |---|---|
//! | `access.rs` | kubeconfig, service account, address: where, whom to trust, who we are |
//! | `token.rs` | a token in a file, read again when it is rotated |
//! | `connect.rs` | TLS, HTTP/2 with pings, proxies |
//! | `client.rs`, `limiter.rs`, `error.rs` | requests, their rate, and what can go wrong with them |
//! | `resource.rs` | what is asked for, with which selectors |
//! | `list.rs`, `watch.rs` | one page of a list, one watch |
//! | `intake.rs` | decoded objects to events and problems |
//! | `reflector.rs`, `patience.rs`, `backoff.rs` | one kind of object, followed through every failure |
//! | `recorder.rs` | Kubernetes Events |

mod access;
mod backoff;
mod client;
mod connect;
mod error;
mod intake;
mod limiter;
mod list;
mod patience;
mod proxy;
mod recorder;
mod reflector;
mod resolve;
mod resource;
mod token;
mod watch;

use portwarden_model::manifest;

pub use access::AccessError;
pub use client::{Client, ClientOptions, Observation, Observer};
pub use error::RequestError;
pub use recorder::{EventRecorder, NewEvent, Regarding, Severity};
pub use token::TokenError;

use crate::settle::Manifest;
use crate::sink::Sink;
use reflector::Reflector;

/// The source that lists and watches an API server.
#[derive(Debug)]
pub struct Kubernetes {
    client: Client,
    node_name: String,
    streaming_lists: bool,
}

impl Kubernetes {
    /// Services, EndpointSlices and ServiceCIDRs of the cluster, and the Node of this name.
    pub fn new(client: Client, node_name: impl Into<String>) -> Self {
        Kubernetes { client, node_name: node_name.into(), streaming_lists: true }
    }

    /// Whether lists are asked for as streams of watch events first. They are unless this says otherwise; a server that cannot make them
    /// is asked for ordinary ones in any case.
    #[must_use]
    pub fn streaming_lists(self, wanted: bool) -> Self {
        Kubernetes { streaming_lists: wanted, ..self }
    }

    /// Tells all objects and then every change, until nobody listens any more.
    ///
    /// Nothing that an API server does ends this: what fails is told as the source's state and tried again. What was told once
    /// stays true until the server says otherwise.
    pub async fn run(self, sink: Sink) {
        tokio::join!(
            self.reflector::<manifest::Service>(&sink).run(),
            self.reflector::<manifest::EndpointSlice>(&sink).run(),
            self.reflector::<manifest::Node>(&sink).run(),
            self.reflector::<manifest::ServiceCidr>(&sink).run(),
        );
    }

    fn reflector<M: Manifest>(&self, sink: &Sink) -> Reflector<M> {
        Reflector::new(self.client.clone(), &self.node_name, sink.clone(), self.streaming_lists)
    }
}
