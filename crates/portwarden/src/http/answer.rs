//! Answers.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, VARY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Response, StatusCode};

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

/// An answer that is compressed for those who take it so.
pub fn compressible(
    asked: &HeaderMap,
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Answer {
    let compressed = takes_gzip(asked).then(|| compress(body.as_bytes())).flatten();
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

/// Whether an `Accept-Encoding` header has `gzip` and does not rule it out.
fn takes_gzip(asked: &HeaderMap) -> bool {
    let items = asked.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
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
    fn gzip_is_for_those_who_take_it() {
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
            assert_eq!(takes_gzip(&asked), wanted, "{accept:?}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
