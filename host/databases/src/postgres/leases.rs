//! Leases on messages in hand (spec 4, mode `lease`).
//!
//! Taking one is one statement: the key lets one insert win, and the condition of its update lets one of those take over who find it lapsed by the
//! database's clock (P33). The end of a lease stands at the head of the transaction of its decision; the row is locked from there to the commit, so nobody
//! takes over meanwhile.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use sprag_core::{
    effect::{LeaseEnd, LeaseEnding},
    ids::{EndpointName, LeaseOwner, MessageId},
};
use sprag_store::{
    Error,
    lease::{Leased, Leases},
};

use super::{
    PostgresStore,
    connections::{Connection, Step},
    fault::Fault,
    text::Text,
    write::{Key, Prepared, message_key, now},
};

/// Nobody's but the owner's own, or lapsed.
const ACQUIRE: &str = concat!(
    "INSERT INTO sprag_lease AS l (hash, endpoint, message_id, owner, taken_at, expires_at) SELECT $1, $2, $3, $4, c.now, c.now + $5 FROM (SELECT ",
    now!(),
    " AS now) c ON CONFLICT (hash) DO UPDATE SET owner = EXCLUDED.owner, taken_at = EXCLUDED.taken_at, expires_at = EXCLUDED.expires_at \
     WHERE l.expires_at IS NOT NULL AND (l.owner = EXCLUDED.owner OR l.expires_at <= ",
    now!(),
    ") RETURNING true",
);
const HOLDER: &str = concat!("SELECT expires_at - ", now!(), " FROM sprag_lease WHERE hash = $1");
const RENEW: &str = concat!(
    "UPDATE sprag_lease SET expires_at = ",
    now!(),
    " + $3 WHERE hash = $1 AND owner = $2 AND expires_at IS NOT NULL"
);
const RELEASE: &str = "DELETE FROM sprag_lease WHERE hash = $1 AND owner = $2 AND expires_at IS NOT NULL";

/// Locks, in the order of their keys, the leases that may end, and tells which; the lease of a handoff ends without an owner.
const HOLD: &str = "SELECT l.hash FROM sprag_lease l JOIN unnest($1::bytea[], $2::text[]) AS e(hash, owner) ON l.hash = e.hash \
     WHERE CASE WHEN e.owner IS NULL THEN l.expires_at IS NULL ELSE l.owner = e.owner AND l.expires_at IS NOT NULL END \
     ORDER BY l.hash FOR UPDATE OF l";
const OVER: &str = "DELETE FROM sprag_lease WHERE hash = ANY($1::bytea[])";
const HANDED_OFF: &str = "UPDATE sprag_lease SET expires_at = NULL WHERE hash = ANY($1::bytea[])";

/// Looks again for a lease that went between two statements; more often nobody's bad luck lasts.
const LOOKS: u32 = 5;

/// The end of a lease as values.
#[derive(Debug)]
pub(crate) struct LeaseRow {
    pub(crate) hash: Key,
    pub(crate) owner: Option<Text<LeaseOwner>>,
    pub(crate) how: LeaseEnding,
}

impl LeaseRow {
    pub(crate) fn new(endpoint: &EndpointName, end: LeaseEnd) -> Self {
        Self { hash: message_key(endpoint, &end.id), owner: end.owner.map(Text), how: end.how }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4).clamp(1, i64::MAX / 4)
}

async fn acquire(
    connection: Connection<'_>,
    endpoint: EndpointName,
    id: MessageId,
    owner: LeaseOwner,
    time: Duration,
) -> Result<Leased, Fault> {
    let hash = message_key(&endpoint, &id);
    let (endpoint, id, owner, time) = (Text(endpoint), Text(id), Text(owner), millis(time));
    for _ in 0..LOOKS {
        if connection.row(ACQUIRE, &[&hash, &endpoint, &id, &owner, &time]).await?.is_some() {
            return Ok(Leased::Acquired);
        }
        if let Some(row) = connection.row(HOLDER, &[&hash]).await? {
            let left: Option<i64> = row.try_get(0)?;
            return Ok(left.map_or(Leased::HandedOff, |left| Leased::InProgress {
                left: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
            }));
        }
    }
    Ok(Leased::InProgress { left: Duration::ZERO })
}

/// The statement that must come before all others of a transaction: which leases may end. None: there is none to end.
pub(crate) fn hold(batch: &[Prepared]) -> Option<Step<'_>> {
    let ends: Vec<&LeaseRow> = batch.iter().filter_map(|write| write.lease.as_ref()).collect();
    let hashes: Vec<&Key> = ends.iter().map(|end| &end.hash).collect();
    let owners: Vec<Option<&Text<LeaseOwner>>> = ends.iter().map(|end| end.owner.as_ref()).collect();
    (!ends.is_empty()).then(|| Step { sql: HOLD, values: vec![Box::new(hashes), Box::new(owners)] })
}

/// Refuses the write whose lease is its owner's no longer.
pub(crate) fn check(batch: &[Prepared], held: &HashSet<Key>) -> Result<(), Fault> {
    let is_lost = |end: &LeaseRow| end.owner.is_some() && !held.contains(&end.hash);
    let lost = batch.iter().filter_map(|write| write.lease.as_ref()).any(is_lost);
    if lost { Err(Fault::LeaseLost) } else { Ok(()) }
}

/// What becomes of the leases that are held: of each the write, and whether its decision is the first one. A handoff that was decided otherwise
/// before is none.
pub(crate) fn end<'a>(held: impl Iterator<Item = (&'a Prepared, bool)>, steps: &mut Vec<Step<'a>>) {
    let (mut over, mut handed_off): (Vec<&Key>, Vec<&Key>) = Default::default();
    for (write, stands) in held {
        match &write.lease {
            Some(LeaseRow { hash, how: LeaseEnding::HandedOff, owner: Some(_) }) if stands => handed_off.push(hash),
            Some(LeaseRow { hash, .. }) => over.push(hash),
            None => {}
        }
    }
    for (sql, hashes) in [(OVER, over), (HANDED_OFF, handed_off)] {
        if !hashes.is_empty() {
            steps.push(Step { sql, values: vec![Box::new(hashes)] });
        }
    }
}

#[async_trait]
impl Leases for PostgresStore {
    async fn acquire(
        &self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
    ) -> Result<Leased, Error> {
        let (endpoint, id, owner) = (endpoint.clone(), id.clone(), owner.clone());
        self.connections.call(move |connection| Box::pin(acquire(connection, endpoint, id, owner, time))).await
    }

    async fn renew(
        &self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
    ) -> Result<bool, Error> {
        let (hash, owner, time) = (message_key(endpoint, id), Text(owner.clone()), millis(time));
        self.connections
            .call(move |connection| {
                Box::pin(async move { Ok(connection.execute(RENEW, &[&hash, &owner, &time]).await? > 0) })
            })
            .await
    }

    async fn release(&self, endpoint: &EndpointName, id: &MessageId, owner: &LeaseOwner) -> Result<(), Error> {
        let (hash, owner) = (message_key(endpoint, id), Text(owner.clone()));
        self.connections
            .call(move |connection| {
                Box::pin(async move { connection.execute(RELEASE, &[&hash, &owner]).await.map(drop) })
            })
            .await
    }
}
