//! Messages that could not go straight into their entity, and the claims of the relay that takes them there (P33).

use std::{collections::HashSet, time::Duration};

use sprag_core::{
    ids::{EndpointName, EntityName},
    time::Timestamp,
};
use sprag_store::OutboxRow;

use crate::{
    codec,
    writer::{Stop, Tx},
};

/// Claims rows in order. A session waits behind its row that is claimed, failing or poison; messages without a session wait for nobody.
pub(crate) fn claim(
    tx: &mut Tx<'_>,
    endpoints: &[EndpointName],
    max: u32,
    lease: Duration,
) -> Result<Vec<OutboxRow>, Stop> {
    let now = tx.now.0;
    let mut held: HashSet<(String, String)> = HashSet::new();
    let mut ids = Vec::new();
    {
        let names: Vec<&str> = endpoints.iter().map(EndpointName::as_str).collect();
        let mut statement = tx.connection.prepare_cached(
            "SELECT id, entity, session, tries, again_at, claimed_until FROM outbox \
             WHERE endpoint IN (SELECT id FROM endpoint WHERE name IN (SELECT value FROM json_each(?1))) ORDER BY id",
        )?;
        let mut rows = statement.query([serde_json::json!(names).to_string()])?;
        while ids.len() < max as usize
            && let Some(row) = rows.next()?
        {
            let lane = row
                .get::<_, Option<String>>(2)?
                .map(|session| Ok::<_, rusqlite::Error>((row.get(1)?, session)))
                .transpose()?;
            if lane.as_ref().is_some_and(|lane| held.contains(lane)) {
                continue;
            }
            let (tries, again_at, claimed_until): (u32, Option<i64>, i64) = (row.get(3)?, row.get(4)?, row.get(5)?);
            let due = again_at.is_some_and(|at| at <= now) && claimed_until <= now;
            if !due || tries > 0 {
                held.extend(lane);
            }
            if due {
                ids.push(row.get::<_, i64>(0)?);
            }
        }
    }
    let until = tx.now.after(lease).0;
    let mut claimed = Vec::with_capacity(ids.len());
    for id in ids {
        tx.execute("UPDATE outbox SET claimed_until = ?2 WHERE id = ?1", (id, until))?;
        let row = tx.first(
            "SELECT p.name, o.entity, o.session, o.header, o.body, o.tries FROM outbox o JOIN endpoint p ON p.id = o.endpoint WHERE o.id = ?1",
            [id],
            |row| {
                let session = row.get_ref(2)?.as_str_or_null()?;
                let message = codec::decode(row.get_ref(3)?.as_blob()?, row.get_ref(4)?.as_blob()?, session);
                Ok(message.map(|message| OutboxRow {
                    id,
                    endpoint: row.get::<_, String>(0).unwrap_or_default().into(),
                    entity: EntityName::from(row.get::<_, String>(1).unwrap_or_default()),
                    message,
                    tries: row.get(5).unwrap_or_default(),
                }))
            },
        )?;
        match row {
            Some(Ok(row)) => claimed.push(row),
            // It cannot be sent, and must not hold up the claims of others: an operator sees it.
            Some(Err(error)) => failed(tx, id, &error.to_string(), None)?,
            None => {}
        }
    }
    Ok(claimed)
}

pub(crate) fn sent(tx: &mut Tx<'_>, ids: &[i64]) -> Result<(), Stop> {
    for id in ids {
        tx.execute("DELETE FROM outbox WHERE id = ?1", [id])?;
    }
    tx.local.outbox_used = None;
    Ok(())
}

pub(crate) fn failed(tx: &mut Tx<'_>, id: i64, error: &str, again_at: Option<Timestamp>) -> Result<(), Stop> {
    tx.execute(
        "UPDATE outbox SET tries = tries + 1, error = ?2, again_at = ?3, claimed_until = 0 WHERE id = ?1",
        (id, sprag_core::outcome::clip(error), again_at.map(|at| at.0)),
    )?;
    Ok(())
}

/// Lets a poison row go on, or drops it. False: there is no such row.
pub(crate) fn resolve(tx: &mut Tx<'_>, id: i64, drop: bool) -> Result<bool, Stop> {
    let changed = if drop {
        tx.local.outbox_used = None;
        tx.execute("DELETE FROM outbox WHERE id = ?1 AND again_at IS NULL", [id])?
    } else {
        tx.execute("UPDATE outbox SET again_at = 0, claimed_until = 0 WHERE id = ?1 AND again_at IS NULL", [id])?
    };
    Ok(changed > 0)
}
