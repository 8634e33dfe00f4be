//! T-SQL as PostgreSQL's: the statements that the store sends, and no others.
//!
//! Everything that is not known is refused, by what it is: a statement, a keyword, a function, a hint. So the list of what is known is the list of what
//! the store may use. `MERGE`, `WAITFOR`, `CREATE OR ALTER`, a `WITH` before a statement, `IGNORE_DUP_KEY` and the like are not on it.

use super::lexer::{Token, tokens};

/// A statement for PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) sql: String,
    /// Which value stands in `$1`, `$2` and so on, counted from 1.
    pub(super) places: Vec<usize>,
    /// What is noted of the types of a new table.
    pub(super) declared: Vec<Declared>,
}

/// A column as it was declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) column: String,
    pub(super) kind: String,
    pub(super) length: Option<i64>,
    pub(super) collation: Option<String>,
}

const KEYWORDS: [&str; 38] = [
    "SELECT",
    "FROM",
    "WHERE",
    "AND",
    "OR",
    "NOT",
    "EXISTS",
    "IN",
    "IS",
    "NULL",
    "AS",
    "ON",
    "INNER",
    "LEFT",
    "JOIN",
    "ORDER",
    "BY",
    "GROUP",
    "DESC",
    "ASC",
    "UNION",
    "ALL",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "INSERT",
    "INTO",
    "VALUES",
    "UPDATE",
    "SET",
    "DELETE",
    "TOP",
    "OUTPUT",
    "RETURNING",
    "LIMIT",
    "USING",
];
/// Words of T-SQL that are never names here, so that their use is refused and not taken for a column.
const REFUSED: [&str; 22] = [
    "MERGE", "WAITFOR", "EXEC", "EXECUTE", "DECLARE", "OPENJSON", "CROSS", "OUTER", "APPLY", "PIVOT", "RIGHT", "FULL",
    "HAVING", "DISTINCT", "OVER", "NEXT", "GOTO", "RETURN", "TRY", "CATCH", "WITH", "OFFSET",
];
/// By their names here and there.
const FUNCTIONS: [(&str, &str); 11] = [
    ("COALESCE", "COALESCE"),
    ("COUNT", "COUNT"),
    ("MIN", "MIN"),
    ("MAX", "MAX"),
    ("LEFT", "left"),
    ("DATALENGTH", "datalength"),
    ("CHARINDEX", "charindex"),
    ("NCHAR", "chr"),
    ("SYSUTCDATETIME", "sysutcdatetime"),
    ("DATEDIFF_BIG", "datediff_big"),
    ("CAST", "CAST"),
];
const HINTS: [&str; 2] = ["READPAST", "READCOMMITTEDLOCK"];
const COLLATION: &str = "Latin1_General_100_BIN2";

type Result<T> = std::result::Result<T, String>;

/// The statements of a text. `types` are those of its values, as declared.
pub(super) fn translate(text: &str, types: &[String]) -> Result<Vec<Statement>> {
    let tokens = tokens(text)?;
    let statements = split(&tokens, ';');
    statements.into_iter().filter(|statement| !statement.is_empty()).map(|statement| one(statement, types)).collect()
}

/// The parts between signs that are in no parentheses.
fn split(tokens: &[Token], sign: char) -> Vec<&[Token]> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (n, token) in tokens.iter().enumerate() {
        match token {
            Token::Sign('(') => depth += 1,
            Token::Sign(')') => depth -= 1,
            Token::Sign(found) if *found == sign && depth == 0 => {
                parts.push(&tokens[start..n]);
                start = n + 1;
            }
            _ => {}
        }
    }
    parts.push(&tokens[start..]);
    parts
}

/// Where a word stands that is in no parentheses.
fn find(tokens: &[Token], words: &[&str]) -> Option<usize> {
    let mut depth = 0_i32;
    tokens.iter().position(|token| {
        match token {
            Token::Sign('(') => depth += 1,
            Token::Sign(')') => depth -= 1,
            _ => {}
        }
        depth == 0 && words.iter().any(|word| token.is(word))
    })
}

fn one(statement: &[Token], types: &[String]) -> Result<Statement> {
    let first = |word: &str| statement.first().is_some_and(|token| token.is(word));
    if first("CREATE") {
        return create(&statement[1..]);
    }
    if !["SELECT", "INSERT", "UPDATE", "DELETE"].iter().any(|word| first(word)) {
        return Err(format!("a statement that begins with {:?} is not known", statement.first()));
    }
    let statement = without_hints(statement)?;
    let statement = update_from_join(statement)?;
    let (statement, returning) = output(statement)?;
    let mut writer = Writer { types, places: Vec::new() };
    let mut sql = writer.level(&statement)?;
    if !returning.is_empty() {
        sql.push_str(" RETURNING ");
        sql.push_str(&writer.level(&returning)?);
    }
    Ok(Statement { sql, places: writer.places, declared: Vec::new() })
}

/// In place of the hints: rows that somebody else is at are passed over.
const PASSING: &str = "\u{1}passing";

/// Reads the hints, of which two are known, and only together.
fn without_hints(tokens: &[Token]) -> Result<Vec<Token>> {
    let mut out = Vec::new();
    let mut rest = tokens;
    while let Some((token, more)) = rest.split_first() {
        rest = more;
        if !(token.is("WITH") && more.first().is_some_and(|next| next.is_sign('('))) {
            out.push(token.clone());
            continue;
        }
        let end = more.iter().position(|token| token.is_sign(')')).ok_or("hints without an end")?;
        for hint in more[1..end].iter().filter(|token| !token.is_sign(',')) {
            if !HINTS.iter().any(|known| hint.is(known)) {
                return Err(format!("the hint {hint:?} is not known"));
            }
        }
        let both = HINTS.iter().all(|hint| more[1..end].iter().any(|token| token.is(hint)));
        if !both {
            return Err("READPAST goes together with READCOMMITTEDLOCK".to_owned());
        }
        out.push(Token::Name(PASSING.to_owned()));
        rest = &more[end + 1..];
    }
    Ok(out)
}

/// `UPDATE e SET .. FROM t AS e INNER JOIN x ON c WHERE d` is `UPDATE t AS e SET .. FROM x WHERE (c) AND (d)` there.
fn update_from_join(tokens: Vec<Token>) -> Result<Vec<Token>> {
    if !tokens[0].is("UPDATE") {
        return Ok(tokens);
    }
    let Some(from) = find(&tokens, &["FROM"]) else { return Ok(tokens) };
    let at = |word: &str| find(&tokens[from..], &[word]).map(|at| at + from);
    let (Some(name), Some(join), Some(on), Some(filter)) = (at("AS"), at("INNER"), at("ON"), at("WHERE")) else {
        return Err("an UPDATE with FROM has a join and a condition".to_owned());
    };
    if !(tokens[2].is("SET") && tokens[1] == tokens[name + 1] && name + 2 == join && tokens[join + 1].is("JOIN")) {
        return Err("an UPDATE with FROM is of the table that is named first".to_owned());
    }
    let word = |word: &str| Token::Name(word.to_owned());
    let mut out = vec![tokens[0].clone()];
    out.extend_from_slice(&tokens[from + 1..join]);
    out.extend_from_slice(&tokens[2..from]);
    out.push(word("FROM"));
    out.extend_from_slice(&tokens[join + 2..on]);
    out.push(word("WHERE"));
    out.push(Token::Sign('('));
    out.extend_from_slice(&tokens[on + 1..filter]);
    out.extend([Token::Sign(')'), word("AND"), Token::Sign('(')]);
    out.extend_from_slice(&tokens[filter + 1..]);
    out.push(Token::Sign(')'));
    Ok(out)
}

/// Takes `OUTPUT inserted.a, inserted.b` out.
fn output(tokens: Vec<Token>) -> Result<(Vec<Token>, Vec<Token>)> {
    let Some(start) = find(&tokens, &["OUTPUT"]) else { return Ok((tokens, Vec::new())) };
    let length = find(&tokens[start..], &["SELECT", "VALUES", "WHERE", "FROM", "INTO"]).unwrap_or(tokens.len() - start);
    let which = if tokens[0].is("DELETE") { "deleted" } else { "inserted" };
    let mut columns = Vec::new();
    for column in split(&tokens[start + 1..start + length], ',') {
        let [table, Token::Sign('.'), name] = column else { return Err("OUTPUT names columns".to_owned()) };
        if !table.is(which) {
            return Err(format!("OUTPUT is of {which}"));
        }
        if !columns.is_empty() {
            columns.push(Token::Sign(','));
        }
        columns.push(name.clone());
    }
    let mut rest = tokens[..start].to_vec();
    rest.extend_from_slice(&tokens[start + length..]);
    if rest.iter().skip(start).any(|token| token.is("INTO")) {
        return Err("OUTPUT INTO is not known".to_owned());
    }
    Ok((rest, columns))
}

struct Writer<'t> {
    types: &'t [String],
    places: Vec<usize>,
}

impl Writer<'_> {
    fn place(&mut self, number: usize) -> Result<String> {
        if number == 0 || number > self.types.len() {
            return Err(format!("@P{number} has no value"));
        }
        let at = self.places.iter().position(|place| *place == number).unwrap_or_else(|| {
            self.places.push(number);
            self.places.len() - 1
        });
        Ok(format!("${}", at + 1))
    }

    /// What stands between two parentheses, or the whole statement.
    fn level(&mut self, tokens: &[Token]) -> Result<String> {
        let mut out = String::new();
        let (mut limit, mut passing, mut assigns, mut at) = (None, false, false, 0);
        while at < tokens.len() {
            let token = &tokens[at];
            let (text, used) = match token {
                Token::Name(_) if token.is("TOP") && self.follows(tokens, at, '(') => {
                    let end = closing(tokens, at + 1)?;
                    limit = Some(self.level(&tokens[at + 2..end])?);
                    (String::new(), end + 1 - at)
                }
                Token::Name(name) if name == PASSING => {
                    // What is deleted is chosen by the inner statement, which has passed over what is locked.
                    passing = tokens[0].is("SELECT");
                    (String::new(), 1)
                }
                Token::Name(_) if token.is("COLLATE") && tokens.get(at + 1).is_some_and(|name| name.is(COLLATION)) => {
                    ("COLLATE \"C\"".to_owned(), 2)
                }
                Token::Name(_) | Token::Quoted(_) => {
                    assigns = if token.is("SET") { true } else { assigns && !token.is("FROM") && !token.is("WHERE") };
                    self.word(tokens, at, assigns)?
                }
                Token::Sign('(') => {
                    let end = closing(tokens, at)?;
                    (format!("({})", self.level(&tokens[at + 1..end])?), end + 1 - at)
                }
                Token::Place(number) => (self.place(*number)?, 1),
                Token::Number(number) => (number.clone(), 1),
                Token::Text(text) => (format!("'{text}'"), 1),
                Token::Sign(sign) => (sign.to_string(), 1),
                Token::Global(name) => return Err(format!("@@{name} is not known here")),
            };
            let glued = matches!(token, Token::Sign('.' | '(' | ')' | ',' | '=' | '<' | '>'))
                || out.ends_with(['.', '(', '<', '>']);
            if !out.is_empty() && !text.is_empty() && !glued {
                out.push(' ');
            }
            out.push_str(&text);
            at += used;
        }
        if let Some(limit) = limit {
            out.push_str(&format!(" LIMIT {limit}"));
        }
        if passing {
            out.push_str(" FOR UPDATE SKIP LOCKED");
        }
        Ok(out)
    }

    fn follows(&self, tokens: &[Token], at: usize, sign: char) -> bool {
        tokens.get(at + 1).is_some_and(|token| token.is_sign(sign))
    }

    /// A keyword, a function or a name. In conditions a text compares as SQL Server compares it, without the spaces at its end.
    fn word(&mut self, tokens: &[Token], at: usize, assigns: bool) -> Result<(String, usize)> {
        let opens = self.follows(tokens, at, '(');
        let named = |at: usize| match &tokens[at] {
            Token::Name(name) | Token::Quoted(name) => Some(format!("\"{name}\"")),
            _ => None,
        };
        if let Token::Name(name) = &tokens[at] {
            let upper = name.to_ascii_uppercase();
            let before = at.checked_sub(1).map(|before| &tokens[before]);
            let alias = before.is_some_and(|token| token.is("AS"));
            let column = before.is_some_and(|token| token.is_sign('.'));
            if opens && !alias && !column {
                if let Some((_, there)) = FUNCTIONS.iter().find(|(here, _)| *here == upper) {
                    return self.call(there, tokens, at);
                }
                if !KEYWORDS.contains(&upper.as_str()) && !tokens[..at].iter().any(|token| token.is("INTO")) {
                    return Err(format!("the function {name} is not known"));
                }
            }
            if REFUSED.contains(&upper.as_str()) && !column {
                return Err(format!("{name} is not known"));
            }
            if KEYWORDS.contains(&upper.as_str()) && !column {
                return Ok((upper, 1));
            }
            if upper == "INFORMATION_SCHEMA" && tokens.get(at + 2).is_some_and(|token| token.is("COLUMNS")) {
                return Ok(("sys.information_schema_columns".to_owned(), 3));
            }
        }
        let mut text = named(at).ok_or("a name is expected")?;
        let mut used = 1;
        while tokens.get(at + used).is_some_and(|token| token.is_sign('.')) && at + used + 1 < tokens.len() {
            let Some(next) = named(at + used + 1) else { break };
            text.push_str(&format!(".{next}"));
            used += 2;
        }
        if let (false, Some(Token::Sign('=')), Some(Token::Place(place))) =
            (assigns, tokens.get(at + used), tokens.get(at + used + 1))
            && self.types.get(place - 1).is_some_and(|kind| kind.starts_with("nvarchar"))
        {
            let place = self.place(*place)?;
            return Ok((format!("rtrim({text}, ' ')=rtrim({place}, ' ')"), used + 2));
        }
        Ok((text, used))
    }

    fn call(&mut self, there: &str, tokens: &[Token], at: usize) -> Result<(String, usize)> {
        let end = closing(tokens, at + 1)?;
        let inner = &tokens[at + 2..end];
        let text = match there {
            "CAST" => {
                let split = find(inner, &["AS"]).ok_or("CAST names a type")?;
                let (kind, _) = kind_of(&inner[split + 1..])?;
                format!("CAST({} AS {})", self.level(&inner[..split])?, kind.there)
            }
            "datediff_big" => {
                let Some((Token::Name(unit), rest)) = inner.split_first() else {
                    return Err("DATEDIFF_BIG names a unit".to_owned());
                };
                format!("datediff_big('{}'{})", unit.to_ascii_lowercase(), self.level(rest)?)
            }
            there => format!("{there}({})", self.level(inner)?),
        };
        Ok((text, end + 1 - at))
    }
}

/// Where the parenthesis that is opened at `at` is closed.
fn closing(tokens: &[Token], at: usize) -> Result<usize> {
    let mut depth = 0_i32;
    let found = tokens[at..].iter().position(|token| {
        depth += i32::from(token.is_sign('(')) - i32::from(token.is_sign(')'));
        depth == 0
    });
    found.map(|found| at + found).ok_or_else(|| "a parenthesis is not closed".to_owned())
}

/// A type, here and there.
struct Kind {
    name: String,
    /// As `INFORMATION_SCHEMA` has it: -1 is any length.
    length: Option<i64>,
    there: String,
}

/// The type at the start of the tokens, and how many of them it is.
fn kind_of(tokens: &[Token]) -> Result<(Kind, usize)> {
    let Some(Token::Name(name)) = tokens.first() else { return Err("a type is expected".to_owned()) };
    let name = name.to_ascii_lowercase();
    let (length, used) = match tokens.get(1..4) {
        Some([Token::Sign('('), Token::Number(number), Token::Sign(')')]) => (number.parse::<i64>().ok(), 4),
        Some([Token::Sign('('), most, Token::Sign(')')]) if most.is("max") => (Some(-1), 4),
        _ => (None, 1),
    };
    let there = match (name.as_str(), length) {
        ("bigint" | "int", None) => name.clone(),
        ("datetime2", None) => "timestamp".to_owned(),
        ("binary" | "varbinary", Some(_)) => "bytea".to_owned(),
        ("nvarchar", Some(-1)) => "text".to_owned(),
        ("nvarchar", Some(length)) => format!("varchar({length})"),
        _ => return Err(format!("the type {name} is not known, or is not known with this length")),
    };
    Ok((Kind { name, length, there }, used))
}

fn create(tokens: &[Token]) -> Result<Statement> {
    let plain = |sql| Ok(Statement { sql, places: Vec::new(), declared: Vec::new() });
    match tokens {
        [schema, Token::Quoted(name)] if schema.is("SCHEMA") => plain(format!("CREATE SCHEMA \"{name}\"")),
        [
            table,
            Token::Quoted(schema),
            Token::Sign('.'),
            Token::Quoted(name),
            Token::Sign('('),
            rest @ ..,
            Token::Sign(')'),
        ] if table.is("TABLE") => create_table(schema, name, rest),
        [clustered, index, rest @ ..] if clustered.is("CLUSTERED") && index.is("INDEX") => create_index(rest),
        [index, rest @ ..] if index.is("INDEX") => create_index(rest),
        other => Err(format!("CREATE {:?} is not known", other.first())),
    }
}

fn create_index(tokens: &[Token]) -> Result<Statement> {
    let [
        Token::Name(name) | Token::Quoted(name),
        on,
        Token::Quoted(schema),
        Token::Sign('.'),
        Token::Quoted(table),
        columns @ ..,
    ] = tokens
    else {
        return Err("an index is on columns of a table".to_owned());
    };
    if !on.is("ON") {
        return Err("an index is ON a table".to_owned());
    }
    let columns = Writer { types: &[], places: Vec::new() }.level(columns)?;
    let sql = format!("CREATE INDEX \"{name}\" ON \"{schema}\".\"{table}\" {columns}");
    Ok(Statement { sql, places: Vec::new(), declared: Vec::new() })
}

fn create_table(schema: &str, table: &str, parts: &[Token]) -> Result<Statement> {
    let (mut declared, mut out) = (Vec::new(), Vec::new());
    for part in split(parts, ',') {
        if let Some(key) = table_key(part)? {
            out.push(key);
            continue;
        }
        let (Some(Token::Name(column)), rest) = (part.first(), part.get(1..).unwrap_or_default()) else {
            return Err("a column has a name".to_owned());
        };
        let (kind, used) = kind_of(rest)?;
        let mut collation = None;
        let mut text = format!("\"{column}\" {}", kind.there);
        text.push_str(&attributes(&rest[used..], &mut collation)?);
        if kind.name == "binary" {
            let length = kind.length.unwrap_or(1);
            text.push_str(&format!(" CHECK (octet_length(\"{column}\") = {length})"));
        }
        out.push(text);
        let column = column.clone();
        declared.push(Declared {
            schema: schema.into(),
            table: table.into(),
            column,
            kind: kind.name,
            length: kind.length,
            collation,
        });
    }
    let sql = format!("CREATE TABLE \"{schema}\".\"{table}\" ({})", out.join(", "));
    Ok(Statement { sql, places: Vec::new(), declared })
}

/// A key of the table, where the part is one.
fn table_key(part: &[Token]) -> Result<Option<String>> {
    let part = match part {
        [constraint, Token::Quoted(_), rest @ ..] if constraint.is("CONSTRAINT") => rest,
        other => other,
    };
    let [primary, key, rest @ ..] = part else { return Ok(None) };
    if !(primary.is("PRIMARY") && key.is("KEY")) {
        return Ok(None);
    }
    let rest = if rest.first().is_some_and(|token| token.is("NONCLUSTERED")) { &rest[1..] } else { rest };
    let columns = Writer { types: &[], places: Vec::new() }.level(rest)?;
    Ok(Some(format!("PRIMARY KEY {columns}")))
}

fn attributes(tokens: &[Token], collation: &mut Option<String>) -> Result<String> {
    let mut out = String::new();
    let mut rest = tokens;
    while let Some(first) = rest.first() {
        let second = rest.get(1);
        let used = if first.is("COLLATE") && second.is_some_and(|token| token.is(COLLATION)) {
            out.push_str(" COLLATE \"C\"");
            *collation = Some(COLLATION.to_owned());
            2
        } else if first.is("IDENTITY") {
            out.push_str(" GENERATED ALWAYS AS IDENTITY");
            closing(rest, 1)? + 1
        } else if first.is("NOT") && second.is_some_and(|token| token.is("NULL")) {
            out.push_str(" NOT NULL");
            2
        } else if first.is("NULL") {
            1
        } else if first.is("CONSTRAINT") && matches!(second, Some(Token::Quoted(_))) {
            2
        } else if first.is("DEFAULT") && second.is_some_and(|token| token.is("SYSUTCDATETIME")) {
            out.push_str(" DEFAULT sysutcdatetime()");
            4
        } else if first.is("PRIMARY") && second.is_some_and(|token| token.is("KEY")) {
            out.push_str(" PRIMARY KEY");
            2
        } else {
            return Err(format!("{first:?} is not known of a column"));
        };
        rest = rest.get(used..).unwrap_or_default();
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sql(text: &str) -> (String, Vec<usize>) {
        let types: Vec<String> =
            ["bigint", "nvarchar(4000)", "varbinary(8000)"].into_iter().map(str::to_owned).collect();
        let mut statements = translate(text, &types).unwrap_or_else(|problem| panic!("{text}: {problem}"));
        assert_eq!(statements.len(), 1, "{text}");
        let statement = statements.remove(0);
        (statement.sql, statement.places)
    }

    #[test]
    fn what_is_known_is_translated() {
        for (here, there, places) in [
            (
                "SELECT TOP (@P1) a.b FROM [s].[t] AS a WITH (READPAST, READCOMMITTEDLOCK) WHERE a.c = @P2 ORDER BY a.b DESC",
                r#"SELECT "a"."b" FROM "s"."t" AS "a" WHERE rtrim("a"."c", ' ')=rtrim($2, ' ') ORDER BY "a"."b" DESC LIMIT $1 FOR UPDATE SKIP LOCKED"#,
                vec![1, 2],
            ),
            (
                "INSERT INTO [s].[t] (a, b) OUTPUT inserted.a SELECT v.a, SYSUTCDATETIME() FROM (VALUES (CAST(@P3 AS binary(32)), @P2)) AS v(a, b)",
                r#"INSERT INTO "s"."t"("a", "b") SELECT "v"."a", sysutcdatetime() FROM(VALUES(CAST($1 AS bytea), $2)) AS "v"("a", "b") RETURNING "a""#,
                vec![3, 2],
            ),
            (
                "UPDATE e SET a = COALESCE(v.a, e.a) FROM [s].[t] AS e INNER JOIN (VALUES (@P1, @P2)) AS v(k, a) ON e.k = v.k WHERE e.a IS NULL OR 1 = 1",
                r#"UPDATE "s"."t" AS "e" SET "a"= COALESCE("v"."a", "e"."a") FROM(VALUES($1, $2)) AS "v"("k", "a") WHERE("e"."k"= "v"."k") AND("e"."a" IS NULL OR 1= 1)"#,
                vec![1, 2],
            ),
            ("UPDATE [s].[t] SET a = @P2 WHERE b = @P1", r#"UPDATE "s"."t" SET "a"= $1 WHERE "b"= $2"#, vec![2, 1]),
        ] {
            assert_eq!(sql(here), (there.to_owned(), places), "{here}");
        }
    }

    /// Issue 4, part 8: what the store must not use is refused, and so is what nobody has thought of.
    #[test]
    fn what_is_not_known_is_refused() {
        let types = vec!["nvarchar(4000)".to_owned()];
        for text in [
            "MERGE INTO [s].[t] AS t USING [s].[u] AS u ON t.a = u.a WHEN MATCHED THEN DELETE",
            "WAITFOR DELAY '00:00:01'",
            "CREATE OR ALTER VIEW v AS SELECT 1",
            "WITH old AS (SELECT TOP (1) a FROM [s].[t]) DELETE FROM old",
            "CREATE UNIQUE INDEX i ON [s].[t] (a) WITH (IGNORE_DUP_KEY = ON)",
            "CREATE TABLE [s].[t] (a binary(32) NOT NULL PRIMARY KEY WITH (IGNORE_DUP_KEY = ON))",
            "EXEC sp_getapplock @P1",
            "DECLARE @P1 int",
            "SELECT a FROM OPENJSON(@P1)",
            "SELECT a FROM [s].[t] WITH (READPAST)",
            "SELECT a FROM [s].[t] WITH (NOLOCK)",
            "SELECT a FROM [s].[t] CROSS JOIN [s].[u]",
            "SELECT STRING_AGG(a, b) FROM [s].[t]",
            "SELECT a FROM [s].[t] WHERE b = @P2",
            "SELECT @@VERSION",
            "DELETE FROM [s].[t] OUTPUT inserted.a WHERE a = 1",
            "DELETE FROM [s].[t] OUTPUT deleted.a INTO [s].[u] WHERE a = 1",
            "DROP TABLE [s].[t]",
            "SELECT CAST(a AS varchar(3)) FROM [s].[t]",
        ] {
            assert!(translate(text, &types).is_err(), "{text}: {:?}", translate(text, &types));
        }
    }

    #[test]
    fn a_table_keeps_its_types() {
        let text = "CREATE TABLE [s].[t] (a binary(32) NOT NULL PRIMARY KEY, b nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL, \
             n bigint IDENTITY(1,1) NOT NULL, c datetime2 NOT NULL CONSTRAINT [d] DEFAULT SYSUTCDATETIME(), CONSTRAINT [k] PRIMARY KEY NONCLUSTERED (a, n))";
        let statement = translate(text, &[]).unwrap().remove(0);
        assert_eq!(
            statement.sql,
            r#"CREATE TABLE "s"."t" ("a" bytea NOT NULL PRIMARY KEY CHECK (octet_length("a") = 32), "b" text COLLATE "C", "n" bigint GENERATED ALWAYS AS IDENTITY NOT NULL, "c" timestamp NOT NULL DEFAULT sysutcdatetime(), PRIMARY KEY ("a", "n"))"#
        );
        let kinds: Vec<_> = statement.declared.iter().map(|it| (it.kind.as_str(), it.length)).collect();
        assert_eq!(kinds, [("binary", Some(32)), ("nvarchar", Some(-1)), ("bigint", None), ("datetime2", None)]);
    }
}
