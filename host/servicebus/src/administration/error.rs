//! Why something about a namespace was not done. No text here has a key or a token in it.

use std::time::Duration;

use crate::token::TokenError;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("there is no {what}{}", said(detail))]
    NotFound { what: String, detail: String },
    /// It is there already, or somebody else changes it at this moment.
    #[error("{what}: the namespace reports a conflict{}", said(detail))]
    Conflict { what: String, detail: String },
    #[error("{what}: the credential is not accepted; {right} is needed{}", said(detail))]
    Unauthorized { what: String, right: String, detail: String },
    /// It asks for less. `retry_after` is what it said last.
    #[error("{what}: the namespace is busy (status {status}) after {tries} tries{}{}", wait(*retry_after), said(detail))]
    Busy { what: String, status: u16, tries: u32, retry_after: Option<Duration>, detail: String },
    /// The service does not take the request as it is.
    #[error("{what}: the namespace refuses it (status {status}){}", said(detail))]
    Refused { what: String, status: u16, detail: String },
    #[error("no way to {address}: {problem}")]
    Unreachable { address: String, problem: String },
    #[error("no answer from {address} within {limit:?}")]
    Timeout { address: String, limit: Duration },
    #[error("{what}: the answer cannot be read: {problem}")]
    Malformed { what: String, problem: String },
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl Error {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

fn said(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}

fn wait(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |wait| format!("; it asks to wait {wait:?}"))
}

/// The longest detail that is kept of an answer that is not the service's own (a proxy's page).
const LONGEST: usize = 500;

/// The service's own words, on one line, without what was shown to it.
pub(super) fn detail(body: &str, shown: &[String]) -> String {
    let parsed = super::xml::Element::read(body).ok();
    let detail = parsed.as_ref().and_then(|error| error.said("Detail").or_else(|| error.said("Message")));
    let mut text = detail.unwrap_or(body).split_whitespace().collect::<Vec<_>>().join(" ");
    for secret in shown.iter().flat_map(|token| secrets(token)) {
        text = text.replace(secret, "(not shown)");
    }
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// A token as a whole, and what of it proves anything.
fn secrets(token: &str) -> impl Iterator<Item = &str> {
    let signature = token.split(['&', ' ']).find_map(|field| field.strip_prefix("sig="));
    [Some(token), token.split_once(' ').map(|(_, rest)| rest), signature]
        .into_iter()
        .flatten()
        .filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_words_are_kept_and_what_was_shown_is_not() {
        let body = "<Error><Code>401</Code><Detail>Manage,EntityRead claims\n  required. TrackingId:1</Detail></Error>";
        assert_eq!(detail(body, &[]), "Manage,EntityRead claims required. TrackingId:1");
        let token = "SharedAccessSignature sr=x&sig=geheim%3d&se=1&skn=n".to_owned();
        for echo in [token.as_str(), "bad: sr=x&sig=geheim%3d&se=1&skn=n", "sig is geheim%3d"] {
            let text = detail(echo, std::slice::from_ref(&token));
            assert!(!text.contains("geheim") && text.contains("(not shown)"), "{text}");
        }
        assert!(detail(&"é".repeat(600), &[]).ends_with("é…"));
    }
}
