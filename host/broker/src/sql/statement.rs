//! One statement of a handler's on one connection.

use bytes::Bytes;
use rusqlite::{
    Connection, Error,
    ffi::ErrorCode,
    types::{ToSqlOutput, ValueRef},
};
use sprag_core::sql::{Rows, Statement, StatementError, Value};

use super::guard;
use crate::writer::Tx;

type Answer = Result<Rows, StatementError>;

/// Carries out a statement that only reads. None: it writes, and was not carried out.
pub(super) fn read(connection: &Connection, statement: &Statement) -> Option<Answer> {
    match connection.prepare(&statement.text) {
        Ok(prepared) if prepared.readonly() => Some(run(prepared, statement)),
        Ok(_) => None,
        Err(error) => Some(Err(failed(error))),
    }
}

/// Carries out any statement, on the writer's connection.
pub(super) fn write(tx: &Tx<'_>, statement: &Statement) -> Answer {
    if let Some(max) = tx.shared.options.max_size
        && tx.shared.used_bytes() >= max
    {
        let text = format!("the store holds as much as it may ([host] max_size, {max} bytes)");
        return Err(StatementError::Unavailable(text));
    }
    let before = tx.connection.total_changes();
    let prepared = tx.connection.prepare(&statement.text).map_err(failed)?;
    let reads = prepared.readonly();
    let rows = run(prepared, statement)?;
    let affected = if reads { rows.affected } else { tx.connection.total_changes() - before };
    Ok(Rows { affected, ..rows })
}

fn run(mut prepared: rusqlite::Statement<'_>, statement: &Statement) -> Answer {
    bind(&mut prepared, &statement.parameters)?;
    let columns: Vec<String> = prepared.column_names().map(str::to_owned).collect();
    let mut found = prepared.raw_query();
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next().map_err(failed)? {
        if rows.len() == statement.max_rows {
            let text = format!("the result has more than {} rows (limits.sql_rows)", statement.max_rows);
            return Err(StatementError::TooMuch(text));
        }
        let values = (0..columns.len()).map(|i| Ok(value(row.get_ref(i)?))).collect::<Result<Vec<_>, Error>>();
        let values = values.map_err(failed)?;
        bytes += values.iter().map(Value::bytes).sum::<usize>();
        if bytes > statement.max_bytes {
            let text = format!("the result has more than {} bytes (limits.sql_bytes)", statement.max_bytes);
            return Err(StatementError::TooMuch(text));
        }
        rows.push(values);
    }
    Ok(Rows { affected: rows.len() as u64, columns, rows })
}

/// `$1` and `?1` are the first parameter, `?` the next one.
fn bind(prepared: &mut rusqlite::Statement<'_>, parameters: &[Value]) -> Result<(), StatementError> {
    let wrong = |text: String| StatementError::Failed { code: "SQLITE_RANGE".to_owned(), constraint: None, text };
    let mut most = 0;
    for place in 1..=prepared.parameter_count() {
        let number = match prepared.parameter_name(place) {
            None => place,
            Some(name) => {
                name[1..].parse().map_err(|_| wrong(format!("parameters are written $1, $2 and so on, not {name}")))?
            }
        };
        most = most.max(number);
        let Some(value) = number.checked_sub(1).and_then(|i: usize| parameters.get(i)) else { continue };
        prepared.raw_bind_parameter(place, Parameter(value)).map_err(failed)?;
    }
    match most == parameters.len() {
        true => Ok(()),
        false => Err(wrong(format!("the statement has {most} parameters, {} were given", parameters.len()))),
    }
}

struct Parameter<'a>(&'a Value);

impl rusqlite::ToSql for Parameter<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Value::Null => ToSqlOutput::Owned(rusqlite::types::Value::Null),
            Value::Boolean(it) => (*it).into(),
            Value::Integer(it) => (*it).into(),
            Value::Float(it) => (*it).into(),
            Value::Text(text) | Value::Decimal(text) | Value::Uuid(text) | Value::Json(text) => {
                ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes()))
            }
            Value::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
            Value::Timestamp(it) => ToSqlOutput::Owned(rusqlite::types::Value::Text(Value::time_text(*it))),
        })
    }
}

fn value(found: ValueRef<'_>) -> Value {
    match found {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(it) => Value::Integer(it),
        ValueRef::Real(it) => Value::Float(it),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Bytes(Bytes::copy_from_slice(bytes)),
    }
}

/// What a statement failed with, by SQLite's extended result codes.
fn failed(error: Error) -> StatementError {
    let (code, text) = match &error {
        Error::SqliteFailure(code, text) => (*code, text.clone()),
        Error::SqlInputError { error, msg, .. } => (*error, Some(msg.clone())),
        Error::MultipleStatement => {
            return StatementError::Refused("one statement at a time".to_owned());
        }
        _ => {
            return StatementError::Failed {
                code: "SQLITE_MISUSE".to_owned(),
                constraint: None,
                text: error.to_string(),
            };
        }
    };
    let text = text.unwrap_or_else(|| error.to_string());
    match code.code {
        ErrorCode::AuthorizationForStatementDenied => StatementError::Refused(guard::refusal()),
        ErrorCode::DiskFull
        | ErrorCode::SystemIoFailure
        | ErrorCode::DatabaseCorrupt
        | ErrorCode::NotADatabase
        | ErrorCode::CannotOpen
        | ErrorCode::OutOfMemory => StatementError::Unavailable(text),
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StatementError::Conflict,
        ErrorCode::OperationInterrupted => StatementError::Failed {
            code: "SQLITE_INTERRUPT".to_owned(),
            constraint: None,
            text: "the statement took longer than it may (limits.sql_time)".to_owned(),
        },
        _ => {
            let constraint = text.split_once("constraint failed: ").map(|(_, name)| name.to_owned());
            StatementError::Failed { code: name(code.extended_code), constraint, text }
        }
    }
}

/// The names that handlers ask for; the others by number.
fn name(extended: i32) -> String {
    match extended {
        1 => "SQLITE_ERROR".to_owned(),
        275 => "SQLITE_CONSTRAINT_CHECK".to_owned(),
        787 => "SQLITE_CONSTRAINT_FOREIGNKEY".to_owned(),
        1_299 => "SQLITE_CONSTRAINT_NOTNULL".to_owned(),
        1_555 => "SQLITE_CONSTRAINT_PRIMARYKEY".to_owned(),
        2_067 => "SQLITE_CONSTRAINT_UNIQUE".to_owned(),
        3_091 => "SQLITE_CONSTRAINT_DATATYPE".to_owned(),
        other => format!("SQLITE_{other}"),
    }
}
