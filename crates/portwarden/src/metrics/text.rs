//! The text format of Prometheus, with numbers in the format of Go: the bound of a bucket is a label, and labels are compared as text.

use std::fmt::Write;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

/// The media type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// All families in the given order (the registry sorts them by name).
pub(super) fn encode(families: &[MetricFamily]) -> String {
    let mut out = String::with_capacity(16 * 1024);
    for family in families {
        let name = family.name();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {name} {}", escape(family.help(), false));
        let _ = writeln!(out, "# TYPE {name} {}", type_name(family.get_field_type()));
        for metric in family.get_metric() {
            write_metric(&mut out, name, family.get_field_type(), metric);
        }
    }
    out
}

/// A number in the shortest form that parses to the same value, with an exponent below 0.0001 and from a million on.
pub fn go_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn write_metric(out: &mut String, name: &str, kind: MetricType, metric: &Metric) {
    let labels = metric.get_label();
    match kind {
        MetricType::COUNTER => sample(out, name, labels, None, metric.get_counter().get_value()),
        MetricType::HISTOGRAM => write_histogram(out, name, metric),
        _ => sample(out, name, labels, None, metric.get_gauge().get_value()),
    }
}

fn write_histogram(out: &mut String, name: &str, metric: &Metric) {
    let labels = metric.get_label();
    let histogram = metric.get_histogram();
    let bucket = format!("{name}_bucket");
    let count = histogram.get_sample_count() as f64;
    for each in histogram.get_bucket().iter().filter(|each| each.upper_bound().is_finite()) {
        let bound = go_float(each.upper_bound());
        sample(out, &bucket, labels, Some(&bound), each.cumulative_count() as f64);
    }
    sample(out, &bucket, labels, Some("+Inf"), count);
    sample(out, &format!("{name}_sum"), labels, None, histogram.get_sample_sum());
    sample(out, &format!("{name}_count"), labels, None, count);
}

fn sample(out: &mut String, name: &str, labels: &[LabelPair], bound: Option<&str>, value: f64) {
    out.push_str(name);
    let pairs =
        labels.iter().map(|label| (label.name(), label.value())).chain(bound.map(|bound| ("le", bound)));
    let mut separator = '{';
    for (label, text) in pairs {
        let _ = write!(out, "{separator}{label}=\"{}\"", escape(text, true));
        separator = ',';
    }
    if separator == ',' {
        out.push('}');
    }
    let _ = writeln!(out, " {}", go_float(value));
}

fn type_name(kind: MetricType) -> &'static str {
    match kind {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY => "summary",
        MetricType::UNTYPED => "untyped",
    }
}

fn escape(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-1.0, "-1"),
            (0.001, "0.001"),
            (0.00001, "1e-05"),
            (16.384, "16.384"),
            (40822.0, "40822"),
            (999_999.0, "999999"),
            (1_000_000.0, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (1.794_772_197_492_303_6e9, "1.7947721974923036e+09"),
            (u64::MAX as f64, "1.8446744073709552e+19"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(go_float(value), text);
        }
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd", true), "a\\\"b\\\\c\\nd");
        assert_eq!(escape("a\"b", false), "a\"b");
    }
}
