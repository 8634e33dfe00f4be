//! Writes: any number of them in one transaction.
//!
//! First the *claim*: decisions, then inbox records and final ids, whose unique keys say which of several hosts was first. A host that comes second
//! waits there until the first has committed, and is then told that the key is there (2627, 2601): it begins again, and this time sees it. Then
//! everything else, in as few statements as values fit into. All locks are taken in this order (decisions, records, finals, state, events).
//!
//! No two writes of a batch are about the same id: see [`Prepared::keys`].

use std::collections::HashSet;

use sprag_store::Written;

use crate::postgres::write::{ActionEnd, DecisionRow, IdRow, Key, Line, OutgoingRow};

use super::{
    connections::Connection,
    fault::Fault,
    script::{Names, Script, Value, binary, bytes, now, optional, rows_together, together},
    write::{Keyed, Prepared, finals},
};

/// How often a transaction is tried that others were in the way of.
const TRIES: u32 = 5;

const DECIDE: (&str, &str) = (
    concat!(
        "INSERT INTO #decision (hash, endpoint, message_id, outcome, rest, noted_at) OUTPUT inserted.hash \
         SELECT v.hash, v.endpoint, v.message_id, v.outcome, v.rest, ",
        now!(),
        " FROM "
    ),
    " AS v(hash, endpoint, message_id, outcome, rest) WHERE NOT EXISTS (SELECT 1 FROM #decision AS t WHERE t.hash = v.hash) ORDER BY v.hash;",
);
const RECORD: (&str, &str) = (
    "INSERT INTO #inbox (IdentityHash, EndpointId, MessageId, CreatedAtUtc) OUTPUT inserted.IdentityHash \
     SELECT v.hash, v.endpoint, v.message_id, SYSUTCDATETIME() FROM ",
    " AS v(hash, endpoint, message_id) WHERE NOT EXISTS (SELECT 1 FROM #inbox AS t WHERE t.IdentityHash = v.hash) ORDER BY v.hash;",
);
const FINISH: (&str, &str) = (
    concat!(
        "INSERT INTO #final (hash, endpoint, message_id, noted_at) SELECT v.hash, v.endpoint, v.message_id, ",
        now!(),
        " FROM "
    ),
    " AS v(hash, endpoint, message_id) WHERE NOT EXISTS (SELECT 1 FROM #final AS t WHERE t.hash = v.hash) ORDER BY v.hash;",
);

const ID_ROW: &str = "(CAST(? AS binary(32)), ?, ?)";
const DECISION_ROW: &str = "(CAST(? AS binary(32)), ?, ?, ?, ?)";

macro_rules! text {
    () => {
        concat!("? ", binary!())
    };
}

/// The columns of `event`, and as many places.
const EVENT_COLUMNS: &str = "hash, endpoint, event_id, message_id, source_id, session_id, event_type, outcome, reason, error_kind, error_text, attempts, \
     handler, digest, enqueued_at, noted_at, kept_session, kept_header, kept_body, id_key, message_key, source_key, session_key";
/// Texts that meet the row's own in one expression are compared as those are, so that no two comparisons contend for it.
const EVENT_ROW: &str = concat!(
    "(CAST(? AS binary(32)), ?, ?, ",
    text!(),
    ", ",
    text!(),
    ", ",
    text!(),
    ", ",
    text!(),
    ", ?, ?, ?, ?, ?, ",
    text!(),
    ", ?, ?, ?, ",
    text!(),
    ", ?, ?, ?, ?, ?, ?)"
);
const EVENT_VALUES: usize = 23;

/// What the new outcome leaves unsaid stays.
const EVENT_CHANGES: &str = "message_id = COALESCE(v.message_id, e.message_id), source_id = COALESCE(v.source_id, e.source_id), \
     session_id = COALESCE(v.session_id, e.session_id), \
     message_key = CASE WHEN v.message_id IS NULL THEN e.message_key ELSE v.message_key END, \
     source_key = CASE WHEN v.source_id IS NULL THEN e.source_key ELSE v.source_key END, \
     session_key = COALESCE(v.session_key, e.session_key), \
     event_type = CASE WHEN v.event_type = '' THEN e.event_type ELSE v.event_type END, outcome = v.outcome, reason = v.reason, \
     error_kind = v.error_kind, error_text = v.error_text, attempts = v.attempts, handler = COALESCE(v.handler, e.handler), \
     digest = COALESCE(v.digest, e.digest), enqueued_at = CASE WHEN v.enqueued_at = 0 THEN e.enqueued_at ELSE v.enqueued_at END, \
     noted_at = v.noted_at, kept_session = CASE WHEN v.kept_header IS NULL THEN e.kept_session ELSE v.kept_session END, \
     kept_header = COALESCE(v.kept_header, e.kept_header), kept_body = COALESCE(v.kept_body, e.kept_body)";

/// When an outcome may replace a stored one, by the name of its guard.
const GUARDS: [(&str, &str); 3] = [
    ("newer", concat!(" OR (e.attempts <= v.attempts AND e.outcome NOT IN ", finals!(), ")")),
    ("if-absent", ""),
    ("resubmitted", " OR 1 = 1"),
];

const LINE_COLUMNS: &str = "event, kind, noted_at, message_id, outcome, attempt, started_at, took, handler, digest, reason, error_kind, error_text, by_whom";
const LINE_ROW: &str = "(CAST(? AS binary(32)), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
const LINE_VALUES: usize = 14;

const OUTGOING_COLUMNS: &str = "endpoint_key, endpoint, entity, session_id, lane, message_id, event_id, header, body";
const OUTGOING_ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
const OUTGOING_VALUES: usize = 10;

/// Writes them all, again where others were in the way.
pub(crate) async fn write(connection: &mut Connection, batch: &[Prepared]) -> Result<Vec<Written>, Fault> {
    let mut tries = 1;
    loop {
        let result = in_transaction(connection, batch).await;
        match connection.end(result).await {
            Err(fault) if fault.may_be_repeated() && tries < TRIES => tries += 1,
            // The run repeats then, which has the same effect as doing it again here (P4).
            Err(fault) if fault.may_be_repeated() && batch.iter().all(|write| write.has_unit) => {
                return Err(Fault::Conflict);
            }
            other => return other,
        }
    }
}

/// What the claim said of a write.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    decided: bool,
    recorded: bool,
}

impl Standing {
    fn applies(self) -> bool {
        !self.decided && !self.recorded
    }
}

async fn in_transaction(connection: &mut Connection, batch: &[Prepared]) -> Result<Vec<Written>, Fault> {
    let names = connection.names();
    connection.begin().await?;
    let standings = claim(connection, &names, batch).await?;
    let with = || batch.iter().zip(&standings);
    let mut rest = Rest::default();
    for (write, _) in with().filter(|(write, standing)| standing.applies() && !write.state.is_empty()) {
        let mut answers = Vec::new();
        for script in together(write.state.ask(&names)) {
            answers.extend(connection.rows(script).await?);
        }
        if !write.state.still_holds(&answers)? {
            return Err(Fault::Conflict);
        }
        rest.scripts.extend(write.state.apply(&names));
    }
    let undecided = with().filter(|(_, standing)| !standing.decided);
    rest.events(&names, &undecided.filter_map(|(write, _)| write.event.as_ref()).collect::<Vec<_>>());
    rest.lines(&names, &batch.iter().filter_map(|write| write.line.as_ref()).collect::<Vec<_>>());
    let applied = with().filter(|(_, standing)| standing.applies());
    let outgoing = applied.flat_map(|(write, _)| write.outgoing.iter().map(|row| (&write.endpoint_key, row)));
    rest.outgoing(&names, &outgoing.collect::<Vec<_>>());
    for end in batch.iter().filter_map(|write| write.action.as_ref()) {
        rest.scripts.push(end_action(&names, end));
    }
    for script in together(rest.scripts) {
        connection.execute(script).await?;
    }
    let told = |standing: &Standing| if standing.applies() { Written::Done } else { Written::AlreadyDecided };
    Ok(standings.iter().map(told).collect())
}

/// Takes the keys.
async fn claim(connection: &mut Connection, names: &Names, batch: &[Prepared]) -> Result<Vec<Standing>, Fault> {
    let decisions: Vec<&DecisionRow> = batch.iter().filter_map(|write| write.decision.as_ref()).collect();
    let mut ours: HashSet<Key> = HashSet::new();
    for part in decisions.chunks(rows_together(5)) {
        ours.extend(insert(connection, names, DECIDE, DECISION_ROW, part.iter().map(decision_row)).await?);
    }
    let decided = |write: &Prepared| write.decision.as_ref().is_some_and(|decision| !ours.contains(&decision.hash));
    let first: Vec<&Prepared> = batch.iter().filter(|write| !decided(write)).collect();
    let records: Vec<&IdRow> = first.iter().flat_map(|write| &write.records).collect();
    let mut new: HashSet<Key> = HashSet::new();
    for part in records.chunks(rows_together(3)) {
        new.extend(insert(connection, names, RECORD, ID_ROW, part.iter().map(id_row)).await?);
    }
    let finals: Vec<&IdRow> = first.iter().flat_map(|write| &write.finals).collect();
    for part in finals.chunks(rows_together(3)) {
        insert(connection, names, FINISH, ID_ROW, part.iter().map(id_row)).await?;
    }
    let standing = |write: &Prepared| {
        let decided = decided(write);
        let recorded = !decided && write.records.first().is_some_and(|record| !new.contains(&record.hash));
        Standing { decided, recorded }
    };
    Ok(batch.iter().map(standing).collect())
}

fn decision_row<'a>(row: &&'a DecisionRow) -> Vec<Value<'a>> {
    vec![(&row.hash).into(), (&row.endpoint).into(), (&row.message_id).into(), row.outcome.into(), (&row.rest).into()]
}

fn id_row<'a>(row: &&'a IdRow) -> Vec<Value<'a>> {
    vec![(&row.hash).into(), (&row.endpoint).into(), (&row.message_id).into()]
}

/// Inserts the rows that are not there, and answers their hashes where the statement does.
async fn insert<'a>(
    connection: &mut Connection,
    names: &'a Names,
    (before, after): (&str, &str),
    row: &str,
    rows: impl Iterator<Item = Vec<Value<'a>>>,
) -> Result<Vec<Key>, Fault> {
    let mut script = Script::new(names);
    let table = script.table(row, rows);
    script.add(&format!("{before}{table}{after}"), vec![]);
    connection.rows(script).await?.iter().map(|row| Ok(bytes(row, 0)?.to_vec())).collect()
}

/// The statements after the claim.
#[derive(Default)]
struct Rest<'a> {
    scripts: Vec<Script<'a>>,
}

impl<'a> Rest<'a> {
    fn events(&mut self, names: &'a Names, events: &[&'a Keyed]) {
        for (guard, condition) in GUARDS {
            let some: Vec<&Keyed> = events.iter().copied().filter(|event| event.row.guard == guard).collect();
            for part in some.chunks(rows_together(EVENT_VALUES)) {
                let mut script = Script::new(names);
                let table = script.table(EVENT_ROW, part.iter().map(|event| event_row(event)));
                script.add(
                    &format!(
                        "UPDATE e SET {EVENT_CHANGES} FROM #event AS e INNER JOIN {table} AS v({EVENT_COLUMNS}) ON e.hash = v.hash \
                         WHERE e.outcome IS NULL{condition}; \
                         INSERT INTO #event ({EVENT_COLUMNS}) SELECT {EVENT_COLUMNS} FROM {table} AS v({EVENT_COLUMNS}) \
                         WHERE NOT EXISTS (SELECT 1 FROM #event AS t WHERE t.hash = v.hash) ORDER BY v.hash;"
                    ),
                    vec![],
                );
                self.scripts.push(script);
            }
        }
    }

    /// A line's event is there when the line is: made where no outcome was ever written, and held by the change, so that no purge comes between.
    fn lines(&mut self, names: &'a Names, lines: &[&'a Line]) {
        for part in lines.chunks(rows_together(5)) {
            let mut script = Script::new(names);
            let row = |line: &&'a Line| {
                let key = super::write::digest_key(line.event_id.0.as_str());
                vec![(&line.event).into(), (&line.endpoint).into(), (&line.event_id).into(), line.at.into(), key.into()]
            };
            let table = script.table("(CAST(? AS binary(32)), ?, ?, ?, ?)", part.iter().map(row));
            script.add(
                &format!(
                    "UPDATE e SET noted_at = CASE WHEN e.outcome IS NULL AND e.noted_at < v.noted_at THEN v.noted_at ELSE e.noted_at END \
                     FROM #event AS e INNER JOIN {table} AS v(hash, endpoint, event_id, noted_at, id_key) ON e.hash = v.hash \
                     WHERE v.noted_at IS NOT NULL; \
                     INSERT INTO #event (hash, endpoint, event_id, event_type, attempts, enqueued_at, noted_at, id_key) \
                     SELECT v.hash, v.endpoint, v.event_id, '', 0, 0, v.noted_at, v.id_key \
                     FROM {table} AS v(hash, endpoint, event_id, noted_at, id_key) \
                     WHERE NOT EXISTS (SELECT 1 FROM #event AS t WHERE t.hash = v.hash) ORDER BY v.hash;"
                ),
                vec![],
            );
            self.scripts.push(script);
        }
        for part in lines.chunks(rows_together(LINE_VALUES)) {
            let mut script = Script::new(names);
            let table = script.table(LINE_ROW, part.iter().map(|line| line_row(line)));
            script.add(
                &format!(
                    "INSERT INTO #history ({LINE_COLUMNS}) SELECT {LINE_COLUMNS} FROM {table} AS v({LINE_COLUMNS});"
                ),
                vec![],
            );
            self.scripts.push(script);
        }
    }

    fn outgoing(&mut self, names: &'a Names, rows: &[(&'a Key, &'a OutgoingRow)]) {
        for part in rows.chunks(rows_together(OUTGOING_VALUES)) {
            let mut script = Script::new(names);
            let row = |(n, (endpoint_key, row)): (usize, &(&'a Key, &'a OutgoingRow))| {
                vec![
                    (n as i64).into(),
                    (*endpoint_key).into(),
                    (&row.endpoint).into(),
                    (&row.entity).into(),
                    (&row.session).into(),
                    (&row.lane).into(),
                    (&row.message_id).into(),
                    (&row.event_id).into(),
                    (&row.header).into(),
                    (&row.body).into(),
                ]
            };
            let table = script.table(OUTGOING_ROW, part.iter().enumerate().map(row));
            script.add(
                &format!(
                    concat!(
                        "INSERT INTO #outbox ({columns}, created_at, tries, again_at, claimed_until) SELECT {columns}, ",
                        now!(),
                        ", 0, 0, 0 FROM {table} AS v(ordinal, {columns}) ORDER BY v.ordinal;"
                    ),
                    columns = OUTGOING_COLUMNS,
                    table = table,
                ),
                vec![],
            );
            self.scripts.push(script);
        }
    }
}

fn event_row<'a>(event: &'a Keyed) -> Vec<Value<'a>> {
    let row = &event.row;
    vec![
        (&row.hash).into(),
        (&row.endpoint).into(),
        (&row.event_id).into(),
        (&row.message_id).into(),
        (&row.source_id).into(),
        (&row.session).into(),
        (&row.event_type).into(),
        row.outcome.into(),
        (&row.reason).into(),
        (&row.error_kind).into(),
        (&row.error_text).into(),
        row.attempts.into(),
        (&row.handler).into(),
        (&row.digest).into(),
        row.enqueued_at.into(),
        row.at.into(),
        (&row.kept_session).into(),
        (&row.kept_header).into(),
        (&row.kept_body).into(),
        (&event.id_key).into(),
        (&event.message_key).into(),
        (&event.source_key).into(),
        (&event.session_key).into(),
    ]
}

fn line_row<'a>(line: &'a Line) -> Vec<Value<'a>> {
    vec![
        (&line.event).into(),
        line.kind.into(),
        line.at.into(),
        (&line.message_id).into(),
        optional(line.outcome),
        line.attempt.into(),
        line.started_at.into(),
        line.took.into(),
        (&line.handler).into(),
        (&line.digest).into(),
        (&line.reason).into(),
        (&line.error_kind).into(),
        (&line.error_text).into(),
        (&line.by).into(),
    ]
}

fn end_action<'a>(names: &'a Names, end: &'a ActionEnd) -> Script<'a> {
    let ActionEnd { id, state, text, at } = end;
    Script::of(
        names,
        "UPDATE #action SET state = ?, end_text = ?, ended_at = ? WHERE id = ? AND state = 'open'; DELETE FROM #open_action WHERE action_id = ?;",
        vec![(*state).into(), text.into(), (*at).into(), (*id).into(), (*id).into()],
    )
}
