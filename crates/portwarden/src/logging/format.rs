//! The two formats of a log line: klog text and JSON.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use portwarden_model::Timestamp;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::Logs;
use crate::engine::Moment;

/// A message with this target is written unchanged, like unstructured lines of klog.
pub const PLAIN: &str = "portwarden::plain";

/// Writes lines in the configured format: klog text, or one JSON object per line.
pub(super) struct Form(pub(super) Arc<Logs>);

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N>
    for Form
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (line, now) = (Line::of(event), Moment::now().wall);
        if self.0.is_json() {
            line.write_json(out, now)
        } else {
            line.write_text(out, now, std::process::id())
        }
    }
}

/// The parts of an event.
struct Line {
    level: Level,
    location: String,
    plain: bool,
    fields: Fields,
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Line {
    fn of(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let file = metadata.file().unwrap_or("unknown");
        let mut fields = Fields::default();
        event.record(&mut fields);
        Line {
            level: *metadata.level(),
            location: format!("{}:{}", short(file), metadata.line().unwrap_or(0)),
            plain: metadata.target() == PLAIN,
            fields,
        }
    }

    fn write_text(&self, mut out: Writer<'_>, now: Timestamp, process: u32) -> fmt::Result {
        let letter = match self.level {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        write!(out, "{letter}{} {process:>7} {}] ", klog_time(now), self.location)?;
        if self.plain {
            write!(out, "{}", self.fields.message)?;
        } else {
            write!(out, "{:?}", self.fields.message)?;
        }
        for (key, value) in &self.fields.others {
            match value {
                Value::String(text) if text.contains('\n') => {
                    write!(out, " {key}=<")?;
                    for line in text.lines() {
                        write!(out, "\n\t{line}")?;
                    }
                    write!(out, "\n >")?;
                }
                Value::String(text) => write!(out, " {key}={text:?}")?,
                other => write!(out, " {key}={other}")?,
            }
        }
        writeln!(out)
    }

    fn write_json(&self, mut out: Writer<'_>, now: Timestamp) -> fmt::Result {
        let milliseconds = now.as_nanos() as f64 / 1e6;
        let string = |text: &str| Value::from(text).to_string();
        write!(
            out,
            "{{\"ts\":{milliseconds:.4},\"caller\":{},\"msg\":{}",
            string(&self.location),
            string(&self.fields.message)
        )?;
        match self.level {
            Level::ERROR | Level::WARN => {}
            Level::INFO => out.write_str(",\"v\":0")?,
            Level::DEBUG => out.write_str(",\"v\":2")?,
            Level::TRACE => out.write_str(",\"v\":4")?,
        }
        for (key, value) in &self.fields.others {
            write!(out, ",{}:{value}", string(key))?;
        }
        out.write_str("}\n")
    }
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        if field.name() == "message" {
            self.message = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
        } else {
            self.others.push((field.name(), value));
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.add(field, text.into());
    }
}

/// The name of a file; for `mod.rs`, with its folder.
fn short(path: &str) -> &str {
    let from = |parts: usize| path.rmatch_indices('/').nth(parts - 1).map_or(path, |(at, _)| &path[at + 1..]);
    if path.ends_with("/mod.rs") { from(2) } else { from(1) }
}

/// `MMDD hh:mm:ss.uuuuuu`, in UTC.
fn klog_time(now: Timestamp) -> String {
    let text = Timestamp::from_nanos(now.as_nanos().div_euclid(1_000_000_000) * 1_000_000_000).to_string();
    let micros = now.as_nanos().rem_euclid(1_000_000_000) / 1000;
    let part = |range| text.get(range).unwrap_or_default();
    format!("{}{} {}.{micros:06}", part(5..7), part(8..10), part(11..19))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        let others = vec![
            ("count", Value::from(3)),
            ("err", Value::from("a \"b\"")),
            ("trace", Value::from("one\ntwo")),
        ];
        Line {
            level: Level::ERROR,
            location: "pacer.rs:7".to_owned(),
            plain: false,
            fields: Fields { message: "Sync failed".to_owned(), others },
        }
    }

    #[test]
    fn places_are_short() {
        assert_eq!(short("crates/portwarden/src/engine/repair.rs"), "repair.rs");
        assert_eq!(short("crates/portwarden/src/engine/mod.rs"), "engine/mod.rs");
        assert_eq!(short("main.rs"), "main.rs");
    }

    #[test]
    fn text_is_what_klog_writes() {
        let mut out = String::new();
        let at = Timestamp::parse("2026-03-04T05:06:07.000089Z").expect("a time");
        line().write_text(Writer::new(&mut out), at, 42).expect("writes");
        let wanted = "E0304 05:06:07.000089      42 pacer.rs:7] \"Sync failed\" count=3 err=\"a \\\"b\\\"\" trace=<\n\tone\n\ttwo\n >\n";
        assert_eq!(out, wanted);
        let fields = Fields { message: "FLAG: --v=\"2\"".to_owned(), others: Vec::new() };
        let flag = Line { level: Level::INFO, plain: true, fields, ..line() };
        let mut out = String::new();
        flag.write_text(Writer::new(&mut out), at, 42).expect("writes");
        assert_eq!(out, "I0304 05:06:07.000089      42 pacer.rs:7] FLAG: --v=\"2\"\n");
    }

    #[test]
    fn json_has_one_object_a_line() {
        let mut out = String::new();
        let mut line = line();
        line.level = Level::DEBUG;
        line.write_json(Writer::new(&mut out), Timestamp::from_nanos(1_500_000)).expect("writes");
        let value: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(value["ts"], 1.5);
        assert_eq!(value["v"], 2);
        assert_eq!(value["trace"], "one\ntwo");
        assert_eq!(out.matches('\n').count(), 1);
    }
}
