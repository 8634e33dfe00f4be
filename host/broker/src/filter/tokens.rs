//! An expression, cut into words, texts, numbers and marks.

use super::{FilterError, sql::error};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// A word as it is written; it may be a keyword.
    Word(String),
    /// A name in brackets or double quotes: never a keyword.
    Quoted(String),
    Text(String),
    Int(i64),
    Double(f64),
    /// `@name`, the at sign included.
    Parameter(String),
    Mark(&'static str),
}

impl Kind {
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Word(text) | Self::Quoted(text) | Self::Parameter(text) => format!("{text:?}"),
            Self::Text(text) => format!("the text '{text}'"),
            Self::Int(n) => n.to_string(),
            Self::Double(n) => n.to_string(),
            Self::Mark(mark) => format!("{mark:?}"),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) position: usize,
}

const MARKS: [&str; 17] = ["<>", "<=", ">=", "!=", "=", "<", ">", "(", ")", ",", ".", "+", "-", "*", "/", "%", ";"];

pub(super) fn tokens(text: &str) -> Result<Vec<Token>, FilterError> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let start = at;
        let kind = match c {
            _ if c.is_whitespace() => {
                at += 1;
                continue;
            }
            '\'' => Kind::Text(quoted(&chars, &mut at, '\'')?),
            '"' => Kind::Quoted(quoted(&chars, &mut at, '"')?),
            '[' => Kind::Quoted(quoted(&chars, &mut at, ']')?),
            _ if c.is_alphabetic() || c == '_' => {
                while chars.get(at).is_some_and(|c| c.is_alphanumeric() || "_:$@#".contains(*c)) {
                    at += 1;
                }
                Kind::Word(chars[start..at].iter().collect())
            }
            '@' if chars.get(at + 1).is_some_and(|c| c.is_alphanumeric() || *c == '_') => {
                at += 1;
                while chars.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_') {
                    at += 1;
                }
                Kind::Parameter(chars[start..at].iter().collect())
            }
            _ if c.is_ascii_digit() => number(&chars, &mut at)?,
            _ => {
                let mark = MARKS.into_iter().find(|mark| mark.chars().eq(chars[at..].iter().copied().take(mark.len())));
                let mark = mark.ok_or_else(|| error(start + 1, format!("{c:?} means nothing here")))?;
                at += mark.len();
                Kind::Mark(mark)
            }
        };
        tokens.push(Token { kind, position: start + 1 });
    }
    Ok(tokens)
}

/// A doubled closing quote stands for one.
fn quoted(chars: &[char], at: &mut usize, close: char) -> Result<String, FilterError> {
    let start = *at;
    *at += 1;
    let mut text = String::new();
    loop {
        match chars.get(*at) {
            Some(&c) if c == close && chars.get(*at + 1) == Some(&close) => {
                text.push(c);
                *at += 2;
            }
            Some(&c) if c == close => {
                *at += 1;
                return Ok(text);
            }
            Some(&c) => {
                text.push(c);
                *at += 1;
            }
            None => return Err(error(start + 1, format!("the closing quote {close:?} is missing"))),
        }
    }
}

fn number(chars: &[char], at: &mut usize) -> Result<Kind, FilterError> {
    let start = *at;
    let wrong = |text: &str| error(start + 1, format!("{text:?} is not a number"));
    let digits = |at: &mut usize, hex: bool| {
        while chars.get(*at).is_some_and(|c| if hex { c.is_ascii_hexdigit() } else { c.is_ascii_digit() }) {
            *at += 1;
        }
    };
    if chars[start] == '0' && matches!(chars.get(start + 1), Some('x' | 'X')) {
        *at += 2;
        digits(at, true);
        let text: String = chars[start..*at].iter().collect();
        return i64::from_str_radix(&text[2..], 16).map(Kind::Int).map_err(|_| wrong(&text));
    }
    digits(at, false);
    let mut whole = true;
    if chars.get(*at) == Some(&'.') {
        whole = false;
        *at += 1;
        digits(at, false);
    }
    if matches!(chars.get(*at), Some('e' | 'E')) {
        whole = false;
        *at += 1;
        if matches!(chars.get(*at), Some('+' | '-')) {
            *at += 1;
        }
        digits(at, false);
    }
    let text: String = chars[start..*at].iter().collect();
    if whole {
        text.parse().map(Kind::Int).map_err(|_| wrong(&text))
    } else {
        text.parse().map(Kind::Double).map_err(|_| wrong(&text))
    }
}
