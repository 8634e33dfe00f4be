//! What is old goes, in batches (spec 4, P38).
//!
//! Each batch is a statement and a transaction of its own, takes its rows by an index, and passes over rows that somebody else is at
//! ([A48] to [A50]): several hosts may purge at once, and no insert waits for one.
//!
//! [A48]: https://github.com/Particular/NServiceBus.Persistence.Sql/issues/778
//! [A50]: https://github.com/dotnetcore/CAP/issues/1613

use sprag_core::{ids::EndpointName, time::Timestamp};
use sprag_store::Retention;

use super::{connections::Connection, fault::Fault, text::Text, write::finals};

const INBOX: &str = "DELETE FROM sprag_inbox WHERE ctid = ANY (ARRAY(SELECT ctid FROM sprag_inbox \
     WHERE endpoint = $1 AND recorded_at < $2 ORDER BY recorded_at LIMIT $3 FOR UPDATE SKIP LOCKED))";

/// A lease lapses after it was taken, so the index gives the few that may be old.
const LEASES: &str = "DELETE FROM sprag_lease WHERE ctid = ANY (ARRAY(SELECT ctid FROM sprag_lease \
     WHERE endpoint = $1 AND taken_at < $2 AND expires_at < $2 ORDER BY taken_at LIMIT $3 FOR UPDATE SKIP LOCKED))";

/// Of each kind the oldest; history goes with its event.
const TRACKING: [(&str, Age); 6] = [
    (
        concat!(
            "DELETE FROM sprag_event WHERE hash = ANY (ARRAY(SELECT hash FROM sprag_event WHERE outcome IN ",
            finals!(),
            " AND at < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))"
        ),
        Age::Outcomes,
    ),
    (
        "DELETE FROM sprag_event WHERE hash = ANY (ARRAY(SELECT hash FROM sprag_event WHERE outcome IS NULL \
         AND at < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))",
        Age::Outcomes,
    ),
    (
        concat!(
            "UPDATE sprag_event SET kept_session = NULL, kept_header = NULL, kept_body = NULL WHERE hash = ANY (ARRAY(SELECT hash FROM sprag_event \
             WHERE kept_header IS NOT NULL AND at < $1 AND outcome IN ",
            finals!(),
            " ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED))"
        ),
        Age::Bodies,
    ),
    (
        "DELETE FROM sprag_final WHERE ctid = ANY (ARRAY(SELECT ctid FROM sprag_final WHERE at < $1 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED))",
        Age::Outcomes,
    ),
    // Decisions that nobody came back for.
    (
        "DELETE FROM sprag_decision WHERE ctid = ANY (ARRAY(SELECT ctid FROM sprag_decision WHERE at < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))",
        Age::Outcomes,
    ),
    // With an entry go the actions that it accepted and that have ended.
    (
        "WITH old AS (DELETE FROM sprag_audit WHERE id = ANY (ARRAY(SELECT id FROM sprag_audit WHERE at < $1 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING id), \
         ended AS (DELETE FROM sprag_action WHERE state <> 'open' AND audit IN (SELECT id FROM old)) SELECT count(*) FROM old",
        Age::Audit,
    ),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    Bodies,
    Outcomes,
    Audit,
}

pub(crate) async fn inbox(
    connection: Connection<'_>,
    endpoint: EndpointName,
    before: Timestamp,
    limit: u32,
) -> Result<u32, Fault> {
    let endpoint = Text(endpoint);
    let gone = connection.execute(INBOX, &[&endpoint, &before.0, &i64::from(limit)]).await?;
    let gone = u32::try_from(gone).unwrap_or(limit);
    let room = i64::from(limit.saturating_sub(gone));
    let lapsed = connection.execute(LEASES, &[&endpoint, &before.0, &room]).await?;
    Ok(gone.saturating_add(u32::try_from(lapsed).unwrap_or(limit)))
}

pub(crate) async fn tracking(connection: Connection<'_>, keep: Retention, limit: u32) -> Result<u32, Fault> {
    let mut room = limit;
    for (sql, age) in TRACKING {
        if room == 0 {
            break;
        }
        let before = keep.now.before(match age {
            Age::Bodies => keep.bodies,
            Age::Outcomes => keep.outcomes,
            Age::Audit => keep.audit,
        });
        let gone = if age == Age::Audit {
            let row = connection.row(sql, &[&before.0, &i64::from(room)]).await?;
            row.map(|row| row.try_get::<_, i64>(0)).transpose()?.and_then(|gone| u64::try_from(gone).ok()).unwrap_or(0)
        } else {
            connection.execute(sql, &[&before.0, &i64::from(room)]).await?
        };
        room = room.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX));
    }
    Ok(limit - room)
}

#[cfg(test)]
mod tests {
    use crate::{
        postgres::{Options, PostgresStore},
        test_server::fresh_database,
    };

    use super::*;

    /// A50: the time index gives the batch, and nothing else of the table is read.
    #[tokio::test]
    async fn a_purge_reads_its_batch_by_the_index() {
        let database = fresh_database().await;
        PostgresStore::open(Options::new(database.url())).await.unwrap();
        let client = database.client().await;
        let fill = "INSERT INTO sprag_inbox SELECT sha256(n::text::bytea), 'e' || n % 3, n::text, n FROM generate_series(1, 30000) n; \
             ANALYZE sprag_inbox";
        client.batch_execute(fill).await.unwrap();
        let sql = INBOX.replace("$1", "'e1'").replace("$2", "20000").replace("$3", "100");
        let rows = client.query(&format!("EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) {sql}"), &[]).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let line =
            |part: &str| plan.iter().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {plan:#?}"));
        assert!(line("sprag_inbox_age").contains("rows=100 "), "{plan:#?}");
        assert!(line("Tid Scan").contains("rows=100 "), "{plan:#?}");
        assert!(!plan.iter().any(|line| line.contains("Seq Scan")), "{plan:#?}");
    }
}
