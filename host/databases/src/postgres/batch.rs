//! Writes: any number of them in one transaction, and a transaction in two or three round trips.
//!
//! First the *claim*: the leases that are to end are locked and looked at; then decisions, inbox records and final ids in one statement, whose unique keys say which of several hosts was first; a second one
//! waits there until the first has committed. Then everything else, sent together. All locks are taken in this order (leases, decisions, records,
//! finals, state, events), and several of a kind in the order of their keys, so that two writes do not wait for each other.
//!
//! No two writes of a batch are about the same id: see [`Prepared::keys`].

use std::{collections::HashSet, time::Duration};

use sprag_store::Written;
use tokio_postgres::types::ToSql;

use super::{
    connections::{Around, Connection, Step, Value},
    fault::Fault,
    leases,
    write::{ActionEnd, Event, Key, Line, OutgoingRow, Prepared, finals, now},
};

/// How often a transaction is tried that others were in the way of.
const TRIES: u32 = 5;

const CLAIM: &str = concat!(
    "WITH decided AS (INSERT INTO sprag_decision (hash, endpoint, message_id, outcome, rest, at) SELECT d.hash, d.endpoint, d.id, d.outcome, d.rest, ",
    now!(),
    " FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::bytea[]) AS d(hash, endpoint, id, outcome, rest) \
     ORDER BY d.hash ON CONFLICT (hash) DO NOTHING RETURNING hash), \
     recorded AS (INSERT INTO sprag_inbox (hash, endpoint, message_id, recorded_at) SELECT r.hash, r.endpoint, r.id, ",
    now!(),
    " FROM unnest($6::bytea[], $7::text[], $8::text[], $9::bytea[]) AS r(hash, endpoint, id, decision) \
     WHERE r.decision IS NULL OR r.decision IN (SELECT hash FROM decided) \
     ORDER BY r.hash ON CONFLICT (hash) DO NOTHING RETURNING hash), \
     finals AS (INSERT INTO sprag_final (hash, endpoint, message_id, at) SELECT f.hash, f.endpoint, f.id, ",
    now!(),
    " FROM unnest($10::bytea[], $11::text[], $12::text[], $13::bytea[]) AS f(hash, endpoint, id, decision) \
     WHERE f.decision IS NULL OR f.decision IN (SELECT hash FROM decided) \
     ORDER BY f.hash ON CONFLICT (hash) DO NOTHING) \
     SELECT true, hash FROM decided UNION ALL SELECT false, hash FROM recorded",
);

/// What the new outcome leaves unsaid stays.
macro_rules! put_events {
    ($guard:expr) => {
        concat!(
            "INSERT INTO sprag_event AS e (hash, endpoint, event_id, message_id, source_id, session, event_type, outcome, reason, error_kind, \
             error_text, attempts, handler, digest, enqueued_at, at, kept_session, kept_header, kept_body) \
             SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], \
             $10::text[], $11::text[], $12::bigint[], $13::text[], $14::bytea[], $15::bigint[], $16::bigint[], $17::text[], $18::bytea[], $19::bytea[]) \
             AS v(hash) ORDER BY v.hash \
             ON CONFLICT (hash) DO UPDATE SET message_id = coalesce(EXCLUDED.message_id, e.message_id), \
             source_id = coalesce(EXCLUDED.source_id, e.source_id), session = coalesce(EXCLUDED.session, e.session), \
             event_type = CASE WHEN EXCLUDED.event_type = '' THEN e.event_type ELSE EXCLUDED.event_type END, \
             outcome = EXCLUDED.outcome, reason = EXCLUDED.reason, error_kind = EXCLUDED.error_kind, error_text = EXCLUDED.error_text, \
             attempts = EXCLUDED.attempts, handler = coalesce(EXCLUDED.handler, e.handler), digest = coalesce(EXCLUDED.digest, e.digest), \
             enqueued_at = CASE WHEN EXCLUDED.enqueued_at = 0 THEN e.enqueued_at ELSE EXCLUDED.enqueued_at END, at = EXCLUDED.at, \
             kept_session = CASE WHEN EXCLUDED.kept_header IS NULL THEN e.kept_session ELSE EXCLUDED.kept_session END, \
             kept_header = coalesce(EXCLUDED.kept_header, e.kept_header), kept_body = coalesce(EXCLUDED.kept_body, e.kept_body) \
             WHERE e.outcome IS NULL",
            $guard
        )
    };
}

/// When an outcome may replace a stored one, by the name of its guard.
const PUT_EVENTS: [(&str, &str); 3] = [
    ("newer", put_events!(concat!(" OR (e.attempts <= EXCLUDED.attempts AND e.outcome NOT IN ", finals!(), ")"))),
    ("if-absent", put_events!("")),
    ("resubmitted", put_events!(" OR true")),
];

/// The rows that history needs where no outcome was ever written.
const PUT_STUBS: &str = "INSERT INTO sprag_event AS e (hash, endpoint, event_id, event_type, attempts, enqueued_at, at) \
     SELECT s.hash, s.endpoint, s.id, '', 0, 0, s.at FROM unnest($1::bytea[], $2::text[], $3::text[], $4::bigint[]) AS s(hash, endpoint, id, at) \
     ORDER BY s.hash ON CONFLICT (hash) DO UPDATE SET at = greatest(e.at, EXCLUDED.at) WHERE e.outcome IS NULL";

const ADD_LINES: &str = "INSERT INTO sprag_history (event, kind, at, message_id, outcome, attempt, started_at, took, handler, digest, reason, \
     error_kind, error_text, by_whom) SELECT * FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], \
     $7::bigint[], $8::bigint[], $9::text[], $10::bytea[], $11::text[], $12::text[], $13::text[], $14::text[])";

const SEND: &str = concat!(
    "INSERT INTO sprag_outbox (endpoint, entity, session, lane, message_id, event_id, header, body, created_at) \
     SELECT o.endpoint, o.entity, o.session, o.lane, o.id, o.event, o.header, o.body, ",
    now!(),
    " FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::bytea[], $8::bytea[]) \
     WITH ORDINALITY AS o(endpoint, entity, session, lane, id, event, header, body, n) ORDER BY o.n",
);

const END_ACTION: &str =
    "UPDATE sprag_action SET state = $2, text = $3, ended_at = $4 WHERE id = $1 AND state = 'open'";

/// One column of some rows.
fn column<'a, R, T: ToSql + Sync + Send + 'a>(rows: &[&'a R], get: impl Fn(&'a R) -> &'a T) -> Value<'a> {
    Box::new(rows.iter().map(|row| get(row)).collect::<Vec<&'a T>>())
}

/// The columns of the rows, in the order of the statement's places.
macro_rules! columns {
    ($rows:expr, $($name:ident),+ $(,)?) => { vec![$(column($rows, |row| &row.$name)),+] };
}

/// Writes them all, again where others were in the way.
pub(crate) async fn write(connection: Connection<'_>, batch: &[Prepared]) -> Result<Vec<Written>, Fault> {
    for _ in 1..TRIES {
        match try_write(connection, batch).await {
            Err(fault) if fault.may_be_repeated() => {}
            other => return other,
        }
    }
    match try_write(connection, batch).await {
        // The run repeats then, which has the same effect as doing it again here (P4).
        Err(fault) if fault.may_be_repeated() && batch.iter().all(|write| write.has_unit) => Err(Fault::Conflict),
        other => other,
    }
}

async fn try_write(connection: Connection<'_>, batch: &[Prepared]) -> Result<Vec<Written>, Fault> {
    match in_transaction(connection, batch).await {
        Ok((written, Around::Commit)) => Ok(written),
        Ok((written, _)) => connection.end(Ok(written)).await,
        Err(fault) => connection.end(Err(fault)).await,
    }
}

/// What the claim said of a write.
#[derive(Debug, Clone, Copy)]
struct Standing {
    decided: bool,
    recorded: bool,
    /// There is a lease to end.
    leased: bool,
}

impl Standing {
    fn applies(self) -> bool {
        !self.decided && !self.recorded
    }
}

/// Writes one in the transaction that its run has open on this connection, and commits it. Where the unit is dropped the run's statements go
/// with it, and the rest is written in a transaction of its own.
pub(crate) async fn write_within(
    connection: Connection<'_>,
    write: &Prepared,
    statement_timeout: Duration,
) -> Result<Written, Fault> {
    let one = std::slice::from_ref(write);
    let timeout = statement_timeout.as_millis();
    connection
        .batch(&format!("RESET ROLE; SET LOCAL statement_timeout = {timeout}; SET LOCAL lock_timeout = 0"))
        .await?;
    let standings = claim(connection, one, Around::Nothing).await?;
    if standings.iter().all(|standing| standing.applies()) {
        return match rest(connection, one, &standings).await? {
            (_, Around::Commit) => Ok(Written::Done),
            _ => connection.batch("COMMIT").await.map(|()| Written::Done),
        };
    }
    connection.batch("ROLLBACK").await?;
    let standings = claim(connection, one, Around::Begin).await?;
    if standings.iter().any(|standing| standing.applies()) {
        // What stood in the way has gone in between. The run's statements have gone too: it is to be repeated.
        connection.batch("ROLLBACK").await?;
        return Err(Fault::Conflict);
    }
    match rest(connection, one, &standings).await? {
        (_, Around::Commit) => Ok(Written::AlreadyDecided),
        _ => connection.batch("COMMIT").await.map(|()| Written::AlreadyDecided),
    }
}

async fn in_transaction(connection: Connection<'_>, batch: &[Prepared]) -> Result<(Vec<Written>, Around), Fault> {
    let standings = claim(connection, batch, Around::Begin).await?;
    rest(connection, batch, &standings).await
}

/// All but the claim. Answers also whether COMMIT was sent with the last statements.
async fn rest(
    connection: Connection<'_>,
    batch: &[Prepared],
    standings: &[Standing],
) -> Result<(Vec<Written>, Around), Fault> {
    let with = || batch.iter().zip(standings);
    let mut steps = Vec::new();
    let mut reads = Vec::new();
    for (write, _) in with().filter(|(_, standing)| standing.applies()) {
        let first = steps.len();
        write.state.steps(&mut steps);
        if write.state.was_read() {
            reads.push((write, first));
        }
    }
    leases::end(with().filter(|(_, it)| it.leased).map(|(write, it)| (write, it.applies())), &mut steps);
    let events: Vec<&Event> =
        with().filter(|(_, standing)| !standing.decided).filter_map(|(write, _)| write.event.as_ref()).collect();
    for (guard, sql) in PUT_EVENTS {
        let some: Vec<&Event> = events.iter().copied().filter(|event| event.guard == guard).collect();
        if !some.is_empty() {
            steps.push(Step { sql, values: event_columns(&some) });
        }
    }
    let written: HashSet<&Key> = events.iter().map(|event| &event.hash).collect();
    let lines: Vec<&Line> = batch.iter().filter_map(|write| write.line.as_ref()).collect();
    let stubs: Vec<&Line> = lines.iter().copied().filter(|line| !written.contains(&line.event)).collect();
    if !stubs.is_empty() {
        steps.push(Step { sql: PUT_STUBS, values: columns!(&stubs, event, endpoint, event_id, at) });
    }
    if !lines.is_empty() {
        steps.push(Step { sql: ADD_LINES, values: line_columns(&lines) });
    }
    let outgoing: Vec<&OutgoingRow> =
        with().filter(|(_, standing)| standing.applies()).flat_map(|(write, _)| &write.outgoing).collect();
    if !outgoing.is_empty() {
        let values = columns!(&outgoing, endpoint, entity, session, lane, message_id, event_id, header, body);
        steps.push(Step { sql: SEND, values });
    }
    for ActionEnd { id, state, text, at } in batch.iter().filter_map(|write| write.action.as_ref()) {
        steps.push(Step { sql: END_ACTION, values: vec![Box::new(id), Box::new(state), Box::new(text), Box::new(at)] });
    }
    // Where something was read, what the database has of it is looked at before the commit.
    let around = if reads.is_empty() { Around::Commit } else { Around::Nothing };
    let answers = connection.together(around, &steps).await?;
    for (write, first) in reads {
        if !write.state.still_holds(&answers[first..])? {
            return Err(Fault::Conflict);
        }
    }
    let written = standings
        .iter()
        .map(|standing| if standing.applies() { Written::Done } else { Written::AlreadyDecided })
        .collect();
    Ok((written, around))
}

/// Locks the leases that are to end, and takes the keys; begins the transaction before, where `around` says so.
async fn claim(connection: Connection<'_>, batch: &[Prepared], around: Around) -> Result<Vec<Standing>, Fault> {
    let decisions: Vec<_> = batch.iter().filter_map(|write| write.decision.as_ref()).collect();
    let records: Vec<_> = batch.iter().flat_map(|write| &write.records).collect();
    let finals: Vec<_> = batch.iter().flat_map(|write| &write.finals).collect();
    let mut steps: Vec<Step<'_>> = leases::hold(batch).into_iter().collect();
    let holds = !steps.is_empty();
    let claims = !(decisions.is_empty() && records.is_empty() && finals.is_empty());
    if !holds && !claims {
        if around == Around::Begin {
            connection.begin().await?;
        }
        return Ok(vec![Standing { decided: false, recorded: false, leased: false }; batch.len()]);
    }
    let mut values = columns!(&decisions, hash, endpoint, message_id, outcome, rest);
    values.extend(columns!(&records, hash, endpoint, message_id, decision));
    values.extend(columns!(&finals, hash, endpoint, message_id, decision));
    if claims {
        steps.push(Step { sql: CLAIM, values });
    }
    let mut answers = connection.together(around, &steps).await?.into_iter();
    let mut held: HashSet<Key> = HashSet::new();
    if holds {
        for row in answers.next().unwrap_or_default() {
            held.insert(row.try_get(0)?);
        }
        leases::check(batch, &held)?;
    }
    let (mut ours, mut new): (HashSet<Key>, HashSet<Key>) = Default::default();
    for row in answers.flatten() {
        let set = if row.try_get(0)? { &mut ours } else { &mut new };
        set.insert(row.try_get(1)?);
    }
    let standing = |write: &Prepared| {
        let decided = write.decision.as_ref().is_some_and(|decision| !ours.contains(&decision.hash));
        let recorded = !decided && write.records.first().is_some_and(|record| !new.contains(&record.hash));
        let leased = write.lease.as_ref().is_some_and(|end| held.contains(&end.hash));
        Standing { decided, recorded, leased }
    };
    Ok(batch.iter().map(standing).collect())
}

fn event_columns<'a>(events: &[&'a Event]) -> Vec<Value<'a>> {
    columns!(
        events,
        hash,
        endpoint,
        event_id,
        message_id,
        source_id,
        session,
        event_type,
        outcome,
        reason,
        error_kind,
        error_text,
        attempts,
        handler,
        digest,
        enqueued_at,
        at,
        kept_session,
        kept_header,
        kept_body,
    )
}

fn line_columns<'a>(lines: &[&'a Line]) -> Vec<Value<'a>> {
    columns!(
        lines, event, kind, at, message_id, outcome, attempt, started_at, took, handler, digest, reason, error_kind,
        error_text, by,
    )
}
