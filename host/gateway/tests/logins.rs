//! Who is let in, and who is not: logins, tokens, rights, TLS, addresses.

mod support;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use sprag_amqp::{
    frame::Layer,
    performative::{DeliveryState, Performative, SaslCode},
    value::{Array, Map, Value},
};
use sprag_broker::{Engine, EntitySpec, FilterSpec, Options};
use sprag_gateway::{
    access::{Access, Key, Right, Rights},
    amqp::{BuildError, Config, Gateway, Tls},
};
use support::{Broker, Client, clock, map, message, token};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, crypto,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

const NOW: i64 = 1_796_000_000;

fn keys() -> Access {
    let rights = |rights: &[Right]| rights.iter().copied().collect::<Rights>();
    Access::with_keys([
        Key::new("root", "root-secret", rights(&[Right::Manage])),
        Key::new("sender", "sender-secret", rights(&[Right::Send])),
        Key::new("listener", "listener-secret", rights(&[Right::Listen])),
        Key::new("one", "one-secret", rights(&[Right::Manage])).for_entity("q"),
    ])
}

fn entities() -> Vec<EntitySpec> {
    let topic = "t".into();
    vec![
        EntitySpec::queue("q"),
        EntitySpec::queue("other"),
        EntitySpec::topic("t"),
        EntitySpec::subscription(&topic, "s", FilterSpec::All),
    ]
}

async fn guarded() -> (Broker, Arc<std::sync::atomic::AtomicI64>) {
    let (time, clock) = clock();
    (Broker::with(entities(), Config { access: keys(), clock, ..Config::default() }).await, time)
}

fn unauthorized<T: std::fmt::Debug>(result: Result<T, sprag_amqp::performative::AmqpError>) {
    assert_eq!(result.expect_err("refused").condition, "amqp:unauthorized-access");
}

/// Case A85: who failed the login can do nothing; nothing that it sends is read.
#[tokio::test]
async fn a_failed_login_ends_the_connection() {
    let (broker, _) = guarded().await;
    for (mechanism, response) in [
        ("PLAIN", &b"\0root\0wrong"[..]),
        ("PLAIN", b"\0nobody\0root-secret"),
        ("PLAIN", b"root-secret"),
        ("PLAIN", b"\0root\0root-secret\0more"),
        ("SCRAM-SHA-256", b"n,,n=root"),
    ] {
        let mut client = broker.connect().await;
        assert_eq!(client.log_in(mechanism, Some(response)).await, Err(SaslCode::Auth), "{mechanism}");
        assert_eq!(client.closed().await, None);
    }
    // Nor without a login at all.
    let mut client = broker.connect().await;
    client.write(&Layer::Amqp.header()).await;
    assert_eq!(client.closed_with_header().await, Layer::Sasl.header());
}

/// Case A85: who has shown nothing can open links to `$cbs` and nowhere else.
#[tokio::test]
async fn without_a_token_nothing_can_be_done() {
    let (broker, _) = guarded().await;
    for mechanism in ["ANONYMOUS", "MSSBCBS", "EXTERNAL"] {
        let mut client = broker.connect().await;
        client.log_in(mechanism, Some(b"")).await.unwrap();
        client.open().await;
        // Whether it exists is not told either.
        for address in ["q", "nowhere"] {
            unauthorized(client.sender(address).await);
            unauthorized(client.receiver(address, 1).await);
            unauthorized(client.requests(&format!("{address}/$management")).await.map(drop));
        }
        assert_eq!(client.put_token(&token("sb://h/q", "root", "root-secret", NOW + 60)).await, 202);
        client.sender("q").await.unwrap();
    }
}

#[tokio::test]
async fn a_key_by_plain_is_as_good_as_a_token() {
    let (broker, _) = guarded().await;
    let mut client = broker.connect().await;
    client.log_in("PLAIN", Some(b"\0sender\0sender-secret")).await.unwrap();
    client.open().await;
    let sender = client.sender("q").await.unwrap();
    assert_eq!(client.send(sender, &message("x")).await, DeliveryState::Accepted);
    unauthorized(client.receiver("q", 1).await);
}

#[tokio::test]
async fn tokens_that_are_none_are_refused() {
    let (broker, _) = guarded().await;
    let mut client = broker.client().await;
    for bad in [
        token("sb://h/q", "root", "wrong", NOW + 60),
        token("sb://h/q", "nobody", "root-secret", NOW + 60),
        token("sb://h/q", "root", "root-secret", NOW - 1),
        "SharedAccessSignature sr=x".to_owned(),
        "eyJhbGciOiJSUzI1NiJ9.e30.c2ln".to_owned(),
        String::new(),
    ] {
        assert_eq!(client.put_token(&bad).await, 401, "{bad}");
        unauthorized(client.sender("q").await);
    }
}

/// Each right, and each reach of a token.
#[tokio::test]
async fn rights_are_per_link_and_per_request() {
    let (broker, _) = guarded().await;
    let numbers = || map([("sequence-numbers", Array::longs([1]))]);
    let peek = || map([("from-sequence-number", Value::Long(1)), ("message-count", Value::Int(1))]);

    let mut client = broker.client().await;
    client.put_token(&token("sb://h/q", "sender", "sender-secret", NOW + 60)).await;
    client.sender("q").await.unwrap();
    unauthorized(client.receiver("q", 1).await);
    unauthorized(client.sender("other").await);
    let requests = client.requests("q/$management").await.unwrap();
    assert_eq!(client.manage(&requests, "peek-message", peek()).await.0, 401);
    assert_eq!(client.manage(&requests, "cancel-scheduled-message", numbers()).await.0, 404, "allowed, and not there");

    let mut client = broker.client().await;
    client.put_token(&token("sb://h/t", "listener", "listener-secret", NOW + 60)).await;
    client.receiver("t/Subscriptions/s", 1).await.unwrap();
    client.receiver("t/Subscriptions/s/$DeadLetterQueue", 1).await.unwrap();
    unauthorized(client.sender("t").await);
    let requests = client.requests("t/Subscriptions/s/$management").await.unwrap();
    assert_eq!(
        client.manage(&requests, "enumerate-rules", Map::new()).await.0,
        200,
        "rules need no more than listening"
    );
    assert_eq!(client.manage(&requests, "cancel-scheduled-message", numbers()).await.0, 401);

    // A key of one entity does not open another, whatever its token says.
    let mut client = broker.client().await;
    assert_eq!(client.put_token(&token("sb://h/", "one", "one-secret", NOW + 60)).await, 401);
    assert_eq!(client.put_token(&token("sb://h/q", "one", "one-secret", NOW + 60)).await, 202);
    client.receiver("q", 1).await.unwrap();
    unauthorized(client.receiver("other", 1).await);

    // The JavaScript SDK asks for the entity's `$management` by itself.
    let mut client = broker.client().await;
    client.put_token(&token("sb://h/q/$management", "root", "root-secret", NOW + 60)).await;
    let requests = client.requests("q/$management").await.unwrap();
    assert_eq!(client.manage(&requests, "peek-message", peek()).await.0, 204);
    unauthorized(client.receiver("q", 1).await);
}

/// A token that ends takes its links with it; one that is renewed in time does not.
#[tokio::test]
async fn tokens_end_and_are_renewed() {
    let (broker, time) = guarded().await;
    let (mut renewed, mut ended) = (broker.client().await, broker.client().await);
    for client in [&mut renewed, &mut ended] {
        client.put_token(&token("sb://h/q", "root", "root-secret", NOW + 1)).await;
    }
    let (stays, goes) = (renewed.receiver("q", 1).await.unwrap(), ended.receiver("q", 1).await.unwrap());
    assert_eq!(renewed.put_token(&token("sb://h/q", "root", "root-secret", NOW + 600)).await, 202);
    time.fetch_add(2, Relaxed);
    assert_eq!(ended.detached(goes).await.unwrap().condition, "amqp:unauthorized-access");
    unauthorized(ended.receiver("q", 1).await);
    let sender = renewed.sender("q").await.unwrap();
    renewed.send(sender, &message("x")).await;
    assert_eq!(renewed.receive(stays).await.body(), "x");
    // And with a new token the other one is back.
    ended.put_token(&token("sb://h/q", "root", "root-secret", NOW + 600)).await;
    ended.receiver("q", 1).await.unwrap();
}

/// Without keys, everybody may do everything, and any token will do.
#[tokio::test]
async fn an_open_broker_takes_any_token() {
    let broker = Broker::start(entities()).await;
    let mut client = broker.client().await;
    client.sender("q").await.unwrap();
    for any in ["eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "SharedAccessSignature sr=x&sig=y&se=1&skn=z"] {
        assert_eq!(client.put_token(any).await, 202);
    }
    client.receiver("other", 1).await.unwrap();
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn tls() -> Tls {
    Tls { listen: ([127, 0, 0, 1], 0).into(), certificate: file("certificate.pem"), key: file("key.pem") }
}

#[tokio::test]
async fn tls_carries_the_same() {
    let broker = Broker::with(entities(), Config { tls: Some(tls()), ..Config::default() }).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("certificate.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(broker.handle.tls_address().unwrap()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let mut client = Client::over(stream);
    client.log_in("ANONYMOUS", None).await.unwrap();
    client.open().await;
    let sender = client.sender("q").await.unwrap();
    // More than one record of TLS.
    let long = "x".repeat(300_000);
    assert_eq!(client.send(sender, &message(&long)).await, DeliveryState::Accepted);
    let receiver = client.receiver("q", 1).await.unwrap();
    assert_eq!(client.receive(receiver).await.body(), long);
}

#[tokio::test]
async fn what_a_gateway_is_not_opened_with() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(dir.path())).unwrap();
    let build = async |config| Gateway::build(config, engine.clone()).await.err().unwrap();
    assert!(matches!(build(Config::default()).await, BuildError::Nowhere));
    let everywhere = Config { listen: Some(([0, 0, 0, 0], 0).into()), ..Config::default() };
    let error = build(everywhere.clone()).await;
    assert!(matches!(error, BuildError::PlainBeyondLoopback(_)));
    assert!(error.to_string().contains("use TLS"), "{error}");
    assert!(Gateway::build(Config { plain_beyond_loopback: true, ..everywhere }, engine.clone()).await.is_ok());

    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = Some(taken.local_addr().unwrap());
    assert!(matches!(build(Config { listen, ..Config::default() }).await, BuildError::PortTaken(_)));

    let nothing = file("none.pem");
    for wrong in [
        Tls { certificate: nothing.clone(), ..tls() },
        Tls { key: nothing, ..tls() },
        Tls { certificate: file("key.pem"), ..tls() },
        Tls { key: file("certificate.pem"), ..tls() },
    ] {
        let error = build(Config { tls: Some(wrong), ..Config::default() }).await;
        assert!(matches!(error, BuildError::Tls { .. }), "{error}");
    }
}

/// Half-open connections: one that says nothing after its start, and one that says nothing any more.
#[tokio::test]
async fn who_says_nothing_is_gone() {
    let config = Config { idle_time_out: Duration::from_millis(200), ..Config::default() };
    let broker = Broker::with(entities(), config).await;
    let mut client = broker.client().await;
    client.receiver("q", 1).await.unwrap();
    let error = client.closed().await.expect("it says why");
    assert_eq!(error.condition, "amqp:resource-limit-exceeded");
    support::until("the connection is gone", || broker.handle.counts().connections == 0).await;
    assert_eq!(broker.handle.counts().links, 0);
}

#[tokio::test]
async fn there_are_only_so_many_connections() {
    let broker = Broker::with(entities(), Config { max_connections: 2, ..Config::default() }).await;
    let one = broker.client().await;
    let _other = broker.client().await;
    let mut third = broker.connect().await;
    third.write(&Layer::Sasl.header()).await;
    assert!(third.closed().await.is_none());
    drop(one);
    support::until("one has gone", || broker.handle.counts().connections == 1).await;
    broker.client().await.say(Performative::Close(None)).await;
}
