//! The health and metrics servers, and that of the live page.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tracing::warn;

use super::StartupOptions;
use crate::config::gates::Feature;
use crate::config::{Config, to_configz};
use crate::health::{self, SharedHealth};
use crate::http::{BindError, ConnectionLimit, Limits, Server, ServerOptions};
use crate::introspection::Introspection;
use crate::logging::Logs;
use crate::metrics::Metrics;
use crate::status::{Identity, Pages, Shown};

/// The name of the health server.
pub(super) const HEALTH: &str = "healthz";

/// Open connections of each of the two.
const CONNECTIONS: usize = 128;

/// Open connections of the live page's server. A browser has up to six.
const PAGE_CONNECTIONS: usize = 64;

/// Descriptors that only the health server can use: a probe must be answered even when everything else has used up the others.
const RESERVED: usize = 16;

/// The running servers.
pub(super) struct Servers {
    health: SharedHealth,
    metrics: Metrics,
    pages: Pages,
    healthz: Option<Server>,
    status: Option<Server>,
    introspection: Introspection,
    page: Option<PageServer>,
}

/// The server of the live page, and the task that takes samples for it.
struct PageServer {
    server: Server,
    samples: JoinHandle<()>,
}

impl PageServer {
    async fn stop(self) {
        self.samples.abort();
        self.server.stop().await;
    }
}

impl Servers {
    /// Starts all.
    pub(super) async fn start(
        options: &StartupOptions,
        health: &SharedHealth,
        metrics: &Metrics,
        logs: &Arc<Logs>,
        introspection: Introspection,
    ) -> Result<Self, BindError> {
        let identity = Identity {
            component: "kube-proxy",
            version: options.version.clone(),
            flags: options.flags.listing(options.program),
            started: crate::metrics::process_start_time(),
        };
        let pages = Pages::new(identity, shown(&options.config), metrics.clone(), logs.verbosity.clone());
        let mut servers = Servers {
            health: health.clone(),
            metrics: metrics.clone(),
            pages,
            healthz: None,
            status: None,
            introspection,
            page: None,
        };
        servers.restart_health(&options.config).await?;
        servers.restart_status(&options.config).await?;
        servers.restart_page(&options.config).await;
        Ok(servers)
    }

    /// The bound address of the live page.
    pub(super) fn page_bound(&self) -> Option<SocketAddr> {
        self.page.as_ref().and_then(|page| page.server.bound())
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
        self.healthz =
            Some(self.server(HEALTH, failure, address, config.servers.hard_fail, RESERVED, handler)?);
        Ok(())
    }

    /// Restarts the metrics server.
    pub(super) async fn restart_status(&mut self, config: &Config) -> Result<(), BindError> {
        if let Some(old) = self.status.take() {
            old.stop().await;
        }
        let (address, hard_fail) = (config.servers.metrics, config.servers.hard_fail);
        let failure = "starting metrics server failed";
        self.status = Some(self.server("metrics", failure, address, hard_fail, 0, self.pages.handler())?);
        Ok(())
    }

    /// Restarts the live page. It never ends the process: if another program has its port, the server tries again in the background.
    pub(super) async fn restart_page(&mut self, config: &Config) {
        if let Some(old) = self.page.take() {
            old.stop().await;
        }
        let Some(address) = config.servers.page else { return };
        if !address.ip().is_loopback() {
            warn!(
                %address,
                "The live page shows Services, endpoints and errors of this node to everyone who can connect to its address; \
                 a loopback address shows them only on this host"
            );
        }
        let name = "page";
        let connections = ConnectionLimit::new(
            PAGE_CONNECTIONS,
            self.metrics.own.refused_connections.with_label_values(&[name]),
        );
        let server = Server::start(ServerOptions {
            name,
            failure: "The live page cannot listen; another program or another instance may have the port. Choose another one with \
                      --page-bind-address, or turn the page off with an empty address",
            address,
            hard_fail: false,
            log_once: true,
            limits: Limits::default(),
            connections,
            handler: self.introspection.handler(),
        });
        match server {
            Ok(server) => {
                let samples = tokio::spawn(self.introspection.clone().run());
                self.page = Some(PageServer { server, samples });
            }
            Err(error) => warn!(err = crate::logging::chain(&error), "The live page is off"),
        }
    }

    fn server(
        &self,
        name: &'static str,
        failure: &'static str,
        address: SocketAddr,
        hard_fail: bool,
        reserve: usize,
        handler: crate::http::Handler,
    ) -> Result<Server, BindError> {
        let refused = self.metrics.own.refused_connections.with_label_values(&[name]);
        // A limit of its own: other servers' clients cannot keep this one's out.
        let connections = ConnectionLimit::new(CONNECTIONS, refused).with_reserve(reserve);
        let limits = Limits::default();
        let log_once = false;
        Server::start(ServerOptions {
            name,
            failure,
            address,
            hard_fail,
            log_once,
            limits,
            connections,
            handler,
        })
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
