//! What a session remembers between deliveries, in NimBus's JSON (spec 3, P32, `reference/nimbus-barewire.md` 1.7).
//!
//! NimBus's members keep their names and meaning; what it has no word for stands in a member `Sprag`; members that neither
//! knows are kept as they are. An idle session is written as nothing at all.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    ids::{EventId, MessageId},
    time::Timestamp,
};

/// Why a session waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockKind {
    Failure,
    Handoff,
}

impl BlockKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Handoff => "handoff",
        }
    }
}

/// The one event that a session waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Block {
    pub event_id: EventId,
    /// The id under which the transport first delivered the event.
    pub source_id: Option<MessageId>,
    pub kind: BlockKind,
    /// Rises with every decision on the event and never restarts (P11).
    pub attempt: u32,
    /// The attempt at which an operator last acted: the retry policy counts from there.
    pub since_attempt: u32,
    pub since: Timestamp,
}

impl Block {
    /// Event ids of a block compare without case, as the seeds do; nothing else does (P29).
    pub fn is_of(&self, event_id: &EventId) -> bool {
        self.event_id == *event_id || self.event_id.as_str().to_lowercase() == event_id.as_str().to_lowercase()
    }
}

/// An operator gave up on everything parked below a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SkipParked {
    pub below: u32,
    pub reason: String,
    pub by: String,
}

/// A session's state. The default is an idle session, which costs nothing: it is written as empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SessionState {
    pub block: Option<Block>,
    /// At most this many messages are parked: a count too high is harmless, one too low is not (P16).
    pub parked: u32,
    /// The parking number that the next parked message gets.
    pub next_sequence: u32,
    pub skip_parked: Option<SkipParked>,
    /// Members that are not ours, kept as they are.
    pub unknown: Map<String, Value>,
}

/// The bytes are not a session state.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the session's state cannot be read: {0}")]
pub struct Unreadable(String);

/// The JSON as it travels.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Wire {
    blocked_by_event_id: Option<EventId>,
    blocked_by_message_id: Option<MessageId>,
    deferred_count: i64,
    next_deferral_sequence: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sprag: Option<Ours>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Ours {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<BlockKind>,
    attempt: u32,
    since_attempt: u32,
    since: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    skip_below: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skip_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skip_by: Option<String>,
}

/// NimBus's list of broker-deferred messages: it round-trips, and an empty one counts as not there.
const LEGACY_NUMBERS: &str = "DeferredSequenceNumbers";

impl SessionState {
    /// Nothing blocks, nothing is parked, nobody else left anything.
    pub fn is_idle(&self) -> bool {
        self.block.is_none() && self.parked == 0 && self.unknown.is_empty()
    }

    pub fn is_blocked_by(&self, event_id: &EventId) -> bool {
        self.block.as_ref().is_some_and(|block| block.is_of(event_id))
    }

    /// Null, zero bytes and the JSON `null` all read as an idle session.
    pub fn from_bytes(bytes: Option<&[u8]>) -> Result<Self, Unreadable> {
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else {
            return Ok(Self::default());
        };
        let wire: Option<Wire> = serde_json::from_slice(bytes).map_err(|error| Unreadable(error.to_string()))?;
        let Some(mut wire) = wire else {
            return Ok(Self::default());
        };
        if matches!(wire.unknown.get(LEGACY_NUMBERS), Some(Value::Null))
            || wire.unknown.get(LEGACY_NUMBERS) == Some(&Value::Array(vec![]))
        {
            wire.unknown.remove(LEGACY_NUMBERS);
        }
        let ours = wire.sprag.unwrap_or_default();
        let count = |number: i64| u32::try_from(number.max(0)).unwrap_or(u32::MAX);
        Ok(Self {
            block: wire.blocked_by_event_id.filter(|id| !id.as_str().is_empty()).map(|event_id| Block {
                event_id,
                source_id: wire.blocked_by_message_id,
                kind: ours.kind.unwrap_or(BlockKind::Failure),
                attempt: ours.attempt,
                since_attempt: ours.since_attempt,
                since: ours.since,
            }),
            parked: count(wire.deferred_count),
            next_sequence: count(wire.next_deferral_sequence),
            skip_parked: ours.skip_below.map(|below| SkipParked {
                below,
                reason: ours.skip_reason.unwrap_or_default(),
                by: ours.skip_by.unwrap_or_default(),
            }),
            unknown: wire.unknown,
        })
    }

    /// None for an idle session: its state is cleared to null (P32).
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        if self.is_idle() {
            return None;
        }
        let ours = Ours {
            kind: self.block.as_ref().map(|block| block.kind),
            attempt: self.block.as_ref().map_or(0, |block| block.attempt),
            since_attempt: self.block.as_ref().map_or(0, |block| block.since_attempt),
            since: self.block.as_ref().map_or_else(Timestamp::default, |block| block.since),
            skip_below: self.skip_parked.as_ref().map(|skip| skip.below),
            skip_reason: self.skip_parked.as_ref().map(|skip| skip.reason.clone()),
            skip_by: self.skip_parked.as_ref().map(|skip| skip.by.clone()),
        };
        let wire = Wire {
            blocked_by_event_id: self.block.as_ref().map(|block| block.event_id.clone()),
            blocked_by_message_id: self.block.as_ref().and_then(|block| block.source_id.clone()),
            deferred_count: self.parked.into(),
            next_deferral_sequence: self.next_sequence.into(),
            sprag: (self.block.is_some() || self.skip_parked.is_some()).then_some(ours),
            unknown: self.unknown.clone(),
        };
        Some(serde_json::to_vec(&wire).expect("names and numbers are always JSON"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> SessionState {
        SessionState::from_bytes(Some(json.as_bytes())).expect("a state")
    }

    /// Cases A44 and 57: idle is written as nothing, and nothing reads as idle.
    #[test]
    fn idle_is_nothing() {
        assert_eq!(SessionState::default().to_bytes(), None);
        for bytes in [None, Some(&b""[..]), Some(b"null"), Some(b"{}")] {
            assert_eq!(SessionState::from_bytes(bytes).expect("idle"), SessionState::default());
        }
        let resolved = SessionState { next_sequence: 7, ..Default::default() };
        assert_eq!(resolved.to_bytes(), None, "the next parking number alone does not keep a session alive");
    }

    #[test]
    fn round_trip_keeps_everything() {
        let state = SessionState {
            block: Some(Block {
                event_id: "E1".into(),
                source_id: Some("m1".into()),
                kind: BlockKind::Handoff,
                attempt: 3,
                since_attempt: 1,
                since: Timestamp(5),
            }),
            parked: 2,
            next_sequence: 9,
            skip_parked: Some(SkipParked { below: 4, reason: "gone".into(), by: "ann".into() }),
            unknown: Map::from_iter([("Theirs".to_owned(), Value::from(1))]),
        };
        let bytes = state.to_bytes().expect("not idle");
        assert_eq!(SessionState::from_bytes(Some(&bytes)).expect("ours"), state);
    }

    /// P32: a state that NimBus wrote is a failure block with attempt 0; case 58: without `BlockedByMessageId`.
    #[test]
    fn state_of_nimbus() {
        let state = read(
            r#"{"DeferredSequenceNumbers":[],"BlockedByEventId":"e-1","DeferredCount":3,"NextDeferralSequence":3,"Other":{"a":[1]}}"#,
        );
        let block = state.block.clone().expect("blocked");
        assert_eq!((block.kind, block.attempt, block.source_id), (BlockKind::Failure, 0, None));
        assert_eq!((state.parked, state.next_sequence), (3, 3));
        let written: Value = serde_json::from_slice(&state.to_bytes().expect("blocked")).expect("JSON");
        assert_eq!(written["Other"], serde_json::json!({"a": [1]}), "members that we do not know are kept");
        assert_eq!(written["BlockedByEventId"], "e-1");
    }

    /// Case 46: the blocker's id compares without case.
    #[test]
    fn blocker_compares_without_case() {
        let state = read(r#"{"BlockedByEventId":"AbC"}"#);
        assert!(state.is_blocked_by(&"aBc".into()));
        assert!(!state.is_blocked_by(&"abd".into()));
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(SessionState::from_bytes(Some(b"\xff\x00")).is_err());
        assert!(SessionState::from_bytes(Some(b"[1]")).is_err());
    }
}
