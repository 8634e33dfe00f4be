//! Operators' actions and their audit (P15).

use rusqlite::{Connection, OptionalExtension as _, Row};
use sprag_core::{
    action::{Action, ActionKind, ActionState},
    ids::{ActionId, EndpointName, EventId, SessionId},
    message::{Value, property},
    time::Timestamp,
};
use sprag_store::{ActionRefused, NewAction, query::AuditEntry};

use crate::{
    codes,
    messages::{self, Prepared},
    tracking::event_hash,
    writer::{Stop, Tx},
};

type Accepted = Vec<Result<ActionId, ActionRefused>>;

/// Each on its own merits; the control message of an accepted one is on its source in the same transaction, when its source is here.
pub(crate) fn create(tx: &mut Tx<'_>, wishes: &[NewAction], entry: &AuditEntry) -> Result<Accepted, Stop> {
    // What could refuse the whole comes before the first write.
    let mut answers = Vec::with_capacity(wishes.len());
    let audit = add_audit(tx, entry)?;
    for wish in wishes {
        answers.push(create_one(tx, wish, entry.at, audit)?);
    }
    Ok(answers)
}

fn create_one(
    tx: &mut Tx<'_>,
    wish: &NewAction,
    at: Timestamp,
    audit: i64,
) -> Result<Result<ActionId, ActionRefused>, Stop> {
    if let Some(key) = &wish.idempotency_key
        && let Some(first) = tx.first("SELECT id FROM action WHERE idempotency_key = ?1", [key], |row| row.get(0))?
    {
        return Ok(Ok(ActionId(first)));
    }
    let endpoint = tx.local.endpoint(tx.connection, &wish.endpoint)?;
    if let Some(event_id) = &wish.event_id {
        let known = tx.first(
            "SELECT 1 FROM event INDEXED BY event_hash WHERE hash = ?1 AND endpoint = ?2 AND event_id = ?3 AND outcome IS NOT NULL",
            (event_hash(wish.endpoint.as_str(), event_id.as_str()), endpoint, event_id.as_str()),
            |_| Ok(()),
        )?;
        if known.is_none() {
            return Ok(Err(ActionRefused::NoSuchEvent));
        }
    }
    let event = wish.event_id.as_ref().map(EventId::as_str);
    let session = wish.session.as_ref().map(SessionId::as_str);
    // For an event its session does not matter; for a whole session the event must be none.
    let open = tx.first(
        "SELECT id, kind, by_whom FROM action WHERE state = 0 AND endpoint = ?1 AND event_id IS ?2 AND (?2 IS NOT NULL OR session IS ?3)",
        (endpoint, event, session),
        |row| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get(2)?)),
    )?;
    if let Some((id, kind, by)) = open {
        let kind = codes::action_of(kind).unwrap_or(ActionKind::Skip);
        return Ok(Err(ActionRefused::Open { id: ActionId(id), kind, by }));
    }
    tx.execute(
        "INSERT INTO action (kind, endpoint, event_id, session, reason, by_whom, at, state, idempotency_key, audit) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9)",
        (
            codes::action(wish.kind),
            endpoint,
            event,
            session,
            &wish.reason,
            &wish.by,
            at.0,
            &wish.idempotency_key,
            audit,
        ),
    )?;
    let id = tx.connection.last_insert_rowid();
    if let Some(source) = wish.source.as_ref().and_then(|source| tx.topology.position(source)) {
        let mut control = wish.control.clone();
        control.set_property(property::ACTION_ID, Value::Long(id));
        messages::enqueue(tx, source, &Prepared::new(control)?)?;
    }
    Ok(Ok(ActionId(id)))
}

pub(crate) fn add_audit(tx: &Tx<'_>, entry: &AuditEntry) -> Result<i64, Stop> {
    tx.execute(
        "INSERT INTO audit (at, by_whom, verb, endpoint, target, reason, count) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        (
            entry.at.0,
            &entry.by,
            &entry.verb,
            entry.endpoint.as_ref().map(EndpointName::as_str),
            &entry.target,
            &entry.reason,
            i64::try_from(entry.count).unwrap_or(i64::MAX),
        ),
    )?;
    Ok(tx.connection.last_insert_rowid())
}

const COLUMNS: &str = "SELECT a.id, a.kind, p.name, a.event_id, a.session, a.reason, a.by_whom, a.at, a.state, a.text, a.ended_at \
     FROM action a JOIN endpoint p ON p.id = a.endpoint";

pub(crate) fn find(connection: &Connection, id: ActionId) -> rusqlite::Result<Option<Action>> {
    connection.prepare_cached(&format!("{COLUMNS} WHERE a.id = ?1"))?.query_row([id.0], read).optional()
}

pub(crate) fn of_key(connection: &Connection, key: &str) -> rusqlite::Result<Option<ActionId>> {
    connection
        .prepare_cached("SELECT id FROM action WHERE idempotency_key = ?1")?
        .query_row([key], |row| row.get(0).map(ActionId))
        .optional()
}

pub(crate) fn of_audit(connection: &Connection, audit: i64) -> rusqlite::Result<Vec<Action>> {
    connection
        .prepare_cached(&format!("{COLUMNS} WHERE a.audit = ?1 ORDER BY a.id"))?
        .query_map([audit], read)?
        .collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<Action> {
    let text = row.get::<_, Option<String>>(9)?.unwrap_or_default();
    let at = Timestamp(row.get::<_, Option<i64>>(10)?.unwrap_or_default());
    Ok(Action {
        id: ActionId(row.get(0)?),
        kind: codes::action_of(row.get(1)?).unwrap_or(ActionKind::Skip),
        endpoint: row.get::<_, String>(2)?.into(),
        event_id: row.get::<_, Option<String>>(3)?.map(EventId::from),
        session: row.get::<_, Option<String>>(4)?.map(SessionId::from),
        reason: row.get(5)?,
        by: row.get(6)?,
        at: Timestamp(row.get(7)?),
        state: match row.get::<_, i64>(8)? {
            0 => ActionState::Open,
            1 => ActionState::Applied { text, at },
            _ => ActionState::Conflict { text, at },
        },
    })
}
