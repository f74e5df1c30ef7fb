//! `/debug/pprof/profile`, `heap`, `allocs` and `symbol`, for `go tool pprof` and its like.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_DISPOSITION, HeaderValue};
use hyper::{Method, StatusCode};
use portwarden_profiling::{Cancel, CpuError, HeapView};

pub(crate) use portwarden_profiling::sample_heap;

use crate::http::{self, Answer, Request, not_found, text, with_header};
use crate::logging::chain;

/// The default duration of a CPU profile.
const SECONDS: u64 = 30;

/// The longest duration: that of a connection.
const MOST_SECONDS: u64 = 300;

/// The longest list of addresses to look up, in bytes.
const ADDRESSES: usize = 64 * 1024;

/// The pages of this file, for the index.
pub(super) const PAGES: [(&str, &str); 4] = [
    ("allocs", "memory by function: everything that was allocated since profiling was switched on"),
    ("heap", "memory by function: what is still allocated of that"),
    ("profile?seconds=30", "processor time by function; takes that long"),
    ("symbol", "names for addresses"),
];

/// What the index says about profiles.
pub(super) const HINT: &str = "profile, heap and allocs are for <code>go tool pprof</code>, for example \
                               <code>go tool pprof http://localhost:10249/debug/pprof/profile</code>";

/// Answers a page below `/debug/pprof/`.
pub(super) async fn answer(page: &str, request: Request) -> Answer {
    match page {
        "profile" => cpu(request.uri().query().unwrap_or_default()).await,
        "heap" => heap(HeapView::InUse).await,
        "allocs" => heap(HeapView::Allocated).await,
        "symbol" => symbol(request).await,
        _ => not_found(),
    }
}

/// Samples all threads. Ends early when the client closes the connection.
async fn cpu(query: &str) -> Answer {
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

async fn heap(view: HeapView) -> Answer {
    let name = match view {
        HeapView::InUse => "heap",
        HeapView::Allocated => "allocs",
    };
    match blocking(move || portwarden_profiling::heap(view)).await {
        Some(profile) => file(name, profile),
        None => interrupted(),
    }
}

/// Names for addresses such as `0x1234+0x5678`. Our profiles contain names, but other tools may ask.
async fn symbol(request: Request) -> Answer {
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
        // Clients only check whether it is 0.
        lines.fold("num_symbols: 1\n".to_owned(), |out, line| out + &line)
    };
    match blocking(look_up).await {
        Some(names) => text(StatusCode::OK, names),
        None => interrupted(),
    }
}

/// Cancels the profile when the client closes the connection.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Looks up names on another thread: it takes too long for the one that serves watches and health checks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

fn interrupted() -> Answer {
    text(StatusCode::SERVICE_UNAVAILABLE, "the process is shutting down\n")
}

fn file(name: &'static str, content: impl Into<Bytes>) -> Answer {
    let disposition = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
    let answer = http::answer(StatusCode::OK, "application/octet-stream", content);
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
    fn the_duration_of_a_profile_has_bounds() {
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
