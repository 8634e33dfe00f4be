//! An account of Cosmos DB for tests: the service itself or its emulator with `SPRAG_TEST_COSMOS`, else a stand-in from npm.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::cosmos::{Account, Options, drop_database};

const PACKAGE: &str = "@vercel/cosmosdb-server";
const VERSION: &str = "1.0.1";
/// The key of the stand-in's account: a test looks for it where it must not be.
pub const KEY: &str = "aHVzaC1odXNoLWNvc21vcw==";

/// An account, and a database in it that is this test's own.
pub struct Cosmos {
    connection: String,
    database: String,
    /// None where the account is not ours.
    stand_in: Option<Child>,
}

/// An account without a database of that name yet.
pub async fn cosmos() -> Cosmos {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let database = format!("sprag-test-{now}-{}-{number}", std::process::id());
    match std::env::var("SPRAG_TEST_COSMOS") {
        Ok(connection) => Cosmos { connection, database, stand_in: None },
        Err(_) => tokio::task::spawn_blocking(move || start(database)).await.expect("the stand-in starts"),
    }
}

impl Cosmos {
    /// Options for it. The stand-in's consistency is Session, as that of the emulators.
    pub fn options(&self) -> Options {
        let account = Account::parse(&self.connection).expect("it is a connection string");
        Options { database: self.database.clone(), allow_relaxed_consistency: true, ..Options::new(account) }
    }

    /// Whether it is the stand-in, whose consistency and key are known.
    pub fn is_stand_in(&self) -> bool {
        self.stand_in.is_some()
    }
}

impl Drop for Cosmos {
    fn drop(&mut self) {
        if let Some(stand_in) = &mut self.stand_in {
            // One that has ended already is as good.
            let _ = stand_in.kill();
            let _ = stand_in.wait();
            return;
        }
        let options = self.options();
        // A thread with a runtime of its own: the test's may be the one that is ending.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a small runtime");
            runtime.block_on(drop_database(&options))
        });
        match dropped.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("database {} is left: {error}", self.database),
            Err(_) => eprintln!("database {} is left", self.database),
        }
    }
}

fn start(database: String) -> Cosmos {
    let folder = installed();
    let script = folder.join("cosmos.js");
    // Its input is ours: it ends with this process, however that ends.
    let mut stand_in = Command::new("node")
        .arg(&script)
        .arg(KEY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("tests with Cosmos DB need Node.js: apt-get install nodejs npm, or set SPRAG_TEST_COSMOS");
    let mut line = String::new();
    let output = stand_in.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut line).expect("it says its port");
    let port: u16 = line.trim().parse().unwrap_or_else(|_| panic!("{} did not start: {line:?}", script.display()));
    let connection = format!("AccountEndpoint=http://127.0.0.1:{port}/;AccountKey={KEY};");
    Cosmos { connection, database, stand_in: Some(stand_in) }
}

/// The folder that the package is in, below the target folder. The first test of all processes installs it.
fn installed() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let target = test.ancestors().nth(2).expect("tests are in a folder of the target folder");
    let folder = target.join("cosmosdb-server");
    fs::create_dir_all(&folder).expect("the target folder can be written");
    let lock = File::options().append(true).create(true).open(folder.join("lock")).expect("the folder can be written");
    lock.lock().expect("a lock can be waited for");
    let done = folder.join(format!("installed-{VERSION}"));
    if !done.exists() {
        install(&folder);
        fs::write(&done, "").expect("the folder can be written");
    }
    let (script, text) = (folder.join("cosmos.js"), include_str!("cosmos.js"));
    if fs::read_to_string(&script).is_ok_and(|found| found == text) {
        return folder;
    }
    fs::write(&script, text).expect("the folder can be written");
    folder
}

fn install(folder: &Path) {
    let output = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--save-exact", "--prefix"])
        .arg(folder)
        .arg(format!("{PACKAGE}@{VERSION}"))
        .stdin(Stdio::null())
        .output()
        .expect("tests with Cosmos DB need npm: apt-get install npm, or set SPRAG_TEST_COSMOS");
    assert!(
        output.status.success(),
        "{PACKAGE} {VERSION} could not be installed from npm (is its registry reachable? else set SPRAG_TEST_COSMOS): {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
