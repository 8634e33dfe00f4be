//! What one decision writes beside messages: inbox, outcome, history, handler state, outbox.

use rusqlite::{OptionalExtension as _, Row};
use sha2::{Digest as _, Sha256};
use sprag_core::{
    effect::{ActionResult, ActionWrite, HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    identity::utf16_len,
    ids::{Digest, EndpointName, EntityName, EventId, HandlerName, MessageId, SessionId},
    outcome::Failure,
    run::{StateRead, StateWrite, Version},
    sql::TransactionId,
    time::Timestamp,
};
use sprag_store::Written;
use sprag_transport::CommitError;

use crate::{
    codes, decision,
    entity::{EntityIndex, EntityKind},
    leases,
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
        let decision = write
            .decision
            .as_ref()
            .filter(|_| keep_decision)
            .map(|it| decision::encode(it.attempt, &it.rest))
            .transpose();
        let decision = decision.map_err(|error| sprag_transport::Error::Refused(error.to_string()))?;
        Ok(Self { write, outgoing, keep, decision })
    }

    /// In which a run's statements were carried out.
    pub(crate) fn transaction(&self) -> Option<TransactionId> {
        self.write.unit.transaction
    }

    pub(crate) fn bytes(&self) -> usize {
        let messages = self.outgoing.iter().map(|(_, message)| message).chain(&self.keep);
        let state: usize = self
            .write
            .unit
            .writes
            .iter()
            .map(|write| write.key.len() + write.value.as_ref().map_or(0, |v| v.len()))
            .sum();
        512 + state + messages.map(Prepared::bytes).sum::<usize>()
    }
}

/// The key of an id at an endpoint: the head of the identity hash (spec 4), for events as for inbox records, so that the two of one message
/// are one number.
pub(crate) fn id_hash(endpoint: &str, id: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(utf16_len(endpoint).to_string());
    hash.update([0x1f]);
    hash.update(endpoint);
    hash.update([0x1f]);
    hash.update(id);
    let digest: [u8; 32] = hash.finalize().into();
    i64::from_le_bytes(digest[..8].try_into().expect("eight of thirty-two bytes"))
}

pub(crate) fn event_hash(endpoint: &str, event_id: &str) -> i64 {
    id_hash(endpoint, event_id)
}

pub(crate) fn inbox_hash(endpoint: &EndpointName, id: &MessageId) -> i64 {
    id_hash(endpoint.as_str(), id.as_str())
}

fn is_there(tx: &Tx<'_>, sql: &str, endpoint: i64, hash: i64, id: &MessageId) -> Result<bool, Stop> {
    if tx.shared.known.excludes(hash) {
        return Ok(false);
    }
    Ok(tx.first(sql, (hash, endpoint, id.as_str()), |_| Ok(()))?.is_some())
}

// `INDEXED BY` where another index looks as good to a planner that has never seen the data: by endpoint it would read all of it.

/// An id is recorded in a row of the inbox, or with the event that has the same id.
pub(crate) const FIND_RECORD: &str =
    "SELECT 1 FROM inbox INDEXED BY inbox_hash WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3";
pub(crate) const FIND_RECORDED_EVENT: &str = "SELECT 1 FROM event INDEXED BY event_hash WHERE hash = ?1 AND endpoint = ?2 AND event_id = ?3 AND recorded_at IS NOT NULL";
pub(crate) const FIND_FINAL: &str = "SELECT 1 FROM final WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3";
const FIND_DECISION: &str = "SELECT 1 FROM decision WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3";

fn is_recorded(tx: &Tx<'_>, name: &EndpointName, endpoint: i64, id: &MessageId) -> Result<bool, Stop> {
    let hash = inbox_hash(name, id);
    Ok(is_there(tx, FIND_RECORD, endpoint, hash, id)? || is_there(tx, FIND_RECORDED_EVENT, endpoint, hash, id)?)
}

/// The event that a write is about.
trait AboutEvent {
    fn event_id(&self) -> Option<&EventId>;
}

impl AboutEvent for StoreWrite {
    fn event_id(&self) -> Option<&EventId> {
        self.outcome.as_ref().map(|it| &it.event_id).or(self.history.as_ref().map(|it| &it.event_id))
    }
}

/// What is known about a write before anything is written.
pub(crate) struct Standing {
    endpoint: i64,
    decided: bool,
    recorded: bool,
    /// The row of the event that the write is about. Outer none: look when it is written.
    head: Option<Option<Head>>,
    lease: Option<leases::Ending>,
}

impl Standing {
    /// Another write comes before this one, and may be about the same event.
    pub(crate) fn forget_event(&mut self) {
        self.head = None;
    }
}

/// Everything that can refuse a write (P4, P35, a lost lease). `direct`: outgoing messages go to entities of this engine, which must exist.
pub(crate) fn examine(
    tx: &mut Tx<'_>,
    name: &EndpointName,
    prepared: &PreparedWrite,
    direct: bool,
) -> Result<Standing, Stop> {
    let endpoint = tx.local.endpoint(tx.connection, name)?;
    let write = &prepared.write;
    let lease = match &write.lease {
        Some(end) => Some(leases::examine(tx, name, endpoint, end)?),
        None => None,
    };
    let decided = match &write.decision {
        Some(decision) => {
            decisions_used(tx)?
                && is_there(tx, FIND_DECISION, endpoint, inbox_hash(name, &decision.message_id), &decision.message_id)?
        }
        None => false,
    };
    let head = match write.event_id() {
        Some(event_id) => Some(find_event(tx, endpoint, event_hash(name.as_str(), event_id.as_str()), event_id)?),
        None => None,
    };
    let recorded = match write.record.first() {
        // The usual case: the message is its event, and one look has answered for both.
        Some(id) if write.event_id().is_some_and(|event_id| event_id.as_str() == id.as_str()) => {
            head.as_ref().is_some_and(|head| head.as_ref().is_some_and(|head| head.recorded))
                || is_there(tx, FIND_RECORD, endpoint, inbox_hash(name, id), id)?
        }
        Some(id) => is_recorded(tx, name, endpoint, id)?,
        None => false,
    };
    if !decided && !recorded {
        for read in &write.unit.reads {
            if !still_holds(tx, endpoint, read)? {
                return Err(sprag_store::Error::StateConflict.into());
            }
        }
        for (entity, _) in prepared.outgoing.iter().filter(|_| direct) {
            target(tx, entity)
                .ok_or_else(|| CommitError::Refused(format!("there is no queue or topic {entity:?} to send to")))?;
        }
    }
    Ok(Standing { endpoint, decided, recorded, head, lease })
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
    standing: Standing,
    direct: bool,
) -> Result<Written, Stop> {
    let Standing { endpoint, decided, recorded, head, lease } = standing;
    let write = &prepared.write;
    if (decided || recorded) && tx.in_run && write.unit.transaction.is_some() {
        tx.drop_statements_of_run()?;
    }
    if let Some(ending) = &lease {
        leases::end(tx, ending, !decided && !recorded)?;
    }
    if !decided && !recorded {
        let event = write.event_id();
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
    let about = About { name, endpoint, record: if decided || recorded { &[] } else { &write.record } };
    let with_event = write_event(tx, &about, head, outcome, prepared.keep.as_ref(), write.history.as_ref())?;
    if !decided {
        for id in &write.record {
            if with_event && write.event_id().is_some_and(|event_id| event_id.as_str() == id.as_str()) {
                continue;
            }
            // The first was looked up before; it is there when `recorded`.
            if (write.record.first() == Some(id) && !recorded) || !is_recorded(tx, name, endpoint, id)? {
                let hash = inbox_hash(name, id);
                tx.shared.known.insert(hash);
                tx.execute(
                    "INSERT INTO inbox (hash, endpoint, recorded_at, message_id) VALUES (?1, ?2, ?3, ?4)",
                    (hash, endpoint, tx.now.0, id.as_str()),
                )?;
            }
        }
        for id in &write.finals {
            let hash = inbox_hash(name, id);
            if !is_there(tx, FIND_FINAL, endpoint, hash, id)? {
                tx.shared.known.insert(hash);
                tx.execute(
                    "INSERT INTO final (hash, endpoint, at, message_id) VALUES (?1, ?2, ?3, ?4)",
                    (hash, endpoint, tx.now.0, id.as_str()),
                )?;
            }
        }
        if let (Some(decision), Some(rest)) = (&write.decision, &prepared.decision) {
            let id = &decision.message_id;
            let hash = inbox_hash(name, id);
            tx.shared.known.insert(hash);
            tx.execute(
                "INSERT INTO decision (hash, endpoint, message_id, outcome, rest, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (hash, endpoint, id.as_str(), codes::outcome(decision.outcome), rest, tx.now.0),
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
        StateRead::Key { key, version } => {
            state::get(tx.connection, endpoint, key)?.map_or(Version(0), |found| found.version) == *version
        }
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
        && tx.topology.entities[at].spec.status.sends()
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
    let waits = tx.first(
        "SELECT 1 FROM outbox WHERE entity = ?1 AND session = ?2 LIMIT 1",
        (entity.as_str(), session.as_str()),
        |_| Ok(()),
    )?;
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
pub(crate) struct Head {
    id: i64,
    lines: i64,
    outcome: Option<i64>,
    attempts: u32,
    recorded: bool,
}

fn find_event(tx: &Tx<'_>, endpoint: i64, hash: i64, event_id: &EventId) -> Result<Option<Head>, Stop> {
    if tx.shared.known.excludes(hash) {
        return Ok(None);
    }
    tx.first(
        "SELECT id, lines, outcome, attempts, recorded_at IS NOT NULL FROM event INDEXED BY event_hash WHERE hash = ?1 AND endpoint = ?2 AND event_id = ?3",
        (hash, endpoint, event_id.as_str()),
        |row| Ok(Head { id: row.get(0)?, lines: row.get(1)?, outcome: row.get(2)?, attempts: row.get(3)?, recorded: row.get(4)? }),
    )
}

/// Whose event is written, and the ids that the same write records.
struct About<'a> {
    name: &'a EndpointName,
    endpoint: i64,
    record: &'a [MessageId],
}

/// Answers whether the record of the event's own id was written with it.
fn write_event(
    tx: &mut Tx<'_>,
    about: &About<'_>,
    head: Option<Option<Head>>,
    outcome: Option<&OutcomeWrite>,
    keep: Option<&Prepared>,
    line: Option<&HistoryLine>,
) -> Result<bool, Stop> {
    let Some(event_id) = outcome.map(|it| &it.event_id).or(line.map(|it| &it.event_id)) else { return Ok(false) };
    let hash = event_hash(about.name.as_str(), event_id.as_str());
    let head = match head {
        Some(head) => head,
        None => find_event(tx, about.endpoint, hash, event_id)?,
    };
    let mut with_event = false;
    let own_line = line.filter(|line| line.event_id == *event_id);
    let event = match (head, outcome) {
        (None, outcome) => {
            with_event = outcome.is_some() && about.record.iter().any(|id| id.as_str() == event_id.as_str());
            insert_event(tx, about.endpoint, (hash, with_event), event_id, outcome, own_line)?;
            let event = tx.connection.last_insert_rowid();
            if let Some(keep) = keep.filter(|_| outcome.is_some()) {
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
    match (event, line) {
        (Some((event, n, line)), _) => insert_line(tx, event, n, line)?,
        // A line about another event than the outcome's.
        (None, Some(line)) => {
            write_event(tx, &About { record: &[], ..*about }, None, None, None, Some(line))?;
        }
        (None, None) => {}
    }
    Ok(with_event)
}

fn may_replace(head: &Head, new: &OutcomeWrite) -> bool {
    let Some(stored) = head.outcome else { return true };
    match new.guard {
        OutcomeGuard::Resubmitted => true,
        OutcomeGuard::IfAbsent => false,
        OutcomeGuard::Newer => {
            !codes::outcome_of(stored).is_some_and(|it| it.is_final()) && head.attempts <= new.attempts
        }
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
    (hash, recorded): (i64, bool),
    event_id: &EventId,
    outcome: Option<&OutcomeWrite>,
    line: Option<&HistoryLine>,
) -> Result<(), Stop> {
    tx.shared.known.insert(hash);
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
         error_text, attempts, version, enqueued_at, at, lines, duplicates, recorded_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
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
            recorded.then_some(tx.now.0),
        ],
    )?;
    Ok(())
}

/// What the new outcome leaves unsaid stays.
fn update_event(tx: &mut Tx<'_>, event: i64, new: &OutcomeWrite) -> Result<(), Stop> {
    let stored = tx
        .first(&format!("SELECT {EVENT_COLUMNS} FROM {EVENT_TABLES} WHERE e.id = ?1"), [event], |row| {
            read_outcome(row)
        })?
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
        outcome: row
            .get::<_, Option<i64>>(6)?
            .and_then(codes::outcome_of)
            .unwrap_or(sprag_core::outcome::Outcome::Pending),
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
    connection
        .prepare_cached("SELECT id FROM endpoint WHERE name = ?1")?
        .query_row([name.as_str()], |row| row.get(0))
        .optional()
}

#[cfg(test)]
mod tests {
    use sprag_core::identity::IdentityHash;

    use super::*;

    #[test]
    fn the_key_is_the_head_of_the_identity_hash() {
        for (endpoint, id) in [("BillingEndpoint", "m1"), ("Ærø", "ordre-7"), ("x😀", "1"), ("1", "0\u{1f}1")] {
            let whole = IdentityHash::of(&endpoint.into(), &id.into()).0;
            assert_eq!(id_hash(endpoint, id).to_le_bytes(), whole[..8]);
        }
    }
}
