//! What an error of the crate means.
//!
//! Its own kinds are private: an `azure_core::Error` holds them as a source that nothing outside can name. The broker's condition stands in the
//! `Debug` text, and is read from there.

use crate::fault::{Fault, condition};

/// As the crate's types write them; a custom condition stands as it is.
const NAMED: [(&str, &str); 6] = [
    ("NotFound", condition::NOT_FOUND),
    ("MessageSizeExceeded", "amqp:link:message-size-exceeded"),
    ("NotAllowed", "amqp:not-allowed"),
    ("NotImplemented", "amqp:not-implemented"),
    ("ResourceLimitExceeded", "amqp:resource-limit-exceeded"),
    ("UnauthorizedAccess", "amqp:unauthorized-access"),
];

/// What a request's status says, where the answer's condition is not in the error. What is lost is a lock, of which kind the asker knows.
const STATUS: [(u16, &str); 3] =
    [(410, condition::MESSAGE_LOCK_LOST), (404, condition::MESSAGE_NOT_FOUND), (401, "amqp:unauthorized-access")];

/// Where an answer has no state, it has a null, which the crate cannot decode. The rest of the link works on.
pub(super) fn is_null_state(error: &(impl std::fmt::Debug + ?Sized)) -> bool {
    let text = format!("{error:?}");
    text.contains("DecodeError") && text.contains("InvalidFormatCode")
}

pub(super) fn meant(error: &(impl std::fmt::Debug + std::fmt::Display + ?Sized)) -> Fault {
    let debug = format!("{error:?}");
    let broker = |condition: &str| Fault::Broker { condition: condition.to_owned(), text: error.to_string() };
    if let Some(at) = debug.find("com.microsoft:") {
        let name = debug[at..].split(|c: char| !(c.is_ascii_lowercase() || c == ':' || c == '-' || c == '.')).next();
        return broker(name.unwrap_or_default());
    }
    if let Some((_, name)) = NAMED.iter().find(|(word, _)| debug.contains(&format!("({word})"))) {
        return broker(name);
    }
    if let Some((_, name)) = STATUS.iter().find(|(code, _)| debug.contains(&format!("StatusCode({code})"))) {
        return broker(name);
    }
    if debug.contains("Elapsed") {
        return Fault::Gone("the client `azservicebus` has given up a call after its time".to_owned());
    }
    Fault::Gone(error.to_string())
}
