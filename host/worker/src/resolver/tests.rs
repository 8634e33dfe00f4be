use sprag_core::{
    message::{Delivery, LockToken, Origin},
    outcome::Failure,
    seal::Seal,
    time::Timestamp,
};

use super::*;

fn arrival(message: Message) -> Arrival {
    let delivery = Delivery {
        message: Arc::new(message),
        sequence: sprag_core::ids::SequenceNumber(7),
        lock: LockToken(1),
        origin: Origin::Main,
        delivery_count: 1,
        max_delivery_count: 10,
        enqueued_at: Timestamp(1_000),
        parked_as: None,
        id_assigned: false,
    };
    Arrival::read(&"orders".into(), &delivery, &Seal::new(b"key"))
}

fn write(outcome: Outcome, error: Option<Failure>) -> OutcomeWrite {
    OutcomeWrite {
        event_id: "E1".into(),
        message_id: Some("m-1".into()),
        source_id: Some("m-1".into()),
        session: Some("s".into()),
        event_type: "OrderPlaced".into(),
        outcome,
        guard: OutcomeGuard::Newer,
        reason: None,
        error,
        attempts: 2,
        handler: None,
        digest: None,
        enqueued_at: Timestamp(1_000),
        at: Timestamp(5_000),
        keep: None,
    }
}

/// A NimBus publisher's message: its body of two parts, `self` where nothing comes before it.
fn published() -> Arrival {
    let mut message =
        Message {
            message_id: Some("m-1".into()),
            session_id: Some("s".into()),
            body:
                Body::Data(
                    r#"{"EventContent":{"EventTypeId":"OrderPlaced","EventJson":"{\"Id\":1}"},"ErrorContent":null}"#
                        .as_bytes()
                        .into(),
                ),
            ..Message::default()
        };
    for (name, text) in [
        ("EventId", "E1"),
        ("EventTypeId", "OrderPlaced"),
        ("MessageType", "EventRequest"),
        ("From", "Shop"),
        ("OriginatingMessageId", "self"),
    ] {
        message.set_property(name, Value::string(text));
    }
    arrival(message)
}

fn sent(outcome: Outcome, error: Option<Failure>) -> (Message, Json) {
    let took = Some(Duration::from_millis(1_500));
    let told = told(&"billing".into(), &"Resolver".into(), &published(), &write(outcome, error), took);
    let Outgoing { entity, message } = told.expect("it is told");
    assert_eq!(entity.as_str(), "Resolver");
    let Body::Data(bytes) = &message.body else { panic!("a body of data") };
    let body = serde_json::from_slice(bytes).expect("JSON");
    (message, body)
}

#[test]
fn a_completed_event_as_the_resolver_reads_it() {
    let (message, body) = sent(Outcome::Completed, None);
    let text = |name: &str| message.text_property(name).map(str::to_owned);
    for (name, expected) in [
        ("To", "Resolver"),
        ("From", "billing"),
        ("MessageType", "ResolutionResponse"),
        ("EventId", "E1"),
        ("EventTypeId", "OrderPlaced"),
        ("ParentMessageId", "m-1"),
        ("OriginatingMessageId", "m-1"),
        ("OriginatingFrom", "Shop"),
    ] {
        assert_eq!(text(name).as_deref(), Some(expected), "{name}");
    }
    assert_eq!(message.property("RetryCount"), Some(&Value::Int(2)));
    assert_eq!(message.property("ProcessingTimeMs"), Some(&Value::Long(1_500)));
    assert_eq!(message.property("QueueTimeMs"), Some(&Value::Long(2_500)));
    assert_eq!(
        (message.session_id.as_ref().map(|it| it.as_str()), message.correlation_id.as_deref()),
        (Some("s"), Some("m-1"))
    );
    assert_eq!(body["EventContent"]["EventJson"], "{\"Id\":1}", "the event is kept as it came");
    assert_eq!(body["ErrorContent"], Json::Null);
}

#[test]
fn what_went_wrong_is_told() {
    let (message, body) = sent(Outcome::Failed, Some(Failure::new("timeout", "too slow")));
    assert_eq!(message.text_property("MessageType"), Some("ErrorResponse"));
    assert_eq!(message.property("DeadLetterErrorDescription"), None, "with it, the event would count as dead-lettered");
    assert_eq!(
        (&body["ErrorContent"]["ErrorText"], &body["ErrorContent"]["ErrorType"]),
        (&json!("too slow"), &json!("timeout"))
    );
    let (message, _) = sent(Outcome::DeadLettered, Some(Failure::new("never", "no use")));
    assert_eq!(message.text_property("DeadLetterErrorDescription"), Some("no use"));
    let (message, _) = sent(Outcome::Deferred, None);
    assert_eq!(message.text_property("MessageType"), Some("DeferralResponse"));
}

/// P8: to who believes the last message, a duplicate's skip would undo the completion that it is a duplicate of.
#[test]
fn a_duplicate_is_not_told() {
    let duplicate = OutcomeWrite { guard: OutcomeGuard::IfAbsent, ..write(Outcome::Skipped, None) };
    assert_eq!(told(&"billing".into(), &"Resolver".into(), &published(), &duplicate, None), None);
}

/// The same decision is told under the same id, another one under another.
#[test]
fn ids_follow_from_the_decision() {
    let id = |outcome| sent(outcome, None).0.message_id;
    assert_eq!(id(Outcome::Completed), id(Outcome::Completed));
    assert_ne!(id(Outcome::Completed), id(Outcome::Skipped));
}

/// A body that is not NimBus's is wrapped as its publisher would have.
#[test]
fn another_body_is_wrapped() {
    let plain = arrival(Message {
        message_id: Some("m".into()),
        body: Body::Data("{\"a\":1}".as_bytes().into()),
        ..Message::default()
    });
    let Some(told) = told(&"e".into(), &"r".into(), &plain, &write(Outcome::Completed, None), None) else {
        panic!("told")
    };
    let Body::Data(bytes) = told.message.body else { panic!("data") };
    let body: Json = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!(body["EventContent"], json!({ "EventTypeId": "OrderPlaced", "EventJson": "{\"a\":1}" }));
    assert!(told_nothing(Outcome::Pending));
}

fn told_nothing(outcome: Outcome) -> bool {
    told(&"e".into(), &"r".into(), &published(), &write(outcome, None), None).is_none()
}
