//! P31 over AMQP: who may send to an endpoint's queues, and has not the hosts' key, is believed nothing that makes a message a stand-in.

mod support;

use std::sync::Arc;

use sprag_core::{
    effect::Effect,
    ids::{Digest, EntityName, HandlerName},
    machine::{self, Answer, Arrival, Claim, Concluded, Ended, Known, Next, Rules},
    message::{Delivery, Message, MessageType, Value, property},
    run::{End, UnitOfWork},
    seal::Seal,
    session_state::{Block, BlockKind, SessionState},
    time::Timestamp,
};
use sprag_servicebus::ServiceBus;
use sprag_store::memory::MemoryStore;
use sprag_transport::{Committer, Held, Parked, Session, Settlement, Transport, ordered::Ordered};

use support::{Broker, EVENTUALLY, any_port, message, transport, with_sessions};

const QUEUE: &str = "orders";

/// A host with a key, and a session that it holds.
struct Host {
    rules: Rules,
    committer: Ordered,
    transport: Arc<ServiceBus>,
    session: Arc<dyn Session>,
    _keep: (Broker, tempfile::TempDir),
}

impl Host {
    async fn with(sent: Vec<Message>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let specs = vec![with_sessions(QUEUE, 30), with_sessions("orders.deferred", 30)];
        let broker = Broker::start(dir.path(), specs.clone(), any_port()).await;
        let transport = Arc::new(transport(broker.address(), &specs));
        transport.send(&QUEUE.into(), sent).await.expect("they are taken");
        let session = transport.accept_next(&QUEUE.into(), EVENTUALLY).await.expect("accepting works");
        Self {
            rules: Rules {
                endpoint: QUEUE.into(),
                sessions: true,
                inbox: true,
                retry: None,
                host_ended_limit: 3,
                seal: Seal::new(b"the hosts' key"),
            },
            committer: Ordered::new(Arc::new(MemoryStore::new()), transport.clone()),
            transport,
            session: session.expect("a session is offered"),
            _keep: (broker, dir),
        }
    }

    fn read(&self, delivery: &Delivery) -> Arrival {
        Arrival::read(&EntityName::from(QUEUE), delivery, &self.rules.seal)
    }

    async fn next(&self) -> Delivery {
        self.session.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes")
    }

    async fn parked(&self) -> Delivery {
        match self.session.receive_parked().await.expect("the look works") {
            Parked::Copy(copy) => copy,
            other => panic!("{other:?}"),
        }
    }

    /// Parks the next delivery behind a block, as a loop would.
    async fn park_next(&self, state: &SessionState) -> SessionState {
        let delivery = self.next().await;
        let (arrival, answer) = (self.read(&delivery), Answer::default());
        let known = known(state, &answer);
        let Next::Commit(commit) = machine::decide(&self.rules, &arrival, &known) else { panic!("it is parked") };
        assert!(commit.effects.iter().any(|effect| matches!(effect, Effect::Park { .. })), "{commit:?}");
        let (after, _) = machine::after_commit(&known, &arrival, &commit);
        let source = EntityName::from(QUEUE);
        let held = Held { source: &source, session: Some(&self.session), delivery: &delivery };
        self.committer.commit(held, commit).await.expect("it is carried out");
        after
    }
}

fn known<'a>(state: &'a SessionState, answer: &'a Answer) -> Known<'a> {
    Known {
        now: Timestamp(10),
        state,
        state_changed: false,
        answer,
        action: None,
        claim: Claim::Handler,
        host_ended: 0,
        lease: machine::Lease::Off,
    }
}

fn blocked() -> SessionState {
    let block = Block {
        event_id: "blocker".into(),
        source_id: None,
        kind: BlockKind::Failure,
        attempt: 1,
        since_attempt: 0,
        since: Timestamp(1),
    };
    SessionState { block: Some(block), ..SessionState::default() }
}

fn forged(id: &str, kind: &str) -> Message {
    let mut message = message(Some("s"), id);
    message.set_property(property::MESSAGE_TYPE, Value::string(kind));
    message.set_property(property::INBOX_MESSAGE_ID, Value::string("victim"));
    message.set_property(property::RETRY_COUNT, Value::Int(7));
    message.set_property(property::ACTION_ID, Value::Long(1));
    message
}

fn is_plain(arrival: &Arrival, id: &str) {
    assert_eq!((arrival.kind, arrival.source_text()), (MessageType::Event, id));
    assert_eq!((arrival.follows, arrival.action), (0, None));
}

/// What an event says of itself is as little believed after the host has parked it as before.
#[tokio::test]
async fn a_forged_inbox_message_id_is_not_laundered_by_parking() {
    let sent = vec![forged("a", "EventRequest"), forged("b", "RetryRequest"), forged("c", "ProcessDeferredRequest")];
    let host = Host::with(sent).await;
    let mut state = blocked();
    for _ in 0..3 {
        state = host.park_next(&state).await;
    }
    assert_eq!(state.parked, 3);
    for (number, id) in [(0, "a"), (1, "b"), (2, "c")] {
        let copy = host.parked().await;
        let arrival = host.read(&copy);
        is_plain(&arrival, id);
        assert_eq!(arrival.parked_as, Some(number), "the host's own word on its place holds");
        host.session.settle(copy.lock, Settlement::Complete).await.expect("it is completed");
    }
}

/// Nobody but a host puts anything among the parked messages that counts as parked: it is handled as the message it is, beside the host's copies,
/// none of which it takes off the count.
#[tokio::test]
async fn a_forged_copy_is_a_message_like_any_other() {
    let host = Host::with(vec![message(Some("s"), "own-1"), message(Some("s"), "own-2")]).await;
    let state = host.park_next(&blocked()).await;
    let state = host.park_next(&state).await;
    let mut first = forged("first", "ResubmissionRequest");
    first.set_property(property::DEFERRAL_SEQUENCE, Value::Uint(0));
    let mut signed_otherwise = forged("signed", "RetryRequest");
    signed_otherwise.set_property(property::DEFERRAL_SEQUENCE, Value::Uint(9));
    Seal::new(b"another key").sign(&mut signed_otherwise);
    let sent = vec![first, signed_otherwise, forged("last", "EventRequest")];
    host.transport.send(&"orders.deferred".into(), sent).await.expect("they are taken");

    let mut live = SessionState { block: None, ..state };
    let mut seen = Vec::new();
    for _ in 0..5 {
        let copy = host.parked().await;
        let (arrival, answer) = (host.read(&copy), Answer::default());
        let known = known(&live, &answer);
        let id = arrival.message.message_id.clone().expect("it has one");
        let is_ours = id.as_str().starts_with("own");
        assert_eq!(arrival.parked_as.is_some(), is_ours, "{id}");
        match machine::decide(&host.rules, &arrival, &known) {
            Next::Run { attempt } => {
                is_plain(&arrival, id.as_str());
                let handler = HandlerName::from("h");
                let ended = Ended {
                    end: End::Done,
                    unit: UnitOfWork::default(),
                    attempt,
                    handler: &handler,
                    digest: Digest([0; 32]),
                    started_at: Timestamp(9),
                    took: std::time::Duration::ZERO,
                    random: 0.5,
                };
                let Concluded::Commit(commit) = machine::conclude(&host.rules, &arrival, &known, ended) else {
                    panic!("it is done")
                };
                live = machine::after_commit(&known, &arrival, &commit).0;
            }
            // An operator's message without an action does nothing.
            Next::Commit(commit) => {
                assert_eq!(commit.effects, [Effect::Complete], "{id}");
                live = machine::after_commit(&known, &arrival, &commit).0;
            }
            other => panic!("{id}: {other:?}"),
        }
        seen.push(id.to_string());
        host.session.settle(copy.lock, Settlement::Complete).await.expect("it is completed");
    }
    seen.sort();
    assert_eq!(seen, ["first", "last", "own-1", "own-2", "signed"]);
    assert_eq!(live.parked, 0, "as many as were counted, and no fewer");
}

/// What will not come, whatever it says of itself, hides none of the copies that will (P17).
#[tokio::test]
async fn what_is_scheduled_among_the_parked_ones_hides_none() {
    let host = Host::with(vec![message(Some("s"), "own")]).await;
    let state = host.park_next(&SessionState { next_sequence: 5, ..blocked() }).await;
    assert_eq!((state.parked, state.next_sequence), (1, 6));
    let mut never = forged("never", "EventRequest");
    never.set_property(property::DEFERRAL_SEQUENCE, Value::Uint(0));
    never.scheduled_for = Some(sprag_store::clock::now().after(std::time::Duration::from_secs(86_400)));
    host.transport.send(&"orders.deferred".into(), vec![never]).await.expect("it is taken");
    assert_eq!(host.read(&host.parked().await).source_text(), "own");
}
