//! Stands in for `profiles.rs` in a binary without the profiler, and says what is missing.

use hyper::StatusCode;

use crate::http::{Answer, Request, not_found, text};

const MISSING: &str = "this binary was built without the profiler: build it with `cargo build --release --features profiling`, \
                       or use the container image, which has it";

/// Nothing for the index to link to.
pub(super) const PAGES: [(&str, &str); 0] = [];

/// What the index says about profiles.
pub(super) const HINT: &str = MISSING;

/// Warns if profiling is on.
pub(crate) fn sample_heap(on: bool) {
    if on {
        tracing::warn!("Profiling is on, but {MISSING}");
    }
}

/// Answers a page below `/debug/pprof/`.
pub(super) async fn answer(page: &str, _request: Request) -> Answer {
    match page {
        "profile" | "heap" | "allocs" | "symbol" => text(StatusCode::NOT_IMPLEMENTED, format!("{MISSING}\n")),
        _ => not_found(),
    }
}
