//! Times as operators read and write them: RFC 3339, in UTC with milliseconds on the way out.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::time::Timestamp;

/// A [`Timestamp`] that is a text in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub Timestamp);

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Self(at)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text)
            .map(Self)
            .ok_or_else(|| de::Error::custom(format!("{text:?} is not a time like 2026-11-29T12:00:00Z")))
    }
}

/// Reads RFC 3339 with any offset; more than milliseconds is cut. None when it is not one.
pub fn parse(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let mark = |at: usize, allowed: &[u8]| bytes.get(at).is_some_and(|byte| allowed.contains(byte)).then_some(());
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    mark(4, b"-")?;
    mark(7, b"-")?;
    mark(10, b"Tt ")?;
    mark(13, b":")?;
    mark(16, b":")?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    // A leap second is read as the last second before it.
    if !(1..=days_in_month).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut at = 19;
    let mut millis = 0;
    if bytes.get(at) == Some(&b'.') {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        millis = format!("{:0<3.3}", &text[at + 1..at + 1 + digits]).parse::<i64>().ok()?;
        at += 1 + digits;
    }
    let offset_minutes = match bytes.get(at)? {
        b'Z' | b'z' if bytes.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if bytes.len() == at + 6 => {
            mark(at + 3, b":")?;
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let offset = hours * 60 + minutes;
            if *sign == b'+' { offset } else { -offset }
        }
        _ => return None,
    };
    // Days since 1970-01-01, after Howard Hinnant's `days_from_civil`.
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute - offset_minutes) * 60 + second.min(59);
    Some(Timestamp(seconds * 1_000 + millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        for millis in [0, 951_782_400_123, 1_796_000_461_007, -1, 253_402_300_799_999] {
            let at = Timestamp(millis);
            assert_eq!(parse(&at.to_string()), Some(at), "{at}");
        }
    }

    #[test]
    fn offsets_and_fractions() {
        let noon = parse("2026-11-29T12:00:00Z").expect("a time");
        for text in ["2026-11-29T14:00:00+02:00", "2026-11-29t06:30:00.0-05:30", "2026-11-29 12:00:00.000999z"] {
            assert_eq!(parse(text), Some(noon), "{text}");
        }
        assert_eq!(parse("2026-11-29T12:00:00.5Z"), Some(Timestamp(noon.0 + 500)));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "now",
            "2026-11-29",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-29T24:00:00Z",
            "2026-11-29T12:00:00",
            "2026-11-29T12:00:00.Z",
            "2026-11-29T12:00:00Zjunk",
            "２026-11-29T12:00:00Z",
            "2026-11-29T12:00:00+1:00",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
