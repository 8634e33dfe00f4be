//! Where PostgreSQL's programs are, and as whom they run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The folder with `postgres` and `initdb`: what `pg_config` says, then the PATH, then Debian's places, the newest first.
pub(super) fn folder() -> PathBuf {
    let asked = Command::new("pg_config").arg("--bindir").output().ok().filter(|output| output.status.success());
    let asked = asked.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut debian: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    debian.sort_unstable_by(|a, b| b.cmp(a));
    let debian = debian.into_iter().map(|(_, folder)| folder);
    asked
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain(debian)
        .find(|folder| folder.join("postgres").exists() && folder.join("initdb").exists())
        .expect(
            "tests need PostgreSQL's server: apt-get install postgresql, or set SPRAG_TEST_POSTGRES to the URL of one",
        )
}

/// Who the server runs as, where that is not whoever runs the tests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The user `postgres` for root, nobody else for others.
pub(super) fn owner() -> Option<Owner> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("the system's users can be read");
    let found = users.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        let ids = (parts.nth(1)?.parse().ok()?, parts.next()?.parse().ok()?);
        (name == "postgres").then_some(Owner { uid: ids.0, gid: ids.1 })
    });
    Some(found.expect(
        "root cannot run PostgreSQL, and there is no user postgres to run it as: apt-get install postgresql makes one",
    ))
}

/// A program of PostgreSQL, as the server's owner.
pub(super) fn command(program: &str, within: &Path) -> Command {
    use std::os::unix::process::CommandExt as _;
    let mut command = Command::new(folder().join(program));
    if let Some(Owner { uid, gid }) = owner() {
        command.uid(uid).gid(gid);
    }
    command.current_dir(within);
    command
}

/// Waits for a program that goes on by itself, in a thread, so that it is not left half dead. Answers where its end will be noted.
pub(super) fn wait_aside(mut program: Child) -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&ended);
    std::thread::spawn(move || {
        // That there is nothing to wait for is an end, too.
        let _ = program.wait();
        note.store(true, Ordering::Relaxed);
    });
    ended
}
