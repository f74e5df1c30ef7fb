//! Builds HTTP responses.

use std::convert::Infallible;
use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, VARY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Response, StatusCode};

/// The body of a response: complete, or a stream.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A response.
pub type Answer = Response<Body>;

/// A response of any media type, which browsers must not override.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    with_type(status, content_type, Full::new(body.into()).boxed_unsync())
}

/// A response whose body is sent as it comes into being.
pub fn stream(
    content_type: &'static str,
    body: impl hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
) -> Answer {
    with_type(StatusCode::OK, content_type, body.boxed_unsync())
}

fn with_type(status: StatusCode, content_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// A response with plain text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// A response with JSON.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "application/json", body)
}

/// Status 404.
pub fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Adds a header to an answer.
pub fn with_header(mut answer: Answer, name: HeaderName, value: HeaderValue) -> Answer {
    answer.headers_mut().insert(name, value);
    answer
}

/// A response that is compressed if the client accepts it.
pub fn compressible(
    request: &HeaderMap,
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Answer {
    let compressed = accepts_gzip(request).then(|| compress(body.as_bytes())).flatten();
    let plain = compressed.is_none();
    let body = compressed.unwrap_or_else(|| body.into_bytes());
    let answer =
        with_header(answer(status, content_type, body), VARY, HeaderValue::from_static("Accept-Encoding"));
    if plain { answer } else { with_header(answer, CONTENT_ENCODING, HeaderValue::from_static("gzip")) }
}

fn compress(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(body).ok()?;
    out.finish().ok()
}

/// Whether an `Accept-Encoding` header has `gzip` with a quality above 0.
fn accepts_gzip(request: &HeaderMap) -> bool {
    let items = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    items.flat_map(|value| value.split(',')).any(|item| {
        let (name, quality) = item.split_once(';').unwrap_or((item, ""));
        let quality = quality.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
        name.trim() == "gzip" && quality.is_ok_and(|quality| quality > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_needs_to_be_accepted() {
        for (accept, wanted) in [
            ("gzip", true),
            ("deflate, gzip;q=0.5", true),
            ("zstd,gzip", true),
            ("gzip;q=0", false),
            ("gzip;q=x", false),
            ("identity", false),
            ("", false),
        ] {
            let asked = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(accept))]);
            assert_eq!(accepts_gzip(&asked), wanted, "{accept:?}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
