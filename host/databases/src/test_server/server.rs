//! A PostgreSQL server in a folder of its own.

use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{PASSWORD, USER, folder, programs};

/// How long starting and stopping may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a server of a test's own is started with.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Settings as in `postgresql.conf`.
    pub settings: Vec<(String, String)>,
    /// Of the server's process.
    pub environment: Vec<(String, String)>,
    /// Files for the data folder (name, text), readable by the server only: a certificate and its key.
    pub files: Vec<(String, String)>,
}

/// A server of a test's own. It is gone when this is dropped.
pub struct Server {
    folder: PathBuf,
    port: u16,
    setup: Setup,
    _use: folder::Use,
}

impl Server {
    pub fn start(setup: Setup) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = folder::named(&format!("-{}-{number}", std::process::id()));
        let guard = folder::lock(&folder);
        let in_use = folder::enter(&folder, &guard, 0);
        initialize(&folder, &setup);
        let port = run(&folder, &setup, None);
        Self { folder, port, setup, _use: in_use }
    }

    /// The URL of a database on it; `postgres` is always there.
    pub fn url(&self, database: &str) -> String {
        url(self.port, database)
    }

    /// Ends it as a crash would: connections break, and it recovers when it is started.
    pub fn stop(&self) {
        stop(&self.folder, Signal::QUIT);
    }

    /// Starts it again on the same port.
    pub fn start_again(&self) {
        run(&self.folder, &self.setup, Some(self.port));
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).expect("it has a log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _guard = folder::lock(&self.folder);
        stop(&self.folder, Signal::QUIT);
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            // The watcher tries again.
            eprintln!("{}: {error}", self.folder.display());
        }
    }
}

/// The server that all tests share, and this process's use of it.
pub(super) struct Shared {
    pub(super) port: u16,
    _use: folder::Use,
}

impl Shared {
    pub(super) fn join() -> Self {
        let folder = folder::named("");
        let guard = folder::lock(&folder);
        // Long enough for the next test of a run to begin.
        let in_use = folder::enter(&folder, &guard, 20);
        let running = postmaster(&folder).filter(|found| found.ready).map(|found| found.port);
        let port = running.unwrap_or_else(|| {
            let _ = fs::remove_dir_all(folder.join("data"));
            // Nothing of it must survive the machine.
            let off = |name: &str| (name.to_owned(), "off".to_owned());
            let setup = Setup {
                settings: vec![off("fsync"), off("full_page_writes"), ("max_connections".into(), "300".into())],
                ..Setup::default()
            };
            initialize(&folder, &setup);
            run(&folder, &setup, None)
        });
        Self { port, _use: in_use }
    }
}

pub(super) fn url(port: u16, database: &str) -> String {
    format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/{database}?sslmode=prefer")
}

fn initialize(folder: &Path, setup: &Setup) {
    let data = folder.join("data");
    fs::create_dir_all(&data).expect("the folder can be written");
    let password = folder.join("password");
    fs::write(&password, PASSWORD).expect("the folder can be written");
    let owner = programs::owner();
    if let Some(owner) = owner {
        chown(&data, Some(owner.uid), Some(owner.gid)).expect("root may give it away");
    }
    let common = ["--no-sync", "-E", "UTF8", "-A", "scram-sha-256", "-U", USER, "--locale=C.UTF-8"];
    let initialize = |more: &[&str]| {
        let output = programs::command("initdb", folder)
            .args(common)
            .args(more)
            .arg("-D")
            .arg(&data)
            .arg("--pwfile")
            .arg(&password)
            .env("LC_ALL", "C.UTF-8")
            .output()
            .expect("initdb can be started");
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    };
    // A collation of a language, where there is one: what must compare by bytes has to say so.
    if initialize(&["--locale-provider=icu", "--icu-locale=en-US"]).is_err() {
        initialize(&[]).unwrap_or_else(|problem| panic!("initdb failed: {problem}"));
    }
    for (name, text) in &setup.files {
        use std::os::unix::fs::PermissionsExt as _;
        let file = data.join(name);
        fs::write(&file, text).expect("the folder can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
        if let Some(owner) = owner {
            chown(&file, Some(owner.uid), Some(owner.gid)).expect("root may give it away");
        }
    }
}

/// Starts the server and waits until it answers. Without a port it gets a free one.
fn run(folder: &Path, setup: &Setup, port: Option<u16>) -> u16 {
    let log = folder.join("log");
    for _ in 0..5 {
        let chosen = port.unwrap_or_else(|| {
            let free = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
            free.local_addr().expect("it is bound").port()
        });
        let output = fs::File::options().create(true).append(true).open(&log).expect("the folder can be written");
        let mut command = programs::command("postgres", folder);
        command.arg("-D").arg(folder.join("data")).arg("-p").arg(chosen.to_string());
        let settings = [("listen_addresses", "127.0.0.1"), ("unix_socket_directories", "")];
        let own = setup.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in settings.into_iter().chain(own) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.envs(setup.environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command.stdout(output.try_clone().expect("a file can be opened twice")).stderr(output).process_group(0);
        let ended = programs::wait_aside(command.spawn().expect("postgres can be started"));
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && !ended.load(Ordering::Relaxed) {
            if postmaster(folder).is_some_and(|found| found.ready && found.port == chosen) {
                return chosen;
            }
            pause();
        }
    }
    panic!("postgres did not start: {}", fs::read_to_string(&log).unwrap_or_default());
}

fn stop(folder: &Path, signal: Signal) {
    let Some(found) = postmaster(folder) else { return };
    // Gone already is as good.
    let _ = kill_process(found.pid, signal);
    let begun = Instant::now();
    while test_kill_process(found.pid).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "postgres did not stop");
        pause();
    }
    let _ = fs::remove_file(folder.join("data/postmaster.pid"));
}

struct Postmaster {
    pid: Pid,
    port: u16,
    ready: bool,
}

/// What the server's own file says of it; none when it does not run.
fn postmaster(folder: &Path) -> Option<Postmaster> {
    let text = fs::read_to_string(folder.join("data/postmaster.pid")).ok()?;
    let mut lines = text.lines();
    let pid = Pid::from_raw(lines.next()?.trim().parse().ok()?)?;
    test_kill_process(pid).ok()?;
    let port = lines.nth(2).and_then(|line| line.trim().parse().ok()).unwrap_or(0);
    let ready = lines.nth(3).is_some_and(|line| line.trim() == "ready");
    Some(Postmaster { pid, port, ready })
}

#[expect(clippy::disallowed_methods, reason = "another program's file is looked at again and again, within a bound")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
