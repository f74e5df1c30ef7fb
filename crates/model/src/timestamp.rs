//! Points in time as Kubernetes writes them (RFC 3339), without a clock.

use std::fmt;

/// Nanoseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

const NANOS: i64 = 1_000_000_000;

impl Timestamp {
    /// Converts from nanoseconds since the epoch.
    pub fn from_nanos(nanos: i64) -> Self {
        Timestamp(nanos)
    }

    /// Converts to nanoseconds since the epoch.
    pub fn as_nanos(self) -> i64 {
        self.0
    }

    /// Parses `2026-01-02T03:04:05.678Z` or the same with an offset such as `+02:00`.
    pub fn parse(text: &str) -> Option<Timestamp> {
        let (date, time) = text.split_once(['T', 't'])?;
        let mut date = date.splitn(3, '-');
        let (year, month, day) =
            (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
        let (clock, offset) = split_offset(time)?;
        let (clock, fraction) = clock.split_once('.').map_or((clock, None), |(c, f)| (c, Some(f)));
        let mut clock = clock.splitn(3, ':');
        let (hour, minute, second) =
            (number(clock.next()?, 2)?, number(clock.next()?, 2)?, number(clock.next()?, 2)?);
        if !(1..=12).contains(&month)
            || day < 1
            || day > days_in_month(year, month)
            || hour > 23
            || minute > 59
            || second > 59
        {
            return None;
        }
        let nanos = fraction.map_or(Some(0), parse_fraction)?;
        let seconds =
            days_from_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
        seconds.checked_mul(NANOS)?.checked_add(nanos).map(Timestamp)
    }
}

/// RFC 3339 in UTC, with nanoseconds and without trailing zeros.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.div_euclid(NANOS), self.0.rem_euclid(NANOS));
        let (year, month, day) = date_from_days(seconds.div_euclid(86_400));
        let clock = seconds.rem_euclid(86_400);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
            clock / 3600,
            clock / 60 % 60,
            clock % 60
        )?;
        if nanos != 0 {
            write!(f, ".{}", format!("{nanos:09}").trim_end_matches('0'))?;
        }
        f.write_str("Z")
    }
}

/// The text before the offset, and the offset from UTC in seconds.
fn split_offset(time: &str) -> Option<(&str, i64)> {
    if let Some(clock) = time.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let at = time.rfind(['+', '-'])?;
    let (clock, offset) = time.split_at(at);
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = offset[1..].split_once(':')?;
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    (hours < 24 && minutes < 60).then_some((clock, sign * (hours * 3600 + minutes * 60)))
}

fn parse_fraction(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = text.bytes().chain(std::iter::repeat(b'0')).take(9);
    Some(digits.fold(0, |n, b| n * 10 + i64::from(b - b'0')))
}

fn number(text: &str, width: usize) -> Option<i64> {
    (text.len() == width && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days since 1970-01-01, with years that start in March so that leap days come last.
fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn date_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_controllers_write() {
        let at = |text: &str| Timestamp::parse(text).map(Timestamp::as_nanos);
        assert_eq!(at("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(at("2026-11-15T21:43:09.5Z"), Some(1_794_778_989_500_000_000));
        assert_eq!(at("2026-11-15T22:43:09+01:00"), at("2026-11-15T21:43:09Z"));
        assert_eq!(at("2024-02-29T00:00:00Z"), Some(1_709_164_800_000_000_000));
        for bad in [
            "",
            "now",
            "2026-13-01T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00.Z",
        ] {
            assert_eq!(at(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(nanos in -60_000_000_000_000_000i64..8_000_000_000_000_000_000) {
            let at = Timestamp::from_nanos(nanos);
            prop_assert_eq!(Timestamp::parse(&at.to_string()), Some(at));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = Timestamp::parse(&text);
        }
    }
}
