//! Statements with their values.
//!
//! Every value is bound, hashes first of all: no text of a statement depends on what it is about. In a text `?` is the place of the next
//! value, `#name` a table of the host's own schema, and `#inbox` the inbox.
//!
//! The T-SQL is of the plain kind, for SQL Server 2017 and later and for other engines that speak its protocol: inserts and updates from lists of
//! values, `NOT EXISTS`, `OUTPUT`, `TOP`; no `MERGE`, no batch variables, no procedures.

use std::borrow::Cow;

use tiberius::{
    ColumnData, IntoSql, Row,
    time::{Date, DateTime2, Time},
};

use crate::postgres::text::{Text, read, written};

use super::{
    fault::Fault,
    options::{OpenError, Options},
};

/// Values in one statement: the server's limit is 2,100.
const MOST_VALUES: usize = 2_000;

/// `DATETIME2` counts days from the year 1 and parts of a day in 100 ns.
const DAYS_TO_1970: i64 = 719_162;
const LAST_DAY: i64 = 3_652_058;
const TICKS_A_DAY: i64 = 864_000_000_000;
const TICKS_A_MILLISECOND: i64 = 10_000;

/// The database's clock, in milliseconds since 1970 (P33).
macro_rules! now {
    () => {
        "DATEDIFF_BIG(millisecond, CAST('1970-01-01' AS datetime2), SYSUTCDATETIME())"
    };
}
pub(crate) use now;

/// The order in which bytes compare; ids differ by every letter and mark.
macro_rules! binary {
    () => {
        "COLLATE Latin1_General_100_BIN2"
    };
}
pub(crate) use binary;

/// The names of the tables.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) schema: String,
    pub(crate) inbox_schema: String,
    pub(crate) inbox_table: String,
}

impl Names {
    pub(crate) fn new(options: &Options) -> Result<Self, OpenError> {
        for (what, name) in [
            ("schema", &options.schema),
            ("inbox_schema", &options.inbox_schema),
            ("inbox_table", &options.inbox_table),
        ] {
            // 112, so that the names that NimBus derives fit into the server's 128.
            let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && (1..=112).contains(&name.len())
                && !name.starts_with(|c: char| c.is_ascii_digit());
            if !plain {
                return Err(OpenError::Options(format!(
                    "{what} of a SQL Server database has 1 to 112 ASCII letters, digits and _, and begins with no digit: {name:?}"
                )));
            }
        }
        let Options { schema, inbox_schema, inbox_table, .. } = options.clone();
        Ok(Self { schema, inbox_schema, inbox_table })
    }

    /// The text with its tables' names.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut parts = text.split('#');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(part.len());
            let (schema, table) = match &part[..end] {
                "inbox" => (&self.inbox_schema, self.inbox_table.as_str()),
                own => (&self.schema, own),
            };
            out.push_str(&format!("[{schema}].[{table}]{}", &part[end..]));
        }
        out
    }
}

/// A value for a place of a statement.
#[derive(Debug, Clone)]
pub(crate) struct Value<'a>(ColumnData<'a>);

impl<'a> IntoSql<'a> for Value<'a> {
    fn into_sql(self) -> ColumnData<'a> {
        self.0
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self(ColumnData::I64(Some(number)))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(number: Option<i64>) -> Self {
        Self(ColumnData::I64(number))
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(ColumnData::Binary(Some(Cow::Borrowed(bytes))))
    }
}

impl<'a> From<&'a Vec<u8>> for Value<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl From<Vec<u8>> for Value<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(ColumnData::Binary(Some(Cow::Owned(bytes))))
    }
}

impl<'a> From<&'a Option<Vec<u8>>> for Value<'a> {
    fn from(bytes: &'a Option<Vec<u8>>) -> Self {
        Self(ColumnData::Binary(bytes.as_deref().map(Cow::Borrowed)))
    }
}

impl From<Option<Vec<u8>>> for Value<'_> {
    fn from(bytes: Option<Vec<u8>>) -> Self {
        Self(ColumnData::Binary(bytes.map(Cow::Owned)))
    }
}

/// A text with every character but U+0000, which stands for itself in SQL Server and in none of the engines that keep texts in PostgreSQL's way.
impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self(ColumnData::String(Some(written(text))))
    }
}

impl<'a, S: AsRef<str>> From<&'a Text<S>> for Value<'a> {
    fn from(text: &'a Text<S>) -> Self {
        Self::from(text.0.as_ref())
    }
}

impl<'a, S: AsRef<str>> From<&'a Option<Text<S>>> for Value<'a> {
    fn from(text: &'a Option<Text<S>>) -> Self {
        optional(text.as_ref().map(|text| text.0.as_ref()))
    }
}

pub(crate) fn optional(text: Option<&str>) -> Value<'_> {
    Value(ColumnData::String(text.map(written)))
}

pub(crate) fn owned(text: &str) -> Value<'static> {
    Value(ColumnData::String(Some(Cow::Owned(written(text).into_owned()))))
}

/// A time in units of 100 ns since 1970, for a column of `DATETIME2`; times beyond its years are its first or its last one.
pub(crate) fn time(ticks: i64) -> Value<'static> {
    let day = ticks.div_euclid(TICKS_A_DAY) + DAYS_TO_1970;
    let (day, part) = match day {
        ..0 => (0, 0),
        0..=LAST_DAY => (day, ticks.rem_euclid(TICKS_A_DAY)),
        _ => (LAST_DAY, TICKS_A_DAY - 1),
    };
    let time = Time::new(u64::try_from(part).unwrap_or(0), 7);
    Value(ColumnData::DateTime2(Some(DateTime2::new(Date::new(u32::try_from(day).unwrap_or(0)), time))))
}

pub(crate) fn ticks_of(milliseconds: i64) -> i64 {
    milliseconds.saturating_mul(TICKS_A_MILLISECOND)
}

pub(crate) fn milliseconds_of(ticks: i64) -> i64 {
    ticks.div_euclid(TICKS_A_MILLISECOND)
}

/// Some statements that are sent together.
pub(crate) struct Script<'a> {
    names: &'a Names,
    pub(crate) text: String,
    pub(crate) values: Vec<Value<'a>>,
}

impl<'a> Script<'a> {
    pub(crate) fn new(names: &'a Names) -> Self {
        Self { names, text: String::new(), values: Vec::new() }
    }

    /// A statement of one text.
    pub(crate) fn of(names: &'a Names, text: &str, values: Vec<Value<'a>>) -> Self {
        let mut script = Self::new(names);
        script.add(text, values);
        script
    }

    /// Adds a statement, or a part of one.
    pub(crate) fn add(&mut self, text: &str, values: Vec<Value<'a>>) {
        let text = self.names.fill(text);
        let filled = self.fill(&text, values);
        self.text.push_str(&filled);
    }

    /// The text with the places of values in it.
    fn fill(&mut self, text: &str, values: Vec<Value<'a>>) -> String {
        let mut parts = text.split('?');
        let mut out = parts.next().unwrap_or_default().to_owned();
        let mut values = values.into_iter();
        for part in parts {
            // A place without a value stays a `?`, which no server takes.
            out.push_str(&values.next().map_or_else(|| "?".to_owned(), |value| self.place(value)));
            out.push_str(part);
        }
        debug_assert!(values.next().is_none(), "as many values as places: {text}");
        out
    }

    /// Adds the other's statements, with the places of its values moved behind the own ones.
    fn append(&mut self, other: Self) {
        let before = self.values.len();
        let mut parts = other.text.split("@P");
        self.text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            let place: usize = part[..end].parse().unwrap_or_default();
            self.text.push_str(&format!("@P{}{}", place + before, &part[end..]));
        }
        self.values.extend(other.values);
    }

    /// The place of a value, to be named more than once.
    pub(crate) fn place(&mut self, value: Value<'a>) -> String {
        self.values.push(value);
        format!("@P{}", self.values.len())
    }

    /// `(?, ?, ?)` for `IN`.
    pub(crate) fn list(&mut self, values: impl IntoIterator<Item = Value<'a>>) -> String {
        let places: Vec<String> = values.into_iter().map(|value| self.place(value)).collect();
        format!("({})", places.join(", "))
    }

    /// As [`Self::list`], for columns of hashes.
    pub(crate) fn hashes(&mut self, values: impl IntoIterator<Item = Value<'a>>) -> String {
        let places: Vec<String> = values.into_iter().map(|value| self.hash(value)).collect();
        format!("({})", places.join(", "))
    }

    /// The place of a hash, as what its column is: another kind of bytes might keep the server from looking it up by the index.
    pub(crate) fn hash(&mut self, value: Value<'a>) -> String {
        format!("CAST({} AS binary(32))", self.place(value))
    }

    /// `(VALUES (..), (..))`, a table of the rows, to be named more than once. The first column of each is a hash; `row` says what each
    /// value becomes.
    pub(crate) fn table(&mut self, row: &str, rows: impl IntoIterator<Item = Vec<Value<'a>>>) -> String {
        let rows: Vec<String> = rows.into_iter().map(|values| self.fill(row, values)).collect();
        format!("(VALUES {})", rows.join(", "))
    }
}

/// The statements in their order, in as few round trips as their values allow.
pub(crate) fn together(scripts: Vec<Script<'_>>) -> Vec<Script<'_>> {
    let mut all: Vec<Script<'_>> = Vec::new();
    for script in scripts {
        match all.last_mut() {
            Some(last) if last.values.len() + script.values.len() <= MOST_VALUES => last.append(script),
            _ => all.push(script),
        }
    }
    all
}

/// How many rows of so many values go into one statement.
pub(crate) fn rows_together(values: usize) -> usize {
    (MOST_VALUES / values).max(1)
}

fn unreadable(what: &str, column: usize) -> Fault {
    Fault::Unreadable(format!("column {column} is not {what}"))
}

fn cell(row: &Row, column: usize) -> Result<&ColumnData<'static>, Fault> {
    row.get_column_data(column).map_err(|_| unreadable("there", column))
}

pub(crate) fn optional_text(row: &Row, column: usize) -> Result<Option<String>, Fault> {
    match cell(row, column)? {
        ColumnData::String(text) => Ok(text.as_deref().map(read)),
        _ => Err(unreadable("a text", column)),
    }
}

pub(crate) fn text(row: &Row, column: usize) -> Result<String, Fault> {
    optional_text(row, column)?.ok_or_else(|| unreadable("there", column))
}

pub(crate) fn optional_bytes(row: &Row, column: usize) -> Result<Option<&[u8]>, Fault> {
    match cell(row, column)? {
        ColumnData::Binary(bytes) => Ok(bytes.as_deref()),
        _ => Err(unreadable("bytes", column)),
    }
}

pub(crate) fn bytes(row: &Row, column: usize) -> Result<&[u8], Fault> {
    optional_bytes(row, column)?.ok_or_else(|| unreadable("there", column))
}

/// Engines differ in the width of what they compute.
pub(crate) fn optional_number(row: &Row, column: usize) -> Result<Option<i64>, Fault> {
    match cell(row, column)? {
        ColumnData::I64(number) => Ok(*number),
        ColumnData::I32(number) => Ok(number.map(i64::from)),
        ColumnData::I16(number) => Ok(number.map(i64::from)),
        ColumnData::U8(number) => Ok(number.map(i64::from)),
        ColumnData::Bit(bit) => Ok(bit.map(i64::from)),
        _ => Err(unreadable("a number", column)),
    }
}

pub(crate) fn number(row: &Row, column: usize) -> Result<i64, Fault> {
    optional_number(row, column)?.ok_or_else(|| unreadable("there", column))
}

/// A number that is small and not negative.
pub(crate) fn count(row: &Row, column: usize) -> Result<u32, Fault> {
    u32::try_from(number(row, column)?).map_err(|_| Fault::Unreadable("a number is out of its range".to_owned()))
}

/// A `DATETIME2` in units of 100 ns since 1970.
pub(crate) fn ticks(row: &Row, column: usize) -> Result<i64, Fault> {
    let ColumnData::DateTime2(Some(found)) = cell(row, column)? else { return Err(unreadable("a time", column)) };
    let time = found.time();
    let unit = 10_i64.pow(7_u32.saturating_sub(time.scale().into()));
    let part = i64::try_from(time.increments()).unwrap_or(i64::MAX).saturating_mul(unit);
    Ok((i64::from(found.date().days()) - DAYS_TO_1970) * TICKS_A_DAY + part)
}

/// The name in a column, as what it stands for.
pub(crate) fn named<T>(row: &Row, column: usize, from_name: impl FnOnce(&str) -> Result<T, Fault>) -> Result<T, Fault> {
    from_name(&text(row, column)?)
}

/// The name in a column, where a name that this binary does not know is a row that it cannot read.
pub(crate) fn known<T>(found: Option<T>, what: &str) -> Result<T, Fault> {
    found.ok_or_else(|| Fault::Unreadable(format!("{what} is not known")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new(&Options::new("")).unwrap()
    }

    #[test]
    fn tables_and_places_are_named() {
        let names = names();
        let mut script = Script::of(&names, "SELECT 1 FROM #inbox WHERE a = ? AND b = ?;", vec![1.into(), "x".into()]);
        script.add("DELETE FROM #open_action WHERE a = ?", vec![2.into()]);
        assert_eq!(
            script.text,
            "SELECT 1 FROM [nimbus].[InboxMessages] WHERE a = @P1 AND b = @P2;DELETE FROM [sprag].[open_action] WHERE a = @P3"
        );
        let table = script.table("(CAST(? AS binary(32)), ?)", [vec![3.into(), 4.into()], vec![5.into(), 6.into()]]);
        assert_eq!(table, "(VALUES (CAST(@P4 AS binary(32)), @P5), (CAST(@P6 AS binary(32)), @P7))");
        assert_eq!(script.list([7.into(), 8.into()]), "(@P8, @P9)");
        assert_eq!(script.values.len(), 9);
    }

    #[test]
    fn statements_go_together_as_long_as_there_are_places() {
        let names = names();
        let script =
            |count: usize| Script::of(&names, &"?;".repeat(count), (0..count as i64).map(Value::from).collect());
        let all = together(vec![script(2), script(2), script(MOST_VALUES - 4), script(1)]);
        assert_eq!(all.iter().map(|script| script.values.len()).collect::<Vec<_>>(), [MOST_VALUES, 1]);
        assert!(all[0].text.starts_with("@P1;@P2;@P3;@P4;@P5;"), "{}", &all[0].text[..40]);
        assert_eq!(all[1].text, "@P1;");
    }

    #[test]
    fn names_that_would_need_quoting_are_refused() {
        for schema in ["", "1a", "a]b", "a-b", "ä", &"x".repeat(113)] {
            let options = Options { schema: schema.to_owned(), ..Options::new("") };
            assert!(matches!(Names::new(&options), Err(OpenError::Options(_))), "{schema:?}");
        }
    }

    /// A54: times are UTC and come back as they were, also from beyond the type's years.
    #[test]
    fn times() {
        let read = |value: Value<'static>| {
            let row = Row::builder().column("t", tiberius::ColumnType::Datetime2, value.0).build();
            ticks(&row, 0).unwrap()
        };
        for moment in [0, 1, -1, ticks_of(1_790_000_000_123), ticks_of(-86_400_001) + 7] {
            assert_eq!(read(time(moment)), moment);
        }
        assert_eq!(milliseconds_of(read(time(ticks_of(i64::MAX)))), 253_402_300_799_999);
        assert_eq!(milliseconds_of(read(time(ticks_of(i64::MIN)))), -62_135_596_800_000);
        assert_eq!(milliseconds_of(-1), -1);
    }
}
