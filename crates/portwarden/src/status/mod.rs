//! The metrics server: metrics, and pages about the process.
//!
//! | path | file |
//! |---|---|
//! | `/metrics`, `/proxyMode`, `/configz` | here |
//! | `/healthz`, `/healthz/ping`, `/metrics/slis` | `ping.rs` |
//! | `/flagz`, `/statusz` | `zpages.rs` |
//! | `/debug/…` | `debug.rs`, only while profiling is on; profiles in `profiles.rs`, or `no_profiles.rs` without the cargo feature |

mod debug;
#[cfg(not(feature = "profiling"))]
mod no_profiles;
mod ping;
#[cfg(feature = "profiling")]
mod profiles;
mod zpages;

use std::sync::{Arc, PoisonError, RwLock};

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};

use crate::http::{Answer, Handler, Request, compressible, json, not_found, text, with_header};
use crate::logging::Verbosity;
use crate::metrics::{CONTENT_TYPE, Metrics, go_float};

#[cfg(not(feature = "profiling"))]
use no_profiles as profiles;
use ping::Ping;
pub(crate) use profiles::sample_heap;
use zpages::Zpages;

/// Content of the pages that can change while the process runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// The proxy mode.
    pub mode: &'static str,
    /// The body of `/configz`.
    pub configz: String,
    /// Whether `/debug` exists.
    pub profiling: bool,
    /// Whether `/flagz` exists.
    pub flagz: bool,
    /// Whether `/statusz` exists.
    pub statusz: bool,
}

/// Content of the pages that never changes.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The component's name.
    pub component: &'static str,
    /// Of Kubernetes and Portwarden.
    pub version: String,
    /// All flags with their values, sorted by name.
    pub flags: Vec<(&'static str, String)>,
    /// When the process started, in seconds since the epoch.
    pub started: f64,
}

/// The pages. Cheap to clone; all clones share their content.
#[derive(Clone)]
pub struct Pages(Arc<Inner>);

struct Inner {
    shown: RwLock<Shown>,
    identity: Identity,
    metrics: Metrics,
    verbosity: Arc<Verbosity>,
    ping: Ping,
    zpages: Zpages,
}

impl Pages {
    /// Serves nothing by itself: see [`Pages::handler`].
    pub fn new(identity: Identity, shown: Shown, metrics: Metrics, verbosity: Arc<Verbosity>) -> Self {
        let zpages = Zpages::new(&identity);
        Pages(Arc::new(Inner {
            shown: RwLock::new(shown),
            identity,
            metrics,
            verbosity,
            ping: Ping::default(),
            zpages,
        }))
    }

    /// Replaces the content.
    pub fn show(&self, shown: Shown) {
        *self.0.shown.write().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// The handler of the metrics port.
    pub fn handler(&self) -> Handler {
        let pages = self.clone();
        Arc::new(move |request| {
            let pages = pages.clone();
            Box::pin(async move { pages.answer(request).await })
        })
    }

    async fn answer(&self, request: Request) -> Answer {
        let shown = self.0.shown.read().unwrap_or_else(PoisonError::into_inner).clone();
        match request.uri().path() {
            "/metrics" => self.metrics(&request),
            "/proxyMode" => text(StatusCode::OK, shown.mode),
            "/configz" => json(StatusCode::OK, shown.configz),
            "/healthz" => self.0.ping.healthz(request.uri().query().unwrap_or("")),
            "/healthz/ping" => self.0.ping.ping(),
            "/metrics/slis" => self.0.ping.slis(request.method(), self.0.identity.started),
            "/flagz" if shown.flagz => self.0.zpages.flagz(&request),
            "/statusz" if shown.statusz => self.0.zpages.statusz(&request, &shown),
            path if shown.profiling && path.starts_with("/debug/") => {
                debug::debug(request, &self.0.verbosity).await
            }
            _ => not_found(),
        }
    }

    fn metrics(&self, request: &Request) -> Answer {
        let started = HeaderValue::from_str(&go_float(self.0.identity.started));
        let answer = compressible(request.headers(), StatusCode::OK, CONTENT_TYPE, self.0.metrics.text());
        match started {
            Ok(started) => with_header(answer, HeaderName::from_static("process-start-time-unix"), started),
            Err(_) => answer,
        }
    }
}
