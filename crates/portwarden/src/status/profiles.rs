//! `/debug/pprof/profile`, `heap`, `allocs` and `symbol`, for `go tool pprof` and its like.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_DISPOSITION, HeaderValue};
use hyper::{Method, StatusCode};
use portwarden_profiling::{Cancel, CpuError, HeapView};

use crate::http::{Answer, Request, answer, text, with_header};
use crate::logging::chain;

/// How long a CPU profile takes unless it is said.
const SECONDS: u64 = 30;

/// No longer than a connection may live.
const MOST_SECONDS: u64 = 300;

/// Addresses that are looked up at once, as bytes of text.
const ADDRESSES: usize = 64 * 1024;

/// Samples all threads for a while. A client that goes away ends it.
pub(super) async fn cpu(query: &str) -> Answer {
    let seconds = match seconds(query) {
        Ok(seconds) => seconds,
        Err(wrong) => return text(StatusCode::BAD_REQUEST, wrong),
    };
    let cancel = Cancel::default();
    let _client = CancelOnDrop(cancel.clone());
    let sampled = blocking(move || portwarden_profiling::cpu(Duration::from_secs(seconds), &cancel)).await;
    match sampled {
        Some(Ok(profile)) => file("profile", profile),
        Some(Err(error @ CpuError::Busy)) => text(StatusCode::CONFLICT, format!("{error}\n")),
        Some(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", chain(&error))),
        None => interrupted(),
    }
}

/// What is allocated, or was.
pub(super) async fn heap(view: HeapView) -> Answer {
    let name = match view {
        HeapView::InUse => "heap",
        HeapView::Allocated => "allocs",
    };
    match blocking(move || portwarden_profiling::heap(view)).await {
        Some(profile) => file(name, profile),
        None => interrupted(),
    }
}

/// Names for addresses such as `0x1234+0x5678`. Our profiles have names in them already; other tools may ask.
pub(super) async fn symbol(request: Request) -> Answer {
    let asked = if request.method() == Method::POST {
        match Limited::new(request.into_body(), ADDRESSES).collect().await {
            Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            Err(_) => return text(StatusCode::BAD_REQUEST, "the list of addresses is too long or broken\n"),
        }
    } else {
        request.uri().query().unwrap_or_default().to_owned()
    };
    let look_up = move || {
        let addresses = asked.split('+').filter_map(|text| {
            let text = text.trim();
            u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
        });
        let named = portwarden_profiling::functions_at(addresses);
        let lines = named.iter().map(|(address, name)| format!("{address:#x} {name}\n"));
        // Only whether it is 0 matters to those who ask.
        lines.fold("num_symbols: 1\n".to_owned(), |out, line| out + &line)
    };
    match blocking(look_up).await {
        Some(names) => text(StatusCode::OK, names),
        None => interrupted(),
    }
}

/// Ends a profile that nobody waits for.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Looking up names takes its time, which watches and health checks do not have.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

fn interrupted() -> Answer {
    text(StatusCode::SERVICE_UNAVAILABLE, "the process is about to end\n")
}

fn file(name: &'static str, content: impl Into<Bytes>) -> Answer {
    let disposition = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
    let answer = answer(StatusCode::OK, "application/octet-stream", content);
    match disposition {
        Ok(disposition) => with_header(answer, CONTENT_DISPOSITION, disposition),
        Err(_) => answer,
    }
}

fn seconds(query: &str) -> Result<u64, String> {
    let given = query.split('&').find_map(|pair| pair.strip_prefix("seconds="));
    match given.map(str::parse) {
        None | Some(Ok(0)) => Ok(SECONDS),
        Some(Ok(seconds)) if seconds <= MOST_SECONDS => Ok(seconds),
        Some(_) => Err(format!("seconds must be a number from 1 to {MOST_SECONDS}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_takes_as_long_as_is_said_within_bounds() {
        for (query, wanted) in [
            ("", Some(30)),
            ("seconds=0", Some(30)),
            ("debug=0&seconds=5", Some(5)),
            ("seconds=300", Some(300)),
            ("seconds=301", None),
            ("seconds=-1", None),
            ("seconds=x", None),
            ("seconds=99999999999999999999", None),
        ] {
            assert_eq!(seconds(query).ok(), wanted, "{query:?}");
        }
    }
}
