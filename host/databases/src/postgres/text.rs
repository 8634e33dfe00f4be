//! Texts in columns.
//!
//! PostgreSQL's `text` holds every character but U+0000, and ids and error texts may hold that too. It is written as U+10FFFF and `0`, and
//! U+10FFFF, which no text means anything by, as itself and `1`: a text without either, that is every usual one, stands in the table as it is. The
//! start of a text stays the start of what is written for it.

use std::{borrow::Cow, fmt};

use bytes::BytesMut;
use tokio_postgres::{
    Row,
    types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked},
};

use super::fault::Fault;

const MARK: char = '\u{10FFFF}';

/// A text on its way into a column or out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text<S>(pub(crate) S);

pub(crate) fn written(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', MARK]) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\0' => out.extend([MARK, '0']),
            MARK => out.extend([MARK, '1']),
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

pub(crate) fn read(text: &str) -> String {
    if !text.contains(MARK) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            MARK if chars.next() == Some('0') => out.push('\0'),
            other => out.push(other),
        }
    }
    out
}

type Problem = Box<dyn std::error::Error + Sync + Send>;

impl<S: AsRef<str> + fmt::Debug> ToSql for Text<S> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Problem> {
        written(self.0.as_ref()).as_ref().to_sql(ty, out)
    }

    accepts!(TEXT);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Text<String> {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Problem> {
        Ok(Self(read(<&str>::from_sql(ty, raw)?)))
    }

    accepts!(TEXT);
}

/// The text in a row's column.
pub(crate) fn text(row: &Row, column: usize) -> Result<String, Fault> {
    Ok(row.try_get::<_, Text<String>>(column)?.0)
}

pub(crate) fn optional_text(row: &Row, column: usize) -> Result<Option<String>, Fault> {
    Ok(row.try_get::<_, Option<Text<String>>>(column)?.map(|text| text.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_and_no_two_are_alike() {
        let texts =
            ["", "usual", "\0", "a\0b", "\u{10FFFF}", "\u{10FFFF}0", "\u{10FFFF}1", "\0\0\u{10FFFF}\0", "0", "1"];
        for text in texts {
            assert_eq!(read(&written(text)), text, "{text:?}");
            assert!(!written(text).contains('\0'));
            for other in texts {
                assert_eq!(written(text) == written(other), text == other, "{text:?} {other:?}");
                assert_eq!(written(text).starts_with(&*written(other)), text.starts_with(other), "{text:?} {other:?}");
            }
        }
    }
}
