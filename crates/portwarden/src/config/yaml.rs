//! YAML as Kubernetes tools write it: sorted keys, lists at their key's depth, quotes only where needed.
//!
//! Operators compare the output of `--write-config-to` with files written by kube-proxy, so bytes matter.

use std::fmt::Write;

use serde_json::{Map, Value};

/// The text of a mapping.
pub(super) fn text(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    mapping(&mut text, fields, 0, false);
    text
}

/// `joined` says that the first key continues a line, after the dash of a list.
fn mapping(text: &mut String, fields: &Map<String, Value>, depth: usize, joined: bool) {
    let mut sorted: Vec<_> = fields.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    for (index, (key, value)) in sorted.into_iter().enumerate() {
        if index > 0 || !joined {
            indent(text, depth);
        }
        let _ = write!(text, "{}:", scalar_text(key));
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push('\n');
                mapping(text, inner, depth + 1, false);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push('\n');
                sequence(text, items, depth);
            }
            scalar => {
                let _ = writeln!(text, " {}", scalar_value(scalar));
            }
        }
    }
}

fn sequence(text: &mut String, items: &[Value], depth: usize) {
    for item in items {
        indent(text, depth);
        text.push_str("- ");
        match item {
            Value::Object(inner) if !inner.is_empty() => mapping(text, inner, depth + 1, true),
            scalar => {
                let _ = writeln!(text, "{}", scalar_value(scalar));
            }
        }
    }
}

fn indent(text: &mut String, depth: usize) {
    text.push_str(&"  ".repeat(depth));
}

fn scalar_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (None, Some(float)) => float_text(float),
            _ => number.to_string(),
        },
        Value::String(value) => scalar_text(value),
        Value::Array(_) => "[]".to_owned(),
        Value::Object(_) => "{}".to_owned(),
    }
}

/// Go's shortest form: an exponent of at least two digits for very large and very small numbers.
fn float_text(number: f64) -> String {
    let size = number.abs();
    if size == 0.0 || (1e-4..1e6).contains(&size) {
        return number.to_string();
    }
    let text = format!("{number:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn scalar_text(value: &str) -> String {
    if value.is_empty() || resolves_to_something_else(value) || value.chars().any(unprintable) {
        return double_quoted(value);
    }
    if can_stand_plain(value) { value.to_owned() } else { format!("'{}'", value.replace('\'', "''")) }
}

fn double_quoted(value: &str) -> String {
    let mut text = String::from("\"");
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            c if unprintable(c) => {
                let code = u32::from(c);
                let _ =
                    if code <= 0xff { write!(text, "\\x{code:02X}") } else { write!(text, "\\u{code:04X}") };
            }
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

/// Controls, line breaks of any kind, and the byte order mark.
fn unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// Whether nothing in the text has a meaning in YAML's block style.
fn can_stand_plain(value: &str) -> bool {
    let blank = |c: Option<char>| c.is_none_or(|c| c == ' ' || c == '\t');
    if value.starts_with("---") || value.starts_with("...") || value.starts_with(' ') || value.ends_with(' ')
    {
        return false;
    }
    let mut previous = None;
    let mut characters = value.chars().peekable();
    while let Some(c) = characters.next() {
        let next = characters.peek().copied();
        let marks = match (previous, c) {
            (
                None,
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                | '`',
            ) => true,
            (None, '?' | '-') | (_, ':') => blank(next),
            (previous, '#') => blank(previous),
            _ => false,
        };
        if marks {
            return false;
        }
        previous = Some(c);
    }
    true
}

/// Whether a reader of YAML 1.1 would take the bare text for a boolean, a number, a date or nothing.
fn resolves_to_something_else(value: &str) -> bool {
    const WORDS: &[&str] = &["y", "yes", "n", "no", "true", "false", "on", "off", "null", "~", "<<"];
    const FLOATS: &[&str] = &[".nan", ".inf", "+.inf", "-.inf"];
    let cases_agree = {
        let lower = value.to_lowercase();
        let title = lower.get(..1).map(|first| first.to_uppercase() + &lower[1..]);
        value == lower || value == value.to_uppercase() || title.as_deref() == Some(value)
    };
    let lower = value.to_lowercase();
    if (WORDS.contains(&lower.as_str()) && cases_agree) || FLOATS.contains(&lower.as_str()) {
        return true;
    }
    let digits = value.replace('_', "");
    match value.as_bytes().first() {
        Some(b'.') => value.parse::<f64>().is_ok(),
        Some(b'+' | b'-' | b'0'..=b'9') => is_number(&digits) || is_base_60(value) || is_date(value),
        _ => false,
    }
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all = |rest: &str, radix: u32| !rest.is_empty() && rest.chars().all(|c| c.is_digit(radix));
    let prefixed = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)]
        .iter()
        .any(|(prefix, radix)| unsigned.strip_prefix(prefix).is_some_and(|rest| all(rest, *radix)));
    let decimal =
        unsigned.starts_with(|c: char| c == '.' || c.is_ascii_digit()) && unsigned.parse::<f64>().is_ok();
    prefixed || decimal
}

/// Sexagesimal numbers such as `190:20:30`, which only older readers know.
fn is_base_60(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let mut parts = whole.split(':');
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let first =
        parts.next().is_some_and(|first| first.starts_with(|c: char| c.is_ascii_digit()) && digits(first));
    let mut rest = parts.peekable();
    let sixty =
        |part: &str| part.len() <= 2 && part.parse::<u8>().is_ok_and(|part| part < 60) && digits(part);
    first && rest.peek().is_some() && rest.all(sixty) && digits(fraction)
}

/// `2001-2-3`, with or without a time.
fn is_date(text: &str) -> bool {
    let date = text.split(['T', 't', ' ']).next().unwrap_or_default();
    let parts: Vec<&str> = date.split('-').collect();
    let digits = |text: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
    };
    matches!(parts.as_slice(), [year, month, day] if digits(year, 4..=4) && digits(month, 1..=2) && digits(day, 1..=2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quotes_are_used_only_where_needed() {
        for (value, text) in [
            ("", "\"\""),
            ("text", "text"),
            ("a b", "a b"),
            ("10.0.0.0/8,fd00::/8", "10.0.0.0/8,fd00::/8"),
            ("0.0.0.0:10256", "0.0.0.0:10256"),
            ("[::]:10256", "'[::]:10256'"),
            ("::", "'::'"),
            ("::1", "::1"),
            ("1h0m0s", "1h0m0s"),
            ("1.36", "\"1.36\""),
            ("yes", "\"yes\""),
            ("Off", "\"Off\""),
            ("oFF", "oFF"),
            ("~", "\"~\""),
            ("0x1f", "\"0x1f\""),
            ("010", "\"010\""),
            ("1_000", "\"1_000\""),
            ("1e3", "\"1e3\""),
            ("-1", "\"-1\""),
            (".5", "\".5\""),
            ("12:30", "\"12:30\""),
            ("12:99", "12:99"),
            ("2001-2-3", "\"2001-2-3\""),
            ("*/*", "'*/*'"),
            ("application/json, */*", "application/json, */*"),
            ("a: b", "'a: b'"),
            ("a:", "'a:'"),
            ("a #b", "'a #b'"),
            ("a#b", "a#b"),
            ("- a", "'- a'"),
            ("-a", "-a"),
            ("---x", "'---x'"),
            (" a", "' a'"),
            ("it's", "it's"),
            ("'x", "'''x'"),
            ("a\nb", "\"a\\nb\""),
            ("a\u{1}", "\"a\\x01\""),
            ("é", "é"),
        ] {
            assert_eq!(scalar_text(value), text, "{value:?}");
        }
    }

    #[test]
    fn lists_stand_at_the_depth_of_their_key() {
        let Value::Object(fields) = serde_json::json!({
            "b": ["x", "z"],
            "a": {"d": [{"p": "q", "m": 1}, {"p": "r", "m": 2}], "c": null, "e": []},
        }) else {
            panic!("not a mapping");
        };
        let expected = "a:\n  c: null\n  d:\n  - m: 1\n    p: q\n  - m: 2\n    p: r\n  e: []\nb:\n- x\n- z\n";
        assert_eq!(text(&fields), expected);
    }

    #[test]
    fn fractions_look_like_gos() {
        for (number, text) in [
            (0.5, "0.5"),
            (-2.25, "-2.25"),
            (1_234_567.5, "1.2345675e+06"),
            (0.00001, "1e-05"),
            (1e100, "1e+100"),
        ] {
            assert_eq!(float_text(number), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(values in proptest::collection::btree_map("[a-zA-Z]{1,8}x", "\\PC*|[-+0-9.:_eExX#' \"\t\nyn]{0,8}", 0..6)) {
            let fields: Map<String, Value> = values.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))).collect();
            let written = if fields.is_empty() { "{}".to_owned() } else { text(&fields) };
            let read: std::collections::BTreeMap<String, String> = serde_saphyr::from_str(&written).unwrap();
            prop_assert_eq!(read, values);
        }
    }
}
