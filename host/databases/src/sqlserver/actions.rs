//! Operators' actions, and what is kept of who did what (P15).

use std::collections::HashMap;

use sprag_core::{
    action::{Action, ActionKind, ActionState},
    ids::{ActionId, Digest},
    time::Timestamp,
};
use sprag_store::{ActionRefused, NewAction, query::AuditEntry};
use tiberius::Row;

use crate::postgres::write::{Key, event_key};

use super::{
    connections::Connection,
    fault::Fault,
    schema::ACCEPT_SLOT,
    script::{Names, Script, known, named, number, optional, optional_number, optional_text, rows_together, text},
    write::digest_key,
};

/// Who accepts actions is alone, so two groups that name the same events do not wait for each other crosswise. Operators are few.
const STAND_IN_LINE: &str = "UPDATE #gate SET passed = passed + 1 WHERE slot = ?";
const OF_KEY: &str = "SELECT action_id FROM #action_key WHERE hash = CAST(? AS binary(32))";
const EVENT: &str = "SELECT 1 FROM #event WHERE hash = CAST(? AS binary(32)) AND outcome IS NOT NULL";
const OPEN: &str = "SELECT a.id, a.kind, a.by_whom FROM #open_action AS o INNER JOIN #action AS a ON a.id = o.action_id \
     WHERE o.target = CAST(? AS binary(32))";
const CREATE: &str = "INSERT INTO #action (kind, endpoint, event_id, session_id, reason, by_whom, noted_at, state, audit) \
     OUTPUT inserted.id VALUES (?, ?, ?, ?, ?, ?, ?, 'open', ?)";
const NAME_TARGET: &str = "INSERT INTO #open_action (target, action_id) VALUES (?, ?)";
const NAME_KEY: &str = "INSERT INTO #action_key (hash, action_id) VALUES (?, ?)";
const AUDIT: &str = "INSERT INTO #audit (noted_at, by_whom, verb, endpoint, target, reason, events) OUTPUT inserted.id \
     VALUES (?, ?, ?, ?, ?, ?, ?)";

/// An action's columns, for [`read`].
macro_rules! columns {
    () => {
        "id, kind, endpoint, event_id, session_id, reason, by_whom, noted_at, state, end_text, ended_at"
    };
}
const FIND: &str = concat!("SELECT ", columns!(), " FROM #action WHERE id = ?");
const OF_AUDIT: &str = concat!("SELECT ", columns!(), ", audit FROM #action WHERE audit IN ");

type Accepted = Vec<Result<ActionId, ActionRefused>>;

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

fn action_of(name: &str) -> Result<ActionKind, Fault> {
    known(ActionKind::from_name(name), "a kind of action")
}

pub(crate) async fn create(
    connection: &mut Connection,
    wishes: &[NewAction],
    entry: &AuditEntry,
) -> Result<Accepted, Fault> {
    connection.begin().await?;
    let result = create_alone(connection, wishes, entry).await;
    connection.end(result).await
}

async fn create_alone(
    connection: &mut Connection,
    wishes: &[NewAction],
    entry: &AuditEntry,
) -> Result<Accepted, Fault> {
    let names = connection.names();
    connection.execute(Script::of(&names, STAND_IN_LINE, vec![ACCEPT_SLOT.into()])).await?;
    let audit = add_audit(connection, entry).await?;
    let mut answers = Vec::with_capacity(wishes.len());
    for wish in wishes {
        answers.push(create_one(connection, &names, wish, entry.at, audit).await?);
    }
    Ok(answers)
}

async fn create_one(
    connection: &mut Connection,
    names: &Names,
    wish: &NewAction,
    at: Timestamp,
    audit: i64,
) -> Result<Result<ActionId, ActionRefused>, Fault> {
    let key = wish.idempotency_key.as_deref().map(digest_key);
    if let Some(key) = &key
        && let Some(row) = connection.row(Script::of(names, OF_KEY, vec![key.into()])).await?
    {
        return Ok(Ok(ActionId(number(&row, 0)?)));
    }
    let target = target(wish);
    let of = |sql| Script::of(names, sql, vec![(&target).into()]);
    if wish.event_id.is_some() && connection.row(of(EVENT)).await?.is_none() {
        return Ok(Err(ActionRefused::NoSuchEvent));
    }
    if let Some(row) = connection.row(of(OPEN)).await? {
        let open = ActionRefused::Open {
            id: ActionId(number(&row, 0)?),
            kind: named(&row, 1, action_of)?,
            by: text(&row, 2)?,
        };
        return Ok(Err(open));
    }
    let values = vec![
        wish.kind.name().into(),
        wish.endpoint.as_str().into(),
        optional(wish.event_id.as_ref().map(|id| id.as_str())),
        optional(wish.session.as_ref().map(|session| session.as_str())),
        optional(wish.reason.as_deref()),
        wish.by.as_str().into(),
        at.0.into(),
        audit.into(),
    ];
    let id = id_in(connection.row(Script::of(names, CREATE, values)).await?)?;
    connection.execute(Script::of(names, NAME_TARGET, vec![(&target).into(), id.into()])).await?;
    if let Some(key) = &key {
        connection.execute(Script::of(names, NAME_KEY, vec![key.into(), id.into()])).await?;
    }
    Ok(Ok(ActionId(id)))
}

pub(crate) async fn add_audit(connection: &mut Connection, entry: &AuditEntry) -> Result<i64, Fault> {
    let names = connection.names();
    let values = vec![
        entry.at.0.into(),
        entry.by.as_str().into(),
        entry.verb.as_str().into(),
        optional(entry.endpoint.as_ref().map(|endpoint| endpoint.as_str())),
        entry.target.as_str().into(),
        optional(entry.reason.as_deref()),
        i64::try_from(entry.count).unwrap_or(i64::MAX).into(),
    ];
    id_in(connection.row(Script::of(&names, AUDIT, values)).await?)
}

fn id_in(row: Option<Row>) -> Result<i64, Fault> {
    number(&row.ok_or_else(|| Fault::Unreadable("a new row has no number".to_owned()))?, 0)
}

pub(crate) async fn find(connection: &mut Connection, id: ActionId) -> Result<Option<Action>, Fault> {
    let names = connection.names();
    connection.row(Script::of(&names, FIND, vec![id.0.into()])).await?.map(|row| read(&row)).transpose()
}

pub(crate) async fn of_key(connection: &mut Connection, key: &str) -> Result<Option<ActionId>, Fault> {
    let names = connection.names();
    let row = connection.row(Script::of(&names, OF_KEY, vec![digest_key(key).into()])).await?;
    row.map(|row| Ok(ActionId(number(&row, 0)?))).transpose()
}

/// The actions that each of these entries accepted.
pub(crate) async fn of_audit(connection: &mut Connection, audit: &[i64]) -> Result<HashMap<i64, Vec<Action>>, Fault> {
    let names = connection.names();
    let mut found: HashMap<i64, Vec<Action>> = HashMap::new();
    for part in audit.chunks(rows_together(1)) {
        let mut script = Script::new(&names);
        let list = script.list(part.iter().map(|id| (*id).into()));
        script.add(&format!("{OF_AUDIT}{list} ORDER BY id"), vec![]);
        for row in connection.rows(script).await? {
            found.entry(number(&row, 11)?).or_default().push(read(&row)?);
        }
    }
    Ok(found)
}

fn read(row: &Row) -> Result<Action, Fault> {
    let text_of_end = optional_text(row, 9)?.unwrap_or_default();
    let at = Timestamp(optional_number(row, 10)?.unwrap_or_default());
    Ok(Action {
        id: ActionId(number(row, 0)?),
        kind: named(row, 1, action_of)?,
        endpoint: text(row, 2)?.into(),
        event_id: optional_text(row, 3)?.map(Into::into),
        session: optional_text(row, 4)?.map(Into::into),
        reason: optional_text(row, 5)?,
        by: text(row, 6)?,
        at: Timestamp(number(row, 7)?),
        state: match text(row, 8)?.as_str() {
            "open" => ActionState::Open,
            "applied" => ActionState::Applied { text: text_of_end, at },
            "conflict" => ActionState::Conflict { text: text_of_end, at },
            _ => return Err(Fault::Unreadable("an action's state is not known".to_owned())),
        },
    })
}
