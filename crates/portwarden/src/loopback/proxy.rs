//! Opens and closes listeners so that they are those of the last sync.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use portwarden_model::{Family, PerFamily};
use prometheus::IntCounter;
use tokio::sync::{Semaphore, watch};
use tracing::{debug, error, trace};

use super::listener::{Listener, Shared};
use crate::engine::{LoopbackPort, LoopbackPorts};
use crate::follow::is_due;
use crate::http::{Sockets, bind};
use crate::metrics::LoopbackMetrics;

/// So many connections all ports together may have at a time, where the process may open enough descriptors.
const CONNECTIONS: usize = 1024;

/// Of the descriptors that the process may open, one part in so many may be taken by each end of all connections: watches and health
/// checks need some, too.
const SHARE_OF_DESCRIPTORS: usize = 4;

/// What the proxy needs from the rest of the program.
pub struct LoopbackContext {
    /// Where listeners and failures are counted.
    pub metrics: LoopbackMetrics,
    /// Counts connections that were turned away.
    pub turned_away: IntCounter,
}

/// The open ports.
pub struct LoopbackProxy {
    metrics: LoopbackMetrics,
    shared: Shared,
    open: BTreeMap<(Family, u16), Listener>,
    /// What was last told about a port that cannot be opened.
    failed: BTreeMap<(Family, u16), String>,
}

impl LoopbackProxy {
    /// None open yet.
    pub fn new(context: LoopbackContext) -> Self {
        let shared = Shared { room: Arc::new(Semaphore::new(room())), turned_away: context.turned_away };
        LoopbackProxy { metrics: context.metrics, shared, open: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Keeps the ports as the engine wants them, until the engine is gone.
    pub async fn follow(mut self, mut wanted: watch::Receiver<PerFamily<LoopbackPorts>>) {
        loop {
            let present = wanted.borrow_and_update().clone();
            self.reconcile(&present).await;
            if !is_due(&mut wanted, !self.failed.is_empty()).await {
                return;
            }
        }
    }

    /// Closes what is no longer wanted, opens what is new, and tells the others where connections go from now on.
    pub async fn reconcile(&mut self, wanted: &PerFamily<LoopbackPorts>) {
        let by_port: BTreeMap<(Family, u16), &LoopbackPort> = wanted
            .iter()
            .flat_map(|(family, ports)| ports.iter().map(move |port| ((family, port.port), port)))
            .collect();
        let closing = self.open.extract_if(.., |key, _| !by_port.contains_key(key));
        for ((family, port), listener) in closing.collect::<Vec<_>>() {
            debug!(ipFamily = %family, protocol = "TCP", port, "Removing localhost nodeport proxy");
            listener.close().await;
        }
        self.failed.retain(|key, _| by_port.contains_key(key));
        for (key, port) in by_port {
            match self.open.get(&key) {
                Some(listener) => listener.update(port.endpoints.clone(), port.affinity),
                None => self.open(key, port),
            }
        }
        for (family, ports) in wanted.iter() {
            let count = self.open.keys().filter(|(open, _)| *open == family).count();
            self.metrics.listening(family, count, ports.served);
        }
    }

    fn open(&mut self, key: (Family, u16), wanted: &LoopbackPort) {
        let (family, port) = key;
        match bind(SocketAddr::new(family.loopback(), port), Sockets::OneFamily) {
            Ok(socket) => {
                let endpoints = wanted.endpoints.clone();
                trace!(
                    ipFamily = %family, protocol = "TCP", port, endpoints = endpoints.len(), service = %wanted.name,
                    "Created localhost nodeport proxy"
                );
                let listener = Listener::start(socket, endpoints, wanted.affinity, self.shared.clone());
                self.open.insert(key, listener);
                self.failed.remove(&key);
            }
            Err(problem) => {
                self.metrics.failed(family);
                let problem = problem.to_string();
                if self.failed.get(&key) != Some(&problem) {
                    error!(
                        ipFamily = %family, protocol = "TCP", port, service = %wanted.name, err = problem,
                        "Failed to create localhost nodeport proxy; it is tried again"
                    );
                    self.failed.insert(key, problem);
                }
            }
        }
    }
}

/// How many connections there may be at a time.
fn room() -> usize {
    let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((0, 0));
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    (descriptors / SHARE_OF_DESCRIPTORS).clamp(1, CONNECTIONS)
}
