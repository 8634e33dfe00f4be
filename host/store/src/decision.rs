//! What is left to do after a decision, as bytes (P1). The embedded engine's own commits have nothing left to do and keep no decision;
//! one is kept here for a remote transport whose store this is.
//!
//! A store's transaction is over when its decision is written, with one exception: ids that are still to be recorded in an inbox in another place
//! (see [`crate::inbox`]).

use std::time::Duration;

use sprag_core::{
    effect::{Effect, StoreWrite},
    ids::{MessageId, SessionId},
    message::Message,
    session_state::SessionState,
};

use crate::codec::{self, Error, Reader, Writer};

const VERSION: u8 = 1;

pub fn encode(attempt: u32, rest: &[Effect]) -> Result<Vec<u8>, Error> {
    let mut out = Writer(vec![VERSION]);
    out.number(attempt.into());
    out.number(rest.len() as u64);
    for effect in rest {
        match effect {
            Effect::Store(write) => {
                let records = records_only(write)
                    .ok_or(Error::Corrupt("a decision is written once, and with it all that a store writes"))?;
                out.0.push(8);
                out.number(records.len() as u64);
                records.iter().for_each(|id| out.text(id.as_str()));
            }
            Effect::Enqueue(message) => {
                out.0.push(1);
                write_message(&mut out, message)?;
            }
            Effect::CancelScheduled(id) => {
                out.0.push(2);
                out.text(id.as_str());
            }
            Effect::SetState(state) => {
                out.0.push(3);
                out.bytes(&state.to_bytes().unwrap_or_default());
            }
            Effect::Park { sequence, copy } => {
                out.0.push(7);
                out.number((*sequence).into());
                write_message(&mut out, copy)?;
            }
            Effect::Complete => out.0.push(5),
            Effect::DeadLetter { reason, description } => {
                out.0.push(6);
                out.text(reason);
                out.text(description);
            }
        }
    }
    Ok(out.0)
}

/// The attempt and the effects.
pub fn decode(bytes: &[u8]) -> Result<(u32, Vec<Effect>), Error> {
    let mut input = Reader(bytes);
    if input.byte()? != VERSION {
        return Err(Error::Corrupt("the version of a decision is not known"));
    }
    let number =
        |input: &mut Reader<'_>| u32::try_from(input.number()?).map_err(|_| Error::Corrupt("a number is too large"));
    let attempt = number(&mut input)?;
    let mut rest = Vec::new();
    for _ in 0..input.number()? {
        rest.push(match input.byte()? {
            1 => Effect::Enqueue(Box::new(read_message(&mut input)?)),
            2 => Effect::CancelScheduled(MessageId::from(input.text()?)),
            3 => Effect::SetState(
                SessionState::from_bytes(Some(input.bytes()?))
                    .map_err(|_| Error::Corrupt("the session state of a decision"))?,
            ),
            5 => Effect::Complete,
            6 => Effect::DeadLetter { reason: input.text()?.to_owned(), description: input.text()?.to_owned() },
            7 => Effect::Park { sequence: number(&mut input)?, copy: Box::new(read_message(&mut input)?) },
            8 => {
                let mut record = Vec::new();
                for _ in 0..input.number()? {
                    record.push(MessageId::from(input.text()?));
                }
                Effect::Store(Box::new(StoreWrite { record, ..StoreWrite::default() }))
            }
            _ => return Err(Error::Corrupt("kind of effect")),
        });
    }
    Ok((attempt, rest))
}

/// The ids of a write that records and does nothing else.
fn records_only(write: &StoreWrite) -> Option<&[MessageId]> {
    let plain = StoreWrite { record: write.record.clone(), ..StoreWrite::default() };
    (!write.record.is_empty() && *write == plain).then_some(write.record.as_slice())
}

fn write_message(out: &mut Writer, message: &Message) -> Result<(), Error> {
    let (header, body) = codec::encode(message)?;
    match &message.session_id {
        Some(session) => {
            out.0.push(1);
            out.text(session.as_str());
        }
        None => out.0.push(0),
    }
    out.bytes(&header);
    out.bytes(&body);
    Ok(())
}

fn read_message(input: &mut Reader<'_>) -> Result<Message, Error> {
    let session = if input.byte()? == 1 { Some(SessionId::from(input.text()?)) } else { None };
    let (header, body) = (input.bytes()?, input.bytes()?);
    codec::decode(header, body, session.as_ref().map(SessionId::as_str))
}

/// Durations as nanoseconds, for a column.
pub fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

pub fn from_nanos(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use sprag_core::{
        message::Body,
        session_state::{Block, BlockKind},
        time::Timestamp,
    };

    use super::*;

    #[test]
    fn every_effect_comes_back() {
        let block = Block {
            event_id: "e".into(),
            source_id: None,
            kind: BlockKind::Handoff,
            attempt: 2,
            since_attempt: 1,
            since: Timestamp(5),
        };
        let rest = vec![
            Effect::Enqueue(Box::new(Message {
                session_id: Some("s".into()),
                body: Body::Data("x".into()),
                ..Message::default()
            })),
            Effect::Enqueue(Box::default()),
            Effect::CancelScheduled("id".into()),
            Effect::SetState(SessionState { block: Some(block), parked: 3, ..SessionState::default() }),
            Effect::SetState(SessionState::default()),
            Effect::Park {
                sequence: u32::MAX,
                copy: Box::new(Message { subject: Some("x".into()), ..Message::default() }),
            },
            Effect::Complete,
            Effect::DeadLetter { reason: "r".into(), description: String::new() },
            Effect::Store(Box::new(StoreWrite {
                record: vec!["source".into(), "own".into()],
                ..StoreWrite::default()
            })),
        ];
        let bytes = encode(7, &rest).unwrap();
        assert_eq!(decode(&bytes).unwrap(), (7, rest));
        assert!((0..bytes.len()).all(|cut| decode(&bytes[..cut]).is_err()));
        let more = StoreWrite { record: vec!["own".into()], finals: vec!["own".into()], ..StoreWrite::default() };
        for write in [StoreWrite::default(), more] {
            assert!(encode(1, &[Effect::Store(Box::new(write))]).is_err());
        }
    }
}
