//! What was acknowledged is there after the process was killed or the disk failed.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use sprag_broker::{Engine, OpenError, Options};
use sprag_core::ids::SequenceNumber;
use sprag_store::{Store as _, query};
use sprag_transport::{Part, Transport as _};

/// `examples/load.rs`, which is built with the tests.
fn load(arguments: &[&str]) -> Command {
    let mut path: PathBuf = std::env::current_exe().expect("a test has a path");
    path.pop();
    path.pop();
    path.push("examples/load");
    assert!(path.exists(), "{} is built with the tests", path.display());
    let mut command = Command::new(path);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A child that is killed when its test ends, however.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn lines(child: &mut Killed) -> impl Iterator<Item = String> + use<> {
    let out = child.0.stdout.take().expect("it is piped");
    BufReader::new(out).lines().map_while(Result::ok)
}

/// The highest acknowledged number of each session.
type Acknowledged = BTreeMap<usize, usize>;

fn note(acknowledged: &mut Acknowledged, line: &str) {
    if let Some((session, n)) = line.strip_prefix("sent ").and_then(|rest| rest.split_once(' ')) {
        acknowledged.insert(session.parse().expect("a number"), n.parse().expect("a number"));
    }
}

/// Per session, the numbers that wait, in order.
async fn waiting(engine: &Engine) -> BTreeMap<usize, Vec<usize>> {
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for peeked in engine.peek(&"orders".into(), Part::Active, None, SequenceNumber(0), 1_000_000).await.unwrap() {
        let id = peeked.message.message_id.unwrap();
        let (session, n) = id.as_str().split_once('-').unwrap();
        found.entry(session.parse().unwrap()).or_default().push(n.parse().unwrap());
    }
    found
}

/// The issue's crash test in small: killed under load again and again, everything acknowledged is there, in order: first what is recorded as
/// done, then what waits, without a gap and nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn killed_under_load_nothing_acknowledged_is_lost() {
    for round in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Killed(load(&["work", dir.path().to_str().unwrap()]).spawn().unwrap());
        let (mut acknowledged, mut done) = (Acknowledged::new(), Vec::new());
        for (count, line) in lines(&mut child).enumerate() {
            note(&mut acknowledged, &line);
            done.extend(line.strip_prefix("done ").map(str::to_owned));
            if count == 300 + 211 * round {
                child.0.kill().unwrap();
            }
        }
        child.0.wait().unwrap();
        assert!(!acknowledged.is_empty() && !done.is_empty());

        let engine = Engine::open(Options::new(dir.path())).unwrap();
        let mut recorded: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut page = query::Page { after: None, limit: 1_000 };
        loop {
            let part = engine.inbox(&query::InboxFilter::default(), &page).await.unwrap();
            for row in part.items {
                let (session, n) = row.message_id.as_str().split_once('-').unwrap();
                recorded.entry(session.parse().unwrap()).or_default().push(n.parse().unwrap());
            }
            page.after = part.next;
            if page.after.is_none() {
                break;
            }
        }
        let waiting = waiting(&engine).await;
        for (session, last) in &acknowledged {
            let mut all = recorded.get(session).cloned().unwrap_or_default();
            all.reverse();
            all.extend(waiting.get(session).into_iter().flatten());
            assert_eq!(all, (0..all.len()).collect::<Vec<_>>(), "round {round}, session {session}");
            assert!(all.len() > *last, "round {round}, session {session}: {} of {last} are there", all.len());
        }
        for id in &done {
            let (session, n) = id.split_once('-').unwrap();
            assert!(recorded[&session.parse().unwrap()].contains(&n.parse().unwrap()), "round {round}: {id} was done");
        }
        engine.close().await;
    }
}

/// What clients and administrators were told holds after a kill: deferred messages, counts, schedules, entities, rules, forwarding.
#[tokio::test(flavor = "multi_thread")]
async fn killed_under_clients_nothing_they_were_told_is_lost() {
    use sprag_broker::client::{MessageState, Mode};
    for round in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Killed(load(&["clients", dir.path().to_str().unwrap()]).spawn().unwrap());
        let mut told: Vec<(String, Vec<String>)> = Vec::new();
        for (count, line) in lines(&mut child).enumerate() {
            let mut words = line.split(' ').map(str::to_owned);
            let first = words.next().unwrap_or_default();
            told.push((first, words.collect()));
            if count == 60 + 37 * round {
                child.0.kill().unwrap();
            }
        }
        child.0.wait().unwrap();
        let of = |word: &str| {
            let of: Vec<Vec<String>> = told.iter().filter(|(it, _)| it == word).map(|(_, rest)| rest.clone()).collect();
            assert!(!of.is_empty(), "{word}");
            of
        };
        let number = |text: &str| SequenceNumber(text.parse().unwrap());

        let engine = Engine::open(Options::new(dir.path())).unwrap();
        let input = engine.entity(&"in".into()).unwrap();
        assert_eq!(input.spec.forward_to, Some("topic".into()));
        assert!(input.counts.scheduled as usize >= of("scheduled").len());
        let rules = engine.rules(&"topic/all".into()).unwrap();
        for rule in of("rule") {
            assert!(rules.iter().any(|it| it.spec.name == rule[0]), "round {round}: {rule:?}");
        }
        let source = engine.source(&"topic/all".into()).unwrap();
        let all = source.peek(SequenceNumber(0), 1_000_000, None).await.unwrap();
        let find = |sequence: &str| all.iter().find(|it| it.sequence == number(sequence));
        for done in of("completed") {
            assert!(find(&done[0]).is_none(), "round {round}: {done:?}");
        }
        // The last one told may have been handed over once more, or settled, since.
        for words in of("abandoned").iter().rev().skip(1) {
            // Handed over again, it was completed; then it was said above, or the process died before it could say so.
            if let Some(found) = find(&words[0]) {
                assert!(found.delivery_count >= words[1].parse().unwrap(), "round {round}: {words:?}");
            }
        }
        for words in of("deferred") {
            let found = find(&words[0]).unwrap_or_else(|| panic!("round {round}: {words:?}"));
            assert_eq!(found.state, MessageState::Deferred);
            let got = source.receive_deferred(&[found.sequence], Mode::PeekLock).await.unwrap();
            assert_eq!(got[0].delivery_count, words[1].parse::<u32>().unwrap() + 1, "round {round}");
        }
        // One more may have been completed before the process could say so.
        assert!(all.len() + of("completed").len() + 1 >= 3 * of("sent").len(), "round {round}");
        engine.close().await;
    }
}

/// Case A61: a second process is told who holds the folder, within two seconds, also through a symlink; after a `SIGKILL` of the holder
/// the next one starts without cleanup.
#[test]
fn a_folder_has_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut holder = Killed(load(&["work", dir.path().to_str().unwrap()]).spawn().unwrap());
    assert_eq!(lines(&mut holder).next().as_deref(), Some("open"));
    let link = dir.path().with_extension("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    for path in [dir.path(), &link] {
        let begun = std::time::Instant::now();
        let Err(error) = Engine::open(Options::new(path)) else { panic!("two processes have {}", path.display()) };
        assert!(begun.elapsed() < Duration::from_secs(2));
        assert!(matches!(error, OpenError::Held { .. }), "{error}");
        assert!(error.to_string().contains(&format!("process {} (started ", holder.0.id())), "{error}");
    }
    assert!(holder.0.try_wait().unwrap().is_none(), "the holder is unaffected");
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    drop(Engine::open(Options::new(&link)).unwrap());
    std::fs::remove_file(link).unwrap();
}

/// A file system of its own, unmounted at the end.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: &Path, size: &str) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(at).status();
        let mounted = mounted.expect("`mount` is needed for the test of a full disk");
        assert!(mounted.success(), "the test of a full disk needs the right to mount a tmpfs (run it as root)");
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Case A60, first half: on a full disk the send is refused, reading goes on, nothing is written until reopened; with room again, every
/// acknowledged message is there, in order, and sending works.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing() {
    let base = tempfile::tempdir().unwrap();
    let mount = Mounted::tmpfs(&base.path().join("small"), "6m");
    let ballast = mount.0.join("ballast");
    std::fs::write(&ballast, vec![0; 1 << 20]).unwrap();
    let mut child = Killed(load(&["fill", mount.0.to_str().unwrap(), "20000"]).spawn().unwrap());
    let said: Vec<String> = lines(&mut child).collect();
    let mut acknowledged = Acknowledged::new();
    said.iter().for_each(|line| note(&mut acknowledged, line));
    let last = acknowledged[&0];
    assert!(last > 10, "{said:?}");
    let tail = &said[said.len() - 4..];
    assert!(tail[0].starts_with("refused: the disk is full"), "{tail:?}");
    assert!(tail[1].starts_with("again: nothing is written until the engine is opened again"), "{tail:?}");
    assert_eq!(tail[2], format!("peeked {}", last + 1));
    assert_eq!(tail[3], "end");
    child.0.wait().unwrap();

    std::fs::remove_file(ballast).unwrap();
    let engine = Engine::open(Options::new(&mount.0)).unwrap();
    assert_eq!(waiting(&engine).await[&0], (0..=last).collect::<Vec<_>>());
    let more = sprag_core::message::Message { session_id: Some("0".into()), ..Default::default() };
    engine.send(&"orders".into(), vec![more]).await.unwrap();
    engine.close().await;
    drop(engine);
}

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static int fails(void) { const char *flag = getenv("SPRAG_TEST_FSYNC_FAILS"); return flag && access(flag, F_OK) == 0; }
int fsync(int fd) { if (fails()) { errno = EIO; return -1; } return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { if (fails()) { errno = EIO; return -1; } return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"#;

/// Case A60, second half: an `fsync` that fails once. The send is refused, nothing more is written although the disk would work again, and
/// after a restart every acknowledged message is there, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_fsync_loses_nothing() {
    let base = tempfile::tempdir().unwrap();
    let (source, shim, flag) = (base.path().join("shim.c"), base.path().join("shim.so"), base.path().join("fail"));
    std::fs::write(&source, SHIM).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&source).arg("-ldl").status();
    assert!(built.expect("`cc` is needed for the test of a failed fsync").success());
    let data = base.path().join("data");
    let mut command = load(&["fill", data.to_str().unwrap(), "1000"]);
    let mut child = Killed(command.env("LD_PRELOAD", &shim).env("SPRAG_TEST_FSYNC_FAILS", &flag).spawn().unwrap());
    let (mut acknowledged, mut said) = (Acknowledged::new(), Vec::new());
    for line in lines(&mut child) {
        note(&mut acknowledged, &line);
        if acknowledged.get(&0) == Some(&20) && !flag.exists() {
            std::fs::write(&flag, "").unwrap();
        }
        if line.starts_with("refused") {
            std::fs::remove_file(&flag).unwrap();
        }
        said.push(line);
    }
    let last = acknowledged[&0];
    let tail = &said[said.len() - 4..];
    assert!(tail[0].starts_with("refused: ") && !tail[0].contains("full"), "{tail:?}");
    assert!(tail[1].starts_with("again: nothing is written until the engine is opened again"), "{tail:?}");
    assert_eq!(tail[2], format!("peeked {}", last + 1), "reading goes on, and what was refused is not there");
    child.0.wait().unwrap();

    let engine = Engine::open(Options::new(&data)).unwrap();
    let found = &waiting(&engine).await[&0];
    // What was refused may be there: nobody knows what a failed fsync left. What was acknowledged must.
    assert!(found.len() > last, "{} of {last}", found.len());
    assert_eq!(*found, (0..found.len()).collect::<Vec<_>>());
    engine.close().await;
}
