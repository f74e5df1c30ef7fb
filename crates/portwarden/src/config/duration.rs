//! Durations as Go writes and reads them: `300ms`, `1h2m`, printed as `1h0m0s`.
//!
//! Flags and files of kube-proxy use this form everywhere, so it is kept to the letter: units, fractions, signs, the bare
//! `0`, and the limits of 64-bit nanoseconds.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A signed duration in nanoseconds with Go's textual form.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text does not follow the syntax at all.
    #[error("{0:?} is not a duration (write it like 30s, 1m30s or 500ms)")]
    Syntax(String),
    /// A number is not followed by a unit.
    #[error("duration {0:?} lacks a unit (ns, us, ms, s, m or h)")]
    MissingUnit(String),
    /// A number is followed by an unknown unit.
    #[error("duration {text:?} has the unknown unit {unit:?} (use ns, us, ms, s, m or h)")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The unit that was found.
        unit: String,
    },
    /// More than about 292 years.
    #[error("duration {0:?} is too long")]
    TooLong(String),
}

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

impl GoDuration {
    /// No time at all.
    pub const ZERO: GoDuration = GoDuration(0);

    /// A whole number of seconds.
    pub const fn from_secs(seconds: u32) -> Self {
        // Cannot overflow: 2^32 seconds are 136 years. (`i64::from` is not const.)
        GoDuration(seconds as i64 * 1_000_000_000)
    }

    /// A number of nanoseconds.
    pub const fn from_nanos(nanoseconds: i64) -> Self {
        GoDuration(nanoseconds)
    }

    /// The number of nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whether it is before zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The duration, or nothing if it is negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }

    /// Reads Go's form.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned == "0" {
            return Ok(GoDuration::ZERO);
        }
        if unsigned.is_empty() {
            return Err(DurationError::Syntax(text.to_owned()));
        }
        let too_long = || DurationError::TooLong(text.to_owned());
        let mut rest = unsigned;
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (nanoseconds, after) = component(text, rest)?;
            total = total.checked_add(nanoseconds).filter(|total| *total <= 1 << 63).ok_or_else(too_long)?;
            rest = after;
        }
        // The most negative value has no positive counterpart, hence the detour.
        let signed =
            if negative { 0i64.checked_sub_unsigned(total) } else { 0i64.checked_add_unsigned(total) };
        signed.map(GoDuration).ok_or_else(too_long)
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.unsigned_abs();
        if self.is_negative() {
            f.write_str("-")?;
        }
        if nanoseconds == 0 {
            return f.write_str("0s");
        }
        if nanoseconds < SECOND {
            let (unit, size) = match nanoseconds {
                0..MICROSECOND => ("ns", 1),
                MICROSECOND..MILLISECOND => ("µs", MICROSECOND),
                _ => ("ms", MILLISECOND),
            };
            return write!(f, "{}{unit}", decimal(nanoseconds, size));
        }
        if nanoseconds >= HOUR {
            write!(f, "{}h", nanoseconds / HOUR)?;
        }
        if nanoseconds >= MINUTE {
            write!(f, "{}m", nanoseconds % HOUR / MINUTE)?;
        }
        write!(f, "{}s", decimal(nanoseconds % MINUTE, SECOND))
    }
}

impl fmt::Debug for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `value / size` with as many decimals as it needs.
fn decimal(value: u64, size: u64) -> String {
    let (whole, mut fraction) = (value / size, value % size);
    if fraction == 0 {
        return whole.to_string();
    }
    let mut digits = size.ilog10() as usize;
    while fraction % 10 == 0 {
        fraction /= 10;
        digits -= 1;
    }
    format!("{whole}.{fraction:0digits$}")
}

/// Reads one `number unit` pair and returns its nanoseconds and what follows it.
fn component<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let too_long = || DurationError::TooLong(text.to_owned());
    let (whole, after) = digits(rest);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(after) => digits(after),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::Syntax(text.to_owned()));
    }
    let unit_end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
    let (unit, after) = after.split_at(unit_end);
    let size = match unit {
        "" => return Err(DurationError::MissingUnit(text.to_owned())),
        "ns" => 1,
        // The micro sign and the Greek letter look alike; Go reads both.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return Err(DurationError::UnknownUnit { text: text.to_owned(), unit: unit.to_owned() }),
    };
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_long())? };
    let nanoseconds = whole.checked_mul(size).ok_or_else(too_long)?;
    let nanoseconds = nanoseconds.checked_add(share(fraction, size)).ok_or_else(too_long)?;
    Ok((nanoseconds, after))
}

/// The nanoseconds of `0.<fraction>` of a unit, cut off towards zero.
fn share(fraction: &str, size: u64) -> u64 {
    // Eighteen digits of an hour are far below a nanosecond and still fit; the rest cannot matter.
    let kept = fraction.get(..18).unwrap_or(fraction);
    let value: u128 = kept.parse().unwrap_or(0);
    let scale = 10u128.pow(u32::try_from(kept.len()).unwrap_or(18));
    u64::try_from(value * u128::from(size) / scale).unwrap_or(u64::MAX)
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn go_forms_are_read_and_printed_as_go_prints_them() {
        for (text, printed) in [
            ("0", "0s"),
            ("-0", "0s"),
            ("+5s", "5s"),
            ("300ms", "300ms"),
            ("1h2m", "1h2m0s"),
            ("90s", "1m30s"),
            ("24h", "24h0m0s"),
            ("1.5s", "1.5s"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("1h.5m", "1h0m30s"),
            ("15m", "15m0s"),
            ("1us", "1µs"),
            ("1µs", "1µs"),
            ("1μs", "1µs"),
            ("1500ns", "1.5µs"),
            ("1.000000001s", "1.000000001s"),
            ("0.9999999999s", "999.999999ms"),
            ("-1m", "-1m0s"),
            ("2562047h47m16.854775807s", "2562047h47m16.854775807s"),
            ("-2562047h47m16.854775808s", "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(GoDuration::parse(text).map(|d| d.to_string()), Ok(printed.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for text in [
            "",
            "-",
            "5",
            "s",
            ".s",
            ".",
            "1x",
            "1 s",
            " 1s",
            "1s ",
            "--1s",
            "1e3s",
            "1d",
            "9223372036854775808ns",
            "3000000h",
        ] {
            assert!(GoDuration::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn printing_and_reading_give_the_same(nanoseconds: i64) {
            let duration = GoDuration::from_nanos(nanoseconds);
            prop_assert_eq!(GoDuration::parse(&duration.to_string()), Ok(duration));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*|[-+0-9.a-zµ]{0,40}") {
            let _ = GoDuration::parse(&text);
        }
    }
}
