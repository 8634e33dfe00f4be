//! The `sql` import: statements of a run, in the transaction that its commit ends.
//!
//! Nothing is carried out here; what a statement may be is for the database that carries it out to say (P37).

use std::time::Instant;

use bytes::Bytes;
use sprag_core::sql::{Rows, Statement, StatementError, Value};

use crate::{
    bindings::sprag::handler::sql::{self, Host, SqlError},
    ends::Stop,
    run_state::{RunState, size},
};

/// Longest statement.
const MAX_STATEMENT: usize = 1 << 20;

type Answer<T> = wasmtime::Result<Result<T, SqlError>>;

impl Host for RunState {
    async fn query(&mut self, database: String, statement: String, parameters: Vec<sql::Value>) -> Answer<sql::Rows> {
        Ok(self.carry_out(database, statement, parameters).await?.map(|Rows { columns, rows, .. }| sql::Rows {
            columns,
            rows: rows.into_iter().map(|row| row.into_iter().map(to_guest).collect()).collect(),
        }))
    }

    async fn execute(&mut self, database: String, statement: String, parameters: Vec<sql::Value>) -> Answer<u64> {
        Ok(self.carry_out(database, statement, parameters).await?.map(|rows| rows.affected))
    }
}

impl RunState {
    async fn carry_out(&mut self, database: String, text: String, parameters: Vec<sql::Value>) -> Answer<Rows> {
        let refuse = |text: String| Ok(Err(SqlError::Refused(text)));
        let grant = format!("sql:{database}");
        let Some(sql) = self.input.sql.clone().filter(|sql| sql.database() == database) else {
            return refuse(match &self.input.sql {
                Some(sql) => format!("the endpoint's store is {:?}, not {database:?}", sql.database()),
                None => "the endpoint has no SQL: its inbox must have mode = \"transaction\"".to_owned(),
            });
        };
        if !self.shared.config.grants(&grant) {
            return refuse(format!("{grant:?} is not granted to this handler"));
        }
        if text.len() > MAX_STATEMENT {
            return refuse(format!("a statement has at most {}", size(MAX_STATEMENT)));
        }
        let limits = &self.shared.config.limits;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let statement = Statement {
            text,
            parameters: parameters.into_iter().map(from_guest).collect(),
            max_rows: limits.sql_rows as usize,
            max_bytes: limits.sql_bytes,
            time: limits.sql_time.min(left),
        };
        match sql.statement(statement).await {
            Ok(rows) => {
                let bytes = rows.rows.iter().flatten().map(Value::bytes).sum::<usize>();
                // The host holds a result until the guest has taken it.
                if bytes > self.shared.config.limits.memory {
                    let text = format!("a result of {} was read (limits.memory)", size(bytes));
                    self.limiter.denied = Some(text.clone());
                    return Err(wasmtime::Error::new(Stop::Memory(text)));
                }
                Ok(Ok(rows))
            }
            Err(StatementError::Refused(text)) => Ok(Err(SqlError::Refused(text))),
            Err(StatementError::Failed { code, constraint, text }) => {
                Ok(Err(SqlError::Failed(sql::Failure { code, constraint, text })))
            }
            Err(StatementError::TooMuch(text)) => Ok(Err(SqlError::TooMuch(text))),
            Err(error) => {
                let text = error.to_string();
                self.faults.transaction.get_or_insert(error);
                Ok(Err(SqlError::Over(text)))
            }
        }
    }
}

fn from_guest(value: sql::Value) -> Value {
    match value {
        sql::Value::Null => Value::Null,
        sql::Value::Boolean(it) => Value::Boolean(it),
        sql::Value::Integer(it) => Value::Integer(it),
        sql::Value::Float(it) => Value::Float(it),
        sql::Value::Text(it) => Value::Text(it),
        sql::Value::Bytes(it) => Value::Bytes(Bytes::from(it)),
        sql::Value::Decimal(it) => Value::Decimal(it),
        sql::Value::Timestamp(it) => Value::Timestamp(it),
        sql::Value::Uuid(it) => Value::Uuid(it),
        sql::Value::Json(it) => Value::Json(it),
    }
}

fn to_guest(value: Value) -> sql::Value {
    match value {
        Value::Null => sql::Value::Null,
        Value::Boolean(it) => sql::Value::Boolean(it),
        Value::Integer(it) => sql::Value::Integer(it),
        Value::Float(it) => sql::Value::Float(it),
        Value::Text(it) => sql::Value::Text(it),
        Value::Bytes(it) => sql::Value::Bytes(it.to_vec()),
        Value::Decimal(it) => sql::Value::Decimal(it),
        Value::Timestamp(it) => sql::Value::Timestamp(it),
        Value::Uuid(it) => sql::Value::Uuid(it),
        Value::Json(it) => sql::Value::Json(it),
    }
}
