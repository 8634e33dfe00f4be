//! Requests and their answers: with tokens (`$cbs`), and to entities (`$management`).

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytes::Bytes;
use sprag_amqp::{
    connection::{Delivery, LinkKey, Outgoing, SessionKey},
    message::{MessageId, Properties, Sections, write_application_properties, write_value},
    performative::DeliveryState,
    value::{Map, Symbol, Value},
};
use sprag_broker::client::ClientSession;

use super::{Done, Kind, Link, Peer};
use crate::amqp::{
    address::{Place, path_of},
    failure::Failure,
    management::{self, Answer, Outcome},
    permission,
};

/// Answers that wait for the client's credit. One that asks and never listens loses the link.
const MAX_WAITING: usize = 1_000;

/// A link on which answers go out.
pub(super) struct Replies {
    address: Option<String>,
    waiting: VecDeque<Bytes>,
    sent: u64,
}

impl Replies {
    pub(super) fn new(address: Option<String>) -> Self {
        Self { address, waiting: VecDeque::new(), sent: 0 }
    }
}

/// Where an answer goes.
struct Return {
    session: SessionKey,
    place: Option<Place>,
    reply_to: Option<String>,
    correlation: Option<MessageId>,
}

/// A request that has been carried out, or not.
pub(in crate::amqp) struct Answered {
    to: Return,
    outcome: Outcome,
}

impl Peer {
    pub(super) fn requested(&mut self, delivery: Delivery) {
        let Delivery { link, key, settled, payload, .. } = delivery;
        let Some(place) = self.links.get(&link).map(|link| link.place.clone()) else { return };
        let sections = Sections::find(Bytes::copy_from_slice(&payload));
        let read = sections.and_then(|sections| Ok((sections.properties()?.unwrap_or_default(), sections)));
        let (properties, sections) = match read {
            Ok(read) => read,
            Err(error) => {
                if !settled {
                    let state = DeliveryState::Rejected(Some(Failure::from(error).to_error()));
                    // A client that has gone in the meantime does not hear of it.
                    let _ = self.amqp.settle_incoming(key, &state);
                }
                return;
            }
        };
        if !settled {
            // Taken; what has become of it is in the answer.
            let _ = self.amqp.settle_incoming(key, &DeliveryState::Accepted);
        }
        let to = Return {
            session: link.session(),
            place: place.clone(),
            reply_to: properties.reply_to,
            // As it came, with its type: each of the clients finds only its own.
            correlation: properties.message_id.or(properties.correlation_id),
        };
        let Some(place) = place else {
            self.idle.asked(Instant::now());
            let answer = self.put_token(&sections);
            return self.answer(&to, &answer);
        };
        match self.request(&place, &sections) {
            Ok(request) => {
                self.used_by_request(&request);
                let context = Arc::clone(&self.context);
                self.write(async move {
                    let outcome = management::carry_out(&context, request).await;
                    Done::Answered(Box::new(Answered { to, outcome }))
                });
            }
            Err(failure) => self.answer(&to, &Err(failure)),
        }
    }

    fn request(&self, place: &Place, sections: &Sections) -> Result<management::Request, Failure> {
        let properties = sections.application_properties()?;
        let operation = properties.get("operation").and_then(Value::as_str);
        let operation = operation.ok_or_else(|| Failure::argument("the request names no operation"))?.to_owned();
        let right = management::right(&operation);
        if !self.permissions.allows_request(place, right, self.now()) {
            return Err(permission::missing(right, place));
        }
        let body = match sections.value()? {
            Some(Value::Map(body)) => body,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return Err(Failure::argument("the body of a request is a map")),
        };
        let entity = place.name.as_str().to_ascii_lowercase();
        let session = body.get("session-id").and_then(Value::as_str);
        let held: Vec<Arc<ClientSession>> = match session {
            Some(session) => self.held.get(&(entity, session.into())).into_iter().cloned().collect(),
            None => {
                let of_entity = self.held.iter().filter(|((of, _), _)| *of == entity);
                of_entity.map(|(_, session)| Arc::clone(session)).collect()
            }
        };
        Ok(management::Request { operation, place: place.clone(), session: session.map(Into::into), body, held })
    }

    /// `put-token`: the token is the body.
    fn put_token(&mut self, sections: &Sections) -> Result<Answer, Failure> {
        let properties = sections.application_properties()?;
        match properties.get("operation").and_then(Value::as_str) {
            Some("put-token") => {}
            other => return Err(Failure::not_implemented(format!("{other:?} is no operation of $cbs; put-token is"))),
        }
        let token = match sections.value()? {
            Some(Value::String(token)) => token,
            Some(Value::Symbol(token)) => token.as_str().to_owned(),
            Some(Value::Binary(token)) => String::from_utf8_lossy(&token).into_owned(),
            _ => {
                let data = sections.data()?;
                data.iter().map(|part| String::from_utf8_lossy(part)).collect()
            }
        };
        self.permissions.put(&token, self.now())?;
        Ok(Answer::accepted())
    }

    pub(super) fn answered(&mut self, answered: Answered) {
        self.writing -= 1;
        let Answered { to, outcome } = answered;
        self.settled_by_request(&outcome.settled);
        self.answer(&to, &outcome.answer);
    }

    fn answer(&mut self, to: &Return, answer: &Result<Answer, Failure>) {
        let Some(link) = self.way_back(to) else {
            tracing::debug!(reply_to = ?to.reply_to, "an answer has nowhere to go");
            return;
        };
        let payload = encode(to, answer);
        if let Some(Link { kind: Kind::Replies(replies), .. }) = self.links.get_mut(&link) {
            if replies.waiting.len() == MAX_WAITING {
                return self.detach(link, &Failure::too_many(format!("{MAX_WAITING} answers wait for credit")));
            }
            replies.waiting.push_back(payload);
            self.send_replies(link);
        }
    }

    /// The link with the address that the request names, of the same session first; else any to the same node.
    fn way_back(&self, to: &Return) -> Option<LinkKey> {
        let same_node = |link: &Link| match (&link.place, &to.place) {
            (None, None) => true,
            (Some(one), Some(other)) => one == other,
            _ => false,
        };
        let candidates = self.links.iter().filter_map(|(key, link)| match &link.kind {
            Kind::Replies(replies) => {
                let (exactly, named) = match (&replies.address, &to.reply_to) {
                    // azservicebus has addresses of a scheme and a host with a number, and no path: those differ as they stand only.
                    (Some(address), Some(reply_to)) => {
                        let path = path_of(address);
                        (address == reply_to, !path.is_empty() && path == path_of(reply_to))
                    }
                    _ => (false, false),
                };
                let rank = (exactly, named, same_node(link), key.session() == to.session);
                (exactly || named || rank.2).then_some((rank, *key))
            }
            _ => None,
        });
        candidates.max_by_key(|(rank, _)| *rank).map(|(_, key)| key)
    }

    pub(super) fn reply_credit(&mut self, key: LinkKey, drain: bool) {
        self.send_replies(key);
        if drain {
            // There is nothing more now; what comes later waits for new credit.
            let _ = self.amqp.drained(key);
        }
    }

    fn send_replies(&mut self, key: LinkKey) {
        while self.amqp.credit(key) > 0 {
            let Some(Link { kind: Kind::Replies(replies), .. }) = self.links.get_mut(&key) else { return };
            let Some(payload) = replies.waiting.pop_front() else { return };
            replies.sent += 1;
            let tag = Bytes::copy_from_slice(&replies.sent.to_be_bytes());
            if let Err(error) = self.amqp.deliver(key, Outgoing { tag, payload, format: 0, settled: true }) {
                tracing::debug!(%error, "an answer could not be sent");
            }
        }
    }
}

fn encode(to: &Return, answer: &Result<Answer, Failure>) -> Bytes {
    let mut out = Vec::new();
    let properties =
        Properties { correlation_id: to.correlation.clone(), to: to.reply_to.clone(), ..Properties::default() };
    properties.write(&mut out);
    let (status, text, condition, body) = match answer {
        Ok(answer) => (answer.status, answer.text, None, answer.body.clone()),
        Err(failure) => (failure.status, failure.text.as_str(), Some(&failure.condition), Value::Map(Map::new())),
    };
    // The two nodes do not agree on how a name is written.
    let names = match to.place {
        None => ["status-code", "status-description", "error-condition"],
        Some(_) => ["statusCode", "statusDescription", "errorCondition"],
    };
    let mut pairs = vec![(names[0].to_owned(), Value::Int(status)), (names[1].to_owned(), Value::from(text))];
    pairs.extend(condition.map(|condition: &Symbol| (names[2].to_owned(), Value::Symbol(condition.clone()))));
    write_application_properties(&mut out, &pairs.into_iter().collect());
    write_value(&mut out, &body);
    out.into()
}
