//! What the handler `guests/test/ledger` is sent, and the books it keeps: whether every event counted once, in order, whole or not at all.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sprag_core::outcome::Outcome;

use crate::{host::Host, random::Random};

/// One event that was sent, in the order of its session.
pub struct Sent {
    pub id: String,
    pub body: String,
}

impl Sent {
    /// The n-th event of a session, that ends one way or another.
    pub fn random(session: usize, n: usize, random: &mut Random) -> Self {
        let mut body = match random.below(40) {
            0..=28 => "ok",
            29..=33 => "once",
            34..=35 => "never",
            36..=37 => "discard",
            _ => "dead",
        }
        .to_owned();
        if random.one_in(4) {
            body.push_str(&format!("+{}", 1 + random.below(15)));
        }
        Self { id: format!("s{session}-{n}"), body }
    }

    /// As `POST /api/send` takes it.
    pub fn message(&self, session: usize) -> Value {
        json!({ "id": self.id, "session": format!("s{session}"), "type": "Work", "body": self.body })
    }

    fn expected(&self) -> Outcome {
        match self.body.split('+').next().expect("never empty") {
            "discard" => Outcome::Skipped,
            "dead" => Outcome::DeadLettered,
            "never" if is_skipped(&self.id) => Outcome::Skipped,
            _ => Outcome::Completed,
        }
    }
}

/// Whether the operator gives up on this event; the others are sent again with a body that works.
pub fn is_skipped(event: &str) -> bool {
    event.bytes().map(usize::from).sum::<usize>() % 2 == 0
}

/// What is there when all is over.
#[derive(Default)]
pub struct Books {
    /// Endpoint, key: value.
    pub state: BTreeMap<(String, String), String>,
    /// Endpoint, event: outcomes; more than one would be a row too many.
    pub outcomes: BTreeMap<(String, String), Vec<Outcome>>,
    /// Ids that the inbox of `work` remembers.
    pub inbox: BTreeSet<String>,
    /// Messages that wait somewhere, however, but for the dead.
    pub left: usize,
    pub dead: usize,
    pub outbox: usize,
    /// Events with a run after the one that completed them.
    pub reruns: Vec<String>,
    pub runs: usize,
}

impl Books {
    fn state(&self, endpoint: &str, key: &str) -> Option<&str> {
        self.state.get(&(endpoint.to_owned(), key.to_owned())).map(String::as_str)
    }

    pub fn check_session(&self, session: usize, events: &[Sent]) {
        let mut completed = Vec::new();
        for event in events {
            let expected = event.expected();
            let outcomes = self.outcomes.get(&("work".into(), event.id.clone()));
            assert_eq!(outcomes, Some(&vec![expected]), "the outcome of {} ({})", event.id, event.body);
            let counted = self.state("work", &format!("event/{}", event.id));
            if expected == Outcome::Completed {
                completed.push(event.id.as_str());
                assert_eq!(counted, Some("1"), "{} was counted once", event.id);
                assert_eq!(
                    self.state("tally", &format!("got/{}", event.id)),
                    Some("1"),
                    "what {} published was handled once",
                    event.id
                );
                assert!(self.inbox.contains(&event.id), "{} is recorded", event.id);
            } else {
                assert_eq!(counted, None, "{} ({}) left nothing behind", event.id, event.body);
                assert_eq!(self.state("tally", &format!("got/{}", event.id)), None, "{} published nothing", event.id);
            }
        }
        for endpoint in ["work", "tally"] {
            let log = self.state(endpoint, &format!("log/s{session}")).unwrap_or_default();
            assert_eq!(log.lines().collect::<Vec<_>>(), completed, "the order in session s{session} at {endpoint}");
        }
    }

    pub fn check_whole(&self, sent: usize) {
        let of = |endpoint: &str, outcome: Outcome| {
            self.outcomes.iter().filter(|((name, _), outcomes)| name == endpoint && outcomes[..] == [outcome]).count()
        };
        let completed = of("work", Outcome::Completed);
        assert_eq!(
            self.outcomes.keys().filter(|(endpoint, _)| endpoint == "work").count(),
            sent,
            "one row per event, and no other"
        );
        assert_eq!(
            self.state("work", "count"),
            Some(completed.to_string().as_str()),
            "the counter is the number of runs that counted"
        );
        assert_eq!(
            of("tally", Outcome::Completed),
            completed,
            "one message per completed event reached the second endpoint"
        );
        assert_eq!(self.outcomes.keys().filter(|(endpoint, _)| endpoint == "tally").count(), completed, "and no other");
        assert_eq!(self.reruns, Vec::<String>::new(), "events that ran again after they were completed");
        assert_eq!(self.left, 0, "nothing is left");
        assert_eq!(self.dead, of("work", Outcome::DeadLettered), "dead letters");
        assert_eq!(self.outbox, 0, "everything has left");
        assert!(completed > sent / 2, "the test did something: {completed} of {sent}");
    }
}

/// Every message id in the inbox of `work`.
pub fn recorded(host: &Host) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut after = String::new();
    loop {
        let page = host.get(&format!("/api/inbox?endpoint=work&limit=1000{after}"));
        let items = page["items"].as_array().expect("a listing");
        found.extend(items.iter().map(|it| it["message_id"].as_str().expect("an id").to_owned()));
        let Some(next) = page["next"].as_str() else { return found };
        after = format!("&after={next}");
    }
}
