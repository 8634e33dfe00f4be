//! A database of a test's own.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use tokio_postgres::{Client, NoTls};

use super::server::{Shared, url};

const PREFIX: &str = "sprag_test_";
/// Older ones were left by tests that were killed.
const OLD_SECONDS: u64 = 3_600;

/// An empty database. It is dropped with this, whoever is still connected.
pub struct Database {
    url: String,
    admin: String,
    name: String,
    _server: Option<Shared>,
}

/// Makes a database on the server that tests share, or on that of `SPRAG_TEST_POSTGRES`.
pub async fn fresh_database() -> Database {
    let (admin, server) = match std::env::var("SPRAG_TEST_POSTGRES") {
        Ok(url) => (url, None),
        Err(_) => {
            let server = tokio::task::spawn_blocking(Shared::join).await.expect("the test server is there");
            (url(server.port, "postgres"), Some(server))
        }
    };
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (number, now) = (NUMBER.fetch_add(1, Ordering::Relaxed), now());
    let name = format!("{PREFIX}{now}_{}_{number}", std::process::id());
    let client = connect(&admin).await;
    sweep(&client, now).await;
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("the user may create databases");
    Database { url: with_database(&admin, &name), admin, name, _server: server }
}

impl Database {
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// A role for handlers' SQL, of this database's own: roles are the server's. It goes with the database.
    pub async fn role(&self) -> String {
        let role = format!("{}_handlers", self.name);
        self.client()
            .await
            .batch_execute(&format!("CREATE ROLE {role} NOLOGIN"))
            .await
            .expect("the user may make roles");
        role
    }

    /// A plain connection to it, for what a store does not do.
    pub async fn client(&self) -> Client {
        connect(&self.url).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, name) = (self.admin.clone(), self.name.clone());
        // A thread with a runtime of its own: the test's may be the one that is ending.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a small runtime");
            runtime.block_on(async {
                let admin = connect(&admin).await;
                // The role's rights are in the database, so it goes last.
                admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
                admin.batch_execute(&format!("DROP ROLE IF EXISTS {name}_handlers")).await
            })
        });
        match dropped.join() {
            Ok(Ok(())) => {}
            // The next test's sweep takes it, or the end of the server.
            Ok(Err(error)) => eprintln!("database {} is left: {error}", self.name),
            Err(_) => eprintln!("database {} is left", self.name),
        }
    }
}

/// Connects without TLS; the task of the connection ends with the client.
async fn connect(url: &str) -> Client {
    let plain = url.replace("sslmode=prefer", "sslmode=disable");
    let (client, connection) = tokio_postgres::connect(&plain, NoTls).await.expect("the test server lets us in");
    tokio::spawn(async move {
        // Its error is the client's next one too.
        let _ = connection.await;
    });
    client
}

async fn sweep(client: &Client, now: u64) {
    let names = client
        .query("SELECT datname::text FROM pg_database WHERE starts_with(datname::text, $1)", &[&PREFIX])
        .await
        .expect("databases can be listed");
    for row in names {
        let name: String = row.get(0);
        let made: Option<u64> = name[PREFIX.len()..].split('_').next().and_then(|seconds| seconds.parse().ok());
        if made.is_some_and(|made| made + OLD_SECONDS < now) {
            // Another test may be doing the same.
            let _ = client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs()
}

/// The URL with another database's name.
fn with_database(url: &str, name: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, String::new()), |(base, query)| (base, format!("?{query}")));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..].find('/').map_or(base.len(), |at| authority + at);
    format!("{}/{name}{query}", &base[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_replaced() {
        for (url, expected) in [
            ("postgres://u:p@h:1/d?x=/y", "postgres://u:p@h:1/n?x=/y"),
            ("postgres://u@h", "postgres://u@h/n"),
            ("postgres://u@h/", "postgres://u@h/n"),
        ] {
            assert_eq!(with_database(url, "n"), expected);
        }
    }
}
