//! Messages that wait to be sent, and who sends which (P33).

use std::time::Duration;

use sprag_core::{ids::EndpointName, outcome::clip, time::Timestamp};
use sprag_store::{OutboxRow, codec};
use tokio_postgres::Row;

use super::{
    check::count,
    connections::Connection,
    fault::Fault,
    text::{Text, optional_text, text},
    write::now,
};

/// "sprag" in the database's space of advisory locks: one claim at a time, for who comes second to see what the first has taken. A claim takes
/// milliseconds, and hosts claim as often as they relay.
const CLAIM_LOCK: i64 = 0x73_70_72_61_67_00_00_02;

/// In the order of writing: rows that are due, and in each lane none behind one that is claimed, failing or poison.
const CLAIM: &str = concat!(
    "WITH clock AS (SELECT ",
    now!(),
    " AS now), due AS (SELECT o.id FROM sprag_outbox o CROSS JOIN clock c WHERE o.again_at <= c.now AND o.claimed_until <= c.now \
     AND o.endpoint = ANY($3::text[]) \
     AND NOT EXISTS (SELECT 1 FROM sprag_outbox p WHERE o.lane IS NOT NULL AND p.lane = o.lane AND p.id < o.id AND p.endpoint = ANY($3::text[]) \
     AND (p.again_at IS NULL OR p.again_at > c.now OR p.claimed_until > c.now OR p.tries > 0)) ORDER BY o.id LIMIT $1) \
     UPDATE sprag_outbox o SET claimed_until = c.now + $2 FROM due, clock c WHERE o.id = due.id \
     RETURNING o.id, o.endpoint, o.entity, o.session, o.header, o.body, o.tries",
);
const SENT: &str = "DELETE FROM sprag_outbox WHERE id = ANY($1::bigint[])";
const FAILED: &str =
    "UPDATE sprag_outbox SET tries = tries + 1, error = $2, again_at = $3, claimed_until = 0 WHERE id = $1";
const LET_GO: &str = "UPDATE sprag_outbox SET again_at = 0, claimed_until = 0 WHERE id = $1 AND again_at IS NULL";
const DROP: &str = "DELETE FROM sprag_outbox WHERE id = $1 AND again_at IS NULL";

pub(crate) async fn claim(
    connection: Connection<'_>,
    endpoints: &[EndpointName],
    max: u32,
    lease: Duration,
) -> Result<Vec<OutboxRow>, Fault> {
    connection.begin().await?;
    let result = claim_alone(connection, endpoints, max, lease).await;
    let rows = connection.end(result).await?;
    let mut claimed = Vec::with_capacity(rows.len());
    for row in rows {
        match read(&row) {
            Ok(row) => claimed.push(row),
            // It cannot be sent, and must not hold up the claims of others: an operator sees it.
            Err(Fault::Unreadable(problem)) => failed(connection, row.try_get(0)?, &problem, None).await?,
            Err(other) => return Err(other),
        }
    }
    claimed.sort_unstable_by_key(|row| row.id);
    Ok(claimed)
}

async fn claim_alone(
    connection: Connection<'_>,
    endpoints: &[EndpointName],
    max: u32,
    lease: Duration,
) -> Result<Vec<Row>, Fault> {
    connection.execute("SELECT pg_advisory_xact_lock($1)", &[&CLAIM_LOCK]).await?;
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    let endpoints: Vec<Text<&str>> = endpoints.iter().map(|name| Text(name.as_str())).collect();
    connection.rows(CLAIM, &[&i64::from(max), &lease, &endpoints]).await
}

fn read(row: &Row) -> Result<OutboxRow, Fault> {
    let session = optional_text(row, 3)?;
    Ok(OutboxRow {
        id: row.try_get(0)?,
        endpoint: text(row, 1)?.into(),
        entity: text(row, 2)?.into(),
        message: codec::decode(row.try_get(4)?, row.try_get(5)?, session.as_deref())?,
        tries: count(row, 6)?,
    })
}

pub(crate) async fn sent(connection: Connection<'_>, ids: &[i64]) -> Result<(), Fault> {
    connection.execute(SENT, &[&ids]).await.map(drop)
}

pub(crate) async fn failed(
    connection: Connection<'_>,
    id: i64,
    error: &str,
    again_at: Option<Timestamp>,
) -> Result<(), Fault> {
    connection.execute(FAILED, &[&id, &Text(clip(error)), &again_at.map(|at| at.0)]).await.map(drop)
}

/// Lets a poison row go on, or drops it. False: there is no such row.
pub(crate) async fn resolve(connection: Connection<'_>, id: i64, drop: bool) -> Result<bool, Fault> {
    let sql = if drop { DROP } else { LET_GO };
    Ok(connection.execute(sql, &[&id]).await? > 0)
}
