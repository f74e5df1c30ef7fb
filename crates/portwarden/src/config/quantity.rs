//! Kubernetes quantities (`512`, `64Ki`, `1.5M`, `1e3`), used for the log buffer sizes.

use std::fmt;

use serde::{Serialize, Serializer};

/// An amount with the suffix family it was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity {
    /// Thousand-millionths: the finest unit a quantity can express.
    nanos: i128,
    family: Suffixes,
}

/// The text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity (write it like 512, 64Ki or 1M)")]
pub struct QuantityError(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suffixes {
    Decimal,
    Binary,
    Exponent,
}

const ONE: i128 = 1_000_000_000;
const LARGEST: i128 = i64::MAX as i128 * ONE;
const DECIMAL: [(&str, i32); 10] =
    [("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3), ("", 0), ("m", -3), ("u", -6), ("n", -9)];
const BINARY: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];

impl Quantity {
    /// Nothing, written `0`.
    pub const ZERO: Quantity = Quantity { nanos: 0, family: Suffixes::Decimal };

    /// The amount as a whole number, rounded away from zero.
    pub fn value(self) -> i64 {
        let whole = self.nanos / ONE + (self.nanos % ONE).signum();
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// Reads a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text).ok_or_else(|| QuantityError(text.to_owned()))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.family == Suffixes::Binary && self.nanos.abs() >= 1024 * ONE {
            let value = i128::from(self.value());
            for (suffix, shift) in BINARY {
                if value % (1 << shift) == 0 {
                    return write!(f, "{}{suffix}", value >> shift);
                }
            }
            return write!(f, "{value}");
        }
        for (suffix, exponent) in DECIMAL {
            let unit = 10i128.pow((exponent + 9).unsigned_abs());
            if self.nanos % unit == 0 {
                let value = self.nanos / unit;
                return match (self.family, exponent) {
                    (Suffixes::Exponent, 0) => write!(f, "{value}"),
                    (Suffixes::Exponent, exponent) => write!(f, "{value}e{exponent}"),
                    _ => write!(f, "{value}{suffix}"),
                };
            }
        }
        Ok(())
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let suffix_start = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(suffix_start);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (family, numerator, denominator) = scale(suffix)?;
    let magnitude = amount(whole, fraction, numerator, denominator)?;
    let nanos = if negative { -magnitude } else { magnitude };
    Some(Quantity { nanos, family })
}

/// What one unit of a suffix is, in thousand-millionths, as a fraction.
fn scale(suffix: &str) -> Option<(Suffixes, i128, i128)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((Suffixes::Decimal, 10i128.pow((exponent + 9).unsigned_abs()), 1));
    }
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((Suffixes::Binary, ONE << shift, 1));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    match exponent {
        -27..=-10 => Some((Suffixes::Exponent, 1, 10i128.pow((-exponent - 9).unsigned_abs()))),
        -9..=18 => Some((Suffixes::Exponent, 10i128.pow((exponent + 9).unsigned_abs()), 1)),
        _ => None,
    }
}

/// `whole.fraction * numerator / denominator`, rounded up, capped at the largest amount.
fn amount(whole: &str, fraction: &str, numerator: i128, denominator: i128) -> Option<i128> {
    // Digits that the arithmetic below cannot hold are either over the cap or under a thousand-millionth.
    let whole = whole.trim_start_matches('0');
    if whole.len() > 19 {
        return Some(LARGEST);
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let kept = fraction.get(..9).unwrap_or(fraction);
    let below: i128 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
    let places = 10i128.pow(u32::try_from(kept.len()).ok()?);
    let rest = i128::from(fraction[kept.len()..].bytes().any(|b| b != b'0'));
    let scaled = whole.checked_mul(numerator).unwrap_or(LARGEST);
    let small = (below * numerator).div_euclid(places) + i128::from((below * numerator) % places != 0) + rest;
    let total = scaled.saturating_add(small);
    Some((total / denominator + i128::from(total % denominator != 0)).min(LARGEST))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_read_and_printed_in_canonical_form() {
        for (text, value, printed) in [
            ("0", 0, "0"),
            ("000", 0, "0"),
            ("512", 512, "512"),
            ("1000", 1000, "1k"),
            ("1024", 1024, "1024"),
            ("64Ki", 65536, "64Ki"),
            ("1024Ki", 1 << 20, "1Mi"),
            ("0.5Ki", 512, "512"),
            ("1.5M", 1_500_000, "1500k"),
            ("1e3", 1000, "1e3"),
            ("1E", 1_000_000_000_000_000_000, "1E"),
            ("100m", 1, "100m"),
            ("1.", 1, "1"),
            (".5", 1, "500m"),
            ("+3", 3, "3"),
            ("-3Gi", -3 << 30, "-3Gi"),
            ("99999999999999999999", i64::MAX, "9223372036854775807"),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!((quantity.value(), quantity.to_string().as_str()), (value, printed), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_quantity_is_refused() {
        for text in [
            "", "-", ".", "k", "1K", "1kb", "1 k", "1..2", "1.2.3", "1e", "1e99", "0x10", "1_000", "1ki", "ä",
        ] {
            assert!(Quantity::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn printing_and_reading_give_the_same(value in 0i64.., suffix in "|k|M|Ki|Mi|e3|m") {
            let quantity = Quantity::parse(&format!("{value}{suffix}")).unwrap();
            prop_assert_eq!(Quantity::parse(&quantity.to_string()).unwrap().value(), quantity.value());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*|[-+0-9.eEkKMGiumn]{0,40}") {
            let _ = Quantity::parse(&text);
        }
    }
}
