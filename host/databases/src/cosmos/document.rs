//! A record as a document: NimBus' names, so that an inbox of its and one of ours are one.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sprag_core::{
    identity::IdentityHash,
    ids::{EndpointName, MessageId},
    time::Timestamp,
};

/// A document's id and partition key: the identity hash in upper-case hex. Ids themselves may hold what no id of a document may (A58).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(String);

impl Key {
    pub(crate) fn of(endpoint: &EndpointName, message_id: &MessageId) -> Self {
        let mut hex = String::with_capacity(64);
        for byte in IdentityHash::of(endpoint, message_id).0 {
            write!(hex, "{byte:02X}").expect("a string takes what is written");
        }
        Self(hex)
    }

    /// None: it is the key of no record.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let is_hex = text.len() == 64 && text.bytes().all(|it| it.is_ascii_digit() || (b'A'..=b'F').contains(&it));
        is_hex.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    pub(crate) id: String,
    pub(crate) endpoint_id: String,
    pub(crate) message_id: String,
    pub(crate) created_at_utc: String,
}

impl Document {
    /// Recorded now, by this host's clock: the service's own has whole seconds.
    pub(crate) fn new(endpoint: &EndpointName, message_id: &MessageId) -> Self {
        Self {
            id: Key::of(endpoint, message_id).0,
            endpoint_id: endpoint.as_str().to_owned(),
            message_id: message_id.as_str().to_owned(),
            created_at_utc: written(super::client::now()),
        }
    }
}

/// As .NET writes a time in full, in UTC and with seven digits, so that the order of texts is that of times. A record of NimBus leaves zeros at the end
/// out and then counts as up to a second younger, never as older.
pub(crate) fn written(at: Timestamp) -> String {
    const FIRST: i64 = -62_135_596_800_000;
    const LAST: i64 = 253_402_300_799_999;
    // Years have four digits here: what is beyond them is before or after everything.
    let text = Timestamp(at.0.clamp(FIRST, LAST)).to_string();
    format!("{}0000Z", text.trim_end_matches('Z'))
}

/// A time as RFC 3339 has it; what is finer than a millisecond is cut off.
pub(crate) fn read(text: &str) -> Option<Timestamp> {
    let (date, time) = text.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone = time.find(['Z', '+', '-'])?;
    let (time, zone) = time.split_at(zone);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut time = time.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let ahead = match zone.split_at(1) {
        ("Z", "") => 0,
        (sign, offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
            if sign == "-" { -minutes } else { minutes }
        }
    };
    let known = (1..=9_999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !known || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days from the civil date, after Howard Hinnant's `days_from_civil`.
    let years = if month <= 2 { year - 1 } else { year };
    let era = years.div_euclid(400);
    let year_of_era = years.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    Some(Timestamp((((days * 24 + hour) * 60 + minute - ahead) * 60 + second) * 1_000 + millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spec 4: the vectors of the identity hash, as NimBus writes them.
    #[test]
    fn keys_are_those_of_nimbus() {
        for (endpoint, id, key) in [
            ("BillingEndpoint", "m1", "45DFC57A1F0406B519D5F26FEB6DCB8673488873DDCE00DAE7B0BEEA28BEA6D8"),
            ("x😀", "1", "4D3FB2894B88D86469A1A506BB01D32D3A999AE70DC44DDE50E504F4D2F78B60"),
        ] {
            let found = Key::of(&endpoint.into(), &id.into());
            assert_eq!(found.as_str(), key);
            assert_eq!(Key::read(key), Some(found));
        }
        for text in ["", "?", &"A".repeat(63), &"a".repeat(64), &"é".repeat(32)] {
            assert_eq!(Key::read(text), None, "{text}");
        }
    }

    #[test]
    fn documents_have_the_names_of_nimbus() {
        let document =
            Document { created_at_utc: written(Timestamp(0)), ..Document::new(&"e\"".into(), &"m\u{1}".into()) };
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["endpointId"], "e\"");
        assert_eq!(json["messageId"], "m\u{1}");
        assert_eq!(json["createdAtUtc"], "1970-01-01T00:00:00.0000000Z");
        assert_eq!(json["id"].as_str().map(str::len), Some(64));
        assert_eq!(json.as_object().map(|it| it.len()), Some(4));
    }

    #[test]
    fn times_are_read_in_every_way_that_dotnet_writes_them() {
        for (text, millis) in [
            ("1970-01-01T00:00:00.0000000Z", 0),
            ("2000-02-29T00:00:00.1234567Z", 951_782_400_123),
            ("2026-11-30T01:01:01.007Z", 1_796_000_461_007),
            ("2026-11-30T01:01:01Z", 1_796_000_461_000),
            ("2026-11-30T01:01:01.5+00:00", 1_796_000_461_500),
            ("2026-11-30T03:31:01+02:30", 1_796_000_461_000),
            ("2026-11-29T20:01:01-05:00", 1_796_000_461_000),
        ] {
            assert_eq!(read(text), Some(Timestamp(millis)), "{text}");
        }
        for text in ["", "2026-11-30", "2026-13-30T01:01:01Z", "2026-11-30T01:01Z", "2026-11-30T01:01:01", "xTyZ"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn the_order_of_texts_is_that_of_times() {
        let times = [i64::MIN, -1, 0, 1, 999, 1_000, 1_796_000_461_007, 253_402_300_799_999, i64::MAX / 2];
        let texts: Vec<_> = times.map(|at| written(Timestamp(at))).into();
        assert!(texts.is_sorted(), "{texts:?}");
        assert_eq!(texts[8], "9999-12-31T23:59:59.9990000Z");
    }
}
