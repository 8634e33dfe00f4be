//! What a [`StoreWrite`] writes, as values for statements. How they are written is in [`batch`](super::batch).

use std::collections::HashSet;

use sprag_core::{
    action::ActionKind,
    effect::{ActionResult, ActionWrite, Decision, HistoryKind, HistoryLine, OutcomeGuard, OutcomeWrite, StoreWrite},
    identity::IdentityHash,
    ids::{Digest, EndpointName, EntityName, EventId, EventType, HandlerName, MessageId, SessionId},
    message::Message,
    outcome::Outcome,
    run::Outgoing,
    sql::TransactionId,
};
use sprag_store::{Error, codec, decision};

use super::{connections::Connection, fault::Fault, leases::LeaseRow, state::StateChange, text::Text};

/// The database's clock, in milliseconds (P33).
macro_rules! now {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}
pub(crate) use now;

/// The outcomes that are final, for conditions.
macro_rules! finals {
    () => {
        "('completed', 'skipped', 'dead-lettered', 'unsupported')"
    };
}
pub(crate) use finals;

/// A hash as a value.
pub(crate) type Key = Vec<u8>;

pub(crate) fn message_key(endpoint: &EndpointName, id: &MessageId) -> Key {
    IdentityHash::of(endpoint, id).0.to_vec()
}

pub(crate) fn event_key(endpoint: &EndpointName, id: &EventId) -> Key {
    message_key(endpoint, &MessageId::from(id.as_str()))
}

/// A [`StoreWrite`] as values for statements.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) decision: Option<DecisionRow>,
    pub(crate) records: Vec<IdRow>,
    pub(crate) finals: Vec<IdRow>,
    pub(crate) event: Option<Event>,
    pub(crate) line: Option<Line>,
    pub(crate) outgoing: Vec<OutgoingRow>,
    pub(crate) state: StateChange,
    pub(crate) action: Option<ActionEnd>,
    pub(crate) lease: Option<LeaseRow>,
    pub(crate) has_unit: bool,
    pub(crate) transaction: Option<TransactionId>,
}

#[derive(Debug)]
pub(crate) struct DecisionRow {
    pub(crate) hash: Key,
    pub(crate) endpoint: Text<EndpointName>,
    pub(crate) message_id: Text<MessageId>,
    pub(crate) outcome: &'static str,
    pub(crate) rest: Vec<u8>,
}

/// An id that is recorded or final, if the decision of the same write is the one that stands.
#[derive(Debug)]
pub(crate) struct IdRow {
    pub(crate) hash: Key,
    pub(crate) endpoint: Text<EndpointName>,
    pub(crate) message_id: Text<MessageId>,
    pub(crate) decision: Option<Key>,
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) hash: Key,
    pub(crate) endpoint: Text<EndpointName>,
    pub(crate) event_id: Text<EventId>,
    pub(crate) message_id: Option<Text<MessageId>>,
    pub(crate) source_id: Option<Text<MessageId>>,
    pub(crate) session: Option<Text<SessionId>>,
    pub(crate) event_type: Text<EventType>,
    pub(crate) outcome: &'static str,
    pub(crate) reason: Option<Text<String>>,
    pub(crate) error_kind: Option<Text<String>>,
    pub(crate) error_text: Option<Text<String>>,
    pub(crate) attempts: i64,
    pub(crate) handler: Option<Text<HandlerName>>,
    pub(crate) digest: Option<Vec<u8>>,
    pub(crate) enqueued_at: i64,
    pub(crate) at: i64,
    pub(crate) kept_session: Option<Text<SessionId>>,
    pub(crate) kept_header: Option<Vec<u8>>,
    pub(crate) kept_body: Option<Vec<u8>>,
    pub(crate) guard: &'static str,
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) event: Key,
    pub(crate) endpoint: Text<EndpointName>,
    pub(crate) event_id: Text<EventId>,
    pub(crate) kind: &'static str,
    pub(crate) at: i64,
    pub(crate) message_id: Option<Text<MessageId>>,
    pub(crate) outcome: Option<&'static str>,
    pub(crate) attempt: i64,
    pub(crate) started_at: Option<i64>,
    pub(crate) took: Option<i64>,
    pub(crate) handler: Option<Text<HandlerName>>,
    pub(crate) digest: Option<Vec<u8>>,
    pub(crate) reason: Option<Text<String>>,
    pub(crate) error_kind: Option<Text<String>>,
    pub(crate) error_text: Option<Text<String>>,
    pub(crate) by: Option<Text<String>>,
}

#[derive(Debug)]
pub(crate) struct OutgoingRow {
    pub(crate) endpoint: Text<EndpointName>,
    pub(crate) entity: Text<EntityName>,
    pub(crate) session: Option<Text<SessionId>>,
    pub(crate) lane: Option<Key>,
    pub(crate) message_id: Option<Text<MessageId>>,
    pub(crate) event_id: Option<Text<EventId>>,
    pub(crate) header: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct ActionEnd {
    pub(crate) id: i64,
    pub(crate) state: &'static str,
    pub(crate) text: Text<String>,
    pub(crate) at: i64,
}

/// A message in its columns.
fn encoded(message: &Message) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let (header, body) = codec::encode(message).map_err(|error| Error::Invalid(error.to_string()))?;
    Ok((header, body.into_owned()))
}

/// Stands for one entity and one session, within which messages keep their order, whatever the length of their names.
fn lane(entity: &EntityName, session: &SessionId) -> Key {
    let text = format!("{}:{entity}{session}", entity.as_str().len());
    Digest::of(text.as_bytes()).0.to_vec()
}

fn guard_name(guard: OutcomeGuard) -> &'static str {
    match guard {
        OutcomeGuard::Newer => "newer",
        OutcomeGuard::IfAbsent => "if-absent",
        OutcomeGuard::Resubmitted => "resubmitted",
    }
}

impl DecisionRow {
    pub(crate) fn new(endpoint: &EndpointName, decision: Decision) -> Result<Self, Error> {
        let rest = decision::encode(decision.attempt, &decision.rest);
        Ok(Self {
            hash: message_key(endpoint, &decision.message_id),
            endpoint: Text(endpoint.clone()),
            message_id: Text(decision.message_id),
            outcome: decision.outcome.name(),
            rest: rest.map_err(|error| Error::Invalid(error.to_string()))?,
        })
    }
}

impl Event {
    pub(crate) fn new(endpoint: &EndpointName, outcome: OutcomeWrite) -> Result<Self, Error> {
        let (kept_header, kept_body) = outcome.keep.as_deref().map(encoded).transpose()?.unzip();
        let (error_kind, error_text) = outcome.error.map(|error| (Text(error.kind), Text(error.text))).unzip();
        Ok(Self {
            hash: event_key(endpoint, &outcome.event_id),
            endpoint: Text(endpoint.clone()),
            event_id: Text(outcome.event_id),
            message_id: outcome.message_id.map(Text),
            source_id: outcome.source_id.map(Text),
            session: outcome.session.map(Text),
            event_type: Text(outcome.event_type),
            outcome: outcome.outcome.name(),
            reason: outcome.reason.map(Text),
            error_kind,
            error_text,
            attempts: outcome.attempts.into(),
            handler: outcome.handler.map(Text),
            digest: outcome.digest.map(|digest| digest.0.to_vec()),
            enqueued_at: outcome.enqueued_at.0,
            at: outcome.at.0,
            kept_session: outcome.keep.and_then(|message| message.session_id).map(Text),
            kept_header,
            kept_body,
            guard: guard_name(outcome.guard),
        })
    }
}

impl Line {
    pub(crate) fn new(endpoint: &EndpointName, line: HistoryLine) -> Self {
        let (error_kind, error_text) = line.error.map(|error| (Text(error.kind), Text(error.text))).unzip();
        Self {
            event: event_key(endpoint, &line.event_id),
            endpoint: Text(endpoint.clone()),
            event_id: Text(line.event_id),
            kind: line.kind.name(),
            at: line.at.0,
            message_id: line.message_id.map(Text),
            outcome: line.outcome.map(Outcome::name),
            attempt: line.attempt.into(),
            started_at: line.started_at.map(|at| at.0),
            took: line.took.map(decision::nanos),
            handler: line.handler.map(Text),
            digest: line.digest.map(|digest| digest.0.to_vec()),
            reason: line.reason.map(Text),
            error_kind,
            error_text,
            by: line.by.map(Text),
        }
    }
}

impl OutgoingRow {
    pub(crate) fn new(endpoint: &EndpointName, event_id: Option<&EventId>, outgoing: Outgoing) -> Result<Self, Error> {
        let (header, body) = encoded(&outgoing.message)?;
        Ok(Self {
            endpoint: Text(endpoint.clone()),
            lane: outgoing.message.session_id.as_ref().map(|session| lane(&outgoing.entity, session)),
            entity: Text(outgoing.entity),
            session: outgoing.message.session_id.map(Text),
            message_id: outgoing.message.message_id.map(Text),
            event_id: event_id.cloned().map(Text),
            header,
            body,
        })
    }
}

impl ActionEnd {
    pub(crate) fn new(end: ActionWrite) -> Self {
        let (state, text) = match end.result {
            ActionResult::Applied { text } => ("applied", text),
            ActionResult::Conflict { text } => ("conflict", text),
        };
        Self { id: end.id.0, state, text: Text(text), at: end.at.0 }
    }
}

impl Prepared {
    pub(crate) fn new(endpoint: &EndpointName, write: StoreWrite) -> Result<Self, Error> {
        let event_id = write.outcome.as_ref().map(|it| &it.event_id).or(write.history.as_ref().map(|it| &it.event_id));
        let has_unit = !write.unit.is_empty();
        let transaction = write.unit.transaction;
        let outgoing = write.unit.outgoing.into_iter().map(|one| OutgoingRow::new(endpoint, event_id, one));
        let outgoing = outgoing.collect::<Result<_, _>>()?;
        let decision = write.decision.map(|decision| DecisionRow::new(endpoint, decision)).transpose()?;
        let rows = |ids: Vec<MessageId>| {
            let row = |id: MessageId| IdRow {
                hash: message_key(endpoint, &id),
                endpoint: Text(endpoint.clone()),
                message_id: Text(id),
                decision: decision.as_ref().map(|decision| decision.hash.clone()),
            };
            ids.into_iter().map(row).collect()
        };
        Ok(Self {
            records: rows(write.record),
            finals: rows(write.finals),
            decision,
            event: write.outcome.map(|outcome| Event::new(endpoint, outcome)).transpose()?,
            line: write.history.map(|line| Line::new(endpoint, line)),
            outgoing,
            state: StateChange::new(endpoint, write.unit.reads, write.unit.writes),
            action: write.action.map(ActionEnd::new),
            lease: write.lease.map(|end| LeaseRow::new(endpoint, end)),
            has_unit,
            transaction,
        })
    }

    /// May share a transaction: it neither reads nor writes state, whose locks and conflicts are its own business.
    pub(crate) fn may_be_shared(&self) -> bool {
        self.state.is_empty() && self.action.is_none() && self.transaction.is_none()
    }

    /// The keys of all rows that it writes and another could: two writes that have one in common do not share a transaction.
    pub(crate) fn keys(&self) -> HashSet<&Key> {
        let ids = self.records.iter().chain(&self.finals).map(|row| &row.hash);
        let decision = self.decision.iter().map(|row| &row.hash);
        let events = self.event.iter().map(|event| &event.hash).chain(self.line.iter().map(|line| &line.event));
        let lease = self.lease.iter().map(|end| &end.hash);
        ids.chain(decision).chain(events).chain(lease).collect()
    }

    /// About as many bytes as it has on the wire.
    pub(crate) fn bytes(&self) -> usize {
        let sent: usize = self.outgoing.iter().map(|row| row.header.len() + row.body.len()).sum();
        let kept = self.event.iter().flat_map(|event| [&event.kept_header, &event.kept_body]).flatten().map(Vec::len);
        1_024 + sent + kept.sum::<usize>()
    }
}

pub(crate) async fn decision_done(connection: Connection<'_>, hash: Key) -> Result<(), Fault> {
    connection.execute("DELETE FROM sprag_decision WHERE hash = $1", &[&hash]).await.map(drop)
}

/// What a column's name stands for; a name that this binary does not know is a row that it cannot read.
fn known<T>(found: Option<T>, what: &str) -> Result<T, Fault> {
    found.ok_or_else(|| Fault::Unreadable(format!("{what} is not known")))
}

pub(crate) fn outcome_of(name: &str) -> Result<Outcome, Fault> {
    known(Outcome::from_name(name), "an outcome")
}

pub(crate) fn history_of(name: &str) -> Result<HistoryKind, Fault> {
    known(HistoryKind::from_name(name), "a kind of history")
}

pub(crate) fn action_of(name: &str) -> Result<ActionKind, Fault> {
    known(ActionKind::from_name(name), "a kind of action")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_outcomes_are_those_of_the_core() {
        let names: Vec<_> =
            Outcome::ALL.into_iter().filter(|it| it.is_final()).map(|it| format!("'{}'", it.name())).collect();
        assert_eq!(finals!(), format!("({})", names.join(", ")));
    }

    /// Names of any length are not run together.
    #[test]
    fn lanes_are_kept_apart() {
        assert_ne!(lane(&"ab".into(), &"c".into()), lane(&"a".into(), &"bc".into()));
        assert_eq!(lane(&"a".into(), &"b".into()), lane(&"a".into(), &"b".into()));
    }
}
