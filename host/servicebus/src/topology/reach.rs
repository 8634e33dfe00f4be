//! Whether what an endpoint sends to itself on NimBus's topology could reach another subscriber of its topic (P21). Pure.
//!
//! A filter is read only as far as to be sure. What it understands is a conjunction of which one part keeps such messages out: `To = '…'` of
//! somebody else, or `From IS NULL`, as NimBus's own forwarders have it. Of every other filter it is not known, and that counts as "it could".

use super::{Current, Problem, Severity, Wanted};
use crate::{
    administration::{Filter, Path},
    way::{CONTINUATION, DEFERRED, RETRY},
};

/// The rules beside NimBus's own, on whatever subscription of such a topic, that could take what is meant for the endpoint alone.
pub(super) fn reached(wanted: &[Wanted], current: &Current) -> Vec<Problem> {
    let mut all = Vec::new();
    for topic in wanted.iter().filter(|wanted| wanted.carries_stand_ins) {
        for found in current.subscriptions_of(&topic.path) {
            let path = &found.entity.path;
            for rule in &found.rules {
                if is_wanted(wanted, path, &rule.name) || keeps_out(&rule.filter) {
                    continue;
                }
                let text = format!(
                    "its rule \"{rule}\" could take what the endpoint of this topic sends to itself: retries, triggers and parked messages (P21)"
                );
                let remedy = format!(
                    "Change the rule {} so that it asks for From IS NULL or for a To of its own, joined by AND only, or remove it; `topology apply` leaves it.",
                    rule.name
                );
                all.push(Problem { severity: Severity::Error, path: path.clone(), text, remedy });
            }
        }
    }
    all
}

fn is_wanted(wanted: &[Wanted], path: &Path, rule: &str) -> bool {
    wanted.iter().filter(|it| it.path.is(path)).any(|it| it.rules.iter().any(|it| it.is_named(rule)))
}

/// Whether a filter surely takes none of these messages.
fn keeps_out(filter: &Filter) -> bool {
    match filter {
        Filter::Nothing => true,
        Filter::All | Filter::Other(_) => false,
        Filter::Sql(sql) => tokens(sql).is_some_and(|tokens| {
            let splits = |token: &Token| matches!(token, Token::Word(word) if word == "or" || word == "not");
            !tokens.iter().any(|token| *token == Token::Other || splits(token))
                && tokens.split(|token| *token == Token::Word("and".to_owned())).any(part_keeps_out)
        }),
    }
}

fn part_keeps_out(part: &[Token]) -> bool {
    let is = |token: &Token, name: &str| matches!(token, Token::Word(word) if word.strip_prefix("user.").unwrap_or(word) == name);
    match part {
        [from, verb, null] if is(from, "from") => is(verb, "is") && is(null, "null"),
        [to, Token::Equals, Token::Text(whom)] if is(to, "to") => {
            ![RETRY, CONTINUATION, DEFERRED].iter().any(|our| our.eq_ignore_ascii_case(whom))
        }
        _ => false,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// A name or a word of the language, in small letters.
    Word(String),
    Text(String),
    Equals,
    /// What is not understood.
    Other,
}

/// None for a text without an end.
fn tokens(sql: &str) -> Option<Vec<Token>> {
    let mut all = Vec::new();
    let mut rest = sql.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = if first == '\'' {
            let (text, len) = text(rest)?;
            all.push(Token::Text(text));
            len
        } else if first == '=' {
            all.push(Token::Equals);
            1
        } else if first.is_ascii_alphabetic() || first == '_' {
            let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '-';
            let len = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            all.push(Token::Word(rest[..len].to_ascii_lowercase()));
            len
        } else {
            all.push(Token::Other);
            first.len_utf8()
        };
        rest = rest[len..].trim_start();
    }
    Some(all)
}

/// A text between quotes, in which two stand for one, and how long it is with them.
fn text(sql: &str) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut chars = sql.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if chars.peek().is_some_and(|(_, next)| *next == '\'') => {
                chars.next();
                text.push('\'');
            }
            '\'' => return Some((text, at + 1)),
            c => text.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sure() {
        for sql in [
            "user.EventTypeId = 'OrderPlaced' AND user.From IS NULL",
            "from is null",
            "EventTypeId = 'a or b' and FROM IS NULL",
            "user.To = 'crm'",
            "To='it''s'",
            "a = 'x' AND To = 'Resolver'",
        ] {
            assert!(keeps_out(&Filter::Sql(sql.into())), "{sql}");
        }
        assert!(keeps_out(&Filter::Nothing));
    }

    #[test]
    fn what_could_be() {
        for sql in [
            "user.EventTypeId = 'OrderPlaced'",
            "From IS NOT NULL",
            "From IS NULL OR To = 'crm'",
            "NOT From IS NULL",
            "(From IS NULL)",
            "user.To = 'Retry'",
            "To = 'deferred'",
            "sys.To = 'crm'",
            "Note = 'From IS NULL'",
            "To = 'crm",
            "1 = 1",
            "",
        ] {
            assert!(!keeps_out(&Filter::Sql(sql.into())), "{sql}");
        }
        assert!(!keeps_out(&Filter::All));
    }
}
