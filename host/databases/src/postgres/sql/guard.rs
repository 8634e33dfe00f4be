//! What a handler's statement may be (P37): one that reads or changes rows, and nothing by which it could become another role.
//!
//! It is read with `standard_conforming_strings` on, as every connection has it. Who the statement acts as is decided by the server. But a session that has taken a role may always give it back, in more ways than `RESET ROLE`: so
//! statements begin with one of a few words, and functions that set parameters or carry out text are refused by name.

/// How a statement may begin.
const BEGINNINGS: [&str; 8] = ["select", "insert", "update", "delete", "merge", "with", "values", "table"];

/// Functions that carry out text, or set what outlives the statement.
const REFUSED: [&str; 9] = [
    "set_config",
    "query_to_xml",
    "query_to_xmlschema",
    "query_to_xml_and_xmlschema",
    "cursor_to_xml",
    "cursor_to_xmlschema",
    "ts_stat",
    "ts_rewrite",
    "pg_advisory_unlock_all",
];

/// Functions of the extensions that come with PostgreSQL and carry out text, by how their names begin.
const TEXT_FUNCTIONS: [&str; 3] = ["dblink", "crosstab", "connectby"];

/// Why the statement is not sent, or nothing.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let names = names(text)?;
    let Some(first) = names.first() else { return Err("the statement is empty".to_owned()) };
    if first.is_quoted || !BEGINNINGS.contains(&first.text.as_str()) {
        return Err(format!(
            "a handler's statement begins with {} or {}; this one begins with {:?}",
            BEGINNINGS[..BEGINNINGS.len() - 1].join(", ").to_uppercase(),
            BEGINNINGS[BEGINNINGS.len() - 1].to_uppercase(),
            first.text
        ));
    }
    let locks_session = |name: &str| {
        (name.starts_with("pg_advisory_") || name.starts_with("pg_try_advisory_")) && !name.contains("_xact_")
    };
    let refused = names.iter().find(|name| {
        let name = name.text.to_lowercase();
        REFUSED.contains(&name.as_str())
            || TEXT_FUNCTIONS.iter().any(|start| name.starts_with(start))
            || locks_session(&name)
    });
    match refused {
        Some(name) => Err(format!("{:?} is not for handlers: its effect would go beyond their transaction", name.text)),
        None => Ok(()),
    }
}

struct Name {
    text: String,
    is_quoted: bool,
}

/// Every name and keyword of the statement: what stands outside of literals and comments. Unquoted ones in lower case.
fn names(text: &str) -> Result<Vec<Name>, String> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied();
    let is_start = |c: char| c.is_alphabetic() || c == '_' || !c.is_ascii();
    let is_part = |c: char| is_start(c) || c.is_ascii_digit() || c == '$';
    let unfinished = |what: &str| format!("{what} in the statement does not end");
    let (mut names, mut i) = (Vec::new(), 0);
    while let Some(c) = at(i) {
        match c {
            '-' if at(i + 1) == Some('-') => {
                // As the server has it, either character ends the line.
                while at(i).is_some_and(|c| c != '\n' && c != '\r') {
                    i += 1;
                }
            }
            '/' if at(i + 1) == Some('*') => i = after_comment(&chars, i).ok_or_else(|| unfinished("a comment"))?,
            '\'' => i = after_quote(&chars, i, false).ok_or_else(|| unfinished("a text"))?,
            '"' => {
                let end = after_quote(&chars, i, false).ok_or_else(|| unfinished("a quoted name"))?;
                let inner: String = chars[i + 1..end - 1].iter().collect();
                names.push(Name { text: inner.replace("\"\"", "\""), is_quoted: true });
                i = end;
            }
            '$' if at(i + 1).is_some_and(|c| c == '$' || is_start(c)) => {
                i = after_dollars(&chars, i).ok_or_else(|| unfinished("a text in dollars"))?;
            }
            c if is_start(c) => {
                let start = i;
                while at(i).is_some_and(is_part) {
                    i += 1;
                }
                let word: String = chars[start..i].iter().collect::<String>().to_lowercase();
                match (word.as_str(), at(i)) {
                    ("e", Some('\'')) => i = after_quote(&chars, i, true).ok_or_else(|| unfinished("a text"))?,
                    // Names written in escapes could be any name.
                    ("u", Some('&')) if matches!(at(i + 1), Some('"')) => {
                        return Err("names in Unicode escapes (U&\"…\") are not for handlers".to_owned());
                    }
                    _ => names.push(Name { text: word, is_quoted: false }),
                }
            }
            c if c.is_ascii_digit() => {
                while at(i).is_some_and(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_') {
                    i += 1;
                }
            }
            _ => i += 1,
        }
    }
    Ok(names)
}

/// Comments may stand within each other.
fn after_comment(chars: &[char], start: usize) -> Option<usize> {
    let (mut depth, mut i) = (0, start);
    loop {
        match (chars.get(i)?, chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return Some(i);
        }
    }
}

/// Behind what is quoted; the quote itself is written twice within, or after a backslash where those count.
fn after_quote(chars: &[char], start: usize, backslashes: bool) -> Option<usize> {
    let quote = chars[start];
    let mut i = start + 1;
    loop {
        match chars.get(i)? {
            '\\' if backslashes => i += 2,
            c if *c == quote && chars.get(i + 1) == Some(&quote) => i += 2,
            c if *c == quote => return Some(i + 1),
            _ => i += 1,
        }
    }
}

/// Behind `$tag$ … $tag$`.
fn after_dollars(chars: &[char], start: usize) -> Option<usize> {
    let tag_end = (start + 1..chars.len()).find(|i| chars[*i] == '$')?;
    let tag = &chars[start..=tag_end];
    let body = tag_end + 1;
    let found = chars.get(body..)?.windows(tag.len()).position(|window| window == tag)?;
    Some(body + found + tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_or_changes_rows_may_pass() {
        for text in [
            "SELECT 1",
            "  -- a note\n /* and /* another */ one */ insert INTO t VALUES ($1, 'set_config', $$ RESET ROLE $$, E'it\\'s set_config')",
            "WITH x AS (UPDATE t SET a = 1 RETURNING *) SELECT * FROM x",
            "select pg_advisory_xact_lock(1)",
            "SELECT \"Name\" FROM \"set_configuration\"",
            "SELECT $tag$ set_config $tag$ || U&'\\0041'",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    /// P37: the ways out of the role and of the transaction.
    #[test]
    fn the_ways_out_are_refused() {
        for text in [
            "",
            "-- nothing",
            "COMMIT",
            "/* x */ ROLLBACK",
            "BEGIN",
            "SAVEPOINT s",
            "RELEASE s",
            "SET ROLE postgres",
            "reset role",
            "SET SESSION AUTHORIZATION DEFAULT",
            "DO $$ BEGIN EXECUTE 'RESET ROLE'; END $$",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "COPY t FROM PROGRAM 'id'",
            "PREPARE TRANSACTION 'x'",
            "LISTEN x",
            "CALL p()",
            "\"select\" 1",
            "SELECT set_config('role', 'none', true)",
            "SELECT pg_catalog.\"set_config\"('role', 'none', true)",
            "SELECT SET_CONFIG ('role', 'none', true)",
            "SELECT U&\"set\\005fconfig\"('role', 'none', true)",
            "SELECT query_to_xml('SELECT ' || 'set_' || 'config(1)', true, true, '')",
            "SELECT pg_advisory_lock(1)",
            "SELECT pg_try_advisory_lock_shared(1)",
            "SELECT * FROM dblink('x', 'y') AS t(a int)",
            "SELECT 1 --\r, set_config('role', 'none', true)",
            "SELECT * FROM crosstab('SELECT set_' || 'config(1)') AS t(a text)",
            "SELECT 'no end",
            "SELECT /* no end",
            "SELECT $$ no end",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }

    /// A literal with backslashes ends where the server says it ends, which is without them unless it is an E literal.
    #[test]
    fn literals_end_where_the_server_ends_them() {
        assert!(check(r"SELECT '\', set_config('role', 'none', true), '\'").is_err());
        assert!(check(r"SELECT E'\', set_config(', 1").is_ok());
    }
}
