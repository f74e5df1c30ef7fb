//! Go's textual forms of booleans, numbers and comma-separated lists.

/// Reads what Go takes for a boolean.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is not a boolean (write true or false)")),
    }
}

/// Reads a 32-bit integer: decimal, `0x`, `0o`, `0b`, a leading `0` for octal, `_` between digits.
pub(crate) fn int32(text: &str) -> Result<i32, String> {
    let error = || format!("{text:?} is not a whole number from {} to {}", i32::MIN, i32::MAX);
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = radix(unsigned);
    if !underscores_separate_digits(digits, radix != 10) {
        return Err(error());
    }
    let digits = digits.replace('_', "");
    // Rust takes a sign of its own, which has been read already.
    if digits.starts_with(['+', '-']) {
        return Err(error());
    }
    let magnitude = i64::from_str_radix(&digits, radix).map_err(|_| error())?;
    i32::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| error())
}

/// Reads a 32-bit floating point number in decimal form.
pub(crate) fn float32(text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    let spelled_out = text.trim_start_matches(['+', '-']).starts_with(['i', 'I']);
    if number.is_infinite() && !spelled_out {
        return Err(format!("{text:?} is too large a number"));
    }
    Ok(number)
}

/// Reads one line of comma-separated values, where an item may stand in double quotes.
pub(crate) fn comma_separated(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut items = Vec::new();
    let mut rest = text;
    loop {
        let (item, after) = item(text, rest)?;
        items.push(item);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(items),
        }
    }
}

/// The reverse of [`comma_separated`].
pub(crate) fn join_with_commas(items: &[String]) -> String {
    let quoted = |item: &String| {
        let special = item.contains(['"', ',', '\n', '\r']) || item.starts_with([' ', '\t']) || item == "\\.";
        if special { format!("\"{}\"", item.replace('"', "\"\"")) } else { item.clone() }
    };
    items.iter().map(quoted).collect::<Vec<_>>().join(",")
}

/// The item at the start of `rest`, and what follows it: nothing or a comma.
fn item<'a>(text: &str, rest: &'a str) -> Result<(String, &'a str), String> {
    let Some(mut quoted) = rest.strip_prefix('"') else {
        let end = rest.find(',').unwrap_or(rest.len());
        let (item, after) = rest.split_at(end);
        if item.contains('"') {
            return Err(format!("{text:?} has a quote inside an unquoted item"));
        }
        return Ok((item.to_owned(), after));
    };
    let mut item = String::new();
    loop {
        let Some((part, after)) = quoted.split_once('"') else {
            return Err(format!("{text:?} has a quote that is not closed"));
        };
        item.push_str(part);
        match after.strip_prefix('"') {
            Some(next) => {
                item.push('"');
                quoted = next;
            }
            None if after.is_empty() || after.starts_with(',') => return Ok((item, after)),
            None => return Err(format!("{text:?} has text after a closing quote")),
        }
    }
}

fn radix(digits: &str) -> (u32, &str) {
    let Some(rest) = digits.strip_prefix('0').filter(|rest| !rest.is_empty()) else { return (10, digits) };
    match rest.as_bytes().first() {
        Some(b'x' | b'X') => (16, &rest[1..]),
        Some(b'o' | b'O') => (8, &rest[1..]),
        Some(b'b' | b'B') => (2, &rest[1..]),
        _ => (8, rest),
    }
}

/// An underscore needs a digit on both sides; the prefix of another base counts as one.
fn underscores_separate_digits(digits: &str, prefixed: bool) -> bool {
    let inner = if prefixed { digits.strip_prefix('_').unwrap_or(digits) } else { digits };
    !inner.starts_with('_') && !inner.ends_with('_') && !inner.contains("__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_gos() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Ok(true));
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Ok(false));
        }
        for text in ["", "yes", "on", "tRUE", " true", "2"] {
            assert!(boolean(text).is_err(), "{text}");
        }
    }

    #[test]
    fn integers_have_prefixes_and_underscores() {
        for (text, number) in [
            ("0", 0),
            ("-0", 0),
            ("+14", 14),
            ("010", 8),
            ("0x1F", 31),
            ("-0b101", -5),
            ("0o17", 15),
            ("1_000", 1000),
            ("0x_ff", 255),
            ("0_10", 8),
            ("2147483647", i32::MAX),
            ("-2147483648", i32::MIN),
        ] {
            assert_eq!(int32(text), Ok(number), "{text}");
        }
        for text in [
            "",
            "-",
            "08",
            "1__0",
            "_1",
            "1_",
            "0x",
            "1.0",
            "1e3",
            " 1",
            "2147483648",
            "--1",
            "+-1",
            "0x-1",
            "ä",
        ] {
            assert!(int32(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_may_be_fractions_but_not_overflow() {
        assert_eq!(float32("5"), Ok(5.0));
        assert_eq!(float32("-1.5e2"), Ok(-150.0));
        assert_eq!(float32("Inf"), Ok(f32::INFINITY));
        assert!(float32("1e39").is_err());
        assert!(float32("").is_err());
    }

    #[test]
    fn lists_are_split_at_commas_outside_quotes() {
        let list = |text: &str| comma_separated(text).map(|items| items.join("|"));
        assert_eq!(list(""), Ok(String::new()));
        assert_eq!(list("a,b"), Ok("a|b".to_owned()));
        assert_eq!(list("a, b,"), Ok("a| b|".to_owned()));
        assert_eq!(list("\"a,b\",\"c\"\"d\""), Ok("a,b|c\"d".to_owned()));
        for text in ["a\"b", "\"a", "\"a\"b", "\"a\"\"", "a,\""] {
            assert!(comma_separated(text).is_err(), "{text}");
        }
        let items = ["a".to_owned(), "b,c".to_owned(), "d\"e".to_owned(), String::new()];
        assert_eq!(comma_separated(&join_with_commas(&items)), Ok(items.to_vec()));
    }
}
