//! What is known about deliveries: any number of questions in one round trip.

use sprag_core::{effect::Decision, ids::MessageId};
use sprag_store::{Answer, Question, StoredOutcome, decision};
use tokio_postgres::Row;

use super::{
    connections::Connection,
    fault::Fault,
    text::{optional_text, text},
    write::{Key, event_key, message_key, outcome_of},
};

// `LIMIT 1` keeps the planner to one look-up in an index for each question, whatever it believes about the size of a table that it has not seen
// yet.
const CHECK: &str = "SELECT q.n, \
     EXISTS (SELECT 1 FROM sprag_inbox WHERE hash = q.own LIMIT 1), \
     EXISTS (SELECT 1 FROM sprag_inbox WHERE hash = q.source LIMIT 1), \
     EXISTS (SELECT 1 FROM sprag_final WHERE hash = q.own LIMIT 1) OR EXISTS (SELECT 1 FROM sprag_final WHERE hash = q.source LIMIT 1), \
     d.outcome, d.rest, e.outcome, e.attempts \
     FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS q(own, source, event, n) \
     LEFT JOIN LATERAL (SELECT outcome, rest FROM sprag_decision WHERE hash = q.own LIMIT 1) d ON true \
     LEFT JOIN LATERAL (SELECT outcome, attempts FROM sprag_event WHERE hash = q.event LIMIT 1) e ON true \
     ORDER BY q.n";

/// A [`Question`] as values for the statement.
#[derive(Debug)]
pub(crate) struct Asked {
    own: Option<Key>,
    source: Option<Key>,
    event: Option<Key>,
    message_id: Option<MessageId>,
    inbox: bool,
}

impl Asked {
    pub(crate) fn new(question: &Question<'_>) -> Self {
        let key = |id: Option<&MessageId>| id.map(|id| message_key(question.endpoint, id));
        Self {
            own: key(question.message_id),
            source: key(question.source_id),
            event: question.outcome.then(|| event_key(question.endpoint, question.event_id)),
            message_id: question.message_id.cloned(),
            inbox: question.inbox,
        }
    }

    fn read(self, row: &Row) -> Result<Answer, Fault> {
        let decision = match (self.message_id, optional_text(row, 4)?) {
            (Some(message_id), Some(outcome)) => {
                let (attempt, rest) = decision::decode(row.try_get(5)?)?;
                Some(Decision { message_id, outcome: outcome_of(&outcome)?, attempt, rest })
            }
            _ => None,
        };
        let outcome = match optional_text(row, 6)? {
            Some(outcome) => Some(StoredOutcome { outcome: outcome_of(&outcome)?, attempts: count(row, 7)? }),
            None => None,
        };
        Ok(Answer {
            own_recorded: self.inbox && row.try_get::<_, bool>(1)?,
            source_recorded: self.inbox && row.try_get::<_, bool>(2)?,
            is_final: row.try_get(3)?,
            decision,
            outcome,
        })
    }
}

/// A number that is small and not negative, in a column of `bigint`.
pub(crate) fn count(row: &Row, column: usize) -> Result<u32, Fault> {
    u32::try_from(row.try_get::<_, i64>(column)?)
        .map_err(|_| Fault::Unreadable("a number is out of its range".to_owned()))
}

/// Answers in the order of the questions. A row that cannot be read fails its own question only.
pub(crate) async fn check(connection: Connection<'_>, asked: Vec<Asked>) -> Result<Vec<Result<Answer, Fault>>, Fault> {
    let column = |key: fn(&Asked) -> &Option<Key>| asked.iter().map(|it| key(it).as_deref()).collect::<Vec<_>>();
    let (own, source, event) = (column(|it| &it.own), column(|it| &it.source), column(|it| &it.event));
    let rows = connection.rows(CHECK, &[&own, &source, &event]).await?;
    if rows.len() != asked.len() {
        return Err(Fault::Unreadable("a check has not as many answers as questions".to_owned()));
    }
    Ok(asked.into_iter().zip(&rows).map(|(asked, row)| asked.read(row)).collect())
}

/// The name in a column, as what it stands for.
pub(crate) fn named<T>(row: &Row, column: usize, from_name: impl FnOnce(&str) -> Result<T, Fault>) -> Result<T, Fault> {
    from_name(&text(row, column)?)
}
