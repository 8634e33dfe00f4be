//! What is old goes, in pieces that the writer does beside its other work (P38).

use sprag_core::{ids::EndpointName, time::Timestamp};
use sprag_store::Retention;

use crate::{
    codes,
    writer::{Stop, Tx},
};

/// At most `limit` of the endpoint's inbox records, oldest first, and then of its leases that lapsed. `inbox_age` and `event_recorded` give them without looking at others.
pub(crate) fn inbox(tx: &mut Tx<'_>, endpoint: &EndpointName, before: Timestamp, limit: u32) -> Result<u32, Stop> {
    let endpoint = tx.local.endpoint(tx.connection, endpoint)?;
    let mut old: Vec<(i64, bool, i64)> = Vec::new();
    for (of_event, sql) in [
        (
            false,
            "SELECT recorded_at, id FROM inbox WHERE endpoint = ?1 AND recorded_at < ?2 ORDER BY recorded_at LIMIT ?3",
        ),
        (
            true,
            "SELECT recorded_at, id FROM event WHERE endpoint = ?1 AND recorded_at < ?2 ORDER BY recorded_at LIMIT ?3",
        ),
    ] {
        let mut statement = tx.connection.prepare_cached(sql)?;
        let rows = statement.query_map((endpoint, before.0, limit), |row| Ok((row.get(0)?, of_event, row.get(1)?)))?;
        for row in rows {
            old.push(row?);
        }
    }
    old.sort_unstable();
    old.truncate(limit as usize);
    for (_, of_event, id) in &old {
        let sql = if *of_event {
            "UPDATE event SET recorded_at = NULL WHERE id = ?1"
        } else {
            "DELETE FROM inbox WHERE id = ?1"
        };
        tx.execute(sql, [id])?;
    }
    // A lease lapses after it was taken, so the index gives the few that may be old.
    let lapsed = tx.execute(
        "DELETE FROM sprag_lease WHERE id IN (SELECT id FROM sprag_lease WHERE endpoint = ?1 AND taken_at < ?2 AND expires_at < ?2 ORDER BY taken_at LIMIT ?3)",
        (endpoint, before.0, i64::from(limit) - i64::try_from(old.len()).unwrap_or(i64::MAX)),
    )?;
    Ok(u32::try_from(old.len() + lapsed).unwrap_or(u32::MAX))
}

/// At most `limit` rows of tracking.
pub(crate) fn tracking(tx: &mut Tx<'_>, keep: &Retention, limit: u32) -> Result<u32, Stop> {
    let (bodies, outcomes, audit) =
        (keep.now.before(keep.bodies).0, keep.now.before(keep.outcomes).0, keep.now.before(keep.audit).0);
    let mut room = limit as usize;

    let old = format!(
        "SELECT id FROM event WHERE outcome IN {} AND at < ?1 UNION ALL SELECT id FROM event WHERE outcome IS NULL AND at < ?1 LIMIT ?2",
        codes::FINAL
    );
    for id in ids(tx, &old, outcomes, room)? {
        // An inbox record that is to be kept for longer than its event gets a row of its own. Its hash is known with the event's.
        tx.execute(
            "INSERT INTO inbox (hash, endpoint, recorded_at, message_id) \
             SELECT hash, endpoint, recorded_at, event_id FROM event WHERE id = ?1 AND recorded_at IS NOT NULL",
            [id],
        )?;
        tx.execute("DELETE FROM history WHERE event = ?1", [id])?;
        tx.execute("DELETE FROM kept WHERE event = ?1", [id])?;
        tx.execute("DELETE FROM event WHERE id = ?1", [id])?;
        room -= 1;
    }
    let resolved = format!(
        "SELECT k.event FROM kept k JOIN event e ON e.id = k.event WHERE e.outcome IN {} AND e.at < ?1 LIMIT ?2",
        codes::FINAL
    );
    for id in ids(tx, &resolved, bodies, room)? {
        tx.execute("DELETE FROM kept WHERE event = ?1", [id])?;
        room -= 1;
    }
    // In time order by number; the first young one ends it.
    for id in ids(tx, "SELECT id FROM (SELECT id, at FROM final ORDER BY id LIMIT ?2) WHERE at < ?1", outcomes, room)? {
        tx.execute("DELETE FROM final WHERE id = ?1", [id])?;
        room -= 1;
    }
    for id in ids(tx, "SELECT id FROM (SELECT id, at FROM audit ORDER BY id LIMIT ?2) WHERE at < ?1", audit, room)? {
        tx.execute("DELETE FROM action WHERE audit = ?1 AND state <> 0", [id])?;
        tx.execute("DELETE FROM audit WHERE id = ?1", [id])?;
        room -= 1;
    }
    Ok(limit - u32::try_from(room).unwrap_or(0))
}

fn ids(tx: &Tx<'_>, sql: &str, before: i64, limit: usize) -> Result<Vec<i64>, Stop> {
    let mut statement = tx.connection.prepare_cached(sql)?;
    let rows = statement.query_map((before, i64::try_from(limit).unwrap_or(i64::MAX)), |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
