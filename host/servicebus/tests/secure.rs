//! TLS with a broker, by a certificate that no authority of the platform has signed.

mod support;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use sprag_broker::EntitySpec;
use sprag_gateway::amqp::Tls;
use sprag_servicebus::{Config, ConnectionString, ServiceBus};
use sprag_transport::{Error, Settlement, Transport};

use support::{Access, Broker, EVENTUALLY, GatewayConfig, message};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A broker behind TLS, and a transport that goes there by this name, with these roots beside the platform's.
async fn bench(dir: &Path, host: &str, roots: &[&str]) -> (Broker, ServiceBus) {
    let tls = Tls {
        // The certificate is for 127.0.0.1 and localhost.
        listen: if host == "127.0.0.2" { ([127, 0, 0, 2], 0) } else { ([127, 0, 0, 1], 0) }.into(),
        certificate: file("../gateway/tests/tls/certificate.pem"),
        key: file("../gateway/tests/tls/key.pem"),
    };
    let config = GatewayConfig { tls: Some(tls), access: Access::emulator(), ..GatewayConfig::default() };
    let broker = Broker::with(dir, vec![EntitySpec::queue("mails")], config).await;
    let address: SocketAddr = broker.handle.tls_address().expect("it listens");
    let text = format!(
        "Endpoint=sb://{host}:{};SharedAccessKeyName={};SharedAccessKey={}",
        address.port(),
        Access::EMULATOR_NAME,
        Access::EMULATOR_KEY
    );
    let connection = ConnectionString::parse(&text).expect("it is one");
    let config = Config { extra_roots: roots.iter().map(|name| file(name)).collect(), ..Config::new(connection) };
    (broker, ServiceBus::new(config).expect("the roots are read"))
}

#[tokio::test]
async fn what_goes_through_tls_comes_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (_broker, transport) = bench(dir.path(), "localhost", &["../gateway/tests/tls/certificate.pem"]).await;
    let mails = "mails".into();
    // More than one record of TLS.
    let mut sent = message(None, "m");
    sent.body = sprag_core::message::Body::Data(vec![b'x'; 200_000].into());
    transport.send(&mails, vec![sent.clone()]).await.expect("it is taken");
    let got = transport.receive(&mails, 1, EVENTUALLY).await.expect("receiving works");
    assert_eq!(got[0].message.body, sent.body);
    transport.settle(&mails, got[0].lock, Settlement::Complete).await.expect("it is completed");
}

async fn refusal(host: &str, roots: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (_broker, transport) = bench(dir.path(), host, roots).await;
    match transport.send(&"mails".into(), vec![message(None, "m")]).await {
        Err(Error::Unavailable(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn another_authority_is_refused_and_named() {
    let text = refusal("localhost", &["tests/tls/other.pem"]).await;
    assert!(text.contains("no TLS with localhost") && text.contains("extra roots"), "{text}");
}

#[tokio::test]
async fn another_host_is_refused_and_named() {
    let text = refusal("127.0.0.2", &["../gateway/tests/tls/certificate.pem"]).await;
    assert!(text.contains("another host"), "{text}");
}

/// A file of roots that is none is no reason to go on with fewer.
#[tokio::test]
async fn roots_that_are_none() {
    let connection = "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k";
    for wrong in ["tests/tls/none.pem", "Cargo.toml"] {
        let connection = ConnectionString::parse(connection).expect("it is one");
        let built = ServiceBus::new(Config { extra_roots: vec![file(wrong)], ..Config::new(connection) });
        let error = built.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(wrong), "{wrong}: {error:?}");
    }
}
