//! Encryption, asked for and not (A56). The certificate in `tests/tls` is for `localhost`, from an authority that nobody knows.

use std::path::{Path, PathBuf};

use sprag_databases::{
    sqlserver::{OpenError, Options, SqlServerStore},
    test_server::tds::Fake,
};
use sprag_store::{Store as _, Written};

use crate::support::{ask, options, shop, success};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn pem(name: &str) -> String {
    std::fs::read_to_string(file(name)).expect("a fixture")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_setting_checks_what_it_says() {
    let fake = Fake::start_with_tls(&pem("server.pem"), &pem("server-key.pem")).await;
    for (settings, root, host, taken) in [
        ("encrypt=false", None, "localhost", true),
        ("encrypt=true&trust_cert=true", None, "localhost", true),
        ("encrypt=true&trust_cert=true", None, "127.0.0.1", true),
        ("encrypt=true", None, "localhost", false),
        ("", None, "localhost", false),
        ("encrypt=true", Some("root.pem"), "localhost", true),
        ("encrypt=true", Some("root.pem"), "127.0.0.1", false),
        ("encrypt=true&hostNameInCertificate=localhost", Some("root.pem"), "127.0.0.1", true),
        ("encrypt=true", Some("other-root.pem"), "localhost", false),
    ] {
        let what = format!("{settings:?} at {host} with {root:?}");
        let url = fake.url_with(settings).replace("@localhost:", &format!("@{host}:"));
        let options = Options { pool_size: 2, extra_roots: root.map(file).into_iter().collect(), ..options(&url) };
        match (SqlServerStore::open(options).await, taken) {
            (Ok(store), true) => {
                // Long enough for records of TLS and packets of TDS to fall apart.
                let long = "x".repeat(100_000);
                let event = sprag_store::conformance::sample::failed(&what, "kind", &long);
                store.write(&shop(), sprag_store::conformance::sample::only(event)).await.expect("a write is taken");
                let found = store.find_events(&what).await.expect("events are found");
                assert_eq!(
                    found[0].outcome.error.as_ref().map(|error| error.text.len()),
                    Some(found_length(&long)),
                    "{what}"
                );
                assert_eq!(store.write(&shop(), success(&what)).await.expect("a write is taken"), Written::Done);
                assert!(ask(&store, &what).await.expect("a check answers").own_recorded, "{what}");
            }
            (Err(OpenError::Tls { problem, .. }), false) => {
                assert!(problem.contains("certificate"), "{what}: {problem}");
            }
            (result, _) => panic!("{what}: {result:?}"),
        }
    }
}

fn found_length(text: &str) -> usize {
    sprag_core::outcome::Failure::new("kind", text).text.len()
}

/// A56: encryption that is asked for and not to be had ends the matter; nothing is sent without it.
#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_way_back_to_plain_text() {
    let fake = Fake::start().await;
    for settings in ["encrypt=true&trust_cert=true", "encrypt=true", "trust_cert=true"] {
        match SqlServerStore::open(options(&fake.url_with(settings))).await {
            Err(OpenError::Tls { problem, .. }) => assert!(problem.contains("Encrypt"), "{problem}"),
            other => panic!("{settings}: {other:?}"),
        }
    }
    assert!(fake.sent().is_empty(), "nobody has logged in");
}
