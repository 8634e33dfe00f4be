//! A server's folder with its locks: see `watch.sh`.

use std::{
    fs::{self, File},
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::programs;

/// Held by whoever starts or ends the server of a folder.
pub(super) struct Guard {
    _lock: File,
}

/// This process's use of a folder. The watcher waits for its end.
pub(super) struct Use {
    _users: File,
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).append(true).create(true).open(path)
}

/// Waits for the folder's lock. The folder is there then, made if need be.
pub(super) fn lock(folder: &Path) -> Guard {
    loop {
        fs::create_dir_all(folder).expect("a folder for the test server can be made");
        let path = folder.join("lock");
        // Whoever ends a server removes the folder, and what was opened before is a file that nobody else will see.
        let Ok(lock) = open(&path) else { continue };
        lock.lock().expect("a lock can be waited for");
        let (ours, theirs) = (lock.metadata().expect("an open file has metadata"), fs::metadata(&path));
        if theirs.is_ok_and(|theirs| theirs.ino() == ours.ino()) {
            return Guard { _lock: lock };
        }
    }
}

/// Says that this process uses the folder, and makes sure that somebody watches it. Under its lock.
pub(super) fn enter(folder: &Path, _: &Guard, idle_seconds: u32) -> Use {
    let users = open(&folder.join("users")).expect("the folder is there");
    users.lock_shared().expect("nobody holds it alone for long");
    let watched = open(&folder.join("watch")).expect("the folder is there");
    if watched.try_lock().is_ok() {
        watched.unlock().expect("it was just locked");
        let script = folder.join("watch.sh");
        fs::write(&script, include_str!("watch.sh")).expect("the folder can be written");
        let watcher = Command::new("/bin/sh")
            .arg(&script)
            .arg(folder)
            .arg(idle_seconds.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("a shell can be started");
        programs::wait_aside(watcher);
    }
    Use { _users: users }
}

/// A folder's name below the system's for temporary things.
pub(super) fn named(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("sprag-test-postgres-{}{name}", rustix::process::geteuid().as_raw()))
}
