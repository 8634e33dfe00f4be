//! What operators see: rows with filters and cursors.
//!
//! A cursor is the place of the last row of the part before, so a listing neither loses nor repeats what stays where it is.

use std::collections::BTreeMap;

use sprag_core::{
    effect::{HistoryLine, OutcomeGuard, OutcomeWrite},
    ids::{ActionId, Digest, EndpointName, EventId},
    message::Message,
    outcome::{Failure, Outcome},
    time::Timestamp,
};
use sprag_store::{
    codec, decision,
    query::{
        AuditEntry, AuditRow, EventFilter, EventRow, FailureGroup, InboxFilter, InboxRow, LeaseRow, Listing,
        OutboxListRow, Page,
    },
};
use tokio_postgres::{Row, types::ToSql};

use super::{
    actions,
    check::{count, named},
    connections::{Connection, Value, borrowed},
    fault::Fault,
    text::{Text, optional_text, text},
    write::{Key, event_key, history_of, message_key, outcome_of},
};

/// How many rows are read at a time where only part of the filter can be asked of the database.
const BATCH: i64 = 1_000;

fn limit(page: &Page) -> Result<usize, Fault> {
    match page.limit {
        1..=1_000 => Ok(page.limit as usize),
        other => Err(Fault::Invalid(format!("a listing takes 1 to 1000 at a time, not {other}"))),
    }
}

fn strange(cursor: &str) -> Fault {
    Fault::Invalid(format!("{cursor:?} is not where a listing goes on"))
}

fn number(page: &Page) -> Result<Option<i64>, Fault> {
    page.after.as_deref().map(|cursor| cursor.parse().map_err(|_| strange(cursor))).transpose()
}

/// A time and the key of a row.
type Place = (i64, Key);

fn place(page: &Page) -> Result<Option<Place>, Fault> {
    let Some(cursor) = page.after.as_deref() else { return Ok(None) };
    let parse = || {
        let (at, key) = cursor.split_once(':')?;
        let digits = key.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        let key = digits
            .collect::<Option<Key>>()
            .filter(|key| key.len() == 32 && key.len() * 2 == cursor.len() - at.len() - 1)?;
        Some((at.parse().ok()?, key))
    };
    parse().map(Some).ok_or_else(|| strange(cursor))
}

fn cursor((at, key): &Place) -> String {
    use std::fmt::Write as _;
    key.iter().fold(format!("{at}:"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
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
    text: String,
    values: Vec<Value<'static>>,
}

impl Conditions {
    /// The value's place in the statement.
    fn value(&mut self, value: impl ToSql + Sync + Send + 'static) -> usize {
        self.values.push(Box::new(value));
        self.values.len()
    }

    /// `?` in the condition stands for the value.
    fn add(&mut self, condition: &str, value: impl ToSql + Sync + Send + 'static) {
        let place = self.value(value);
        self.text.push_str(" AND ");
        self.text.push_str(&condition.replace('?', &format!("${place}")));
    }

    /// Everything of the filter that SQL decides, but the outcomes.
    fn of(filter: &EventFilter) -> Self {
        let mut conditions = Self::default();
        if let Some(endpoint) = &filter.endpoint {
            conditions.add("e.endpoint = ?", Text(endpoint.clone()));
        }
        if let Some(session) = &filter.session {
            conditions.add("e.session = ?", Text(session.clone()));
        }
        if let Some(event_type) = &filter.event_type {
            conditions.add("e.event_type = ?", Text(event_type.clone()));
        }
        if let Some(since) = filter.since {
            conditions.add("e.at >= ?", since.0);
        }
        if let Some(until) = filter.until {
            conditions.add("e.at < ?", until.0);
        }
        if let Some(prefix) = &filter.id_prefix {
            conditions.add("starts_with(e.event_id, ?)", Text(prefix.clone()));
        }
        conditions
    }

    async fn rows(&self, connection: Connection<'_>, sql: &str) -> Result<Vec<Row>, Fault> {
        connection.rows(sql, &borrowed(&self.values)).await
    }
}

/// What SQL does not decide: letters of every script without case, and the key of a group.
fn matches(filter: &EventFilter, row: &EventRow) -> bool {
    let error = row.outcome.error.as_ref();
    filter
        .error_text
        .as_ref()
        .is_none_or(|part| error.is_some_and(|error| error.text.to_lowercase().contains(&part.to_lowercase())))
        && filter.group.as_ref().is_none_or(|key| row.outcome.outcome == Outcome::Failed && group_key(row) == *key)
}

fn group_key(row: &EventRow) -> String {
    let (kind, text) =
        row.outcome.error.as_ref().map(|error| (error.kind.as_str(), error.text.as_str())).unwrap_or_default();
    FailureGroup::key_of(row.endpoint.as_str(), row.outcome.event_type.as_str(), kind, text)
}

/// An event's columns, for [`read_event`].
macro_rules! columns {
    () => {
        "e.hash, e.endpoint, e.event_id, e.message_id, e.source_id, e.session, e.event_type, e.outcome, e.reason, e.error_kind, e.error_text, \
         e.attempts, e.handler, e.digest, e.enqueued_at, e.at, e.kept_header IS NOT NULL, \
         (SELECT count(*) FROM sprag_history h WHERE h.event = e.hash AND h.kind = 'duplicate'), \
         (SELECT a.id FROM sprag_action a WHERE a.target = e.hash AND a.state = 'open')"
    };
}

fn failure(row: &Row, first: usize) -> Result<Option<Failure>, Fault> {
    let (kind, text) = (optional_text(row, first)?, optional_text(row, first + 1)?);
    Ok(kind.map(|kind| Failure { kind, text: text.unwrap_or_default() }))
}

fn digest(row: &Row, column: usize) -> Result<Option<Digest>, Fault> {
    let bytes: Option<Vec<u8>> = row.try_get(column)?;
    let read = |bytes: Vec<u8>| bytes.try_into().map_err(|_| Fault::Unreadable("a digest has not 32 bytes".to_owned()));
    Ok(bytes.map(read).transpose()?.map(Digest))
}

fn read_event(row: &Row) -> Result<EventRow, Fault> {
    let outcome = OutcomeWrite {
        event_id: text(row, 2)?.into(),
        message_id: optional_text(row, 3)?.map(Into::into),
        source_id: optional_text(row, 4)?.map(Into::into),
        session: optional_text(row, 5)?.map(Into::into),
        event_type: text(row, 6)?.into(),
        outcome: named(row, 7, outcome_of)?,
        guard: OutcomeGuard::default(),
        reason: optional_text(row, 8)?,
        error: failure(row, 9)?,
        attempts: count(row, 11)?,
        handler: optional_text(row, 12)?.map(Into::into),
        digest: digest(row, 13)?,
        enqueued_at: Timestamp(row.try_get(14)?),
        at: Timestamp(row.try_get(15)?),
        keep: None,
    };
    Ok(EventRow {
        endpoint: text(row, 1)?.into(),
        outcome,
        duplicates: count(row, 17)?,
        has_message: row.try_get(16)?,
        open_action: row.try_get::<_, Option<i64>>(18)?.map(ActionId),
    })
}

pub(crate) async fn events(
    connection: Connection<'_>,
    filter: EventFilter,
    page: Page,
) -> Result<Listing<EventRow>, Fault> {
    let limit = limit(&page)?;
    let mut after = place(&page)?;
    let all_in_sql = filter.error_text.is_none() && filter.group.is_none();
    let batch = if all_in_sql { i64::from(page.limit) + 1 } else { BATCH };
    let mut found: Vec<(Place, EventRow)> = Vec::new();
    loop {
        let rows = newest_first(connection, &filter, after.as_ref(), batch).await?;
        for row in &rows {
            let place: Place = (row.try_get(15)?, row.try_get(0)?);
            let event = read_event(row)?;
            after = Some(place.clone());
            if matches(&filter, &event) {
                found.push((place, event));
            }
        }
        if found.len() > limit || (rows.len() as i64) < batch {
            break;
        }
    }
    let Listing { items, next } = cut(found, limit, |(place, _)| cursor(place));
    Ok(Listing { items: items.into_iter().map(|(_, row)| row).collect(), next })
}

async fn newest_first(
    connection: Connection<'_>,
    filter: &EventFilter,
    after: Option<&Place>,
    batch: i64,
) -> Result<Vec<Row>, Fault> {
    let (sql, conditions) = newest_first_statement(filter, after, batch);
    conditions.rows(connection, &sql).await
}

/// One walk per outcome along `sprag_event_outcome`, each no longer than the batch, then the newest of all of them. A session's events are found by
/// `sprag_event_session`, but for completed ones, which are not in it.
fn newest_first_statement(filter: &EventFilter, after: Option<&Place>, batch: i64) -> (String, Conditions) {
    let mut conditions = Conditions::of(filter);
    if let Some((at, key)) = after {
        let (at, key) = (conditions.value(*at), conditions.value(key.clone()));
        // The first part is for the index.
        conditions.text.push_str(&format!(" AND e.at <= ${at} AND (e.at < ${at} OR e.hash > ${key})"));
    }
    let wanted = |outcome: &Outcome| filter.outcomes.is_empty() || filter.outcomes.contains(outcome);
    let by_session = |outcome: &Outcome| filter.session.is_some() && *outcome != Outcome::Completed;
    let (of_session, walked): (Vec<Outcome>, Vec<Outcome>) =
        Outcome::ALL.into_iter().filter(wanted).partition(by_session);
    let names = |outcomes: Vec<Outcome>| outcomes.into_iter().map(|it| it.name().to_owned()).collect::<Vec<_>>();
    let text = conditions.text.clone();
    let batch = conditions.value(batch);
    let order = format!("ORDER BY e.at DESC, e.hash LIMIT ${batch}");
    let mut parts = Vec::new();
    if !walked.is_empty() {
        let walked = conditions.value(names(walked));
        parts.push(format!(
            "(SELECT w.* FROM unnest(${walked}::text[]) AS o(name) CROSS JOIN LATERAL \
             (SELECT * FROM sprag_event e WHERE e.outcome = o.name{text} {order}) w)"
        ));
    }
    if !of_session.is_empty() {
        let of_session = conditions.value(names(of_session));
        parts.push(format!(
            "(SELECT * FROM sprag_event e WHERE e.outcome <> 'completed' AND e.outcome = ANY(${of_session}::text[]){text} {order})"
        ));
    }
    let sql = format!("SELECT {} FROM ({}) e {order}", columns!(), parts.join(" UNION ALL "));
    (sql, conditions)
}

const FIND_EVENTS: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM sprag_event e WHERE e.outcome IS NOT NULL AND (e.event_id = $1 \
     OR (e.message_id = $1 AND e.message_id <> e.event_id) OR (e.source_id = $1 AND e.source_id <> e.event_id)) ORDER BY e.endpoint, e.event_id",
);

pub(crate) async fn find_events(connection: Connection<'_>, id: &str) -> Result<Vec<EventRow>, Fault> {
    connection.rows(FIND_EVENTS, &[&Text(id)]).await?.iter().map(read_event).collect()
}

const HISTORY: &str = "SELECT kind, at, message_id, outcome, attempt, started_at, took, handler, digest, reason, error_kind, error_text, by_whom \
     FROM sprag_history WHERE event = $1 ORDER BY n";

pub(crate) async fn history(
    connection: Connection<'_>,
    endpoint: &EndpointName,
    event_id: &EventId,
) -> Result<Vec<HistoryLine>, Fault> {
    let read = |row: &Row| {
        Ok(HistoryLine {
            event_id: event_id.clone(),
            kind: named(row, 0, history_of)?,
            at: Timestamp(row.try_get(1)?),
            message_id: optional_text(row, 2)?.map(Into::into),
            outcome: optional_text(row, 3)?.map(|name| outcome_of(&name)).transpose()?,
            attempt: count(row, 4)?,
            started_at: row.try_get::<_, Option<i64>>(5)?.map(Timestamp),
            took: row.try_get::<_, Option<i64>>(6)?.map(decision::from_nanos),
            handler: optional_text(row, 7)?.map(Into::into),
            digest: digest(row, 8)?,
            reason: optional_text(row, 9)?,
            error: failure(row, 10)?,
            by: optional_text(row, 12)?,
        })
    };
    connection.rows(HISTORY, &[&event_key(endpoint, event_id)]).await?.iter().map(read).collect()
}

const KEPT: &str =
    "SELECT kept_session, kept_header, kept_body FROM sprag_event WHERE hash = $1 AND kept_header IS NOT NULL";

pub(crate) async fn kept_message(
    connection: Connection<'_>,
    endpoint: &EndpointName,
    event_id: &EventId,
) -> Result<Option<Message>, Fault> {
    let Some(row) = connection.row(KEPT, &[&event_key(endpoint, event_id)]).await? else { return Ok(None) };
    let session = optional_text(&row, 0)?;
    Ok(Some(codec::decode(row.try_get(1)?, row.try_get(2)?, session.as_deref())?))
}

pub(crate) async fn failure_groups(
    connection: Connection<'_>,
    filter: EventFilter,
) -> Result<Vec<FailureGroup>, Fault> {
    if !filter.outcomes.is_empty() && !filter.outcomes.contains(&Outcome::Failed) {
        return Ok(Vec::new());
    }
    // Alike as far as SQL can tell; what is left is put together below. Where the whole text is asked about, it must be whole.
    let what = if filter.error_text.is_some() { "e.error_text" } else { "split_part(e.error_text, E'\\n', 1)" };
    let conditions = Conditions::of(&filter);
    let sql = format!(
        "SELECT e.endpoint, e.event_type, coalesce(e.error_kind, ''), coalesce({what}, ''), count(*), min(e.at), max(e.at) \
         FROM sprag_event e WHERE e.outcome = 'failed'{} GROUP BY 1, 2, 3, 4",
        conditions.text
    );
    let mut groups: BTreeMap<String, FailureGroup> = BTreeMap::new();
    for row in conditions.rows(connection, &sql).await? {
        let (endpoint, event_type) = (text(&row, 0)?, text(&row, 1)?);
        let (kind, error) = (text(&row, 2)?, text(&row, 3)?);
        let key = FailureGroup::key_of(&endpoint, &event_type, &kind, &error);
        let has_text = |part: &String| error.to_lowercase().contains(&part.to_lowercase());
        if filter.group.as_ref().is_some_and(|wanted| *wanted != key)
            || !filter.error_text.as_ref().is_none_or(has_text)
        {
            continue;
        }
        let number = u64::try_from(row.try_get::<_, i64>(4)?).unwrap_or(0);
        let (oldest, newest) = (Timestamp(row.try_get(5)?), Timestamp(row.try_get(6)?));
        let group = groups.entry(key.clone()).or_insert_with(|| FailureGroup {
            key,
            endpoint: endpoint.into(),
            event_type: event_type.into(),
            first_line: FailureGroup::first_line_of(&error).to_owned(),
            kind,
            count: 0,
            oldest,
            newest,
        });
        group.count += number;
        group.oldest = group.oldest.min(oldest);
        group.newest = group.newest.max(newest);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.newest, group.count)));
    Ok(groups)
}

/// The endpoints that have records, by hops along `sprag_inbox_age`, then one walk for each, no longer than the page.
const INBOX: &str = "WITH RECURSIVE names AS ((SELECT min(endpoint) AS name FROM sprag_inbox) \
     UNION ALL SELECT (SELECT min(i.endpoint) FROM sprag_inbox i WHERE i.endpoint > n.name) FROM names n WHERE n.name IS NOT NULL) \
     SELECT r.hash, r.endpoint, r.message_id, r.recorded_at FROM names n CROSS JOIN LATERAL \
     (SELECT * FROM sprag_inbox i WHERE i.endpoint = n.name AND i.recorded_at <= $1 AND (i.recorded_at < $1 OR i.hash > $2) \
     ORDER BY i.recorded_at DESC, i.hash LIMIT $3) r \
     WHERE n.name IS NOT NULL ORDER BY r.recorded_at DESC, r.hash LIMIT $3";
const INBOX_OF_ENDPOINT: &str = "SELECT hash, endpoint, message_id, recorded_at FROM sprag_inbox WHERE endpoint = $4 \
     AND recorded_at <= $1 AND (recorded_at < $1 OR hash > $2) ORDER BY recorded_at DESC, hash LIMIT $3";
const INBOX_NAMES: &str = "WITH RECURSIVE names AS ((SELECT min(endpoint) AS name FROM sprag_inbox) \
     UNION ALL SELECT (SELECT min(i.endpoint) FROM sprag_inbox i WHERE i.endpoint > n.name) FROM names n WHERE n.name IS NOT NULL) \
     SELECT name FROM names WHERE name IS NOT NULL";
const INBOX_OF_IDS: &str = "SELECT hash, endpoint, message_id, recorded_at FROM sprag_inbox WHERE hash = ANY($4::bytea[]) \
     AND recorded_at <= $1 AND (recorded_at < $1 OR hash > $2) ORDER BY recorded_at DESC, hash LIMIT $3";

/// Leases are few: those in hand, those of handoffs, and what dead hosts left.
const LEASES: &str = "SELECT hash, endpoint, message_id, taken_at, owner, expires_at FROM sprag_lease WHERE ($4::text IS NULL OR endpoint = $4) \
     AND ($5::text IS NULL OR message_id = $5) AND taken_at <= $1 AND (taken_at < $1 OR hash > $2) ORDER BY taken_at DESC, hash LIMIT $3";

pub(crate) async fn inbox(
    connection: Connection<'_>,
    filter: InboxFilter,
    page: Page,
) -> Result<Listing<InboxRow>, Fault> {
    let limit = limit(&page)?;
    // Nothing is recorded after the end of time, so all of it comes before this place.
    let (at, key) = place(&page)?.unwrap_or((i64::MAX, Key::new()));
    let part = i64::from(page.limit) + 1;
    let (endpoint, id) = (filter.endpoint.clone().map(Text), filter.message_id.clone().map(Text));
    // Leases first: what ends between the two statements is shown twice, not lost.
    let leases = connection.rows(LEASES, &[&at, &key, &part, &endpoint, &id]).await?;
    let rows = match &filter.message_id {
        Some(id) => {
            let endpoints: Vec<EndpointName> = match filter.endpoint {
                Some(endpoint) => vec![endpoint],
                None => {
                    let names = connection.rows(INBOX_NAMES, &[]).await?;
                    names.iter().map(|row| Ok(text(row, 0)?.into())).collect::<Result<_, Fault>>()?
                }
            };
            let keys: Vec<Key> = endpoints.iter().map(|endpoint| message_key(endpoint, id)).collect();
            connection.rows(INBOX_OF_IDS, &[&at, &key, &part, &keys]).await?
        }
        None => match filter.endpoint {
            Some(endpoint) => connection.rows(INBOX_OF_ENDPOINT, &[&at, &key, &part, &Text(endpoint)]).await?,
            None => connection.rows(INBOX, &[&at, &key, &part]).await?,
        },
    };
    let read = |row: &Row, lease: Option<LeaseRow>| {
        let recorded_at = Timestamp(row.try_get(3)?);
        let place: Place = (recorded_at.0, row.try_get(0)?);
        Ok((place, InboxRow { endpoint: text(row, 1)?.into(), message_id: text(row, 2)?.into(), recorded_at, lease }))
    };
    let lease = |row: &Row| {
        let expires_at = row.try_get::<_, Option<i64>>(5)?.map(Timestamp);
        read(row, Some(LeaseRow { owner: text(row, 4)?.into(), expires_at }))
    };
    let records = rows.iter().map(|row| read(row, None));
    let mut found = leases.iter().map(lease).chain(records).collect::<Result<Vec<_>, Fault>>()?;
    found.sort_by(|((at, hash), _), ((other, other_hash), _)| other.cmp(at).then_with(|| hash.cmp(other_hash)));
    let Listing { items, next } = cut(found, limit, |(place, _)| cursor(place));
    Ok(Listing { items: items.into_iter().map(|(_, row)| row).collect(), next })
}

const AUDIT: &str = "SELECT id, at, by_whom, verb, endpoint, target, reason, count FROM sprag_audit WHERE id < $1 ORDER BY id DESC LIMIT $2";

pub(crate) async fn audit(connection: Connection<'_>, page: Page) -> Result<Listing<AuditRow>, Fault> {
    let limit = limit(&page)?;
    let below = number(&page)?.unwrap_or(i64::MAX);
    let rows = connection.rows(AUDIT, &[&below, &(i64::from(page.limit) + 1)]).await?;
    let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
    let mut actions = actions::of_audit(connection, &ids).await?;
    let mut found = Vec::with_capacity(rows.len());
    for (row, id) in rows.iter().zip(ids) {
        let entry = AuditEntry {
            at: Timestamp(row.try_get(1)?),
            by: text(row, 2)?,
            verb: text(row, 3)?,
            endpoint: optional_text(row, 4)?.map(Into::into),
            target: text(row, 5)?,
            reason: optional_text(row, 6)?,
            count: u64::try_from(row.try_get::<_, i64>(7)?).unwrap_or(0),
        };
        found.push(AuditRow { id, entry, actions: actions.remove(&id).unwrap_or_default() });
    }
    Ok(cut(found, limit, |row| row.id.to_string()))
}

const OUTBOX: &str = "SELECT id, endpoint, entity, message_id, session, created_at, tries, error, again_at IS NULL, event_id \
     FROM sprag_outbox WHERE id > $1 ORDER BY id LIMIT $2";

pub(crate) async fn outbox(connection: Connection<'_>, page: Page) -> Result<Listing<OutboxListRow>, Fault> {
    let limit = limit(&page)?;
    let above = number(&page)?.unwrap_or(i64::MIN);
    let read = |row: &Row| {
        Ok(OutboxListRow {
            id: row.try_get(0)?,
            endpoint: text(row, 1)?.into(),
            entity: text(row, 2)?.into(),
            message_id: optional_text(row, 3)?.map(Into::into),
            session: optional_text(row, 4)?.map(Into::into),
            created_at: Timestamp(row.try_get(5)?),
            tries: count(row, 6)?,
            error: optional_text(row, 7)?,
            poison: row.try_get(8)?,
            event_id: optional_text(row, 9)?.map(Into::into),
        })
    };
    let rows = connection.rows(OUTBOX, &[&above, &(i64::from(page.limit) + 1)]).await?;
    Ok(cut(rows.iter().map(read).collect::<Result<Vec<_>, Fault>>()?, limit, |row| row.id.to_string()))
}

#[cfg(test)]
mod tests {
    use crate::{
        postgres::{Options, PostgresStore},
        test_server::fresh_database,
    };

    use super::*;

    #[test]
    fn cursors_come_back_and_others_are_refused() {
        let at = (-5, (0..32).collect::<Key>());
        let page = |cursor: &str| Page { after: Some(cursor.to_owned()), limit: 1 };
        assert_eq!(place(&page(&cursor(&at))).unwrap(), Some(at.clone()));
        let whole = cursor(&at);
        for strange in [
            "",
            ":",
            "1:",
            "x:00",
            "1:0",
            &whole[..whole.len() - 1],
            &format!("{whole}0"),
            &format!("{whole}00"),
            "1:é",
        ] {
            assert!(matches!(place(&page(strange)), Err(Fault::Invalid(_))), "{strange:?}");
        }
    }

    /// No listing reads the whole table.
    #[tokio::test]
    async fn listings_go_by_their_indexes() {
        let database = fresh_database().await;
        PostgresStore::open(Options::new(database.url())).await.unwrap();
        let client = database.client().await;
        let fill = "INSERT INTO sprag_event (hash, endpoint, event_id, message_id, source_id, session, event_type, outcome, attempts, enqueued_at, at) \
             SELECT sha256(n::text::bytea), 'e', n::text, 'm' || n, 's' || n, (n % 5000)::text, 't', \
             CASE n % 3 WHEN 0 THEN 'completed' WHEN 1 THEN 'failed' ELSE 'skipped' END, 1, 0, n FROM generate_series(1, 30000) n; ANALYZE sprag_event";
        client.batch_execute(fill).await.unwrap();
        let of_session = EventFilter {
            session: Some("7".into()),
            outcomes: vec![Outcome::Failed, Outcome::Deferred],
            ..EventFilter::default()
        };
        let after = (20_000, vec![0; 32]);
        let (all, all_values) = newest_first_statement(&EventFilter::default(), Some(&after), 101);
        let (session, session_values) = newest_first_statement(&of_session, None, 101);
        let find = Conditions { text: String::new(), values: vec![Box::new("m7")] };
        for (sql, values, indexes) in [
            (all.as_str(), all_values, &["sprag_event_outcome"][..]),
            (&session, session_values, &["sprag_event_session"]),
            (FIND_EVENTS, find, &["sprag_event_id", "sprag_event_message", "sprag_event_source"]),
        ] {
            let rows = client.query(&format!("EXPLAIN {sql}"), &borrowed(&values.values)).await.unwrap();
            let plan = rows.iter().map(|row| row.get(0)).collect::<Vec<String>>().join("\n");
            assert!(!plan.contains("Seq Scan on sprag_event"), "{plan}");
            assert!(indexes.iter().all(|index| plan.contains(index)), "{plan}");
        }
    }
}
