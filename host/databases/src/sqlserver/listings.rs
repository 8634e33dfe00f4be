//! What operators see: rows with filters and cursors.
//!
//! A cursor is the place of the last row of the part before, so a listing neither loses nor repeats what stays where it is.

use std::collections::BTreeMap;

use sprag_core::{
    effect::{HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite},
    ids::{ActionId, Digest, EndpointName, EventId},
    message::Message,
    outcome::{Failure, Outcome},
    time::Timestamp,
};
use sprag_store::{
    codec, decision,
    query::{
        AuditEntry, AuditRow, EventFilter, EventRow, FailureGroup, InboxFilter, InboxRow, Listing, OutboxListRow, Page,
    },
};
use tiberius::Row;

use crate::postgres::write::{Key, event_key, message_key};

use super::{
    actions,
    check::outcome_of,
    connections::Connection,
    fault::Fault,
    script::{
        Script, bytes, count, known, milliseconds_of, named, number, optional_bytes, optional_number, optional_text,
        owned, text, ticks, time,
    },
    write::digest_key,
};

/// How many rows are read at a time where only part of the filter can be asked of the database.
const BATCH: i64 = 1_000;

/// Longer ones are held against the rows here: the server looks for 4,000 characters at most.
const LONGEST_PREFIX: usize = 1_000;

fn limit(page: &Page) -> Result<usize, Fault> {
    match page.limit {
        1..=1_000 => Ok(page.limit as usize),
        other => Err(Fault::Invalid(format!("a listing takes 1 to 1000 at a time, not {other}"))),
    }
}

fn strange(cursor: &str) -> Fault {
    Fault::Invalid(format!("{cursor:?} is not where a listing goes on"))
}

fn number_in(page: &Page) -> Result<Option<i64>, Fault> {
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

/// Everything of the filter that SQL decides, but the outcomes. SQL Server does not see spaces at the end of a text, so lengths are compared too.
fn conditions(script: &mut Script<'_>, filter: &EventFilter) -> String {
    let mut out = String::new();
    let mut same = |script: &mut Script<'_>, column: &str, value: &str| {
        let place = script.place(owned(value));
        out.push_str(&format!(" AND {column} = {place} AND DATALENGTH({column}) = DATALENGTH({place})"));
    };
    if let Some(endpoint) = &filter.endpoint {
        same(script, "e.endpoint", endpoint.as_str());
    }
    if let Some(event_type) = &filter.event_type {
        same(script, "e.event_type", event_type.as_str());
    }
    if let Some(session) = &filter.session {
        out.push_str(&format!(" AND e.session_key = {}", script.hash(digest_key(session.as_str()).into())));
    }
    if let Some(since) = filter.since {
        out.push_str(&format!(" AND e.noted_at >= {}", script.place(since.0.into())));
    }
    if let Some(until) = filter.until {
        out.push_str(&format!(" AND e.noted_at < {}", script.place(until.0.into())));
    }
    if let Some(prefix) = filter.id_prefix.as_deref().filter(|prefix| (1..=LONGEST_PREFIX).contains(&prefix.len())) {
        out.push_str(&format!(" AND CHARINDEX({}, e.event_id) = 1", script.place(owned(prefix))));
    }
    out
}

/// What SQL does not decide: letters of every script without case, the key of a group, and what is too long for it.
fn matches(filter: &EventFilter, row: &EventRow) -> bool {
    let error = row.outcome.error.as_ref();
    filter
        .error_text
        .as_ref()
        .is_none_or(|part| error.is_some_and(|error| error.text.to_lowercase().contains(&part.to_lowercase())))
        && filter.group.as_ref().is_none_or(|key| row.outcome.outcome == Outcome::Failed && group_key(row) == *key)
        && filter.id_prefix.as_ref().is_none_or(|prefix| row.outcome.event_id.as_str().starts_with(prefix.as_str()))
}

fn group_key(row: &EventRow) -> String {
    let (kind, text) =
        row.outcome.error.as_ref().map(|error| (error.kind.as_str(), error.text.as_str())).unwrap_or_default();
    FailureGroup::key_of(row.endpoint.as_str(), row.outcome.event_type.as_str(), kind, text)
}

/// An event's columns, for [`read_event`].
const EVENT: &str = "e.hash, e.endpoint, e.event_id, e.message_id, e.source_id, e.session_id, e.event_type, e.outcome, e.reason, e.error_kind, \
     e.error_text, e.attempts, e.handler, e.digest, e.enqueued_at, e.noted_at, CASE WHEN e.kept_header IS NULL THEN 0 ELSE 1 END, \
     (SELECT COUNT(*) FROM #history AS h WHERE h.event = e.hash AND h.kind = 'duplicate'), \
     (SELECT o.action_id FROM #open_action AS o WHERE o.target = e.hash)";

fn failure(row: &Row, first: usize) -> Result<Option<Failure>, Fault> {
    let (kind, text) = (optional_text(row, first)?, optional_text(row, first + 1)?);
    Ok(kind.map(|kind| Failure { kind, text: text.unwrap_or_default() }))
}

fn digest(row: &Row, column: usize) -> Result<Option<Digest>, Fault> {
    let read = |bytes: &[u8]| bytes.try_into().map_err(|_| Fault::Unreadable("a digest has not 32 bytes".to_owned()));
    Ok(optional_bytes(row, column)?.map(read).transpose()?.map(Digest))
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
        enqueued_at: Timestamp(number(row, 14)?),
        at: Timestamp(number(row, 15)?),
        keep: None,
    };
    Ok(EventRow {
        endpoint: text(row, 1)?.into(),
        outcome,
        duplicates: count(row, 17)?,
        has_message: number(row, 16)? == 1,
        open_action: optional_number(row, 18)?.map(ActionId),
    })
}

pub(crate) async fn events(
    connection: &mut Connection,
    filter: EventFilter,
    page: Page,
) -> Result<Listing<EventRow>, Fault> {
    let limit = limit(&page)?;
    let mut after = place(&page)?;
    let long = filter.id_prefix.as_ref().is_some_and(|prefix| prefix.len() > LONGEST_PREFIX);
    let all_in_sql = filter.error_text.is_none() && filter.group.is_none() && !long;
    let batch = if all_in_sql { i64::from(page.limit) + 1 } else { BATCH };
    let mut found: Vec<(Place, EventRow)> = Vec::new();
    loop {
        let rows = newest_first(connection, &filter, after.as_ref(), batch).await?;
        for row in &rows {
            let place: Place = (number(row, 15)?, bytes(row, 0)?.to_vec());
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

/// One walk per outcome along its index, or along that of the session, each no longer than the batch; then the newest of all of them.
async fn newest_first(
    connection: &mut Connection,
    filter: &EventFilter,
    after: Option<&Place>,
    batch: i64,
) -> Result<Vec<Row>, Fault> {
    let names = connection.names();
    let mut script = Script::new(&names);
    let mut text = conditions(&mut script, filter);
    if let Some((at, key)) = after {
        let (at, key) = (script.place((*at).into()), script.hash(key.clone().into()));
        // The first part is for the index.
        text.push_str(&format!(" AND e.noted_at <= {at} AND (e.noted_at < {at} OR e.hash > {key})"));
    }
    let wanted = |outcome: &Outcome| filter.outcomes.is_empty() || filter.outcomes.contains(outcome);
    let batch = script.place(batch.into());
    let walk = |outcome: Outcome| {
        format!(
            "SELECT w.* FROM (SELECT TOP ({batch}) e.* FROM #event AS e WHERE e.outcome = '{}'{text} ORDER BY e.noted_at DESC, e.hash) AS w",
            outcome.name()
        )
    };
    let walks: Vec<String> = Outcome::ALL.into_iter().filter(wanted).map(walk).collect();
    let sql = format!(
        "SELECT TOP ({batch}) {EVENT} FROM ({}) AS e ORDER BY e.noted_at DESC, e.hash",
        walks.join(" UNION ALL ")
    );
    script.add(&sql, vec![]);
    connection.rows(script).await
}

pub(crate) async fn find_events(connection: &mut Connection, id: &str) -> Result<Vec<EventRow>, Fault> {
    let names = connection.names();
    let mut script = Script::new(&names);
    let key = script.hash(digest_key(id).into());
    let sql = format!(
        "SELECT {EVENT} FROM #event AS e WHERE e.outcome IS NOT NULL AND e.hash IN (SELECT a.hash FROM #event AS a WHERE a.id_key = {key} \
         UNION SELECT b.hash FROM #event AS b WHERE b.message_key = {key} \
         UNION SELECT c.hash FROM #event AS c WHERE c.source_key = {key})"
    );
    script.add(&sql, vec![]);
    let mut found = connection.rows(script).await?.iter().map(read_event).collect::<Result<Vec<_>, _>>()?;
    found.sort_by(|a, b| {
        (a.endpoint.as_str(), a.outcome.event_id.as_str()).cmp(&(b.endpoint.as_str(), b.outcome.event_id.as_str()))
    });
    Ok(found)
}

const HISTORY: &str = "SELECT kind, noted_at, message_id, outcome, attempt, started_at, took, handler, digest, reason, error_kind, error_text, \
     by_whom FROM #history WHERE event = CAST(? AS binary(32)) ORDER BY n";

pub(crate) async fn history(
    connection: &mut Connection,
    endpoint: &EndpointName,
    event_id: &EventId,
) -> Result<Vec<HistoryLine>, Fault> {
    let kind = |name: &str| known(HistoryKind::from_name(name), "a kind of history");
    let read = |row: &Row| {
        Ok(HistoryLine {
            event_id: event_id.clone(),
            kind: named(row, 0, kind)?,
            at: Timestamp(number(row, 1)?),
            message_id: optional_text(row, 2)?.map(Into::into),
            outcome: optional_text(row, 3)?.map(|name| outcome_of(&name)).transpose()?,
            attempt: count(row, 4)?,
            started_at: optional_number(row, 5)?.map(Timestamp),
            took: optional_number(row, 6)?.map(decision::from_nanos),
            handler: optional_text(row, 7)?.map(Into::into),
            digest: digest(row, 8)?,
            reason: optional_text(row, 9)?,
            error: failure(row, 10)?,
            by: optional_text(row, 12)?,
        })
    };
    let names = connection.names();
    let script = Script::of(&names, HISTORY, vec![event_key(endpoint, event_id).into()]);
    connection.rows(script).await?.iter().map(read).collect()
}

const KEPT: &str = "SELECT kept_session, kept_header, kept_body FROM #event WHERE hash = CAST(? AS binary(32)) AND kept_header IS NOT NULL";

pub(crate) async fn kept_message(
    connection: &mut Connection,
    endpoint: &EndpointName,
    event_id: &EventId,
) -> Result<Option<Message>, Fault> {
    let names = connection.names();
    let script = Script::of(&names, KEPT, vec![event_key(endpoint, event_id).into()]);
    let Some(row) = connection.row(script).await? else { return Ok(None) };
    let session = optional_text(&row, 0)?;
    Ok(Some(codec::decode(bytes(&row, 1)?, bytes(&row, 2)?, session.as_deref())?))
}

pub(crate) async fn failure_groups(
    connection: &mut Connection,
    filter: EventFilter,
) -> Result<Vec<FailureGroup>, Fault> {
    if !filter.outcomes.is_empty() && !filter.outcomes.contains(&Outcome::Failed) {
        return Ok(Vec::new());
    }
    let long_prefix = filter.id_prefix.as_ref().filter(|prefix| prefix.len() > LONGEST_PREFIX);
    if long_prefix.is_some() {
        return Err(Fault::Invalid(format!("the start of an event id has at most {LONGEST_PREFIX} bytes here")));
    }
    let mut groups: BTreeMap<String, FailureGroup> = BTreeMap::new();
    for row in alike(connection, &filter).await? {
        let (endpoint, event_type) = (text(&row, 0)?, text(&row, 1)?);
        let (kind, error) = (text(&row, 2)?, text(&row, 3)?);
        let key = FailureGroup::key_of(&endpoint, &event_type, &kind, &error);
        let has_text = |part: &String| error.to_lowercase().contains(&part.to_lowercase());
        if filter.group.as_ref().is_some_and(|wanted| *wanted != key)
            || !filter.error_text.as_ref().is_none_or(has_text)
        {
            continue;
        }
        let events = u64::try_from(number(&row, 4)?).unwrap_or(0);
        let (oldest, newest) = (Timestamp(number(&row, 5)?), Timestamp(number(&row, 6)?));
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
        group.count += events;
        group.oldest = group.oldest.min(oldest);
        group.newest = group.newest.max(newest);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.newest, group.count)));
    Ok(groups)
}

/// Failed events that are alike as far as SQL can tell; what is left is put together by who asks. Where the whole text is asked about, it is whole.
async fn alike(connection: &mut Connection, filter: &EventFilter) -> Result<Vec<Row>, Fault> {
    let names = connection.names();
    let mut script = Script::new(&names);
    let conditions = conditions(&mut script, filter);
    let what = if filter.error_text.is_some() {
        "COALESCE(e.error_text, '')"
    } else {
        "CASE WHEN CHARINDEX(NCHAR(10), e.error_text) > 0 THEN LEFT(e.error_text, CHARINDEX(NCHAR(10), e.error_text) - 1) ELSE COALESCE(e.error_text, '') END"
    };
    let sql = format!(
        "SELECT g.endpoint, g.event_type, g.kind, g.line, COUNT(*), MIN(g.noted_at), MAX(g.noted_at) FROM \
         (SELECT e.endpoint, e.event_type, COALESCE(e.error_kind, '') AS kind, {what} AS line, e.noted_at FROM #event AS e \
         WHERE e.outcome = 'failed'{conditions}) AS g GROUP BY g.endpoint, DATALENGTH(g.endpoint), g.event_type, DATALENGTH(g.event_type), \
         g.kind, DATALENGTH(g.kind), g.line, DATALENGTH(g.line)"
    );
    script.add(&sql, vec![]);
    connection.rows(script).await
}

/// Newest first along the index on time. A listing for one endpoint or one id passes over the others' rows: the table is NimBus's, and has no index for it.
const INBOX: &str = "SELECT TOP (?) IdentityHash, EndpointId, MessageId, CreatedAtUtc FROM #inbox WHERE CreatedAtUtc <= ? \
     AND (CreatedAtUtc < ? OR IdentityHash > CAST(? AS binary(32)))";

pub(crate) async fn inbox(
    connection: &mut Connection,
    filter: InboxFilter,
    page: Page,
) -> Result<Listing<InboxRow>, Fault> {
    let limit = limit(&page)?;
    // Nothing is recorded after the end of time, so all of it comes before this place.
    let (at, key) = place(&page)?.unwrap_or((i64::MAX, vec![0; 32]));
    let names = connection.names();
    let mut script = Script::new(&names);
    script.add(INBOX, vec![(i64::from(page.limit) + 1).into(), time(at), time(at), key.into()]);
    match (&filter.endpoint, &filter.message_id) {
        (Some(endpoint), Some(id)) => {
            script.add(" AND IdentityHash = CAST(? AS binary(32))", vec![message_key(endpoint, id).into()]);
        }
        (endpoint, id) => {
            let parts = [
                ("EndpointId", endpoint.as_ref().map(|endpoint| endpoint.as_str())),
                ("MessageId", id.as_ref().map(|id| id.as_str())),
            ];
            for (column, value) in parts {
                let Some(value) = value else { continue };
                let place = script.place(owned(value));
                script.add(&format!(" AND {column} = {place} AND DATALENGTH({column}) = DATALENGTH({place})"), vec![]);
            }
        }
    }
    script.add(" ORDER BY CreatedAtUtc DESC, IdentityHash", vec![]);
    let rows = connection.rows(script).await?;
    let read = |row: &Row| {
        let at = ticks(row, 3)?;
        let recorded_at = Timestamp(milliseconds_of(at));
        let place: Place = (at, bytes(row, 0)?.to_vec());
        Ok((
            place,
            InboxRow { endpoint: text(row, 1)?.into(), message_id: text(row, 2)?.into(), recorded_at, lease: None },
        ))
    };
    let found = rows.iter().map(read).collect::<Result<Vec<_>, Fault>>()?;
    let Listing { items, next } = cut(found, limit, |(place, _)| cursor(place));
    Ok(Listing { items: items.into_iter().map(|(_, row)| row).collect(), next })
}

const AUDIT: &str = "SELECT TOP (?) id, noted_at, by_whom, verb, endpoint, target, reason, events FROM #audit WHERE id < ? ORDER BY id DESC";

pub(crate) async fn audit(connection: &mut Connection, page: Page) -> Result<Listing<AuditRow>, Fault> {
    let limit = limit(&page)?;
    let below = number_in(&page)?.unwrap_or(i64::MAX);
    let names = connection.names();
    let values = vec![(i64::from(page.limit) + 1).into(), below.into()];
    let rows = connection.rows(Script::of(&names, AUDIT, values)).await?;
    let ids = rows.iter().map(|row| number(row, 0)).collect::<Result<Vec<i64>, _>>()?;
    let mut actions = actions::of_audit(connection, &ids).await?;
    let mut found = Vec::with_capacity(rows.len());
    for (row, id) in rows.iter().zip(ids) {
        let entry = AuditEntry {
            at: Timestamp(number(row, 1)?),
            by: text(row, 2)?,
            verb: text(row, 3)?,
            endpoint: optional_text(row, 4)?.map(Into::into),
            target: text(row, 5)?,
            reason: optional_text(row, 6)?,
            count: u64::try_from(number(row, 7)?).unwrap_or(0),
        };
        found.push(AuditRow { id, entry, actions: actions.remove(&id).unwrap_or_default() });
    }
    Ok(cut(found, limit, |row| row.id.to_string()))
}

const OUTBOX: &str = "SELECT TOP (?) id, endpoint, entity, message_id, session_id, created_at, tries, error, \
     CASE WHEN again_at IS NULL THEN 1 ELSE 0 END, event_id FROM #outbox WHERE id > ? ORDER BY id";

pub(crate) async fn outbox(connection: &mut Connection, page: Page) -> Result<Listing<OutboxListRow>, Fault> {
    let limit = limit(&page)?;
    let above = number_in(&page)?.unwrap_or(i64::MIN);
    let read = |row: &Row| {
        Ok(OutboxListRow {
            id: number(row, 0)?,
            endpoint: text(row, 1)?.into(),
            entity: text(row, 2)?.into(),
            message_id: optional_text(row, 3)?.map(Into::into),
            session: optional_text(row, 4)?.map(Into::into),
            created_at: Timestamp(number(row, 5)?),
            tries: count(row, 6)?,
            error: optional_text(row, 7)?,
            poison: number(row, 8)? == 1,
            event_id: optional_text(row, 9)?.map(Into::into),
        })
    };
    let names = connection.names();
    let values = vec![(i64::from(page.limit) + 1).into(), above.into()];
    let rows = connection.rows(Script::of(&names, OUTBOX, values)).await?;
    Ok(cut(rows.iter().map(read).collect::<Result<Vec<_>, Fault>>()?, limit, |row| row.id.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_and_others_are_refused() {
        let at = (-5, (0..32).collect::<Key>());
        let page = |cursor: &str| Page { after: Some(cursor.to_owned()), limit: 1 };
        assert_eq!(place(&page(&cursor(&at))).unwrap(), Some(at.clone()));
        let whole = cursor(&at);
        for strange in ["", ":", "1:", "x:00", "1:0", &whole[..whole.len() - 1], &format!("{whole}00"), "1:é"] {
            assert!(matches!(place(&page(strange)), Err(Fault::Invalid(_))), "{strange:?}");
        }
    }
}
