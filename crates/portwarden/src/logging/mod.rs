//! Logs on stderr, in the two formats that log collectors of a Kubernetes node read.

mod buffer;
#[cfg(test)]
pub(crate) mod captured;
mod format;
mod level;
mod writer;

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{Level, Metadata};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use crate::config::{LogFormat, Logging};

pub use format::PLAIN;
pub use level::{Pattern, Verbosity};
pub use writer::dropped_lines;

use format::Form;
use writer::Stream;

/// Format, streams and verbosity of the logs. All can change while the process runs.
#[derive(Debug, Default)]
pub struct Logs {
    json: AtomicBool,
    split_stream: AtomicBool,
    /// `--v` and `--vmodule`.
    pub verbosity: Arc<Verbosity>,
}

impl Logs {
    /// Nothing is written before [`Logs::start`].
    pub fn new(wanted: &Logging) -> Arc<Self> {
        let logs = Logs::default();
        logs.apply(wanted);
        Arc::new(logs)
    }

    /// Applies another configuration.
    pub fn apply(&self, wanted: &Logging) {
        self.json.store(wanted.format == LogFormat::Json, Ordering::Relaxed);
        self.split_stream.store(wanted.split_stream, Ordering::Relaxed);
        buffer::configure(wanted.info_buffer_size, wanted.flush_frequency);
        let pattern = |item: &crate::config::options::VModule| Pattern {
            file: item.file_pattern.clone(),
            verbosity: item.verbosity,
        };
        self.verbosity.set_patterns(wanted.vmodule.iter().map(pattern).collect());
        self.verbosity.set(wanted.verbosity);
    }

    /// Starts logging for the whole process. Does nothing if it was started before.
    pub fn start(self: &Arc<Self>) {
        writer::start();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(Streams(self.clone()))
            .with_ansi(false)
            .event_format(Form(self.clone()))
            .with_filter(level::Filter(self.verbosity.clone()));
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));
    }

    fn is_json(&self) -> bool {
        self.json.load(Ordering::Relaxed)
    }
}

/// Standard error; with separate streams, information goes to standard output.
struct Streams(Arc<Logs>);

impl<'a> MakeWriter<'a> for Streams {
    type Writer = Box<dyn io::Write + 'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Box::new(Stream::Error)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        let information = !matches!(*metadata.level(), Level::ERROR | Level::WARN);
        if information && self.0.split_stream.load(Ordering::Relaxed) {
            return Box::new(buffer::Buffered);
        }
        Box::new(Stream::Error)
    }
}

/// Writes all lines that still wait. To be called before the process ends.
pub fn flush() {
    buffer::flush();
    writer::flush();
}

/// An error and all its causes in one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some errors repeat their cause in their text.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// Logs a panic of any thread and ends the process. The kernel keeps its rules.
pub fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("no message");
        let trace = std::backtrace::Backtrace::force_capture();
        tracing::error!(place, panic = text, backtrace = %trace, "Internal error; the process ends and the rules stay in place");
        flush();
        std::process::exit(2);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("inner")]
    struct Inner;

    #[test]
    fn causes_are_joined() {
        assert_eq!(chain(&Outer(Inner)), "outer: inner");
    }
}
