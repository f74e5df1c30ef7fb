//! The health and metrics servers.

use std::net::SocketAddr;
use std::sync::Arc;

use super::StartupOptions;
use crate::config::gates::Feature;
use crate::config::{Config, to_configz};
use crate::health::{self, SharedHealth};
use crate::http::{BindError, ConnectionLimit, Limits, Server, ServerOptions};
use crate::logging::Logs;
use crate::metrics::Metrics;
use crate::status::{Identity, Pages, Shown};

/// The name of the health server.
pub(super) const HEALTH: &str = "healthz";

/// Open connections of each of the two.
const CONNECTIONS: usize = 128;

/// The running servers.
pub(super) struct Servers {
    health: SharedHealth,
    metrics: Metrics,
    pages: Pages,
    healthz: Option<Server>,
    status: Option<Server>,
}

impl Servers {
    /// Starts both.
    pub(super) async fn start(
        options: &StartupOptions,
        health: &SharedHealth,
        metrics: &Metrics,
        logs: &Arc<Logs>,
    ) -> Result<Self, BindError> {
        let identity = Identity {
            component: "kube-proxy",
            version: options.version.clone(),
            flags: options.flags.listing(options.program),
            started: crate::metrics::process_start_time(),
        };
        let pages = Pages::new(identity, shown(&options.config), metrics.clone(), logs.verbosity.clone());
        let mut servers =
            Servers { health: health.clone(), metrics: metrics.clone(), pages, healthz: None, status: None };
        servers.restart_health(&options.config).await?;
        servers.restart_status(&options.config).await?;
        Ok(servers)
    }

    /// The bound addresses of both; `None` for one that does not listen.
    pub(super) fn bound(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let bound = |server: &Option<Server>| server.as_ref().and_then(Server::bound);
        (bound(&self.healthz), bound(&self.status))
    }

    /// Shows another configuration.
    pub(super) fn show(&self, config: &Config) {
        crate::status::sample_heap(config.servers.profiling);
        self.pages.show(shown(config));
    }

    /// Restarts the health server, at another address or not at all. The old one ends first: both may use the same port.
    pub(super) async fn restart_health(&mut self, config: &Config) -> Result<(), BindError> {
        if let Some(old) = self.healthz.take() {
            old.stop().await;
        }
        let Some(address) = config.servers.healthz else { return Ok(()) };
        let handler = health::handler(self.health.clone(), self.metrics.health.clone());
        let failure = "Healthz server failed";
        self.healthz = Some(self.server(HEALTH, failure, address, config.servers.hard_fail, handler)?);
        Ok(())
    }

    /// Restarts the metrics server.
    pub(super) async fn restart_status(&mut self, config: &Config) -> Result<(), BindError> {
        if let Some(old) = self.status.take() {
            old.stop().await;
        }
        let (address, hard_fail) = (config.servers.metrics, config.servers.hard_fail);
        let failure = "starting metrics server failed";
        self.status = Some(self.server("metrics", failure, address, hard_fail, self.pages.handler())?);
        Ok(())
    }

    fn server(
        &self,
        name: &'static str,
        failure: &'static str,
        address: SocketAddr,
        hard_fail: bool,
        handler: crate::http::Handler,
    ) -> Result<Server, BindError> {
        let refused = self.metrics.own.refused_connections.with_label_values(&[name]);
        // A limit of its own: other servers' clients cannot keep this one's out.
        let connections = ConnectionLimit::new(CONNECTIONS, refused);
        let limits = Limits::default();
        Server::start(ServerOptions { name, failure, address, hard_fail, limits, connections, handler })
    }
}

fn shown(config: &Config) -> Shown {
    Shown {
        mode: config.mode.as_str(),
        configz: to_configz(&config.document),
        profiling: config.servers.profiling,
        flagz: config.gates.enabled(Feature::ComponentFlagz),
        statusz: config.gates.enabled(Feature::ComponentStatusz),
    }
}
