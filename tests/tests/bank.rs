//! The bank of `samples/bank`, in the real process: handlers in three languages whose SQL commits with the record of their message.
//!
//! Every event is sent twice, and the host is killed at random points (seed 002's transfer, seed 004's counter). Afterwards the books must be those of
//! every transfer booked once. On the embedded engine and on PostgreSQL. `SPRAG_SEED` repeats the choices, `SPRAG_SOAK=1` goes on ten times as long.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use sprag_databases::test_server::{Database, fresh_database};
use sprag_tests::{
    host::{PATIENCE, Place, pass, until},
    random::{self, Random},
};

const ACCOUNTS: usize = 6;
const OPENING: i64 = 1_000_000;

fn sample(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/bank").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sample's folder, with its handlers as `./x setup` has built them.
fn place(toml: &str) -> Place {
    let place = Place::new(toml, &[]);
    for handler in ["bank", "report", "statement"] {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../samples/bank/handlers/{handler}.wasm"));
        assert!(built.exists(), "{} is missing: ./x setup builds it", built.display());
        fs::copy(built, place.handler(handler)).expect("a component can be copied");
    }
    place
}

/// The sample's own configuration, on a port that is free.
fn embedded() -> String {
    format!("[host]\nconsole = \"127.0.0.1:0\"\n\n{}", sample("sprag.toml"))
}

/// The same on a database, as the sample's README says.
fn on_postgres(role: &str) -> String {
    let toml = embedded()
        .replace("sql:embedded", "sql:main")
        .replace("database = \"embedded\"", "database = \"main\"")
        .replace("inbox = {", "store = \"main\"\nconcurrency = 4\ninbox = {");
    format!("{toml}\n[store.main]\nkind = \"postgres\"\nurl = \"file:database.txt\"\nsql_role = \"{role}\"\n")
}

fn event(id: &str, kind: &str, session: &str, body: &Value) -> Value {
    match session {
        "" => json!({ "id": id, "type": kind, "body": body }),
        session => json!({ "id": id, "type": kind, "session": session, "body": body }),
    }
}

struct Transfer {
    from: usize,
    to: usize,
    cents: i64,
}

fn account(n: usize) -> String {
    format!("account-{n}")
}

/// What every book must say in the end.
fn expected(transfers: &[Transfer]) -> (Vec<i64>, Vec<(i64, i64)>) {
    let (mut cents, mut reports) = (vec![OPENING; ACCOUNTS], vec![(0, 0); ACCOUNTS]);
    for transfer in transfers {
        cents[transfer.from] -= transfer.cents;
        cents[transfer.to] += transfer.cents;
        reports[transfer.from].0 += 1;
        reports[transfer.from].1 += transfer.cents;
    }
    (cents, reports)
}

/// Sends everything twice while the host is killed and started again, and waits until all is done.
fn run(place: &Place, founded: bool, seed: u64) -> Vec<Transfer> {
    let mut random = Random::new(seed);
    let rounds = if std::env::var_os("SPRAG_SOAK").is_some() { 60 } else { 6 };
    let mut host = place.run();
    if !founded {
        host.send("transfers", &[event("founded", "BankFounded", "bank", &json!({}))]);
        host.outcome("founded", "completed");
    }
    for n in 0..ACCOUNTS {
        let id = format!("open-{n}");
        let body = json!({ "account": account(n), "cents": OPENING });
        host.send("transfers", &[event(&id, "AccountOpened", &account(n), &body)]);
        host.outcome(&id, "completed");
    }
    let mut transfers = Vec::new();
    for round in 0..rounds {
        let first = transfers.len();
        for _ in 0..20 {
            let from = random.below(ACCOUNTS as u64) as usize;
            let to = (from + 1 + random.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
            transfers.push(Transfer { from, to, cents: 1 + random.below(500) as i64 });
        }
        let batch: Vec<Value> = (first..transfers.len())
            .map(|n| {
                let Transfer { from, to, cents } = &transfers[n];
                let body = json!({ "from": account(*from), "to": account(*to), "cents": cents });
                event(&format!("transfer-{n}"), "TransferRequested", &account(*from), &body)
            })
            .collect();
        host.send("transfers", &batch);
        // Once more, under the same ids.
        host.send("transfers", &batch);
        pass(Duration::from_millis(random.below(300)));
        host.kill();
        host = place.run();
        assert!(!host.log().contains("panicked"), "round {round}\n{}", host.log());
    }
    let total = transfers.len();
    until("every transfer is completed, and counted", PATIENCE, || {
        let done = |endpoint: &str, kind: &str| {
            let path = format!("/api/events?endpoint={endpoint}&type={kind}&outcome=completed&limit=1000");
            host.items(&path).len()
        };
        (done("transfers", "TransferRequested") == total && done("reports", "TransferBooked") == total).then_some(())
    });
    host.send(
        "statements",
        &[event("statement", "StatementRequested", "", &json!({ "id": "s-1", "account": account(0) }))],
    );
    host.outcome("statement", "completed");
    assert_eq!(host.stop(), Some(0));
    transfers
}

#[test]
fn on_the_embedded_engine_every_transfer_is_booked_once() {
    let seed = random::seed();
    let place = place(&embedded());
    let (cents, reports) = expected(&run(&place, false, seed));
    let books = rusqlite::Connection::open(place.database()).expect("the engine's file can be read");
    let number = |sql: String| -> i64 { books.query_row(&sql, [], |row| row.get(0)).unwrap_or(0) };
    for n in 0..ACCOUNTS {
        let name = account(n);
        assert_eq!(number(format!("SELECT cents FROM account WHERE name = '{name}'")), cents[n], "{name}, seed {seed}");
        let counted = number(format!("SELECT transfers FROM report WHERE name = '{name}'"));
        let sum = number(format!("SELECT cents FROM report WHERE name = '{name}'"));
        assert_eq!((counted, sum), reports[n], "{name}, seed {seed}");
    }
    assert_eq!(number("SELECT cents FROM statement WHERE id = 's-1'".into()), cents[0], "seed {seed}");
}

async fn prepare() -> (Database, String) {
    let database = fresh_database().await;
    let role = database.role().await;
    let sql = format!(
        "{} GRANT SELECT, INSERT, UPDATE, DELETE ON account, report, statement TO {role};",
        sample("tables.sql")
    );
    database.client().await.batch_execute(&sql).await.expect("roles and tables can be made");
    (database, role)
}

#[test]
fn on_postgresql_every_transfer_is_booked_once() {
    let seed = random::seed();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (database, role) = runtime.block_on(prepare());
    let place = place(&on_postgres(&role));
    fs::write(place.path().join("database.txt"), database.url()).expect("the folder can be written");
    let (cents, reports) = expected(&run(&place, true, seed));
    let books = runtime.block_on(database.client());
    let number = |sql: &str, name: &str| -> i64 {
        let row = runtime.block_on(books.query_opt(sql, &[&name])).expect("the books can be read");
        row.map_or(0, |row| row.get(0))
    };
    for n in 0..ACCOUNTS {
        let name = account(n);
        assert_eq!(number("SELECT cents FROM account WHERE name = $1", &name), cents[n], "{name}, seed {seed}");
        let counted = number("SELECT transfers FROM report WHERE name = $1", &name);
        let sum = number("SELECT cents FROM report WHERE name = $1", &name);
        assert_eq!((counted, sum), reports[n], "{name}, seed {seed}");
    }
    assert_eq!(number("SELECT cents FROM statement WHERE id = $1", "s-1"), cents[0], "seed {seed}");
}

/// A transfer of which only the first half could be booked fails, and no half of it took effect.
#[test]
fn half_a_transfer_is_none() {
    let place = place(&embedded());
    let host = place.run();
    for line in sample("events.jsonl").lines() {
        let event: Value = serde_json::from_str(line).expect("the sample's events are JSON");
        let (id, kind) = (event["id"].as_str().expect("an id"), event["type"].as_str().expect("a type"));
        host.send("transfers", &[self::event(id, kind, "bank", &event["data"])]);
    }
    let failed = host.outcome("transfer-4", "failed");
    assert_eq!(failed["error"]["kind"], "no-account", "{failed}");
    assert_eq!(host.stop(), Some(0));
    let books = rusqlite::Connection::open(place.database()).expect("the engine's file can be read");
    let sum: i64 = books.query_row("SELECT sum(cents) FROM account", [], |row| row.get(0)).expect("accounts");
    let bob: i64 = books.query_row("SELECT cents FROM account WHERE name = 'bob'", [], |row| row.get(0)).expect("bob");
    assert_eq!((sum, bob), (1_000_000, 10_000 + 418_200 - 1_200));
}
