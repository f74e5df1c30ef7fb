//! The live page: files that are part of the program. It uses no framework and nothing from other servers.

use hyper::header::{CACHE_CONTROL, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use crate::http::{Answer, compressible, with_header};

/// The file at a path.
pub(super) fn answer(path: &str, request: &HeaderMap) -> Option<Answer> {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    const STYLE: &str = "text/css; charset=utf-8";
    let (content_type, text) = match path {
        "/" => ("text/html; charset=utf-8", include_str!("page/index.html")),
        "/icon.svg" => ("image/svg+xml", include_str!("page/icon.svg")),
        "/page.css" => (STYLE, include_str!("page/page.css")),
        "/main.js" => (SCRIPT, include_str!("page/main.js")),
        "/dom.js" => (SCRIPT, include_str!("page/dom.js")),
        "/overview.js" => (SCRIPT, include_str!("page/overview.js")),
        "/plots.js" => (SCRIPT, include_str!("page/plots.js")),
        "/services.js" => (SCRIPT, include_str!("page/services.js")),
        "/service.js" => (SCRIPT, include_str!("page/service.js")),
        "/picture.js" => (SCRIPT, include_str!("page/picture.js")),
        "/trace.js" => (SCRIPT, include_str!("page/trace.js")),
        "/timeline.js" => (SCRIPT, include_str!("page/timeline.js")),
        "/uplot.js" => (SCRIPT, include_str!("page/uplot/uPlot.iife.min.js")),
        "/uplot.css" => (STYLE, include_str!("page/uplot/uPlot.min.css")),
        _ => return None,
    };
    let answer = compressible(request, StatusCode::OK, content_type, text.to_owned());
    // The next version of the program must not be shown with files of this one.
    Some(with_header(answer, CACHE_CONTROL, HeaderValue::from_static("no-cache")))
}
