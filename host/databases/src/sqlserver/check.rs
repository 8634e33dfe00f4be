//! What is known about deliveries: any number of questions in one round trip.

use sprag_core::{effect::Decision, ids::MessageId};
use sprag_store::{Answer, Question, StoredOutcome, decision};
use tiberius::Row;

use crate::postgres::write::{Key, event_key, message_key};

use super::{
    connections::Connection,
    fault::Fault,
    script::{Script, bytes, count, known, number, optional_text},
};

/// Every part is a look-up by a unique key, so no question has more than one row.
const ASK: &str = "SELECT q.n, CASE WHEN io.IdentityHash IS NULL THEN 0 ELSE 1 END, CASE WHEN ir.IdentityHash IS NULL THEN 0 ELSE 1 END, \
     CASE WHEN fo.hash IS NULL AND fr.hash IS NULL THEN 0 ELSE 1 END, d.outcome, d.rest, e.outcome, e.attempts FROM ";
const OF: &str = " AS q(n, own, source, event) LEFT JOIN #inbox AS io ON io.IdentityHash = q.own LEFT JOIN #inbox AS ir ON ir.IdentityHash = q.source \
     LEFT JOIN #final AS fo ON fo.hash = q.own LEFT JOIN #final AS fr ON fr.hash = q.source \
     LEFT JOIN #decision AS d ON d.hash = q.own LEFT JOIN #event AS e ON e.hash = q.event ORDER BY q.n";
const QUESTION: &str = "(CAST(? AS bigint), CAST(? AS binary(32)), CAST(? AS binary(32)), CAST(? AS binary(32)))";

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
                let (attempt, rest) = decision::decode(bytes(row, 5)?)?;
                Some(Decision { message_id, outcome: outcome_of(&outcome)?, attempt, rest })
            }
            _ => None,
        };
        let outcome = match optional_text(row, 6)? {
            Some(outcome) => Some(StoredOutcome { outcome: outcome_of(&outcome)?, attempts: count(row, 7)? }),
            None => None,
        };
        Ok(Answer {
            own_recorded: self.inbox && number(row, 1)? == 1,
            source_recorded: self.inbox && number(row, 2)? == 1,
            is_final: number(row, 3)? == 1,
            decision,
            outcome,
        })
    }
}

pub(crate) fn outcome_of(name: &str) -> Result<sprag_core::outcome::Outcome, Fault> {
    known(sprag_core::outcome::Outcome::from_name(name), "an outcome")
}

/// Answers in the order of the questions. A row that cannot be read fails its own question only.
pub(crate) async fn check(connection: &mut Connection, asked: Vec<Asked>) -> Result<Vec<Result<Answer, Fault>>, Fault> {
    let names = connection.names();
    let mut script = Script::new(&names);
    let values = |(n, it): (usize, &Asked)| {
        vec![(n as i64).into(), it.own.clone().into(), it.source.clone().into(), it.event.clone().into()]
    };
    let table = script.table(QUESTION, asked.iter().enumerate().map(values));
    script.add(&format!("{ASK}{table}{OF}"), vec![]);
    let rows = connection.rows(script).await?;
    if rows.len() != asked.len() {
        return Err(Fault::Unreadable("a check has not as many answers as questions".to_owned()));
    }
    Ok(asked.into_iter().zip(&rows).map(|(asked, row)| asked.read(row)).collect())
}
