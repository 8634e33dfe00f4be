//! The real process in a folder of its own, as a user runs it.
//!
//! Tests here take nothing from inside: they start `sprag`, speak to its API, call its verbs, send it signals, and read what it left on the disk.
//! Everything that is waited for has a bound, and says at the end what it waited for and what the host wrote.

use std::{
    fs::{self, File},
    io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take on a machine that does much else beside.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `target/release`, where this test was built.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its file");
    test.parent().and_then(Path::parent).expect("tests are built into target/PROFILE/deps").to_owned()
}

/// The command that is tested.
pub fn binary() -> PathBuf {
    let path = built().join("sprag");
    assert!(path.exists(), "{} is missing: cargo build --release --workspace", path.display());
    path
}

/// A component that `./x setup` has built.
pub fn guest(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../guests/out/{name}.wasm"));
    assert!(path.exists(), "{} is missing: ./x setup builds it", path.display());
    path
}

/// Looks again and again until there is an answer; `what` says in the failure what was waited for.
pub fn until<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < patience, "waited {patience:?} in vain: {what}");
        pass(Duration::from_millis(5));
    }
}

/// Lets time pass, between two looks or because time itself is what a test is about (a kill at a random point).
#[expect(
    clippy::disallowed_methods,
    reason = "the one place: the interval of a bounded poll, or the random time of a kill"
)]
pub fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// What a verb ended with.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Its JSON; for verbs that were called with `--json`.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    #[track_caller]
    pub fn done(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// A folder with a configuration and handlers.
pub struct Place {
    /// Goes away with this value.
    _dir: Option<TempDir>,
    path: PathBuf,
}

impl Place {
    /// `handlers`: which component under which name.
    pub fn new(toml: &str, handlers: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let mut place = Self::at(dir.path(), toml, handlers);
        place._dir = Some(dir);
        place
    }

    /// In a folder that the test has made.
    pub fn at(dir: &Path, toml: &str, handlers: &[(&str, &str)]) -> Self {
        let path = dir.canonicalize().expect("the folder is there");
        fs::write(path.join("sprag.toml"), toml).expect("the folder can be written");
        fs::create_dir_all(path.join("handlers")).expect("the folder can be written");
        for (component, name) in handlers {
            fs::copy(guest(component), path.join(format!("handlers/{name}.wasm"))).expect("a component can be copied");
        }
        Self { _dir: None, path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn handler(&self, name: &str) -> PathBuf {
        self.path.join(format!("handlers/{name}.wasm"))
    }

    pub fn database(&self) -> PathBuf {
        self.path.join(".sprag/engine.db")
    }

    /// A command in this folder; compiled code is shared by all tests.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(args)
            .current_dir(&self.path)
            .env("SPRAG_CACHE", built().join("../tests-compiled"))
            .env("USER", "olga")
            .env_remove("SPRAG_HOST")
            .env_remove("SPRAG_TOKEN")
            .env_remove("SPRAG_LOG")
            .stdin(Stdio::null());
        command
    }

    /// Runs a verb to its end.
    pub fn sprag(&self, args: &[&str]) -> Ended {
        let output = self.command(args).output().expect("the command runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the command writes UTF-8");
        Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Starts a host, and does not wait for it.
    pub fn spawn(&self, args: &[&str]) -> Host {
        let log = self.path.join("host.log");
        let open = || File::options().create(true).append(true).open(&log).expect("the log can be written");
        let child = self.command(args).stdout(open()).stderr(open()).spawn().expect("the host starts");
        Host { child, path: self.path.clone(), log, agent: agent(), address: String::new(), token: String::new() }
    }

    /// Starts `sprag dev` and waits until it is ready.
    pub fn dev(&self) -> Host {
        let mut host = self.spawn(&["dev", "."]);
        host.ready();
        host
    }

    /// Starts `sprag run` and waits until it is ready.
    pub fn run(&self) -> Host {
        let mut host = self.spawn(&["run"]);
        host.ready();
        host
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).proxy(None).build().into()
}

/// An answer of the API.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub json: Value,
}

impl Answer {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.json
    }
}

/// Where a host can be asked. Several threads may hold one.
#[derive(Clone)]
pub struct Api {
    agent: ureq::Agent,
    address: String,
    token: String,
}

impl Api {
    pub fn get(&self, path: &str) -> Result<Answer, ureq::Error> {
        let request = self.agent.get(format!("{}{path}", self.address));
        answer(request.header("authorization", format!("Bearer {}", self.token)).call()?)
    }

    pub fn post(&self, path: &str, key: &str, body: &Value) -> Result<Answer, ureq::Error> {
        let request = self
            .agent
            .post(format!("{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.token));
        answer(request.header("idempotency-key", key).send_json(body)?)
    }

    /// Sends messages under their own ids.
    pub fn send(&self, entity: &str, messages: &[Value]) -> Result<Answer, ureq::Error> {
        let request = self
            .agent
            .post(format!("{}/api/send", self.address))
            .header("authorization", format!("Bearer {}", self.token));
        answer(request.send_json(serde_json::json!({ "entity": entity, "messages": messages }))?)
    }
}

fn answer(mut response: ureq::http::Response<ureq::Body>) -> Result<Answer, ureq::Error> {
    let status = response.status().as_u16();
    let text = response.body_mut().with_config().limit(64 << 20).read_to_string()?;
    let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Answer { status, json })
}

/// A running host. It is killed when this value goes.
pub struct Host {
    child: Child,
    path: PathBuf,
    log: PathBuf,
    agent: ureq::Agent,
    address: String,
    token: String,
}

impl Host {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn api(&self) -> Api {
        Api { agent: self.agent.clone(), address: self.address.clone(), token: self.token.clone() }
    }

    /// Whether its own file says where it is, by now.
    pub fn found(&mut self) -> bool {
        let Ok(text) = fs::read_to_string(self.path.join(".sprag/host.json")) else { return false };
        let file: Value = serde_json::from_str(&text).expect("host.json is written whole");
        if file["pid"] != self.pid() {
            return false;
        }
        self.address = file["address"].as_str().expect("host.json has the address").to_owned();
        self.token = file["token"].as_str().expect("host.json has the token").to_owned();
        true
    }

    /// Waits until the host says that it is ready.
    #[track_caller]
    pub fn ready(&mut self) {
        let began = Instant::now();
        while !(self.found() && self.api().get("/readyz").is_ok_and(|answer| answer.status == 200)) {
            if let Some(status) = self.ended() {
                panic!("the host ended at start: {status}\n{}", self.log());
            }
            assert!(
                began.elapsed() < PATIENCE,
                "the host is not ready: {:?}\n{}",
                self.api().get("/readyz").map(|it| it.json),
                self.log()
            );
            pass(Duration::from_millis(2));
        }
    }

    /// What hosts of this folder have written so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.api().get(path).unwrap_or_else(|error| panic!("GET {path}: {error}\n{}", self.log())).ok()
    }

    /// The items of a listing.
    #[track_caller]
    pub fn items(&self, path: &str) -> Vec<Value> {
        self.get(path)["items"].as_array().expect("a listing has items").clone()
    }

    #[track_caller]
    pub fn send(&self, entity: &str, messages: &[Value]) {
        self.api().send(entity, messages).unwrap_or_else(|error| panic!("send: {error}\n{}", self.log())).ok();
    }

    /// Waits until this event has this outcome.
    #[track_caller]
    pub fn outcome(&self, event: &str, outcome: &str) -> Value {
        let path = format!("/api/events/{event}");
        let began = Instant::now();
        loop {
            let answer = self.api().get(&path).expect("the host answers");
            if answer.json["outcome"] == outcome {
                return answer.json;
            }
            assert!(began.elapsed() < PATIENCE, "{event} is not {outcome}: {answer:?}\n{}", self.log());
            pass(Duration::from_millis(5));
        }
    }

    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the process can be asked")
    }

    /// Waits until the process has ended, by itself or as it was told.
    #[track_caller]
    pub fn wait(&mut self, patience: Duration) -> ExitStatus {
        until("the host ends", patience, || self.ended())
    }

    pub fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        let status = Command::new("kill").arg(format!("-{signal}")).arg(self.pid().to_string()).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("kill: {status}"))) }
    }

    /// `SIGTERM`, and its exit code.
    #[track_caller]
    pub fn stop(mut self) -> Option<i32> {
        self.signal(libc::SIGTERM).expect("the host is there");
        self.wait(PATIENCE).code()
    }

    /// `SIGKILL`; fails when the host had ended by itself before.
    #[track_caller]
    pub fn kill(mut self) {
        if let Some(status) = self.ended() {
            panic!("the host ended by itself: {status}\n{}", self.log());
        }
        self.child.kill().expect("the process is ours");
        let status = self.child.wait().expect("the process is ours");
        assert_eq!(status.signal(), Some(libc::SIGKILL), "the host ended by itself\n{}", self.log());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            _ = self.child.kill();
            _ = self.child.wait();
        }
    }
}
