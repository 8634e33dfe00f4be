//! What is old goes, in batches (spec 4, P38).
//!
//! Each batch is a transaction of its own, takes its rows by an index, and passes over rows that somebody else is at (A48 to A50): several hosts
//! may purge at once, and no insert waits for one. `READPAST` goes together with `READCOMMITTEDLOCK`, since alone it fails where the database
//! reads snapshots (nimbus-barewire.md 1.15).

use sprag_core::{ids::EndpointName, time::Timestamp};
use sprag_store::Retention;

use crate::postgres::write::Key;

use super::{
    connections::Connection,
    fault::Fault,
    script::{Names, Script, Value, bytes, number, owned, rows_together, ticks_of, time},
    write::finals,
};

macro_rules! passing {
    () => {
        " WITH (READPAST, READCOMMITTEDLOCK) "
    };
}

/// Most rows of one statement, so that it takes locks of rows and not one of the table.
const MOST: u32 = 2_000;

/// SQL Server does not see spaces at the end of a text when it compares, so the lengths are compared as well.
const INBOX: &str = concat!(
    "DELETE FROM #inbox",
    passing!(),
    "WHERE IdentityHash IN (SELECT TOP (?) IdentityHash FROM #inbox",
    passing!(),
    "WHERE EndpointId = ? AND DATALENGTH(EndpointId) = DATALENGTH(?) AND CreatedAtUtc < ? ORDER BY CreatedAtUtc)"
);

/// Of each kind the oldest; history goes with its event.
const RESOLVED: &str = concat!(
    "DELETE FROM #event",
    passing!(),
    "OUTPUT deleted.hash WHERE hash IN (SELECT TOP (?) hash FROM #event",
    passing!(),
    "WHERE outcome IN ",
    finals!(),
    " AND noted_at < ? ORDER BY noted_at)"
);
const STUBS: &str = concat!(
    "DELETE FROM #event",
    passing!(),
    "OUTPUT deleted.hash WHERE hash IN (SELECT TOP (?) hash FROM #event",
    passing!(),
    "WHERE outcome IS NULL AND noted_at < ? ORDER BY noted_at)"
);
const BODIES: &str = concat!(
    "UPDATE #event SET kept_session = NULL, kept_header = NULL, kept_body = NULL WHERE hash IN (SELECT TOP (?) hash FROM #event",
    passing!(),
    "WHERE outcome IN ",
    finals!(),
    " AND noted_at < ? AND kept_header IS NOT NULL ORDER BY noted_at)"
);
const FINALS: &str = concat!(
    "DELETE FROM #final",
    passing!(),
    "WHERE hash IN (SELECT TOP (?) hash FROM #final",
    passing!(),
    "WHERE noted_at < ? ORDER BY noted_at)"
);
/// Decisions that nobody came back for.
const DECISIONS: &str = concat!(
    "DELETE FROM #decision",
    passing!(),
    "WHERE hash IN (SELECT TOP (?) hash FROM #decision",
    passing!(),
    "WHERE noted_at < ? ORDER BY noted_at)"
);
const AUDIT: &str = concat!(
    "DELETE FROM #audit",
    passing!(),
    "OUTPUT deleted.id WHERE id IN (SELECT TOP (?) id FROM #audit",
    passing!(),
    "WHERE noted_at < ? ORDER BY noted_at)"
);

#[derive(Debug, Clone, Copy)]
enum Batch {
    /// Rows that nothing belongs to.
    Plain(&'static str),
    /// Events, and with them their history.
    Events(&'static str),
    /// Entries, and with them the actions that they accepted and that have ended.
    Audit,
}

#[derive(Debug, Clone, Copy)]
enum Age {
    Bodies,
    Outcomes,
    Audit,
}

const TRACKING: [(Batch, Age); 6] = [
    (Batch::Events(RESOLVED), Age::Outcomes),
    (Batch::Events(STUBS), Age::Outcomes),
    (Batch::Plain(BODIES), Age::Bodies),
    (Batch::Plain(FINALS), Age::Outcomes),
    (Batch::Plain(DECISIONS), Age::Outcomes),
    (Batch::Audit, Age::Audit),
];

pub(crate) async fn inbox(
    connection: &mut Connection,
    endpoint: EndpointName,
    before: Timestamp,
    limit: u32,
) -> Result<u32, Fault> {
    let names = connection.names();
    let mut room = limit;
    while room > 0 {
        let most = room.min(MOST);
        let endpoint = || owned(endpoint.as_str());
        let values = vec![i64::from(most).into(), endpoint(), endpoint(), time(ticks_of(before.0))];
        let gone = small(connection.execute(Script::of(&names, INBOX, values)).await?);
        room = room.saturating_sub(gone);
        if gone < most {
            break;
        }
    }
    Ok(limit - room)
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(crate) async fn tracking(connection: &mut Connection, keep: Retention, limit: u32) -> Result<u32, Fault> {
    let names = connection.names();
    let mut room = limit;
    for (batch, age) in TRACKING {
        let before = keep.now.before(match age {
            Age::Bodies => keep.bodies,
            Age::Outcomes => keep.outcomes,
            Age::Audit => keep.audit,
        });
        while room > 0 {
            let most = room.min(MOST);
            let gone = purge(connection, &names, batch, most, before).await?;
            room = room.saturating_sub(gone);
            if gone < most {
                break;
            }
        }
    }
    Ok(limit - room)
}

async fn purge(
    connection: &mut Connection,
    names: &Names,
    batch: Batch,
    most: u32,
    before: Timestamp,
) -> Result<u32, Fault> {
    let of = |sql| Script::of(names, sql, vec![i64::from(most).into(), before.0.into()]);
    if let Batch::Plain(sql) = batch {
        return Ok(small(connection.execute(of(sql)).await?));
    }
    connection.begin().await?;
    let result = async {
        match batch {
            Batch::Plain(_) | Batch::Events(_) => {
                let Batch::Events(sql) = batch else { return Ok(0) };
                let rows = connection.rows(of(sql)).await?;
                let events: Vec<Key> =
                    rows.iter().map(|row| Ok(bytes(row, 0)?.to_vec())).collect::<Result<_, Fault>>()?;
                with_them(connection, names, "DELETE FROM #history WHERE event IN ", &events).await?;
                Ok(events.len())
            }
            Batch::Audit => {
                let rows = connection.rows(of(AUDIT)).await?;
                let entries = rows.iter().map(|row| number(row, 0)).collect::<Result<Vec<_>, Fault>>()?;
                ended_actions(connection, names, &entries).await?;
                Ok(entries.len())
            }
        }
    }
    .await;
    connection.end(result).await.map(|gone| small(gone as u64))
}

async fn with_them(connection: &mut Connection, names: &Names, sql: &str, keys: &[Key]) -> Result<(), Fault> {
    for part in keys.chunks(rows_together(1)) {
        let mut script = Script::new(names);
        let list = script.hashes(part.iter().map(Value::from));
        script.add(&format!("{sql}{list}"), vec![]);
        connection.execute(script).await?;
    }
    Ok(())
}

async fn ended_actions(connection: &mut Connection, names: &Names, entries: &[i64]) -> Result<(), Fault> {
    for part in entries.chunks(rows_together(1)) {
        let mut script = Script::new(names);
        let list = script.list(part.iter().map(|id| (*id).into()));
        script.add(
            &format!(
                "DELETE FROM #action_key WHERE action_id IN (SELECT id FROM #action WHERE state <> 'open' AND audit IN {list}); \
                 DELETE FROM #action WHERE state <> 'open' AND audit IN {list};"
            ),
            vec![],
        );
        connection.execute(script).await?;
    }
    Ok(())
}
