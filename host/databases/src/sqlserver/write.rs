//! What a [`StoreWrite`] writes, as rows. How they are written is in [`batch`](super::batch).

use std::collections::HashSet;

use sprag_core::{
    effect::StoreWrite,
    ids::{Digest, EndpointName, MessageId},
};
use sprag_store::Error;

use crate::postgres::{
    text::Text,
    write::{ActionEnd, DecisionRow, Event, IdRow, Key, Line, OutgoingRow, message_key},
};

use super::{connections::Connection, fault::Fault, script::Script, state::StateChange};

/// The outcomes that are final, for conditions.
macro_rules! finals {
    () => {
        "('completed', 'skipped', 'dead-lettered', 'unsupported')"
    };
}
pub(crate) use finals;

/// A text of any length as an index takes it.
pub(crate) fn digest_key(text: &str) -> Key {
    Digest::of(text.as_bytes()).0.to_vec()
}

/// A [`StoreWrite`] as rows.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) decision: Option<DecisionRow>,
    /// No id twice: the first of each is the one that counts.
    pub(crate) records: Vec<IdRow>,
    pub(crate) finals: Vec<IdRow>,
    pub(crate) event: Option<Keyed>,
    pub(crate) line: Option<Line>,
    pub(crate) outgoing: Vec<OutgoingRow>,
    pub(crate) endpoint_key: Key,
    pub(crate) state: StateChange,
    pub(crate) action: Option<ActionEnd>,
    pub(crate) has_unit: bool,
}

/// An event with what it is found by.
#[derive(Debug)]
pub(crate) struct Keyed {
    pub(crate) row: Event,
    pub(crate) id_key: Key,
    pub(crate) message_key: Option<Key>,
    pub(crate) source_key: Option<Key>,
    pub(crate) session_key: Option<Key>,
}

impl Keyed {
    fn new(row: Event) -> Self {
        let own = row.event_id.0.as_str();
        let other = |id: Option<&Text<MessageId>>| id.map(|id| id.0.as_str()).filter(|id| *id != own).map(digest_key);
        Self {
            id_key: digest_key(own),
            message_key: other(row.message_id.as_ref()),
            source_key: other(row.source_id.as_ref()),
            session_key: row.session.as_ref().map(|session| digest_key(session.0.as_str())),
            row,
        }
    }
}

impl Prepared {
    pub(crate) fn new(endpoint: &EndpointName, write: StoreWrite) -> Result<Self, Error> {
        let event_id = write.outcome.as_ref().map(|it| &it.event_id).or(write.history.as_ref().map(|it| &it.event_id));
        if write.lease.is_some() || write.unit.transaction.is_some() {
            return Err(Error::Invalid(
                "the store on SQL Server has neither leases nor SQL for handlers yet".to_owned(),
            ));
        }
        let has_unit = !write.unit.is_empty();
        let outgoing = write.unit.outgoing.into_iter().map(|one| OutgoingRow::new(endpoint, event_id, one));
        let outgoing = outgoing.collect::<Result<_, _>>()?;
        let decision = write.decision.map(|decision| DecisionRow::new(endpoint, decision)).transpose()?;
        let rows = |ids: Vec<MessageId>| {
            let mut seen = HashSet::new();
            let row = |id: MessageId| IdRow {
                hash: message_key(endpoint, &id),
                endpoint: Text(endpoint.clone()),
                message_id: Text(id),
                decision: decision.as_ref().map(|decision| decision.hash.clone()),
            };
            ids.into_iter().map(row).filter(|row| seen.insert(row.hash.clone())).collect()
        };
        Ok(Self {
            records: rows(write.record),
            finals: rows(write.finals),
            decision,
            event: write.outcome.map(|outcome| Event::new(endpoint, outcome)).transpose()?.map(Keyed::new),
            line: write.history.map(|line| Line::new(endpoint, line)),
            outgoing,
            endpoint_key: digest_key(endpoint.as_str()),
            state: StateChange::new(endpoint, write.unit.reads, write.unit.writes),
            action: write.action.map(ActionEnd::new),
            has_unit,
        })
    }

    /// May share a transaction: it neither reads nor writes state, whose locks and conflicts are its own business.
    pub(crate) fn may_be_shared(&self) -> bool {
        self.state.is_empty() && self.action.is_none()
    }

    /// The keys of all rows that it writes and another could: two writes that have one in common do not share a transaction.
    pub(crate) fn keys(&self) -> HashSet<&Key> {
        let ids = self.records.iter().chain(&self.finals).map(|row| &row.hash);
        let decision = self.decision.iter().map(|row| &row.hash);
        let events = self.event.iter().map(|event| &event.row.hash).chain(self.line.iter().map(|line| &line.event));
        ids.chain(decision).chain(events).collect()
    }

    /// About as many bytes as it has on the wire.
    pub(crate) fn bytes(&self) -> usize {
        let sent: usize = self.outgoing.iter().map(|row| row.header.len() + row.body.len()).sum();
        let kept = self.event.iter().flat_map(|event| [&event.row.kept_header, &event.row.kept_body]);
        1_024 + sent + kept.flatten().map(Vec::len).sum::<usize>()
    }
}

pub(crate) async fn decision_done(connection: &mut Connection, hash: Key) -> Result<(), Fault> {
    let names = connection.names();
    let script = Script::of(&names, "DELETE FROM #decision WHERE hash = CAST(? AS binary(32))", vec![hash.into()]);
    connection.execute(script).await.map(drop)
}

#[cfg(test)]
mod tests {
    use sprag_core::outcome::Outcome;
    use sprag_store::conformance::sample;

    use super::*;

    #[test]
    fn the_final_outcomes_are_those_of_the_core() {
        let names: Vec<_> =
            Outcome::ALL.into_iter().filter(|it| it.is_final()).map(|it| format!("'{}'", it.name())).collect();
        assert_eq!(finals!(), format!("({})", names.join(", ")));
    }

    /// A statement that inserts an id twice would find its own key there, for ever.
    #[test]
    fn an_id_is_recorded_once() {
        let write = Prepared::new(&sample::endpoint(), sample::record(&["a", "b", "a"])).unwrap();
        let ids: Vec<&str> = write.records.iter().map(|row| row.message_id.0.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
    }

    /// The usual event has one id for all three, and pays for one.
    #[test]
    fn an_event_is_found_by_ids_that_are_not_its_own() {
        let key = |source: &str| {
            let outcome = sprag_core::effect::OutcomeWrite {
                source_id: Some(source.into()),
                ..sample::outcome("e", Outcome::Failed)
            };
            Keyed::new(Event::new(&sample::endpoint(), outcome).unwrap())
        };
        assert_eq!((key("e").message_key, key("e").source_key), (None, None));
        assert_eq!(key("s").source_key, Some(digest_key("s")));
    }
}
