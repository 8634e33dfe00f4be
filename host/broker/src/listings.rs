//! What operators see: rows with filters and cursors.
//!
//! A cursor is the place of the last row of the part before, so a listing neither loses nor repeats what stays where it is.

use rusqlite::{Connection, OptionalExtension as _, Row, ToSql};
use sprag_core::{
    effect::HistoryLine,
    ids::{ActionId, Digest, EndpointName, EventId, HandlerName, MessageId, SessionId},
    message::Message,
    time::Timestamp,
};
use sprag_store::query::{
    AuditEntry, AuditRow, EventFilter, EventRow, FailureGroup, InboxFilter, InboxRow, LeaseRow, Listing, OutboxListRow,
    Page,
};

use crate::{
    actions, codec, codes, decision,
    shared::ReadFailure,
    tracking::{self, EVENT_COLUMNS, EVENT_TABLES, endpoint_id, event_hash, inbox_hash, read_outcome},
};

type Read<T> = Result<T, ReadFailure>;

fn limit(page: &Page) -> Read<usize> {
    match page.limit {
        1..=1_000 => Ok(page.limit as usize),
        other => Err(ReadFailure::Invalid(format!("a listing takes 1 to 1000 at a time, not {other}"))),
    }
}

fn strange(cursor: &str) -> ReadFailure {
    ReadFailure::Invalid(format!("{cursor:?} is not where a listing goes on"))
}

fn number(page: &Page) -> Read<Option<i64>> {
    page.after.as_deref().map(|cursor| cursor.parse().map_err(|_| strange(cursor))).transpose()
}

/// Cuts a list that was read one longer than asked for.
fn cut<T>(mut items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Listing<T> {
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(cursor);
    Listing { items, next }
}

/// Conditions with their values, joined by AND.
#[derive(Default)]
struct Conditions {
    text: Vec<String>,
    values: Vec<Box<dyn ToSql>>,
}

impl Conditions {
    /// `?` in the condition stands for the value.
    fn add(&mut self, condition: &str, value: impl ToSql + 'static) {
        self.values.push(Box::new(value));
        self.text.push(condition.replace('?', &format!("?{}", self.values.len())));
    }

    fn sql(&self) -> String {
        if self.text.is_empty() { "1".to_owned() } else { self.text.join(" AND ") }
    }
}

/// Everything of the filter that SQL decides. None: the endpoint is not known, so nothing matches.
fn conditions(connection: &Connection, filter: &EventFilter) -> Read<Option<Conditions>> {
    let mut conditions = Conditions::default();
    if let Some(endpoint) = &filter.endpoint {
        let Some(id) = endpoint_id(connection, endpoint)? else { return Ok(None) };
        conditions.add("e.endpoint = ?", id);
    }
    if let Some(session) = &filter.session {
        conditions.add("e.session = ?", session.as_str().to_owned());
    }
    if let Some(event_type) = &filter.event_type {
        conditions.add("e.event_type = ?", event_type.as_str().to_owned());
    }
    if let Some(since) = filter.since {
        conditions.add("e.at >= ?", since.0);
    }
    if let Some(until) = filter.until {
        conditions.add("e.at < ?", until.0);
    }
    if let Some(prefix) = &filter.id_prefix {
        conditions.add("substr(e.event_id, 1, length(?)) = ?", prefix.clone());
    }
    Ok(Some(conditions))
}

/// What SQL does not decide: letters of every script without case, and the key of a group.
fn matches(filter: &EventFilter, row: &EventRow) -> bool {
    let error = row.outcome.error.as_ref();
    filter
        .error_text
        .as_ref()
        .is_none_or(|part| error.is_some_and(|error| error.text.to_lowercase().contains(&part.to_lowercase())))
        && filter
            .group
            .as_ref()
            .is_none_or(|key| row.outcome.outcome == sprag_core::outcome::Outcome::Failed && group_key(row) == *key)
}

fn failure_of(row: &EventRow) -> (&str, &str) {
    row.outcome.error.as_ref().map(|error| (error.kind.as_str(), error.text.as_str())).unwrap_or_default()
}

fn group_key(row: &EventRow) -> String {
    let (kind, text) = failure_of(row);
    FailureGroup::key_of(row.endpoint.as_str(), row.outcome.event_type.as_str(), kind, text)
}

const ROW_COLUMNS: &str = "e.id, p.name, e.duplicates, EXISTS (SELECT 1 FROM kept k WHERE k.event = e.id), \
     (SELECT a.id FROM action a WHERE a.state = 0 AND a.endpoint = e.endpoint AND a.event_id = e.event_id)";

/// The events for which the condition holds, newest change first. `take` answers whether to go on.
fn each_event(
    connection: &Connection,
    tail: &str,
    values: &[&dyn ToSql],
    mut take: impl FnMut(i64, EventRow) -> bool,
) -> rusqlite::Result<()> {
    let sql = format!(
        "SELECT {EVENT_COLUMNS}, {ROW_COLUMNS} FROM {EVENT_TABLES} JOIN endpoint p ON p.id = e.endpoint WHERE {tail}"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(values)?;
    while let Some(row) = rows.next()? {
        let event = EventRow {
            outcome: read_outcome(row)?,
            endpoint: row.get::<_, String>(16)?.into(),
            duplicates: row.get(17)?,
            has_message: row.get(18)?,
            open_action: row.get::<_, Option<i64>>(19)?.map(ActionId),
        };
        if !take(row.get(15)?, event) {
            break;
        }
    }
    Ok(())
}

pub(crate) fn events(connection: &Connection, filter: &EventFilter, page: &Page) -> Read<Listing<EventRow>> {
    let limit = limit(page)?;
    let after = match page.after.as_deref() {
        Some(cursor) => {
            let parse =
                || cursor.split_once(':').and_then(|(at, id)| Some((at.parse::<i64>().ok()?, id.parse::<i64>().ok()?)));
            Some(parse().ok_or_else(|| strange(cursor))?)
        }
        None => None,
    };
    // One walk per outcome along `event_outcome`, each no longer than the page, then the newest of all of them.
    let outcomes: Vec<i64> = if filter.outcomes.is_empty() {
        sprag_core::outcome::Outcome::ALL.map(codes::outcome).to_vec()
    } else {
        filter.outcomes.iter().copied().map(codes::outcome).collect()
    };
    let mut found = Vec::new();
    for outcome in outcomes {
        let Some(mut conditions) = conditions(connection, filter)? else { break };
        conditions.add("e.outcome = ?", outcome);
        if filter.session.is_some() && outcome != codes::COMPLETED {
            // Said in so many words, for the planner to see that `event_session` will do.
            conditions.text.push("e.outcome <> 1".to_owned());
        }
        if let Some((at, id)) = after {
            conditions.add("e.at <= ?", at);
            let at_place = conditions.values.len();
            conditions.values.push(Box::new(id));
            conditions.text.push(format!("(e.at < ?{at_place} OR e.id < ?{})", at_place + 1));
        }
        let values: Vec<&dyn ToSql> = conditions.values.iter().map(AsRef::as_ref).collect();
        let mut left = limit + 1;
        each_event(connection, &format!("{} ORDER BY e.at DESC, e.id DESC", conditions.sql()), &values, |id, row| {
            if matches(filter, &row) {
                found.push((row.outcome.at, id, row));
                left -= 1;
            }
            left > 0
        })?;
    }
    found.sort_by_key(|(at, id, _)| std::cmp::Reverse((*at, *id)));
    let Listing { items, next } = cut(found, limit, |(at, id, _)| format!("{}:{id}", at.0));
    Ok(Listing { items: items.into_iter().map(|(_, _, row)| row).collect(), next })
}

pub(crate) fn find_events(connection: &Connection, id: &str) -> Read<Vec<EventRow>> {
    let mut found: Vec<(i64, EventRow)> = Vec::new();
    let mut take = |id, row| {
        found.push((id, row));
        true
    };
    for (endpoint, name) in endpoints(connection)? {
        let hash = event_hash(&name, id);
        each_event(
            connection,
            "e.hash = ?1 AND e.endpoint = ?2 AND e.event_id = ?3 AND e.outcome IS NOT NULL",
            &[&hash, &endpoint, &id],
            &mut take,
        )?;
    }
    for column in ["message_id", "source_id"] {
        each_event(connection, &format!("e.{column} = ?1 AND e.outcome IS NOT NULL"), &[&id], &mut take)?;
    }
    found.sort_by_key(|(id, _)| *id);
    found.dedup_by_key(|(id, _)| *id);
    Ok(found.into_iter().map(|(_, row)| row).collect())
}

fn event_row_id(connection: &Connection, endpoint: &EndpointName, event_id: &EventId) -> rusqlite::Result<Option<i64>> {
    let Some(id) = endpoint_id(connection, endpoint)? else { return Ok(None) };
    connection
        .prepare_cached(
            "SELECT id FROM event INDEXED BY event_hash WHERE hash = ?1 AND endpoint = ?2 AND event_id = ?3",
        )?
        .query_row((event_hash(endpoint.as_str(), event_id.as_str()), id, event_id.as_str()), |row| row.get(0))
        .optional()
}

pub(crate) fn history(connection: &Connection, endpoint: &EndpointName, event_id: &EventId) -> Read<Vec<HistoryLine>> {
    let Some(event) = event_row_id(connection, endpoint, event_id)? else { return Ok(Vec::new()) };
    let mut statement = connection.prepare_cached(
        "SELECT h.kind, h.at, h.message_id, h.outcome, h.attempt, h.started_at, h.took, v.handler, v.digest, h.reason, h.error_kind, \
         h.error_text, h.by_whom FROM history h LEFT JOIN version v ON v.id = h.version WHERE h.event = ?1 ORDER BY h.n",
    )?;
    let lines = statement.query_map([event], |row| {
        Ok(HistoryLine {
            event_id: event_id.clone(),
            kind: codes::history_of(row.get(0)?).unwrap_or(sprag_core::effect::HistoryKind::Run),
            at: Timestamp(row.get(1)?),
            message_id: row.get::<_, Option<String>>(2)?.map(MessageId::from),
            outcome: row.get::<_, Option<i64>>(3)?.and_then(codes::outcome_of),
            attempt: row.get(4)?,
            started_at: row.get::<_, Option<i64>>(5)?.map(Timestamp),
            took: row.get::<_, Option<i64>>(6)?.map(decision::from_nanos),
            handler: row.get::<_, Option<String>>(7)?.map(HandlerName::from),
            digest: row.get::<_, Option<[u8; 32]>>(8)?.map(Digest),
            reason: row.get(9)?,
            error: tracking::failure(row, 10)?,
            by: row.get(12)?,
        })
    })?;
    Ok(lines.collect::<Result<_, _>>()?)
}

pub(crate) fn kept_message(
    connection: &Connection,
    endpoint: &EndpointName,
    event_id: &EventId,
) -> Read<Option<Message>> {
    let Some(event) = event_row_id(connection, endpoint, event_id)? else { return Ok(None) };
    let mut statement = connection.prepare_cached("SELECT session, header, body FROM kept WHERE event = ?1")?;
    let message = statement
        .query_row([event], |row| {
            Ok(codec::decode(row.get_ref(1)?.as_blob()?, row.get_ref(2)?.as_blob()?, row.get_ref(0)?.as_str_or_null()?))
        })
        .optional()?;
    Ok(message.transpose()?)
}

pub(crate) fn failure_groups(connection: &Connection, filter: &EventFilter) -> Read<Vec<FailureGroup>> {
    if !filter.outcomes.is_empty() && !filter.outcomes.contains(&sprag_core::outcome::Outcome::Failed) {
        return Ok(Vec::new());
    }
    let Some(mut conditions) = conditions(connection, filter)? else { return Ok(Vec::new()) };
    conditions.add("e.outcome = ?", codes::FAILED);
    let values: Vec<&dyn ToSql> = conditions.values.iter().map(AsRef::as_ref).collect();
    let mut groups: std::collections::BTreeMap<String, FailureGroup> = std::collections::BTreeMap::new();
    each_event(connection, &conditions.sql(), &values, |_, row| {
        if matches(filter, &row) {
            let key = group_key(&row);
            let (kind, text) = failure_of(&row);
            let at = row.outcome.at;
            let group = groups.entry(key.clone()).or_insert_with(|| FailureGroup {
                key,
                endpoint: row.endpoint.clone(),
                event_type: row.outcome.event_type.clone(),
                kind: kind.to_owned(),
                first_line: FailureGroup::first_line_of(text).to_owned(),
                count: 0,
                oldest: at,
                newest: at,
            });
            group.count += 1;
            group.oldest = group.oldest.min(at);
            group.newest = group.newest.max(at);
        }
        true
    })?;
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.newest, group.count)));
    Ok(groups)
}

/// The place of an inbox record or a lease: when, in which table, and its row.
type Record = (i64, u8, i64);

/// The tables of records and leases, each with its columns of time and id, and what it has of a lease.
const INBOX_TABLES: [(&str, &str, &str, &str); 3] = [
    ("inbox", "recorded_at", "message_id", "NULL, NULL"),
    ("event", "recorded_at", "event_id", "NULL, NULL"),
    ("sprag_lease", "taken_at", "message_id", "owner, expires_at"),
];

pub(crate) fn inbox(connection: &Connection, filter: &InboxFilter, page: &Page) -> Read<Listing<InboxRow>> {
    let limit = limit(page)?;
    let after: Option<Record> = match page.after.as_deref() {
        Some(cursor) => {
            let parse = || {
                let mut parts = cursor.split(':');
                let record = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                parts.next().is_none().then_some(record)
            };
            Some(parse().ok_or_else(|| strange(cursor))?)
        }
        None => None,
    };
    let mut found: Vec<(Record, InboxRow)> = Vec::new();
    // One walk per endpoint and table along `inbox_age`, `event_recorded` and `lease_age`, each no longer than the page.
    for (endpoint, name) in endpoints(connection)? {
        let name = EndpointName::from(name);
        if filter.endpoint.as_ref().is_some_and(|wanted| *wanted != name) {
            continue;
        }
        for (number, (table, at_column, id_column, lease_columns)) in (0..).zip(INBOX_TABLES) {
            let mut conditions = Conditions::default();
            conditions.add("endpoint = ?", endpoint);
            conditions.add(&format!("{at_column} <= ?"), after.map_or(i64::MAX, |(at, _, _)| at));
            if let Some(id) = &filter.message_id {
                conditions.add("hash = ?", inbox_hash(&name, id));
                conditions.add(&format!("{id_column} = ?"), id.as_str().to_owned());
            }
            let by = if filter.message_id.is_some() { format!("INDEXED BY {table}_hash") } else { String::new() };
            let sql = format!(
                "SELECT {at_column}, id, {id_column}, {lease_columns} FROM {table} {by} WHERE {} ORDER BY {at_column} DESC, id DESC",
                conditions.sql()
            );
            let values: Vec<&dyn ToSql> = conditions.values.iter().map(AsRef::as_ref).collect();
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query(&values[..])?;
            let mut left = limit + 1;
            while left > 0
                && let Some(row) = rows.next()?
            {
                let record = (row.get(0)?, number, row.get(1)?);
                if after.is_none_or(|after| record < after) {
                    found.push((record, inbox_row(&name, row)?));
                    left -= 1;
                }
            }
        }
    }
    found.sort_unstable_by_key(|(record, _)| std::cmp::Reverse(*record));
    let Listing { items, next } = cut(found, limit, |((at, table, id), _)| format!("{at}:{table}:{id}"));
    Ok(Listing { items: items.into_iter().map(|(_, row)| row).collect(), next })
}

fn inbox_row(endpoint: &EndpointName, row: &Row<'_>) -> rusqlite::Result<InboxRow> {
    let expires_at = row.get::<_, Option<i64>>(4)?.map(Timestamp);
    Ok(InboxRow {
        endpoint: endpoint.clone(),
        recorded_at: Timestamp(row.get(0)?),
        message_id: row.get::<_, String>(2)?.into(),
        lease: row.get::<_, Option<String>>(3)?.map(|owner| LeaseRow { owner: owner.into(), expires_at }),
    })
}

fn endpoints(connection: &Connection) -> rusqlite::Result<Vec<(i64, String)>> {
    let mut statement = connection.prepare_cached("SELECT id, name FROM endpoint")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

pub(crate) fn audit(connection: &Connection, page: &Page) -> Read<Listing<AuditRow>> {
    let limit = limit(page)?;
    let mut statement = connection.prepare_cached(
        "SELECT id, at, by_whom, verb, endpoint, target, reason, count FROM audit WHERE id < ?1 ORDER BY id DESC LIMIT ?2",
    )?;
    let below = number(page)?.unwrap_or(i64::MAX);
    let rows = statement.query_map((below, i64::try_from(limit + 1).unwrap_or(i64::MAX)), |row| {
        Ok(AuditRow {
            id: row.get(0)?,
            entry: AuditEntry {
                at: Timestamp(row.get(1)?),
                by: row.get(2)?,
                verb: row.get(3)?,
                endpoint: row.get::<_, Option<String>>(4)?.map(EndpointName::from),
                target: row.get(5)?,
                reason: row.get(6)?,
                count: u64::try_from(row.get::<_, i64>(7)?).unwrap_or(0),
            },
            actions: Vec::new(),
        })
    })?;
    let mut listing = cut(rows.collect::<Result<Vec<_>, _>>()?, limit, |row| row.id.to_string());
    for row in &mut listing.items {
        row.actions = actions::of_audit(connection, row.id)?;
    }
    Ok(listing)
}

pub(crate) fn outbox(connection: &Connection, page: &Page) -> Read<Listing<OutboxListRow>> {
    let limit = limit(page)?;
    let mut statement = connection.prepare_cached(
        "SELECT o.id, p.name, o.entity, o.message_id, o.session, o.created_at, o.tries, o.error, o.again_at IS NULL, o.event_id \
         FROM outbox o JOIN endpoint p ON p.id = o.endpoint WHERE o.id > ?1 ORDER BY o.id LIMIT ?2",
    )?;
    let above = number(page)?.unwrap_or(i64::MIN);
    let rows = statement.query_map((above, i64::try_from(limit + 1).unwrap_or(i64::MAX)), |row| {
        Ok(OutboxListRow {
            id: row.get(0)?,
            endpoint: row.get::<_, String>(1)?.into(),
            entity: row.get::<_, String>(2)?.into(),
            message_id: row.get::<_, Option<String>>(3)?.map(MessageId::from),
            session: row.get::<_, Option<String>>(4)?.map(SessionId::from),
            created_at: Timestamp(row.get(5)?),
            tries: row.get(6)?,
            error: row.get(7)?,
            poison: row.get(8)?,
            event_id: row.get::<_, Option<String>>(9)?.map(EventId::from),
        })
    })?;
    Ok(cut(rows.collect::<Result<Vec<_>, _>>()?, limit, |row| row.id.to_string()))
}
