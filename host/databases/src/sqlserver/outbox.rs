//! Messages that wait to be sent, and who sends which (P33).

use std::time::Duration;

use sprag_core::{ids::EndpointName, outcome::clip, time::Timestamp};
use sprag_store::{OutboxRow, codec};
use tiberius::Row;

use super::{
    connections::Connection,
    fault::Fault,
    schema::CLAIM_SLOT,
    script::{Script, bytes, count, now, number, optional_text, owned, rows_together, text},
    write::digest_key,
};

/// One claim at a time, for who comes second to see what the first has taken, and the time for both. A claim takes milliseconds, and hosts claim as
/// often as they relay.
const STAND_IN_LINE: &str =
    concat!("UPDATE #gate SET passed = passed + 1 WHERE slot = ?; SELECT ", now!(), " AS now_is;");

/// In the order of writing: rows that are due, and in each lane none behind one that is claimed, failing or poison. The second list of endpoints
/// keeps rows that another relay sends from holding up this one's.
fn claim_sql(now: &str, endpoints: &str) -> String {
    format!(
        "UPDATE #outbox SET claimed_until = {now} + ? OUTPUT inserted.id, inserted.endpoint, inserted.entity, inserted.session_id, \
         inserted.header, inserted.body, inserted.tries WHERE id IN (SELECT TOP (?) o.id FROM #outbox AS o \
         WHERE o.again_at <= {now} AND o.claimed_until <= {now} AND o.endpoint_key IN {endpoints} \
         AND NOT EXISTS (SELECT 1 FROM #outbox AS p WHERE p.lane = o.lane AND p.id < o.id AND p.endpoint_key IN {endpoints} \
         AND (p.again_at IS NULL OR p.again_at > {now} OR p.claimed_until > {now} OR p.tries > 0)) ORDER BY o.id)"
    )
}

const FAILED: &str = "UPDATE #outbox SET tries = tries + 1, error = ?, again_at = ?, claimed_until = 0 WHERE id = ?";
const LET_GO: &str = "UPDATE #outbox SET again_at = 0, claimed_until = 0 WHERE id = ? AND again_at IS NULL";
const DROP: &str = "DELETE FROM #outbox WHERE id = ? AND again_at IS NULL";

pub(crate) async fn claim(
    connection: &mut Connection,
    endpoints: &[EndpointName],
    max: u32,
    lease: Duration,
) -> Result<Vec<OutboxRow>, Fault> {
    if endpoints.is_empty() || max == 0 {
        return Ok(Vec::new());
    }
    if endpoints.len() > rows_together(2) {
        return Err(Fault::Invalid("a relay claims for so many endpoints that no statement can name them".to_owned()));
    }
    connection.begin().await?;
    let result = claim_alone(connection, endpoints, max, lease).await;
    let rows = connection.end(result).await?;
    let mut claimed = Vec::with_capacity(rows.len());
    for row in rows {
        match read(&row) {
            Ok(row) => claimed.push(row),
            // It cannot be sent, and must not hold up the claims of others: an operator sees it.
            Err(Fault::Unreadable(problem)) => failed(connection, number(&row, 0)?, &problem, None).await?,
            Err(other) => return Err(other),
        }
    }
    claimed.sort_unstable_by_key(|row| row.id);
    Ok(claimed)
}

async fn claim_alone(
    connection: &mut Connection,
    endpoints: &[EndpointName],
    max: u32,
    lease: Duration,
) -> Result<Vec<Row>, Fault> {
    let names = connection.names();
    let found = connection.row(Script::of(&names, STAND_IN_LINE, vec![CLAIM_SLOT.into()])).await?;
    let now = number(&found.ok_or_else(|| Fault::Unreadable("the database has no time".to_owned()))?, 0)?;
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    let mut script = Script::new(&names);
    let now = script.place(now.into());
    let endpoints = script.hashes(endpoints.iter().map(|name| digest_key(name.as_str()).into()));
    script.add(&claim_sql(&now, &endpoints), vec![lease.into(), i64::from(max).into()]);
    connection.rows(script).await
}

fn read(row: &Row) -> Result<OutboxRow, Fault> {
    let session = optional_text(row, 3)?;
    Ok(OutboxRow {
        id: number(row, 0)?,
        endpoint: text(row, 1)?.into(),
        entity: text(row, 2)?.into(),
        message: codec::decode(bytes(row, 4)?, bytes(row, 5)?, session.as_deref())?,
        tries: count(row, 6)?,
    })
}

pub(crate) async fn sent(connection: &mut Connection, ids: &[i64]) -> Result<(), Fault> {
    let names = connection.names();
    for part in ids.chunks(rows_together(1)) {
        let mut script = Script::new(&names);
        let list = script.list(part.iter().map(|id| (*id).into()));
        script.add(&format!("DELETE FROM #outbox WHERE id IN {list}"), vec![]);
        connection.execute(script).await?;
    }
    Ok(())
}

pub(crate) async fn failed(
    connection: &mut Connection,
    id: i64,
    error: &str,
    again_at: Option<Timestamp>,
) -> Result<(), Fault> {
    let names = connection.names();
    let values = vec![owned(&clip(error)), again_at.map(|at| at.0).into(), id.into()];
    connection.execute(Script::of(&names, FAILED, values)).await.map(drop)
}

/// Lets a poison row go on, or drops it. False: there is no such row.
pub(crate) async fn resolve(connection: &mut Connection, id: i64, drop: bool) -> Result<bool, Fault> {
    let names = connection.names();
    let sql = if drop { DROP } else { LET_GO };
    Ok(connection.execute(Script::of(&names, sql, vec![id.into()])).await? > 0)
}
