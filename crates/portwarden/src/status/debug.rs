//! `/debug`: for an operator who looks for a fault. Exists only while profiling is on.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use hyper::header::{HeaderValue, LOCATION};
use hyper::{Method, StatusCode};
use tracing::info;

use super::profiles;
use crate::http::{Answer, Request, answer, not_found, text, with_header};
use crate::logging::Verbosity;

/// The longest body that is read: a number.
const BODY: usize = 64;

/// Answers below `/debug/`.
pub(super) async fn debug(request: Request, verbosity: &Arc<Verbosity>) -> Answer {
    match request.uri().path() {
        "/debug/pprof" => {
            with_header(text(StatusCode::FOUND, ""), LOCATION, HeaderValue::from_static("/debug/pprof/"))
        }
        "/debug/pprof/" => index(),
        "/debug/pprof/cmdline" => text(StatusCode::OK, std::env::args().collect::<Vec<_>>().join("\0")),
        "/debug/pprof/threads" => text(StatusCode::OK, threads(Path::new("/proc/self"))),
        "/debug/pprof/memory" => text(StatusCode::OK, memory(Path::new("/proc/self"))),
        "/debug/flags" | "/debug/flags/" => listing(verbosity),
        "/debug/flags/v" => set_verbosity(request, verbosity).await,
        path => match path.strip_prefix("/debug/pprof/").map(str::to_owned) {
            Some(page) => profiles::answer(&page, request).await,
            None => not_found(),
        },
    }
}

fn index() -> Answer {
    let mut pages = vec![
        ("cmdline", "the command line"),
        ("memory", "memory of the process, as the kernel counts it"),
        ("threads", "each thread and the processor time it has used"),
    ];
    pages.extend(profiles::PAGES);
    pages.sort_unstable();
    let rows = pages.iter().fold(String::new(), |rows, (page, about)| {
        rows + &format!("<tr><td><a href=\"{page}\">{page}</a></td><td>{about}</td></tr>\n")
    });
    let page = format!(
        "<html><head><title>/debug/pprof/</title></head><body>\n<p>{}</p>\n<table>\n{rows}</table>\n</body></html>\n",
        profiles::HINT
    );
    answer(StatusCode::OK, "text/html; charset=utf-8", page)
}

/// Each thread and its processor time, in seconds.
fn threads(process: &Path) -> String {
    let mut out = String::from("thread user system name\n");
    let Ok(tasks) = fs::read_dir(process.join("task")) else { return out };
    let mut tasks: Vec<_> = tasks.flatten().map(|task| task.path()).collect();
    tasks.sort();
    for task in tasks {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        // The name may contain blanks; after its parenthesis, user and system time are fields 14 and 15 of proc(5).
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let seconds = |field: usize| {
            fields.get(field - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) / 100.0
        };
        let id = task.file_name().unwrap_or_default().to_string_lossy();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{id} {:.2} {:.2} {}", seconds(14), seconds(15), name.trim());
    }
    out
}

/// The memory of this process as the kernel counts it.
fn memory(process: &Path) -> String {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let rollup = fs::read_to_string(process.join("smaps_rollup")).unwrap_or_default();
    let wanted = status.lines().filter(|line| line.starts_with("Vm") || line.starts_with("Rss"));
    let details = rollup.lines().skip(1);
    wanted.chain(details).fold(String::new(), |out, line| out + line + "\n")
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
