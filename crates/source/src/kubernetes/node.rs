//! Waiting for the own Node at start-up.

use std::time::Duration;

use portwarden_model::object::Node;
use portwarden_model::{Event, Kind, manifest};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::Client;
use super::reflector::Reflector;
use crate::sink::{Sink, Status, Update};

/// How long to wait for the Node and its addresses; without them, everything else still works.
const FOR_ADDRESSES: Duration = Duration::from_secs(30);
/// How much longer to wait for pod ranges, which cannot be done without.
const FOR_POD_CIDRS: Duration = Duration::from_secs(300);

/// Why there is no Node to go on with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// There is no such Node.
    #[error("timeout waiting for node {0:?} to exist")]
    Missing(String),
    /// Nobody gave it pod ranges.
    #[error("timeout waiting for PodCIDR allocation on node {0:?}")]
    NoPodCidrs(String),
}

/// Waits for the Node of this name: without limit for the API server to answer at all, then up to 30 s for the Node to exist
/// and to have addresses, and, if `need_pod_cidrs`, up to 5 min more for its pod ranges.
///
/// Without pod ranges to wait for, whatever is known after 30 s is the answer, even nothing. `tell` hears how the watch does.
pub async fn wait_for_node(
    client: &Client,
    name: &str,
    need_pod_cidrs: bool,
    tell: impl Fn(Status),
) -> Result<Option<Node>, NodeError> {
    let (sender, updates) = mpsc::unbounded_channel();
    let sink = Sink::new(100, move |update| sender.send(update).is_ok());
    let waiting = Waiting { updates, tell, node: None, listed: false };
    let watch = Reflector::<manifest::Node>::new(client.clone(), name, sink).run();
    // The watch ends only when nobody listens, so that the other side is always the first to be done.
    tokio::select! {
        result = waiting.run(name, need_pod_cidrs) => result,
        () = watch => Err(NodeError::Missing(name.to_owned())),
    }
}

struct Waiting<T> {
    updates: mpsc::UnboundedReceiver<Update>,
    tell: T,
    node: Option<Node>,
    listed: bool,
}

impl<T: Fn(Status)> Waiting<T> {
    async fn run(mut self, name: &str, need_pod_cidrs: bool) -> Result<Option<Node>, NodeError> {
        while !self.listed {
            self.take().await;
        }
        let start = Instant::now();
        let has_addresses = |node: &Node| !node.ips.is_empty();
        self.until(start + FOR_ADDRESSES, has_addresses).await;
        if !need_pod_cidrs {
            return Ok(self.node);
        }
        let has_pod_cidrs = |node: &Node| !node.pod_cidrs.is_empty();
        if self.until(Instant::now() + FOR_POD_CIDRS, has_pod_cidrs).await {
            return Ok(self.node);
        }
        Err(match self.node {
            None => NodeError::Missing(name.to_owned()),
            Some(_) => NodeError::NoPodCidrs(name.to_owned()),
        })
    }

    /// Whether the Node came to satisfy a condition in time.
    async fn until(&mut self, deadline: Instant, condition: impl Fn(&Node) -> bool) -> bool {
        loop {
            if self.node.as_ref().is_some_and(&condition) {
                return true;
            }
            if tokio::time::timeout_at(deadline, self.take()).await.is_err() {
                return false;
            }
        }
    }

    async fn take(&mut self) {
        match self.updates.recv().await {
            Some(Update::Events(batch)) => {
                for event in batch.into_events() {
                    match event {
                        Event::NodeApplied(node) => self.node = Some(node),
                        Event::NodeDeleted(_) => self.node = None,
                        Event::ListDone(Kind::Node) => self.listed = true,
                        _ => {}
                    }
                }
            }
            Some(Update::Status(status)) => (self.tell)(status),
            Some(Update::Problems(_)) => {}
            // The watch has ended; the caller's side notices.
            None => std::future::pending().await,
        }
    }
}
