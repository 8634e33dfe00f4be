//! Operators' actions, and what is kept of who did what (P15).

use std::collections::HashMap;

use sprag_core::{
    action::{Action, ActionState},
    ids::{ActionId, Digest},
    time::Timestamp,
};
use sprag_store::{ActionRefused, NewAction, query::AuditEntry};
use tokio_postgres::Row;

use super::{
    check::named,
    connections::Connection,
    fault::Fault,
    text::{Text, optional_text, text},
    write::{Key, action_of, event_key},
};

/// "sprag" in the database's space of advisory locks: who accepts actions is alone, so two groups that name the same events do not wait for
/// each other crosswise. Operators are few.
const ACCEPT_LOCK: i64 = 0x73_70_72_61_67_00_00_03;

const OF_KEY: &str = "SELECT id FROM sprag_action WHERE idempotency_key = $1";
const EVENT: &str = "SELECT 1 FROM sprag_event WHERE hash = $1 AND outcome IS NOT NULL";
const OPEN: &str = "SELECT id, kind, by_whom FROM sprag_action WHERE target = $1 AND state = 'open'";
const CREATE: &str = "INSERT INTO sprag_action (kind, endpoint, event_id, session, target, reason, by_whom, at, state, idempotency_key, audit) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'open', $9, $10) RETURNING id";
const AUDIT: &str = "INSERT INTO sprag_audit (at, by_whom, verb, endpoint, target, reason, count) VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id";

/// An action's columns, for [`read`].
macro_rules! columns {
    () => {
        "id, kind, endpoint, event_id, session, reason, by_whom, at, state, text, ended_at"
    };
}
const FIND: &str = concat!("SELECT ", columns!(), " FROM sprag_action WHERE id = $1");
const OF_AUDIT: &str =
    concat!("SELECT ", columns!(), ", audit FROM sprag_action WHERE audit = ANY($1::bigint[]) ORDER BY id");

type Accepted = Vec<Result<ActionId, ActionRefused>>;

/// Keys of requests can be of any length.
fn request_key(key: &str) -> Key {
    Digest::of(key.as_bytes()).0.to_vec()
}

/// What an action is on: an event has its hash, and a whole session one that no event has.
fn target(wish: &NewAction) -> Key {
    match &wish.event_id {
        Some(event_id) => event_key(&wish.endpoint, event_id),
        None => {
            let endpoint = wish.endpoint.as_str();
            let session = wish.session.as_ref().map(|session| format!("some {session}")).unwrap_or_default();
            Digest::of(format!("session {}:{endpoint}{session}", endpoint.len()).as_bytes()).0.to_vec()
        }
    }
}

pub(crate) async fn create(
    connection: Connection<'_>,
    wishes: &[NewAction],
    entry: &AuditEntry,
) -> Result<Accepted, Fault> {
    connection.begin().await?;
    let result = create_alone(connection, wishes, entry).await;
    connection.end(result).await
}

async fn create_alone(connection: Connection<'_>, wishes: &[NewAction], entry: &AuditEntry) -> Result<Accepted, Fault> {
    connection.execute("SELECT pg_advisory_xact_lock($1)", &[&ACCEPT_LOCK]).await?;
    let audit = add_audit(connection, entry).await?;
    let mut answers = Vec::with_capacity(wishes.len());
    for wish in wishes {
        answers.push(create_one(connection, wish, entry.at, audit).await?);
    }
    Ok(answers)
}

async fn create_one(
    connection: Connection<'_>,
    wish: &NewAction,
    at: Timestamp,
    audit: i64,
) -> Result<Result<ActionId, ActionRefused>, Fault> {
    let key = wish.idempotency_key.as_deref().map(request_key);
    if let Some(key) = &key
        && let Some(row) = connection.row(OF_KEY, &[key]).await?
    {
        return Ok(Ok(ActionId(row.try_get(0)?)));
    }
    let target = target(wish);
    if wish.event_id.is_some() && connection.row(EVENT, &[&target]).await?.is_none() {
        return Ok(Err(ActionRefused::NoSuchEvent));
    }
    if let Some(row) = connection.row(OPEN, &[&target]).await? {
        let open =
            ActionRefused::Open { id: ActionId(row.try_get(0)?), kind: named(&row, 1, action_of)?, by: text(&row, 2)? };
        return Ok(Err(open));
    }
    let row = connection
        .row(
            CREATE,
            &[
                &wish.kind.name(),
                &Text(&wish.endpoint),
                &wish.event_id.as_ref().map(Text),
                &wish.session.as_ref().map(Text),
                &target,
                &wish.reason.as_ref().map(Text),
                &Text(&wish.by),
                &at.0,
                &key,
                &audit,
            ],
        )
        .await?;
    Ok(Ok(ActionId(id_in(row)?)))
}

pub(crate) async fn add_audit(connection: Connection<'_>, entry: &AuditEntry) -> Result<i64, Fault> {
    let count = i64::try_from(entry.count).unwrap_or(i64::MAX);
    let row = connection
        .row(
            AUDIT,
            &[
                &entry.at.0,
                &Text(&entry.by),
                &Text(&entry.verb),
                &entry.endpoint.as_ref().map(Text),
                &Text(&entry.target),
                &entry.reason.as_ref().map(Text),
                &count,
            ],
        )
        .await?;
    id_in(row)
}

fn id_in(row: Option<Row>) -> Result<i64, Fault> {
    let row = row.ok_or_else(|| Fault::Unreadable("a new row has no number".to_owned()))?;
    Ok(row.try_get(0)?)
}

pub(crate) async fn find(connection: Connection<'_>, id: ActionId) -> Result<Option<Action>, Fault> {
    connection.row(FIND, &[&id.0]).await?.map(|row| read(&row)).transpose()
}

pub(crate) async fn of_key(connection: Connection<'_>, key: &str) -> Result<Option<ActionId>, Fault> {
    let row = connection.row(OF_KEY, &[&request_key(key)]).await?;
    row.map(|row| Ok(ActionId(row.try_get(0)?))).transpose()
}

/// The actions that each of these entries accepted.
pub(crate) async fn of_audit(connection: Connection<'_>, audit: &[i64]) -> Result<HashMap<i64, Vec<Action>>, Fault> {
    let mut found: HashMap<i64, Vec<Action>> = HashMap::new();
    for row in connection.rows(OF_AUDIT, &[&audit]).await? {
        found.entry(row.try_get(11)?).or_default().push(read(&row)?);
    }
    Ok(found)
}

fn read(row: &Row) -> Result<Action, Fault> {
    let text_of_end = optional_text(row, 9)?.unwrap_or_default();
    let at = Timestamp(row.try_get::<_, Option<i64>>(10)?.unwrap_or_default());
    Ok(Action {
        id: ActionId(row.try_get(0)?),
        kind: named(row, 1, action_of)?,
        endpoint: text(row, 2)?.into(),
        event_id: optional_text(row, 3)?.map(Into::into),
        session: optional_text(row, 4)?.map(Into::into),
        reason: optional_text(row, 5)?,
        by: text(row, 6)?,
        at: Timestamp(row.try_get(7)?),
        state: match text(row, 8)?.as_str() {
            "open" => ActionState::Open,
            "applied" => ActionState::Applied { text: text_of_end, at },
            "conflict" => ActionState::Conflict { text: text_of_end, at },
            _ => return Err(Fault::Unreadable("an action's state is not known".to_owned())),
        },
    })
}
