//! Answers.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

/// An answer with its whole body.
pub type Answer = Response<Full<Bytes>>;

/// An answer of any type; browsers must not guess another one.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Plain text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// JSON.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "application/json", body)
}

/// No such page.
pub fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Adds a header to an answer.
pub fn with_header(mut answer: Answer, name: HeaderName, value: HeaderValue) -> Answer {
    answer.headers_mut().insert(name, value);
    answer
}
