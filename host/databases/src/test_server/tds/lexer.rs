//! T-SQL in words.

/// A word of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// As written; brackets are gone.
    Name(String),
    /// In brackets, so never a keyword.
    Quoted(String),
    /// `@P1` is 1.
    Place(usize),
    /// `@@TRANCOUNT` and the like.
    Global(String),
    Number(String),
    /// Without its quotes.
    Text(String),
    Sign(char),
}

impl Token {
    /// The keyword or function of this name, in any case.
    pub(super) fn is(&self, word: &str) -> bool {
        matches!(self, Self::Name(name) if name.eq_ignore_ascii_case(word))
    }

    pub(super) fn is_sign(&self, sign: char) -> bool {
        *self == Self::Sign(sign)
    }
}

pub(super) fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            c if c.is_whitespace() => (None, c.len_utf8()),
            '-' if rest.starts_with("--") => (None, rest.find('\n').unwrap_or(rest.len())),
            '[' => {
                let end = rest.find(']').ok_or("a bracket is not closed")?;
                (Some(Token::Quoted(rest[1..end].to_owned())), end + 1)
            }
            '\'' => {
                let end = rest[1..].find('\'').ok_or("a text is not closed")? + 1;
                (Some(Token::Text(rest[1..end].to_owned())), end + 1)
            }
            '@' if rest.starts_with("@@") => {
                let end = word(&rest[2..]) + 2;
                (Some(Token::Global(rest[2..end].to_ascii_uppercase())), end)
            }
            '@' => {
                let end = word(&rest[1..]) + 1;
                let number = rest[1..end].strip_prefix('P').and_then(|digits| digits.parse().ok());
                (Some(Token::Place(number.ok_or("only @P1, @P2 and so on are known")?)), end)
            }
            c if c.is_ascii_digit() => {
                let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                (Some(Token::Number(rest[..end].to_owned())), end)
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = word(rest);
                (Some(Token::Name(rest[..end].to_owned())), end)
            }
            '(' | ')' | ',' | '.' | ';' | '=' | '<' | '>' | '+' | '-' | '*' => (Some(Token::Sign(first)), 1),
            other => return Err(format!("{other:?} is not known")),
        };
        out.extend(token);
        rest = &rest[length..];
    }
    Ok(out)
}

fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}
