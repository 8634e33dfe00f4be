use bytes::Bytes;

use super::*;
use crate::value::Value;

fn read(bytes: &[u8]) -> Result<Performative> {
    let bytes = Bytes::copy_from_slice(bytes);
    let mut reader = Reader::new(&bytes);
    let performative = Performative::read(&mut reader)?;
    assert!(reader.is_empty(), "no payload");
    Ok(performative)
}

fn error() -> AmqpError {
    let info = [(Symbol::from_static("key"), Value::Uint(1))].into_iter().collect();
    AmqpError { info, ..AmqpError::new(Symbol::from_static("amqp:x"), "why") }
}

fn states() -> Vec<DeliveryState> {
    let message_annotations: Map = [(Symbol::from_static("a"), Value::Null)].into_iter().collect();
    vec![
        DeliveryState::Received { section_number: 1, section_offset: 2 },
        DeliveryState::Accepted,
        DeliveryState::Rejected(None),
        DeliveryState::Rejected(Some(error())),
        DeliveryState::Released,
        DeliveryState::Modified { delivery_failed: true, undeliverable_here: false, message_annotations },
        DeliveryState::Declared { transaction: Bytes::from_static(b"t") },
        DeliveryState::Transactional { transaction: Bytes::from_static(b"t") },
    ]
}

fn map() -> Map {
    [(Symbol::from_static("k"), Value::from("v"))].into_iter().collect()
}

/// All fields different from their defaults.
fn all() -> Vec<Performative> {
    let symbols = || vec![Symbol::from_static("x"), Symbol::from_static("y")];
    let mut attach = Attach::new("link", 3, Role::Receiver);
    attach.sender_settle = SenderSettle::Settled;
    attach.receiver_settle = ReceiverSettle::Second;
    attach.source = Some(Source {
        address: Some("q".to_owned()),
        durable: 1,
        expiry_policy: Some(Symbol::from_static("never")),
        timeout: 9,
        dynamic: true,
        dynamic_node_properties: map(),
        distribution_mode: Some(Symbol::from_static("move")),
        filters: map(),
        default_outcome: Some(DeliveryState::Released),
        outcomes: symbols(),
        capabilities: symbols(),
    });
    attach.target = Some(Target::Node(TargetNode {
        address: Some("t".to_owned()),
        durable: 2,
        expiry_policy: Some(Symbol::from_static("link-detach")),
        timeout: 8,
        dynamic: true,
        dynamic_node_properties: map(),
        capabilities: symbols(),
    }));
    attach.unsettled = map();
    attach.incomplete_unsettled = true;
    attach.initial_delivery_count = Some(5);
    attach.max_message_size = Some(1 << 40);
    attach.offered_capabilities = symbols();
    attach.desired_capabilities = symbols();
    attach.properties = map();
    let mut coordinator = Attach::new("tx", 0, Role::Sender);
    coordinator.target = Some(Target::Coordinator { capabilities: symbols() });
    let mut all = vec![
        Performative::Open(Box::new(Open {
            container_id: "c".to_owned(),
            hostname: Some("h".to_owned()),
            max_frame_size: 1000,
            channel_max: 7,
            idle_time_out: Some(30000),
            offered_capabilities: symbols(),
            desired_capabilities: symbols(),
            properties: map(),
        })),
        Performative::Begin(Begin {
            remote_channel: Some(1),
            next_outgoing_id: 2,
            incoming_window: 3,
            outgoing_window: 4,
            handle_max: 5,
            offered_capabilities: symbols(),
            desired_capabilities: symbols(),
            properties: map(),
        }),
        Performative::Attach(Box::new(attach)),
        Performative::Attach(Box::new(coordinator)),
        Performative::Flow(Flow {
            next_incoming_id: Some(1),
            incoming_window: 2,
            next_outgoing_id: 3,
            outgoing_window: 4,
            handle: Some(5),
            delivery_count: Some(6),
            link_credit: Some(700),
            available: Some(8),
            drain: true,
            echo: true,
            properties: map(),
        }),
        Performative::Detach(Detach { handle: 1, closed: true, error: Some(error()) }),
        Performative::End(Some(error())),
        Performative::End(None),
        Performative::Close(Some(error())),
        Performative::Close(None),
    ];
    for state in states() {
        all.push(Performative::Transfer(Transfer {
            handle: 1,
            delivery_id: Some(2),
            delivery_tag: Some(Bytes::from_static(b"tag")),
            message_format: Some(0x8001_3700),
            settled: Some(true),
            more: true,
            receiver_settle: Some(ReceiverSettle::Second),
            state: Some(state.clone()),
            resume: true,
            aborted: true,
            batchable: true,
        }));
        all.push(Performative::Disposition(Disposition {
            role: Role::Receiver,
            first: 1,
            last: Some(2),
            settled: true,
            state: Some(state),
            batchable: true,
        }));
    }
    all
}

#[test]
fn every_performative_comes_back_as_it_was() {
    for performative in all() {
        let mut bytes = Vec::new();
        performative.write(&mut bytes);
        assert_eq!(read(&bytes).unwrap_or_else(|error| panic!("{performative:?}: {error}")), performative);
        // The Python SDK reads the code at byte 2, the constructor at byte 3 and the fields from there: it must find just that.
        assert_eq!((bytes[0], bytes[1]), (0x00, 0x53));
        assert!(matches!(bytes[3], 0xc0 | 0xd0), "{performative:?}");
    }
}

/// The Python SDK names fields by their place.
#[test]
fn all_fields_are_written_even_nulls_at_the_end() {
    let count = |performative: &Performative| {
        let mut bytes = Vec::new();
        performative.write(&mut bytes);
        assert_eq!(bytes[3], 0xc0, "short");
        bytes[5]
    };
    assert_eq!(count(&Performative::Open(Box::default())), 10);
    assert_eq!(count(&Performative::Begin(Begin::default())), 8);
    assert_eq!(count(&Performative::Attach(Box::new(Attach::new("", 0, Role::Sender)))), 14);
    assert_eq!(count(&Performative::Flow(Flow::default())), 11);
    assert_eq!(count(&Performative::Transfer(Transfer::default())), 11);
    assert_eq!(count(&Performative::Detach(Detach::default())), 3);
    assert_eq!(count(&Performative::End(None)), 1);
    assert_eq!(count(&Performative::Close(None)), 1);
}

#[test]
fn sasl_frames_come_back_as_they_were() {
    let bytes = || Bytes::from_static(b"secret");
    let mut frames = vec![
        Sasl::Mechanisms(vec![Symbol::from_static("PLAIN"), Symbol::from_static("ANONYMOUS")]),
        Sasl::Init { mechanism: Symbol::from_static("PLAIN"), response: Some(bytes()), hostname: Some("h".to_owned()) },
        Sasl::Challenge(bytes()),
        Sasl::Response(bytes()),
    ];
    for code in [SaslCode::Ok, SaslCode::Auth, SaslCode::Sys, SaslCode::SysPerm, SaslCode::SysTemp] {
        frames.push(Sasl::Outcome { code, data: Some(bytes()) });
    }
    for frame in frames {
        let mut out = Vec::new();
        frame.write(&mut out);
        let out = Bytes::from(out);
        assert_eq!(Sasl::read(&mut Reader::new(&out)), Ok(frame));
    }
}

/// Some send the one mechanism that they have as a symbol and not as an array of it.
#[test]
fn one_symbol_is_as_good_as_an_array() {
    let bytes = Bytes::from_static(b"\x00\x53\x40\xc0\x08\x01\xa3\x05PLAIN");
    assert_eq!(Sasl::read(&mut Reader::new(&bytes)), Ok(Sasl::Mechanisms(vec![Symbol::from_static("PLAIN")])));
}

#[test]
fn missing_fields_at_the_end_are_their_defaults() {
    let open = read(b"\x00\x53\x10\xc0\x04\x01\xa1\x01c").expect("sound");
    assert_eq!(open, Performative::Open(Box::new(Open { container_id: "c".to_owned(), ..Open::default() })));
    let flow = read(&[0x00, 0x53, 0x13, 0xc0, 0x05, 4, 0x40, 0x43, 0x43, 0x43]).expect("sound");
    assert_eq!(flow, Performative::Flow(Flow::default()));
    assert_eq!(read(&[0x00, 0x53, 0x18, 0x45]).expect("sound"), Performative::Close(None));
}

#[test]
fn fields_that_do_not_exist_yet_are_passed_over() {
    let detach = [0x00, 0x53, 0x16, 0xc0, 0x07, 5, 0x43, 0x41, 0x40, 0x41, 0x52, 0x01];
    assert_eq!(read(&detach).expect("sound"), Performative::Detach(Detach { handle: 0, closed: true, error: None }));
}

/// Any width, signed or not; what does not fit is an error and not another number.
#[test]
fn integers_come_in_any_width() {
    let handles: [&[u8]; 6] =
        [&[0x52, 5], &[0x70, 0, 0, 0, 5], &[0x53, 5], &[0x80, 0, 0, 0, 0, 0, 0, 0, 5], &[0x54, 5], &[0x60, 0, 5]];
    for handle in handles {
        let size = u8::try_from(handle.len() + 1).expect("small");
        let bytes = [&[0x00, 0x53, 0x16, 0xc0, size, 1], handle].concat();
        assert_eq!(read(&bytes).expect("sound"), Performative::Detach(Detach { handle: 5, ..Detach::default() }));
    }
    let negative = [0x00, 0x53, 0x16, 0xc0, 3, 1, 0x54, 0xff];
    assert_eq!(read(&negative).expect_err("negative").problem, Problem::OutOfRange { field: "handle" });
}

#[test]
fn what_is_required_is_named_when_it_is_not_there() {
    let problem = |bytes: &[u8]| read(bytes).expect_err("not sound").problem;
    assert_eq!(problem(&[0x00, 0x53, 0x16, 0x45]), Problem::Missing { field: "handle" });
    assert_eq!(problem(&[0x00, 0x53, 0x12, 0xc0, 2, 1, 0x40]), Problem::Missing { field: "name" });
    assert_eq!(problem(&[0x00, 0x53, 0x15, 0xc0, 2, 1, 0x40]), Problem::Missing { field: "role" });
    assert_eq!(problem(&[0x00, 0x53, 0x99, 0x45]), Problem::UnknownDescriptor { what: "frame" });
    let modes = [0x00, 0x53, 0x12, 0xc0, 8, 4, 0xa1, 1, b'n', 0x43, 0x41, 0x50, 7];
    assert_eq!(problem(&modes), Problem::NoSuchChoice { field: "snd-settle-mode", value: 7 });
    let text = [0x00, 0x53, 0x16, 0xc0, 3, 1, 0xa1, 0];
    assert!(matches!(problem(&text), Problem::Unexpected { field: "handle", found: 0xa1, .. }));
}

#[test]
fn the_protocols_names_are_read_for_its_numbers() {
    let mut bytes = b"\x00\xa3\x0famqp:close:list".to_vec();
    bytes.push(0x45);
    assert_eq!(read(&bytes[..]).ok(), Some(Performative::Close(None)));
}

#[test]
fn a_filter_is_found_described_and_plain() {
    let name = "com.microsoft:session-filter";
    let mut source = Source::at("q");
    assert_eq!(source.filter(name), None);
    source.filters.set(Symbol::from(name), Value::Null);
    assert_eq!(source.filter(name), Some(&Value::Null));
    source.filters.set(Symbol::from(name), Value::described(0x0000_0137_0000_000c, Value::from("s1")));
    assert_eq!(source.filter(name), Some(&Value::from("s1")));
}
