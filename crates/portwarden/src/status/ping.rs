//! `/healthz` of the metrics port, which only shows that the process answers, and its counters at `/metrics/slis`.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::{Method, StatusCode};

use crate::http::{Answer, answer, text};
use crate::metrics::{CONTENT_TYPE, go_float};

/// Counts requests.
#[derive(Debug, Default)]
pub(super) struct Ping {
    asked: AtomicU64,
}

impl Ping {
    /// `/healthz`: always succeeds.
    pub(super) fn healthz(&self, query: &str) -> Answer {
        let parameters = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let excluded = parameters().any(|(key, value)| key == "exclude" && value == "ping");
        if !excluded {
            self.count();
        }
        if parameters().any(|(key, _)| key == "verbose") {
            let line = if excluded { "[+]ping excluded: ok\n" } else { "[+]ping ok\n" };
            return text(StatusCode::OK, format!("{line}healthz check passed\n"));
        }
        text(StatusCode::OK, "ok")
    }

    /// `/healthz/ping`.
    pub(super) fn ping(&self) -> Answer {
        self.count();
        text(StatusCode::OK, "ok")
    }

    /// `/metrics/slis`.
    pub(super) fn slis(&self, method: &Method, started: f64) -> Answer {
        if method == Method::DELETE {
            self.asked.store(0, Ordering::Relaxed);
            return text(StatusCode::OK, "metrics reset\n");
        }
        let mut out = String::new();
        let asked = self.asked.load(Ordering::Relaxed);
        if asked > 0 {
            out.push_str("# HELP kubernetes_healthcheck [STABLE] The last result of each health check\n# TYPE kubernetes_healthcheck gauge\n");
            out.push_str("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n");
            out.push_str("# HELP kubernetes_healthchecks_total [STABLE] The results of each health check\n# TYPE kubernetes_healthchecks_total counter\n");
            out.push_str(&format!(
                "kubernetes_healthchecks_total{{name=\"ping\",status=\"success\",type=\"healthz\"}} {asked}\n"
            ));
        }
        out.push_str("# HELP process_start_time_seconds When the process started, in seconds since the epoch\n# TYPE process_start_time_seconds gauge\n");
        out.push_str(&format!("process_start_time_seconds {}\n", go_float(started)));
        answer(StatusCode::OK, CONTENT_TYPE, out)
    }

    fn count(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }
}
