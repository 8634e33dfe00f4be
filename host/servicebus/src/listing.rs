//! What operators look at: messages without locking them, counts, sessions, dead letters and their way back.
//!
//! AMQP has no counts: they are found by looking at every message, so they cost as much as the entity holds. Dead letters of an entity are those
//! of its own dead-letter queue and those of its parked side (P24); the numbers of the latter are set apart by a bit that no number of a
//! queue reaches ([`OF_PARKED`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use sprag_core::{
    ids::{EntityName, SequenceNumber, SessionId},
    message::{Message, Origin, property},
};
use sprag_transport::{EntityInfo, Error, Part, Peeked, SessionInfo, Settlement};
use tokio::time::Instant;
use tracing::debug;

use crate::{
    address,
    fault::{Fault, condition},
    link::{Arrival, From, Link},
    management::{Management, WITH_MESSAGES, WITH_STATE},
    message::{Received, State},
    settle::{self, Hand},
    transport::Shared,
    way::Way,
};

/// Added to the number of a dead letter of the parked side. A queue's numbers have 48 bits; only partitioned entities use those above, and an
/// endpoint's queues are never partitioned (P21).
const OF_PARKED: i64 = 1 << 62;
/// How long a dead letter that was seen may take to come.
const DEAD_WAIT: Duration = Duration::from_secs(5);

/// Nothing, where the entity has no such side.
fn or_nothing<T: Default>(result: Result<T, Fault>) -> Result<T, Fault> {
    match result {
        Err(fault) if fault.is(condition::NOT_FOUND) => Ok(T::default()),
        other => other,
    }
}

fn peeked(received: Received, part: Part, way: &Way) -> Peeked {
    let parked_as = received.parked_as().filter(|_| part == Part::Parked);
    let mut message = received.message;
    way.read(&mut message);
    let mut text = |name: &str| match part {
        Part::DeadLetters => message.properties.remove(name).and_then(|value| value.as_str().map(str::to_owned)),
        _ => None,
    };
    let (reason, description) = (text(property::DEAD_LETTER_REASON), text(property::DEAD_LETTER_DESCRIPTION));
    Peeked {
        sequence: received.sequence,
        part,
        enqueued_at: received.enqueued_at,
        delivery_count: received.delivery_count,
        parked_as,
        // A copy is as old as its parking; when a message died is not told.
        moved_at: (part == Part::Parked).then_some(received.enqueued_at),
        dead_letter_reason: reason,
        dead_letter_description: description,
        message,
    }
}

async fn collect(
    shared: &Arc<Shared>,
    entity: &EntityName,
    session: Option<&SessionId>,
    from: SequenceNumber,
    max: usize,
    mut wanted: impl FnMut(&Received) -> bool + Send,
) -> Result<Vec<Received>, Fault> {
    let mut found = Vec::new();
    let management = Management::of(&shared.client, entity);
    management
        .walk(session, from, |received| {
            if wanted(&received) && found.len() < max {
                found.push(received);
            }
            found.len() < max
        })
        .await?;
    Ok(found)
}

pub(crate) async fn peek(
    shared: &Arc<Shared>,
    entity: &EntityName,
    part: Part,
    session: Option<&SessionId>,
    from: SequenceNumber,
    max: usize,
) -> Result<Vec<Peeked>, Error> {
    let way = shared.way(entity);
    let found = match part {
        Part::Active => {
            let found = collect(shared, entity, session, from, max, |received| received.state == State::Active).await;
            found.map(|found| found.into_iter().map(|received| peeked(received, part, &way)).collect())
        }
        Part::Scheduled => {
            let entry = way.entry(entity);
            // A topic has no sessions to ask for, and what waits there may be for others.
            let asked = session.filter(|_| entry == *entity);
            let is_wanted = |received: &Received| {
                received.state == State::Scheduled && of(received, session) && way.leads_here(&received.message)
            };
            let found = collect(shared, &entry, asked, from, max, is_wanted).await;
            found.map(|found| found.into_iter().map(|received| peeked(received, part, &way)).collect())
        }
        Part::Parked => parked(shared, entity, session, from, max).await,
        Part::DeadLetters => dead(shared, entity, session, from, max).await,
    };
    found.map_err(|fault| fault.about(entity))
}

/// All of them have to be looked at, to put them in the order of their parking numbers.
async fn parked(
    shared: &Arc<Shared>,
    entity: &EntityName,
    session: Option<&SessionId>,
    from: SequenceNumber,
    max: usize,
) -> Result<Vec<Peeked>, Fault> {
    Management::of(&shared.client, entity).exists().await?;
    let way = shared.way(entity);
    let all = collect(shared, &way.parked(entity), session, from, usize::MAX, |_| true).await;
    let mut all: Vec<_> = or_nothing(all)?.into_iter().map(|received| peeked(received, Part::Parked, &way)).collect();
    all.sort_by_key(|peeked| (peeked.parked_as, peeked.sequence));
    all.truncate(max);
    Ok(all)
}

async fn dead(
    shared: &Arc<Shared>,
    entity: &EntityName,
    session: Option<&SessionId>,
    from: SequenceNumber,
    max: usize,
) -> Result<Vec<Peeked>, Fault> {
    let way = shared.way(entity);
    let own = match from.0 < OF_PARKED {
        // The dead-letter queue may be looked at by session as well, but not everywhere: sorted out here.
        true => {
            collect(shared, &address::dead_letters(entity), None, from, max, |received| of(received, session)).await?
        }
        false => Vec::new(),
    };
    let mut all: Vec<_> = own.into_iter().map(|received| peeked(received, Part::DeadLetters, &way)).collect();
    if all.len() < max {
        let beside = address::dead_letters(&way.parked(entity));
        let from = SequenceNumber(from.0.saturating_sub(OF_PARKED).max(0));
        let rest = collect(shared, &beside, None, from, max - all.len(), |received| of(received, session)).await;
        all.extend(or_nothing(rest)?.into_iter().map(|received| {
            let mut peeked = peeked(received, Part::DeadLetters, &way);
            peeked.sequence.0 = peeked.sequence.0.saturating_add(OF_PARKED);
            peeked
        }));
    }
    Ok(all)
}

fn of(received: &Received, session: Option<&SessionId>) -> bool {
    session.is_none_or(|session| received.message.session_id.as_ref() == Some(session))
}

pub(crate) async fn describe(shared: &Arc<Shared>, entity: &EntityName) -> Result<EntityInfo, Error> {
    let known = shared.settings(entity, false);
    let way = shared.way(entity);
    let counted = async {
        let (mut active, mut scheduled) = (0, 0);
        let count = |received: Received| {
            match received.state {
                State::Active => active += 1,
                State::Scheduled if way.leads_here(&received.message) => scheduled += 1,
                State::Scheduled | State::Deferred => {}
            }
            true
        };
        Management::of(&shared.client, entity).walk(None, SequenceNumber(0), count).await?;
        if way.entry(entity) != *entity {
            let waits = |received: &Received| received.state == State::Scheduled && way.leads_here(&received.message);
            let waiting = collect(shared, &way.entry(entity), None, SequenceNumber(0), usize::MAX, waits).await?;
            scheduled += waiting.len() as u64;
        }
        let parked = count_all(shared, &way.parked(entity)).await?;
        let dead = count_all(shared, &address::dead_letters(entity)).await?
            + count_all(shared, &address::dead_letters(&way.parked(entity))).await?;
        Ok::<_, Fault>((active, scheduled, parked, dead))
    };
    let (active, scheduled, parked, dead_letters) = counted.await.map_err(|fault| fault.about(entity))?;
    Ok(EntityInfo {
        name: entity.clone(),
        requires_session: known.requires_session,
        lock_duration: known.lock_duration,
        max_delivery_count: known.max_delivery_count,
        active,
        scheduled,
        parked,
        dead_letters,
    })
}

async fn count_all(shared: &Arc<Shared>, entity: &EntityName) -> Result<u64, Fault> {
    let mut count = 0;
    let management = Management::of(&shared.client, entity);
    let walked = management.walk(None, SequenceNumber(0), |_| {
        count += 1;
        true
    });
    or_nothing(walked.await)?;
    Ok(count)
}

/// Sessions that have messages, parked ones or state.
pub(crate) async fn sessions(
    shared: &Arc<Shared>,
    entity: &EntityName,
    after: Option<&SessionId>,
    max: usize,
) -> Result<Vec<SessionInfo>, Error> {
    listed(shared, entity, after, max).await.map_err(|fault| fault.about(entity))
}

async fn listed(
    shared: &Arc<Shared>,
    entity: &EntityName,
    after: Option<&SessionId>,
    max: usize,
) -> Result<Vec<SessionInfo>, Fault> {
    let main = Management::of(&shared.client, entity);
    let beside = shared.way(entity).parked(entity);
    let mut ids: BTreeSet<SessionId> = main.sessions(WITH_MESSAGES).await?.into_iter().collect();
    ids.extend(main.sessions(WITH_STATE).await?);
    ids.extend(or_nothing(Management::of(&shared.client, &beside).sessions(WITH_MESSAGES).await)?);
    let mut found = Vec::new();
    for id in ids.into_iter().filter(|id| after.is_none_or(|after| id > after)) {
        if found.len() >= max {
            break;
        }
        let mine = |received: &Received| received.state == State::Active;
        let active = collect(shared, entity, Some(&id), SequenceNumber(0), usize::MAX, mine).await?.len();
        let parked = collect(shared, &beside, Some(&id), SequenceNumber(0), usize::MAX, |_| true).await;
        let parked = or_nothing(parked)?;
        let (state, locked) = state_of(shared, entity, &id).await?;
        if active == 0 && parked.is_empty() && state.is_none() && !locked {
            continue;
        }
        found.push(SessionInfo {
            session: id,
            state,
            active: active as u64,
            parked: parked.len() as u64,
            oldest_parked_at: parked.iter().map(|received| received.enqueued_at).min(),
            locked,
        });
    }
    Ok(found)
}

/// State is for who holds the session: it is held for the moment of reading. One that somebody else holds does not tell its state.
async fn state_of(
    shared: &Arc<Shared>,
    entity: &EntityName,
    id: &SessionId,
) -> Result<(Option<bytes::Bytes>, bool), Fault> {
    let (link, _since) = match shared.named(entity, id, Duration::ZERO).await {
        Ok(link) => link,
        Err(fault) if fault.is(condition::SESSION_HELD) => return Ok((None, true)),
        Err(fault) => return Err(fault),
    };
    let state = Management::of_link(&link, entity).state(id).await;
    link.close().await;
    match state {
        Ok(state) => Ok((state, false)),
        Err(fault) if fault.is_lock_lost() => Ok((None, true)),
        Err(fault) => Err(fault),
    }
}

/// Received, sent anew, completed; what was not meant goes back uncounted. Between the last two a crash leaves both, under one id.
pub(crate) async fn replay(
    shared: &Arc<Shared>,
    entity: &EntityName,
    sequences: &[SequenceNumber],
) -> Result<u64, Error> {
    let (beside, own): (BTreeSet<i64>, BTreeSet<i64>) =
        sequences.iter().map(|number| number.0).partition(|number| *number >= OF_PARKED);
    let beside = beside.into_iter().map(|number| number - OF_PARKED).collect();
    let way = shared.way(entity);
    let again = |message| way.again(message, Origin::Main);
    let own = replay_from(shared, entity, own, way.entry(entity), again).await;
    let own = own.map_err(|fault| fault.about(entity))?;
    let parked = way.parked(entity);
    let again = |message| way.again(message, Origin::Parked);
    let beside = replay_from(shared, &parked, beside, way.parked_entry(entity), again).await;
    Ok(own + beside.map_err(|fault| fault.about(&parked))?)
}

async fn replay_from(
    shared: &Arc<Shared>,
    entity: &EntityName,
    wanted: BTreeSet<i64>,
    entry: EntityName,
    again: impl Fn(Message) -> Message + Send,
) -> Result<u64, Fault> {
    let Some(first) = wanted.first() else { return Ok(0) };
    let place = address::dead_letters(entity);
    let mut there = BTreeMap::new();
    let (first, last) = (*first, *wanted.last().expect("there is a first one"));
    let look = Management::of(&shared.client, &place);
    let seen = look.walk(None, SequenceNumber(first), |received| {
        if wanted.contains(&received.sequence.0) {
            there.insert(received.sequence.0, ());
        }
        received.sequence.0 < last
    });
    or_nothing(seen.await)?;
    if there.is_empty() {
        return Ok(0);
    }
    let link = Arc::new(Link::open(&shared.client, &address::path(&place), From::Plain).await?);
    let management = Management::of_link(&link, &place);
    let hand = |arrival: Arrival| Hand { arrival, link: Arc::clone(&link), origin: Origin::Main };
    let how = shared.client.config.settle;
    let mut aside = Vec::new();
    let mut replayed = 0;
    let result = async {
        while !there.is_empty() {
            let Some(arrival) = link.receive(Instant::now() + DEAD_WAIT).await? else { break };
            if there.remove(&arrival.received.sequence.0).is_none() {
                aside.push(arrival);
                continue;
            }
            let mut message = arrival.received.message.clone();
            for name in [property::DEAD_LETTER_REASON, property::DEAD_LETTER_DESCRIPTION] {
                message.properties.remove(name);
            }
            if let Some(rare) = message.rare.as_mut() {
                rare.dead_letter_source = None;
            }
            message.rare = message.rare.filter(|rare| **rare != Default::default());
            link.connection.sender(&address::path(&entry)).await?.send(&[again(message)]).await?;
            settle::settle(how, &management, None, &hand(arrival), Settlement::Complete).await?;
            replayed += 1;
        }
        Ok(replayed)
    };
    let result = result.await;
    for arrival in aside {
        if let Err(fault) = settle::settle(how, &management, None, &hand(arrival), Settlement::Release).await {
            debug!(%place, %fault, "a dead letter goes back when its lock has lapsed");
        }
    }
    link.close().await;
    result
}
