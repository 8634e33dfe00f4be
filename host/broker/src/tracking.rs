//! What one decision writes beside messages: inbox, outcome, history, handler state, outbox.

use rusqlite::{OptionalExtension as _, Row};
use sha2::{Digest as _, Sha256};
use sprag_core::{
    effect::{ActionResult, ActionWrite, HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    identity::IdentityHash,
    ids::{Digest, EndpointName, EntityName, EventId, HandlerName, MessageId, SessionId},
    outcome::Failure,
    run::{StateRead, StateWrite, Version},
    time::Timestamp,
};
use sprag_store::Written;
use sprag_transport::CommitError;

use crate::{
    codes, decision,
    entity::{EntityIndex, EntityKind},
    messages::{self, Prepared},
    state,
    writer::{Stop, Tx},
};

/// Flags of an event's row: the id is there and is the event id.
const MESSAGE_ID_IS_EVENT_ID: i64 = 1;
const SOURCE_ID_IS_EVENT_ID: i64 = 2;

/// A [`StoreWrite`] whose messages are ready for their rows.
#[derive(Debug, Clone)]
pub(crate) struct PreparedWrite {
    write: StoreWrite,
    outgoing: Vec<(EntityName, Prepared)>,
    keep: Option<Prepared>,
    /// None: not kept.
    decision: Option<Vec<u8>>,
}

impl PreparedWrite {
    /// `keep_decision`: where effects can be left undone.
    pub(crate) fn new(mut write: StoreWrite, keep_decision: bool) -> Result<Self, sprag_transport::Error> {
        let outgoing = std::mem::take(&mut write.unit.outgoing)
            .into_iter()
            .map(|outgoing| Ok((outgoing.entity, Prepared::new(outgoing.message)?)))
            .collect::<Result<_, sprag_transport::Error>>()?;
        let kept = write.outcome.as_mut().and_then(|outcome| outcome.keep.take());
        let keep = kept.map(|message| Prepared::exact(*message)).transpose()?;
        let decision = write.decision.as_ref().filter(|_| keep_decision).map(|it| decision::encode(it.attempt, &it.rest)).transpose();
        let decision = decision.map_err(|error| sprag_transport::Error::Refused(error.to_string()))?;
        Ok(Self { write, outgoing, keep, decision })
    }

    pub(crate) fn bytes(&self) -> usize {
        let messages = self.outgoing.iter().map(|(_, message)| message).chain(&self.keep);
        let state: usize = self.write.unit.writes.iter().map(|write| write.key.len() + write.value.as_ref().map_or(0, |v| v.len())).sum();
        512 + state + messages.map(Prepared::bytes).sum::<usize>()
    }
}

/// The key of an event's row.
pub(crate) fn event_hash(endpoint: &str, event_id: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(endpoint);
    hash.update([0x1f]);
    hash.update(event_id);
    let digest: [u8; 32] = hash.finalize().into();
    i64::from_le_bytes(digest[..8].try_into().expect("eight of thirty-two bytes"))
}

/// The key of an inbox row: the head of the identity hash (spec 4).
pub(crate) fn inbox_hash(endpoint: &EndpointName, id: &MessageId) -> i64 {
    i64::from_le_bytes(IdentityHash::of(endpoint, id).0[..8].try_into().expect("eight of thirty-two bytes"))
}

fn is_there(tx: &Tx<'_>, sql: &str, endpoint: i64, hash: i64, id: &MessageId) -> Result<bool, Stop> {
    Ok(tx.first(sql, (hash, endpoint, id.as_str()), |_| Ok(()))?.is_some())
}

const FIND_RECORD: &str = "SELECT 1 FROM inbox WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3";
const FIND_FINAL: &str = "SELECT 1 FROM final WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3";
const FIND_DECISION: &str = "SELECT 1 FROM decision WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3";

/// What is known about a write before anything is written.
pub(crate) struct Standing {
    endpoint: i64,
    decided: bool,
    recorded: bool,
}

/// Everything that can refuse a write (P4, P35). `direct`: outgoing messages go to entities of this engine, which must exist.
pub(crate) fn examine(tx: &mut Tx<'_>, name: &EndpointName, prepared: &PreparedWrite, direct: bool) -> Result<Standing, Stop> {
    let endpoint = tx.local.endpoint(tx.connection, name)?;
    let write = &prepared.write;
    let decided = match &write.decision {
        Some(decision) => {
            decisions_used(tx)?
                && is_there(tx, FIND_DECISION, endpoint, inbox_hash(name, &decision.message_id), &decision.message_id)?
        }
        None => false,
    };
    let recorded = match write.record.first() {
        Some(id) => is_there(tx, FIND_RECORD, endpoint, inbox_hash(name, id), id)?,
        None => false,
    };
    if !decided && !recorded {
        for read in &write.unit.reads {
            if !still_holds(tx, endpoint, read)? {
                return Err(sprag_store::Error::StateConflict.into());
            }
        }
        for (entity, _) in prepared.outgoing.iter().filter(|_| direct) {
            target(tx, entity).ok_or_else(|| CommitError::Refused(format!("there is no queue or topic {entity:?} to send to")))?;
        }
    }
    Ok(Standing { endpoint, decided, recorded })
}

/// The queue or topic of this name.
fn target(tx: &Tx<'_>, name: &EntityName) -> Option<EntityIndex> {
    let at = tx.topology.position(name)?;
    (!matches!(tx.topology.entities[at].spec.kind, EntityKind::Subscription(_))).then_some(at)
}

/// Writes what [`examine`] let through.
pub(crate) fn write(
    tx: &mut Tx<'_>,
    name: &EndpointName,
    prepared: &PreparedWrite,
    standing: &Standing,
    direct: bool,
) -> Result<Written, Stop> {
    let &Standing { endpoint, decided, recorded } = standing;
    let write = &prepared.write;
    if !decided && !recorded {
        let event = write.outcome.as_ref().map(|it| &it.event_id).or(write.history.as_ref().map(|it| &it.event_id));
        for change in &write.unit.writes {
            write_state(tx, endpoint, change)?;
        }
        for (entity, message) in &prepared.outgoing {
            leave(tx, endpoint, entity, message, event, direct)?;
        }
    }
    if let Some(end) = &write.action {
        end_action(tx, end)?;
    }
    let outcome = write.outcome.as_ref().filter(|_| !decided);
    write_event(tx, name, endpoint, outcome, prepared.keep.as_ref(), write.history.as_ref())?;
    if !decided {
        for id in &write.record {
            let hash = inbox_hash(name, id);
            // The first was looked up before; it is there when `recorded`.
            if (write.record.first() == Some(id) && !recorded) || !is_there(tx, FIND_RECORD, endpoint, hash, id)? {
                tx.execute(
                    "INSERT INTO inbox (hash, endpoint, recorded_at, message_id) VALUES (?1, ?2, ?3, ?4)",
                    (hash, endpoint, tx.now.0, id.as_str()),
                )?;
            }
        }
        for id in &write.finals {
            let hash = inbox_hash(name, id);
            if !is_there(tx, FIND_FINAL, endpoint, hash, id)? {
                tx.execute(
                    "INSERT INTO final (hash, endpoint, at, message_id) VALUES (?1, ?2, ?3, ?4)",
                    (hash, endpoint, tx.now.0, id.as_str()),
                )?;
            }
        }
        if let (Some(decision), Some(rest)) = (&write.decision, &prepared.decision) {
            let id = &decision.message_id;
            tx.execute(
                "INSERT INTO decision (hash, endpoint, message_id, outcome, rest, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (inbox_hash(name, id), endpoint, id.as_str(), codes::outcome(decision.outcome), rest, tx.now.0),
            )?;
            tx.local.decisions_used = Some(true);
        }
    }
    Ok(if decided || recorded { Written::AlreadyDecided } else { Written::Done })
}

/// Whether there are decisions at all: the embedded engine's own commits leave none, and need not look.
fn decisions_used(tx: &mut Tx<'_>) -> Result<bool, Stop> {
    let used = match tx.local.decisions_used {
        Some(used) => used,
        None => tx.first("SELECT 1 FROM decision LIMIT 1", [], |_| Ok(()))?.is_some(),
    };
    tx.local.decisions_used = Some(used);
    Ok(used)
}

/// What a decision left to do is done (P1).
pub(crate) fn decision_done(tx: &mut Tx<'_>, name: &EndpointName, id: &MessageId) -> Result<(), Stop> {
    if decisions_used(tx)? {
        let endpoint = tx.local.endpoint(tx.connection, name)?;
        tx.execute(
            "DELETE FROM decision WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3",
            (inbox_hash(name, id), endpoint, id.as_str()),
        )?;
    }
    Ok(())
}

fn still_holds(tx: &Tx<'_>, endpoint: i64, read: &StateRead) -> Result<bool, Stop> {
    Ok(match read {
        StateRead::Key { key, version } => state::get(tx.connection, endpoint, key)?.map_or(Version(0), |found| found.version) == *version,
        StateRead::Scan { prefix, after, limit, found } => {
            let again = state::scan(tx.connection, endpoint, prefix, after.as_deref(), *limit)?;
            again.iter().map(|(key, found)| (key, found.version)).eq(found.iter().map(|(key, version)| (key, *version)))
        }
    })
}

fn write_state(tx: &mut Tx<'_>, endpoint: i64, change: &StateWrite) -> Result<(), Stop> {
    let version = tx.local.next_version();
    match &change.value {
        Some(value) => tx.execute(
            "INSERT OR REPLACE INTO state (endpoint, key, version, value) VALUES (?1, ?2, ?3, ?4)",
            (endpoint, &change.key, version, &value[..]),
        )?,
        None => tx.execute("DELETE FROM state WHERE endpoint = ?1 AND key = ?2", (endpoint, &change.key))?,
    };
    Ok(())
}

/// A message leaves: into its entity where that can be now, else into the outbox for the relay.
fn leave(
    tx: &mut Tx<'_>,
    endpoint: i64,
    entity: &EntityName,
    message: &Prepared,
    event: Option<&EventId>,
    direct: bool,
) -> Result<(), Stop> {
    if let Some(at) = target(tx, entity).filter(|_| direct)
        && tx.topology.entities[at].spec.accepts(&message.message, message.size.into()).is_ok()
        && messages::check_room(tx, at, message.size.into()).is_ok()
        && !waits_in_outbox(tx, entity, message.message.session_id.as_ref())?
    {
        messages::send(tx, at, message)?;
        return Ok(());
    }
    let (header, body) = message.parts();
    tx.execute(
        "INSERT INTO outbox (endpoint, entity, session, message_id, event_id, created_at, tries, again_at, claimed_until, header, body) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, 0, 0, ?7, ?8)",
        (
            endpoint,
            entity.as_str(),
            message.message.session_id.as_ref().map(SessionId::as_str),
            message.message.message_id.as_ref().map(MessageId::as_str),
            event.map(EventId::as_str),
            tx.now.0,
            header,
            body,
        ),
    )?;
    tx.local.outbox_used = Some(true);
    Ok(())
}

/// Whether an earlier message of the same session still waits for the relay: the new one may not overtake it.
fn waits_in_outbox(tx: &mut Tx<'_>, entity: &EntityName, session: Option<&SessionId>) -> Result<bool, Stop> {
    let used = match tx.local.outbox_used {
        Some(used) => used,
        None => tx.first("SELECT 1 FROM outbox LIMIT 1", [], |_| Ok(()))?.is_some(),
    };
    tx.local.outbox_used = Some(used);
    let Some(session) = session.filter(|_| used) else { return Ok(false) };
    let waits = tx.first("SELECT 1 FROM outbox WHERE entity = ?1 AND session = ?2 LIMIT 1", (entity.as_str(), session.as_str()), |_| Ok(()))?;
    Ok(waits.is_some())
}

fn end_action(tx: &Tx<'_>, end: &ActionWrite) -> Result<(), Stop> {
    let (state, text) = match &end.result {
        ActionResult::Applied { text } => (1, text),
        ActionResult::Conflict { text } => (2, text),
    };
    tx.execute(
        "UPDATE action SET state = ?2, text = ?3, ended_at = ?4 WHERE id = ?1 AND state = 0",
        (end.id.0, state, text, end.at.0),
    )?;
    Ok(())
}

/// An event's row as far as a write needs it.
struct Head {
    id: i64,
    lines: i64,
    outcome: Option<i64>,
    attempts: u32,
}

fn find_event(tx: &Tx<'_>, endpoint: i64, hash: i64, event_id: &EventId) -> Result<Option<Head>, Stop> {
    tx.first(
        "SELECT id, lines, outcome, attempts FROM event WHERE hash = ?1 AND endpoint = ?2 AND event_id = ?3",
        (hash, endpoint, event_id.as_str()),
        |row| Ok(Head { id: row.get(0)?, lines: row.get(1)?, outcome: row.get(2)?, attempts: row.get(3)? }),
    )
}

fn write_event(
    tx: &mut Tx<'_>,
    name: &EndpointName,
    endpoint: i64,
    outcome: Option<&OutcomeWrite>,
    keep: Option<&Prepared>,
    line: Option<&HistoryLine>,
) -> Result<(), Stop> {
    let Some(event_id) = outcome.map(|it| &it.event_id).or(line.map(|it| &it.event_id)) else { return Ok(()) };
    let hash = event_hash(name.as_str(), event_id.as_str());
    let head = find_event(tx, endpoint, hash, event_id)?;
    let own_line = line.filter(|line| line.event_id == *event_id);
    let event = match (head, outcome) {
        (None, outcome) => {
            insert_event(tx, endpoint, hash, event_id, outcome, own_line)?;
            let event = tx.connection.last_insert_rowid();
            if let Some(keep) = keep {
                keep_message(tx, event, keep)?;
            }
            own_line.map(|line| (event, 0, line))
        }
        (Some(head), outcome) => {
            if let Some(outcome) = outcome.filter(|outcome| may_replace(&head, outcome)) {
                update_event(tx, head.id, outcome)?;
                if let Some(keep) = keep {
                    keep_message(tx, head.id, keep)?;
                }
            }
            if let Some(line) = own_line {
                tx.execute(
                    "UPDATE event SET lines = lines + 1, duplicates = duplicates + ?2 WHERE id = ?1",
                    (head.id, line.kind == HistoryKind::Duplicate),
                )?;
            }
            own_line.map(|line| (head.id, head.lines, line))
        }
    };
    match event {
        Some((event, n, line)) => insert_line(tx, event, n, line),
        // A line about another event than the outcome's.
        None => line.map_or(Ok(()), |line| write_event(tx, name, endpoint, None, None, Some(line))),
    }
}

fn may_replace(head: &Head, new: &OutcomeWrite) -> bool {
    let Some(stored) = head.outcome else { return true };
    match new.guard {
        OutcomeGuard::Resubmitted => true,
        OutcomeGuard::IfAbsent => false,
        OutcomeGuard::Newer => !codes::outcome_of(stored).is_some_and(|it| it.is_final()) && head.attempts <= new.attempts,
    }
}

/// An id as its columns: the text where it is not the event id, and the flag where it is.
fn id_columns<'a>(id: Option<&'a MessageId>, event_id: &EventId, flag: i64) -> (Option<&'a str>, i64) {
    match id {
        Some(id) if id.as_str() == event_id.as_str() => (None, flag),
        other => (other.map(MessageId::as_str), 0),
    }
}

fn insert_event(
    tx: &mut Tx<'_>,
    endpoint: i64,
    hash: i64,
    event_id: &EventId,
    outcome: Option<&OutcomeWrite>,
    line: Option<&HistoryLine>,
) -> Result<(), Stop> {
    let lines = i64::from(line.is_some());
    let duplicates = i64::from(line.is_some_and(|line| line.kind == HistoryKind::Duplicate));
    let Some(new) = outcome else {
        tx.execute(
            "INSERT INTO event (hash, endpoint, event_id, flags, event_type, attempts, enqueued_at, at, lines, duplicates) \
             VALUES (?1, ?2, ?3, 0, '', 0, 0, ?4, ?5, ?6)",
            (hash, endpoint, event_id.as_str(), line.map_or(tx.now, |line| line.at).0, lines, duplicates),
        )?;
        return Ok(());
    };
    let version = tx.local.version(tx.connection, new.handler.as_ref(), new.digest.as_ref())?;
    let (message_id, message_flag) = id_columns(new.message_id.as_ref(), event_id, MESSAGE_ID_IS_EVENT_ID);
    let (source_id, source_flag) = id_columns(new.source_id.as_ref(), event_id, SOURCE_ID_IS_EVENT_ID);
    tx.execute(
        "INSERT INTO event (hash, endpoint, event_id, flags, message_id, source_id, session, event_type, outcome, reason, error_kind, \
         error_text, attempts, version, enqueued_at, at, lines, duplicates) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
        rusqlite::params![
            hash,
            endpoint,
            event_id.as_str(),
            message_flag | source_flag,
            message_id,
            source_id,
            new.session.as_ref().map(SessionId::as_str),
            new.event_type.as_str(),
            codes::outcome(new.outcome),
            new.reason,
            new.error.as_ref().map(|error| &error.kind),
            new.error.as_ref().map(|error| &error.text),
            new.attempts,
            version,
            new.enqueued_at.0,
            new.at.0,
            lines,
            duplicates,
        ],
    )?;
    Ok(())
}

/// What the new outcome leaves unsaid stays.
fn update_event(tx: &mut Tx<'_>, event: i64, new: &OutcomeWrite) -> Result<(), Stop> {
    let stored = tx
        .first(&format!("SELECT {EVENT_COLUMNS} FROM {EVENT_TABLES} WHERE e.id = ?1"), [event], |row| read_outcome(row))?
        .expect("its head was just read");
    let filled = OutcomeWrite {
        message_id: new.message_id.clone().or(stored.message_id),
        source_id: new.source_id.clone().or(stored.source_id),
        session: new.session.clone().or(stored.session),
        event_type: if new.event_type.as_str().is_empty() { stored.event_type } else { new.event_type.clone() },
        handler: new.handler.clone().or(stored.handler),
        digest: new.digest.or(stored.digest),
        enqueued_at: if new.enqueued_at == Timestamp::default() { stored.enqueued_at } else { new.enqueued_at },
        ..new.clone()
    };
    let version = tx.local.version(tx.connection, filled.handler.as_ref(), filled.digest.as_ref())?;
    let (message_id, message_flag) = id_columns(filled.message_id.as_ref(), &filled.event_id, MESSAGE_ID_IS_EVENT_ID);
    let (source_id, source_flag) = id_columns(filled.source_id.as_ref(), &filled.event_id, SOURCE_ID_IS_EVENT_ID);
    tx.execute(
        "UPDATE event SET flags = ?2, message_id = ?3, source_id = ?4, session = ?5, event_type = ?6, outcome = ?7, reason = ?8, \
         error_kind = ?9, error_text = ?10, attempts = ?11, version = ?12, enqueued_at = ?13, at = ?14 WHERE id = ?1",
        rusqlite::params![
            event,
            message_flag | source_flag,
            message_id,
            source_id,
            filled.session.as_ref().map(SessionId::as_str),
            filled.event_type.as_str(),
            codes::outcome(filled.outcome),
            filled.reason,
            filled.error.as_ref().map(|error| &error.kind),
            filled.error.as_ref().map(|error| &error.text),
            filled.attempts,
            version,
            filled.enqueued_at.0,
            filled.at.0,
        ],
    )?;
    Ok(())
}

fn keep_message(tx: &Tx<'_>, event: i64, keep: &Prepared) -> Result<(), Stop> {
    let (header, body) = keep.parts();
    tx.execute(
        "INSERT OR REPLACE INTO kept (event, session, header, body) VALUES (?1, ?2, ?3, ?4)",
        (event, keep.message.session_id.as_ref().map(SessionId::as_str), header, body),
    )?;
    Ok(())
}

fn insert_line(tx: &mut Tx<'_>, event: i64, n: i64, line: &HistoryLine) -> Result<(), Stop> {
    let version = tx.local.version(tx.connection, line.handler.as_ref(), line.digest.as_ref())?;
    tx.execute(
        "INSERT INTO history (event, n, kind, at, message_id, outcome, attempt, started_at, took, version, reason, error_kind, error_text, \
         by_whom) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        rusqlite::params![
            event,
            n,
            codes::history(line.kind),
            line.at.0,
            line.message_id.as_ref().map(MessageId::as_str),
            line.outcome.map(codes::outcome),
            line.attempt,
            line.started_at.map(|at| at.0),
            line.took.map(decision::nanos),
            version,
            line.reason,
            line.error.as_ref().map(|error| &error.kind),
            line.error.as_ref().map(|error| &error.text),
            line.by,
        ],
    )?;
    Ok(())
}

/// An event's row with the names of its endpoint and version, for [`read_outcome`].
pub(crate) const EVENT_COLUMNS: &str = "e.event_id, e.flags, e.message_id, e.source_id, e.session, e.event_type, e.outcome, e.reason, \
     e.error_kind, e.error_text, e.attempts, v.handler, v.digest, e.enqueued_at, e.at";
pub(crate) const EVENT_TABLES: &str = "event e LEFT JOIN version v ON v.id = e.version";

pub(crate) fn read_outcome(row: &Row<'_>) -> rusqlite::Result<OutcomeWrite> {
    let event_id: String = row.get(0)?;
    let flags: i64 = row.get(1)?;
    let id = |column: usize, flag: i64| -> rusqlite::Result<Option<MessageId>> {
        if flags & flag != 0 {
            return Ok(Some(event_id.as_str().into()));
        }
        Ok(row.get::<_, Option<String>>(column)?.map(MessageId::from))
    };
    Ok(OutcomeWrite {
        message_id: id(2, MESSAGE_ID_IS_EVENT_ID)?,
        source_id: id(3, SOURCE_ID_IS_EVENT_ID)?,
        session: row.get::<_, Option<String>>(4)?.map(SessionId::from),
        event_type: row.get::<_, String>(5)?.into(),
        outcome: row.get::<_, Option<i64>>(6)?.and_then(codes::outcome_of).unwrap_or(sprag_core::outcome::Outcome::Pending),
        guard: OutcomeGuard::default(),
        reason: row.get(7)?,
        error: failure(row, 8)?,
        attempts: row.get(10)?,
        handler: row.get::<_, Option<String>>(11)?.map(HandlerName::from),
        digest: row.get::<_, Option<[u8; 32]>>(12)?.map(Digest),
        enqueued_at: Timestamp(row.get(13)?),
        at: Timestamp(row.get(14)?),
        keep: None,
        event_id: event_id.into(),
    })
}

/// Kind and text in two columns.
pub(crate) fn failure(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<Failure>> {
    let kind: Option<String> = row.get(first)?;
    let text: Option<String> = row.get(first + 1)?;
    Ok(kind.map(|kind| Failure { kind, text: text.unwrap_or_default() }))
}

/// The number of an endpoint that has one.
pub(crate) fn endpoint_id(connection: &rusqlite::Connection, name: &EndpointName) -> rusqlite::Result<Option<i64>> {
    connection.prepare_cached("SELECT id FROM endpoint WHERE name = ?1")?.query_row([name.as_str()], |row| row.get(0)).optional()
}
