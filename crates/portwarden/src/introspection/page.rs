//! The live page: files that are part of the program.

use hyper::{HeaderMap, StatusCode};

use crate::http::{Answer, compressible};

/// The file at a path.
pub(super) fn answer(path: &str, request: &HeaderMap) -> Option<Answer> {
    let (content_type, text) = match path {
        "/" => ("text/html; charset=utf-8", include_str!("page/index.html")),
        _ => return None,
    };
    Some(compressible(request, StatusCode::OK, content_type, text.to_owned()))
}
