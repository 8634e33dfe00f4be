//! What each `sslmode` takes and refuses. The certificate in `tests/tls` is for `localhost`, from an authority that nobody knows.

use std::path::{Path, PathBuf};

use sprag_databases::{
    postgres::{OpenError, Options, PostgresStore},
    test_server::{Server, Setup},
};
use tokio_postgres::NoTls;

use crate::support::options;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn pem(name: &str) -> String {
    std::fs::read_to_string(file(name)).expect("a fixture")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_checks_what_it_says() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let server = Server::start(Setup {
        settings: vec![
            pair("ssl", "on"),
            pair("ssl_cert_file", "certificate.pem"),
            pair("ssl_key_file", "key.pem"),
            pair("listen_addresses", "localhost"),
        ],
        files: vec![("certificate.pem".into(), pem("server.pem")), ("key.pem".into(), pem("server-key.pem"))],
        ..Setup::default()
    });
    let (by_number, by_name) = (server.url("postgres"), server.url("postgres").replace("127.0.0.1", "localhost"));
    let (client, connection) = tokio_postgres::connect(&by_number.replace("prefer", "disable"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let encrypted = async || {
        let sql = "SELECT s.ssl FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name = 'sprag' ORDER BY a.backend_start DESC LIMIT 1";
        client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0)
    };
    for (host, mode, root, expected) in [
        (&by_number, "disable", None, Some(false)),
        (&by_number, "prefer", None, Some(true)),
        (&by_number, "require", None, Some(true)),
        (&by_number, "require", Some("root.pem"), Some(true)),
        (&by_number, "require", Some("other-root.pem"), None),
        (&by_name, "verify-ca", None, None),
        (&by_number, "verify-ca", Some("root.pem"), Some(true)),
        (&by_number, "verify-ca", Some("other-root.pem"), None),
        (&by_name, "verify-full", Some("root.pem"), Some(true)),
        (&by_number, "verify-full", Some("root.pem"), None),
        (&by_name, "verify-full", Some("other-root.pem"), None),
    ] {
        let what = format!("{mode} at {} with {root:?}", if host == &by_name { "localhost" } else { "127.0.0.1" });
        let url = host.replace("sslmode=prefer", &format!("sslmode={mode}"));
        let options = Options { pool_size: 1, extra_roots: root.map(file).into_iter().collect(), ..options(&url) };
        match (PostgresStore::open(options).await, expected) {
            (Ok(_store), Some(expected)) => assert_eq!(encrypted().await, expected, "{what}"),
            (Err(OpenError::Tls { problem, .. }), None) => {
                assert!(problem.contains("certificate"), "{what}: {problem}")
            }
            (result, _) => panic!("{what}: {result:?}"),
        }
    }
    let strange =
        Options { extra_roots: vec![file("server-key.pem")], ..options(&by_name.replace("prefer", "verify-full")) };
    assert!(matches!(PostgresStore::open(strange).await, Err(OpenError::Roots { .. })));
}
