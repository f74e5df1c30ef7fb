//! `/debug`: the verbosity of logs, for an operator who looks for a fault.

use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use hyper::{Method, StatusCode};
use tracing::info;

use crate::http::{Answer, Request, answer, not_found, text};
use crate::logging::Verbosity;

/// The longest number that is read.
const BODY: usize = 64;

/// Answers below `/debug/`.
pub(super) async fn debug(request: Request, verbosity: &Arc<Verbosity>) -> Answer {
    match request.uri().path() {
        "/debug/flags" | "/debug/flags/" => listing(verbosity),
        "/debug/flags/v" => set_verbosity(request, verbosity).await,
        _ => not_found(),
    }
}

fn listing(verbosity: &Verbosity) -> Answer {
    let page = format!(
        "<html><head><title>flags</title></head><body><p>v: {}</p><p>Change it with <code>curl -X PUT -d N .../debug/flags/v</code></p></body></html>",
        verbosity.get()
    );
    answer(StatusCode::OK, "text/html; charset=utf-8", page)
}

async fn set_verbosity(request: Request, verbosity: &Verbosity) -> Answer {
    if request.method() != Method::PUT {
        return text(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n");
    }
    let Ok(body) = Limited::new(request.into_body(), BODY).collect().await else {
        return text(StatusCode::BAD_REQUEST, "error reading http request body: it is too long or broken\n");
    };
    let body = body.to_bytes();
    let wanted = std::str::from_utf8(&body).ok().and_then(|text| text.trim().parse().ok());
    match wanted {
        Some(wanted) => {
            verbosity.set(wanted);
            info!(verbosity = wanted, "The verbosity was changed over HTTP");
            text(StatusCode::OK, format!("successfully set klog.logging.verbosity to {wanted}\n"))
        }
        None => text(StatusCode::BAD_REQUEST, "the body must be a number, for example 4\n"),
    }
}
