//! The authorization of a request.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac as _};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;
use sprag_core::time::Timestamp;

/// What stays as it is in the header.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// With a key: an HMAC over what is done to what, and when.
///
/// `verb`, `kind` and `date` are signed in lower case; the link is the resource's, or its parent's where one is made, listed or queried.
pub(crate) fn with_key(key: &[u8], verb: &str, kind: &str, link: &str, date: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length is one");
    mac.update(format!("{}\n{kind}\n{link}\n{}\n\n", verb.to_ascii_lowercase(), date.to_ascii_lowercase()).as_bytes());
    encoded("master", &STANDARD.encode(mac.finalize().into_bytes()))
}

/// With a token of Entra.
pub(crate) fn with_token(token: &str) -> String {
    encoded("aad", token)
}

fn encoded(kind: &str, signature: &str) -> String {
    utf8_percent_encode(&format!("type={kind}&ver=1.0&sig={signature}"), ENCODED).to_string()
}

/// As HTTP writes a date: `Mon, 30 Nov 2026 01:01:01 GMT`.
pub(crate) fn date(at: Timestamp) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let day = usize::try_from(at.0.div_euclid(86_400_000).rem_euclid(7)).expect("less than seven");
    // `2026-11-30T01:01:01.007Z`
    let text = at.to_string();
    let month = text[5..7].parse::<usize>().ok().and_then(|month| MONTHS.get(month.wrapping_sub(1)));
    let mut date = String::with_capacity(29);
    write!(date, "{}, {} {} {} {} GMT", DAYS[day], &text[8..10], month.unwrap_or(&"Jan"), &text[..4], &text[11..19])
        .expect("a string takes what is written");
    date
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the service's documentation ("Access control in the Azure Cosmos DB SQL API").
    #[test]
    fn a_key_signs_as_the_service_documents_it() {
        let key = "dsZQi3KtZmCv1ljt3VNWNm7sQUF1y5rJfC6kv5JiwvW0EndXdDku/dkKBp8/ufDToSxLzR4y+O/0H/t4bQtVNw==";
        let key = STANDARD.decode(key).unwrap();
        let signed = with_key(&key, "GET", "dbs", "dbs/ToDoList", "Thu, 27 Apr 2017 00:51:12 GMT");
        assert_eq!(signed, "type%3Dmaster%26ver%3D1.0%26sig%3Dc09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu%2Bc%2Bc%3D");
    }

    #[test]
    fn dates_are_as_http_writes_them() {
        for (millis, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (1_493_254_272_999, "Thu, 27 Apr 2017 00:51:12 GMT"),
            (1_796_000_461_007, "Mon, 30 Nov 2026 01:01:01 GMT"),
        ] {
            assert_eq!(date(Timestamp(millis)), text);
        }
    }

    #[test]
    fn a_token_is_encoded() {
        assert_eq!(with_token("a.b=c"), "type%3Daad%26ver%3D1.0%26sig%3Da.b%3Dc");
    }
}
