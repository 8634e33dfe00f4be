//! Runs the real command.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
};

pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sprag"));
    command.env_remove("SPRAG_HOST").env_remove("SPRAG_TOKEN").env_remove("SPRAG_LOG").stdin(Stdio::null());
    command
}

/// What a verb said and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) exit: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            exit: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

impl Said {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn sprag(dir: &Path, args: &[&str]) -> Said {
    command().current_dir(dir).args(args).output().expect("runs").into()
}

/// The same with something on standard input.
pub(crate) fn sprag_with(dir: &Path, args: &[&str], input: &[u8]) -> Said {
    let mut child = command()
        .current_dir(dir)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that refuses early does not read the rest.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("ends").into()
}

/// A host in a folder of its own.
pub(crate) struct Host {
    pub(crate) folder: tempfile::TempDir,
    child: Child,
    err: BufReader<ChildStderr>,
}

impl Host {
    /// A host without a configuration and without handlers: its endpoint waits, so messages stay where they are.
    pub(crate) fn start() -> Self {
        Self::in_folder(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn in_folder(folder: tempfile::TempDir) -> Self {
        let mut child = command()
            .args(["dev", "--console", "127.0.0.1:0", "--amqp", "127.0.0.1:0", "--administration", "127.0.0.1:0"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        let mut err = BufReader::new(child.stderr.take().expect("piped"));
        let mut before = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(err.read_line(&mut line).expect("text"), 0, "the host has ended: {before}");
            if line.starts_with("ready") {
                break;
            }
            before.push_str(&line);
        }
        Self { folder, child, err }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The folder's name, which is the queue's.
    pub(crate) fn entity(&self) -> String {
        self.folder.path().file_name().expect("a name").to_string_lossy().into_owned()
    }

    pub(crate) fn run(&self, args: &[&str]) -> Said {
        sprag(self.folder.path(), args)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal and waits for the end. Answers exit code and what was said.
    pub(crate) fn end(mut self, signal: &str) -> (Option<i32>, String, tempfile::TempDir) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        let mut said = String::new();
        self.err.read_to_string(&mut said).expect("text");
        let status = self.child.wait().expect("ends");
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        (status.code(), said, folder)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts exit code and that stderr names each of these.
#[track_caller]
pub(crate) fn refused(said: &Said, exit: i32, parts: &[&str]) {
    assert_eq!(said.exit, exit, "{said:?}");
    for part in parts {
        assert!(said.err.contains(part), "{part:?} is missing: {said:?}");
    }
    assert_eq!(said.err.matches("error:").count(), 1, "one clear error: {said:?}");
}
