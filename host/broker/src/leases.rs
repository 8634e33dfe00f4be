//! Leases on messages in hand (spec 4, mode `lease`).
//!
//! The writer takes one command after another, so a look and the row that follows from it cannot be parted by another acquisition. What a process held
//! is void when the process has ended, as its locks are (ADR 2): this file has one process, so nobody is at those messages any more. A handoff stays.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use sprag_core::{
    effect::{LeaseEnd, LeaseEnding},
    ids::{EndpointName, LeaseOwner, MessageId},
    time::Timestamp,
};
use sprag_store::{
    Error,
    lease::{Leased, Leases},
};

use crate::{
    Engine,
    tracking::inbox_hash,
    writer::{Stop, Tx},
};

/// Forgets what the last process held.
pub(crate) fn void(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM sprag_lease WHERE expires_at IS NOT NULL", []).map(drop)
}

struct Row {
    id: i64,
    owner: String,
    expires_at: Option<Timestamp>,
}

impl Row {
    fn is_held_by(&self, owner: &LeaseOwner) -> bool {
        self.owner == owner.as_str() && self.expires_at.is_some()
    }
}

fn find(tx: &Tx<'_>, name: &EndpointName, endpoint: i64, id: &MessageId) -> Result<Option<Row>, Stop> {
    tx.first(
        "SELECT id, owner, expires_at FROM sprag_lease INDEXED BY sprag_lease_hash WHERE hash = ?1 AND endpoint = ?2 AND message_id = ?3",
        (inbox_hash(name, id), endpoint, id.as_str()),
        |row| {
            Ok(Row { id: row.get(0)?, owner: row.get(1)?, expires_at: row.get::<_, Option<i64>>(2)?.map(Timestamp) })
        },
    )
}

fn delete(tx: &Tx<'_>, row: &Row) -> Result<(), Stop> {
    tx.execute("DELETE FROM sprag_lease WHERE id = ?1", [row.id]).map(drop)
}

/// The end of a lease that may take place, found before anything is written.
pub(crate) struct Ending {
    row: Option<Row>,
    how: LeaseEnding,
}

/// Refuses the end of a lease that is not its owner's any more.
pub(crate) fn examine(tx: &Tx<'_>, name: &EndpointName, endpoint: i64, end: &LeaseEnd) -> Result<Ending, Stop> {
    let row = find(tx, name, endpoint, &end.id)?;
    match &end.owner {
        Some(owner) if !row.as_ref().is_some_and(|row| row.is_held_by(owner)) => Err(Error::LeaseLost.into()),
        Some(_) => Ok(Ending { row, how: end.how }),
        // A lease that somebody holds is not what a settlement means.
        None => Ok(Ending { row: row.filter(|row| row.expires_at.is_none()), how: LeaseEnding::Over }),
    }
}

/// `stands`: the decision that ends it is the first one.
pub(crate) fn end(tx: &Tx<'_>, ending: &Ending, stands: bool) -> Result<(), Stop> {
    let Some(row) = &ending.row else { return Ok(()) };
    match ending.how {
        LeaseEnding::HandedOff if stands => {
            tx.execute("UPDATE sprag_lease SET expires_at = NULL WHERE id = ?1", [row.id]).map(drop)
        }
        LeaseEnding::HandedOff | LeaseEnding::Over => delete(tx, row),
    }
}

fn acquire(
    tx: &mut Tx<'_>,
    name: &EndpointName,
    id: &MessageId,
    owner: &LeaseOwner,
    time: Duration,
) -> Result<Leased, Stop> {
    let endpoint = tx.local.endpoint(tx.connection, name)?;
    let (now, until) = (tx.now, tx.now.after(time));
    match find(tx, name, endpoint, id)? {
        Some(Row { expires_at: None, .. }) => return Ok(Leased::HandedOff),
        Some(row) if row.owner != owner.as_str() && row.expires_at.is_some_and(|until| until > now) => {
            let left = row.expires_at.unwrap_or(now).since(now);
            return Ok(Leased::InProgress { left });
        }
        Some(row) => tx.execute(
            "UPDATE sprag_lease SET owner = ?2, taken_at = ?3, expires_at = ?4 WHERE id = ?1",
            (row.id, owner.as_str(), now.0, until.0),
        )?,
        None => tx.execute(
            "INSERT INTO sprag_lease (hash, endpoint, message_id, owner, taken_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            (inbox_hash(name, id), endpoint, id.as_str(), owner.as_str(), now.0, until.0),
        )?,
    };
    Ok(Leased::Acquired)
}

fn renew(
    tx: &mut Tx<'_>,
    name: &EndpointName,
    id: &MessageId,
    owner: &LeaseOwner,
    time: Duration,
) -> Result<bool, Stop> {
    let endpoint = tx.local.endpoint(tx.connection, name)?;
    let Some(row) = find(tx, name, endpoint, id)?.filter(|row| row.is_held_by(owner)) else { return Ok(false) };
    tx.execute("UPDATE sprag_lease SET expires_at = ?2 WHERE id = ?1", (row.id, tx.now.after(time).0))?;
    Ok(true)
}

fn release(tx: &mut Tx<'_>, name: &EndpointName, id: &MessageId, owner: &LeaseOwner) -> Result<(), Stop> {
    let endpoint = tx.local.endpoint(tx.connection, name)?;
    match find(tx, name, endpoint, id)?.filter(|row| row.is_held_by(owner)) {
        Some(row) => delete(tx, &row),
        None => Ok(()),
    }
}

#[async_trait]
impl Leases for Engine {
    async fn acquire(
        &self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
    ) -> Result<Leased, Error> {
        let (endpoint, id, owner) = (endpoint.clone(), id.clone(), owner.clone());
        Ok(self.shared.write(256, move |tx| acquire(tx, &endpoint, &id, &owner, time)).await?)
    }

    async fn renew(
        &self,
        endpoint: &EndpointName,
        id: &MessageId,
        owner: &LeaseOwner,
        time: Duration,
    ) -> Result<bool, Error> {
        let (endpoint, id, owner) = (endpoint.clone(), id.clone(), owner.clone());
        Ok(self.shared.write(64, move |tx| renew(tx, &endpoint, &id, &owner, time)).await?)
    }

    async fn release(&self, endpoint: &EndpointName, id: &MessageId, owner: &LeaseOwner) -> Result<(), Error> {
        let (endpoint, id, owner) = (endpoint.clone(), id.clone(), owner.clone());
        Ok(self.shared.write(64, move |tx| release(tx, &endpoint, &id, &owner)).await?)
    }
}
