//! Tokens that end (A16): shown anew in time, and seen when they are not.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, Mac as _};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sprag_broker::EntitySpec;
use sprag_core::time::Timestamp;
use sprag_servicebus::{ServiceBus, Token, TokenError, TokenSource};
use sprag_transport::{Error, Settlement, Transport};
use tokio::time::Instant;

use support::{Access, Broker, EVENTUALLY, any_port, config, eventually, message, until, with_sessions};

/// Makes tokens that live so long, until it is told to deny them.
struct ShortLived {
    seconds: i64,
    asked: AtomicUsize,
    denies: AtomicBool,
}

#[async_trait]
impl TokenSource for ShortLived {
    async fn token(&self, audience: &str) -> Result<Token, TokenError> {
        self.asked.fetch_add(1, SeqCst);
        if self.denies.load(SeqCst) {
            return Err(TokenError::Denied("the identity was switched off".to_owned()));
        }
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        // To whole seconds, upwards.
        let end = (sprag_store::clock::now().0 + 999) / 1_000 + self.seconds;
        let resource = encoded(audience);
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(Access::EMULATOR_KEY.as_bytes()).expect("a key");
        mac.update(format!("{resource}\n{end}").as_bytes());
        let signature = encoded(&STANDARD.encode(mac.finalize().into_bytes()));
        let name = Access::EMULATOR_NAME;
        let text = format!("SharedAccessSignature sr={resource}&sig={signature}&se={end}&skn={name}");
        Ok(Token { text, kind: "servicebus.windows.net:sastoken", expires_at: Timestamp(end * 1_000) })
    }
}

async fn bench(seconds: i64) -> (Broker, tempfile::TempDir, Arc<ShortLived>, ServiceBus) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let specs = vec![with_sessions("orders", 30), with_sessions("orders.deferred", 30), EntitySpec::queue("mails")];
    let broker = Broker::start(dir.path(), specs.clone(), any_port()).await;
    let source = Arc::new(ShortLived { seconds, asked: AtomicUsize::new(0), denies: AtomicBool::new(false) });
    let mut config = config(broker.address(), &specs);
    config.tokens = Some(source.clone());
    let transport = ServiceBus::new(config).expect("it needs nothing");
    (broker, dir, source, transport)
}

/// A16: links for receiving, sending and asking live on over several ends of their tokens. The broker lets none go on without one.
#[tokio::test]
async fn links_outlive_their_tokens() {
    const SECONDS: i64 = 2;
    let (broker, _dir, source, transport) = bench(SECONDS).await;
    let (orders, mails) = ("orders".into(), "mails".into());
    transport.send(&orders, vec![message(Some("s"), "1"), message(Some("s"), "2")]).await.expect("they are taken");
    let held = transport.accept_next(&orders, EVENTUALLY).await.expect("accepting works").expect("one is offered");
    let first = held.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    let links = broker.handle.counts().links;
    let begun = Instant::now();
    let mut rounds = 0;
    // Nothing is made anew: whatever a token's end takes away fails at once.
    while begun.elapsed() < Duration::from_secs(4 * SECONDS as u64) {
        held.renew().await.expect("the lock is renewed");
        held.set_state(Some(Bytes::from(format!("{rounds}")))).await.expect("state is written");
        transport.send(&mails, vec![message(None, &format!("m{rounds}"))]).await.expect("it is taken");
        let got = transport.receive(&mails, 1, EVENTUALLY).await.expect("receiving works");
        transport.settle(&mails, got[0].lock, Settlement::Complete).await.expect("it is completed");
        rounds += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    held.settle(first.lock, Settlement::Complete).await.expect("it is completed");
    let second = held.receive(EVENTUALLY).await.expect("receiving works").expect("the link hands over the next one");
    held.settle(second.lock, Settlement::Complete).await.expect("it is completed");
    assert!(broker.handle.counts().links >= links, "no link was closed");
    assert_eq!(transport.counts().await.connections, 1);
    assert!(source.asked.load(SeqCst) >= 8, "tokens of {SECONDS} s were asked for {:?} times", source.asked);
}

/// A refresh that is denied is no secret: what was held is lost with its link, and every call says why, until tokens are made again.
#[tokio::test]
async fn a_denied_refresh_surfaces() {
    let (broker, _dir, source, transport) = bench(1).await;
    let orders = "orders".into();
    transport.send(&orders, vec![message(Some("s"), "1")]).await.expect("it is taken");
    let held = transport.accept_next(&orders, EVENTUALLY).await.expect("accepting works").expect("one is offered");
    source.denies.store(true, SeqCst);
    support::is_lost(until_lost(&*held).await);
    until("the session is free again", || broker.handle.counts().sessions == 0).await;
    let refused = transport.send(&orders, vec![message(Some("s"), "2")]).await;
    let refused_again = transport.accept_next(&orders, Duration::from_millis(50)).await.map(|it| it.is_some());
    for text in [refused.map(drop).err(), refused_again.map(drop).err()] {
        let Some(Error::Unavailable(text)) = text else { panic!("{text:?}") };
        assert!(text.contains("not authorized") && text.contains("switched off"), "{text}");
    }
    source.denies.store(false, SeqCst);
    eventually(|| transport.send(&orders, vec![message(Some("s"), "2")])).await;
    let again = eventually(|| async {
        transport.accept_next(&orders, EVENTUALLY).await?.ok_or(Error::Unavailable("none yet".into()))
    })
    .await;
    let first = again.receive(EVENTUALLY).await.expect("receiving works").expect("a message comes");
    assert_eq!(first.message.message_id.as_ref().map(|id| id.as_str()), Some("1"));
}

/// Renews until the session is lost.
async fn until_lost(held: &dyn sprag_transport::Session) -> Result<(), Error> {
    let until = Instant::now() + EVENTUALLY;
    while Instant::now() < until {
        match held.renew().await {
            Err(Error::LockLost) => return Err(Error::LockLost),
            Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    Ok(())
}
