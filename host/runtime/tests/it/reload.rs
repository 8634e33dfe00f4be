//! The handlers' folder, watched (spec 7, A71 to A74).

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use sprag_core::ids::Digest;
use sprag_runtime::{
    HandlerConfig, LoadError, Registry,
    registry::EndpointHandlers,
    watch::{HandlerEvent, WatchConfig, Watcher, load_folder},
};

use crate::support::*;

struct Watched {
    folder: tempfile::TempDir,
    registry: Arc<Registry>,
    events: mpsc::Receiver<HandlerEvent>,
    watcher: Option<Watcher>,
}

fn everything() -> Arc<Registry> {
    Registry::new(vec![EndpointHandlers { endpoint: "all".into(), handlers: None }])
}

impl Watched {
    fn start(change: impl FnOnce(&mut WatchConfig), before: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        before(folder.path());
        let registry = everything();
        let (tell, events) = mpsc::channel();
        let configs =
            Arc::new(|name: &sprag_core::ids::HandlerName| HandlerConfig { name: Some(name.clone()), ..config("") });
        let mut watch = WatchConfig::new(folder.path(), configs);
        change(&mut watch);
        let on_event = Arc::new(move |event| _ = tell.send(event));
        let watcher = Some(Watcher::start(&runtime(), &registry, watch, on_event).unwrap());
        let watched = Self { folder, registry, events, watcher };
        watched.until(|event| matches!(event, HandlerEvent::FirstPass { .. }));
        watched
    }

    fn new() -> Self {
        // The poll is far away: what is seen in time was seen by a notice.
        Self::start(|watch| watch.poll = Duration::from_secs(600), |_| {})
    }

    fn polling() -> Self {
        let poll = Duration::from_millis(100);
        Self::start(|watch| (watch.notices, watch.poll) = (false, poll), |_| {})
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The next event that is of interest, with what came before it.
    fn until(&self, wanted: impl Fn(&HandlerEvent) -> bool) -> Vec<HandlerEvent> {
        let mut seen = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => {
                    let found = wanted(&event);
                    seen.push(event);
                    if found {
                        return seen;
                    }
                }
                Err(error) => panic!("{error}; so far: {seen:?}"),
            }
        }
    }

    /// The next change of a handler, refusals included.
    fn next(&self) -> HandlerEvent {
        self.until(|event| !matches!(event, HandlerEvent::Compiling { .. })).pop().unwrap()
    }

    /// Nothing happens for a while.
    fn quiet(&self) {
        if let Ok(event) = self.events.recv_timeout(Duration::from_millis(400)) {
            panic!("{event:?}");
        }
    }

    fn serving(&self, name: &str) -> Option<Digest> {
        self.registry.get(&name.into()).map(|handler| handler.digest())
    }
}

fn noop(number: u8) -> Vec<u8> {
    version(&component("noop"), number)
}

#[track_caller]
fn replaced(event: &HandlerEvent, name: &str, with: &[u8]) {
    let HandlerEvent::Replaced { name: found, digest, .. } = event else { panic!("{event:?}") };
    assert_eq!((found.as_str(), *digest), (name, Digest::of(with)));
}

#[track_caller]
fn loaded(event: &HandlerEvent, name: &str, with: &[u8]) {
    let HandlerEvent::Loaded { name: found, digest, .. } = event else { panic!("{event:?}") };
    assert_eq!((found.as_str(), *digest), (name, Digest::of(with)));
}

#[test]
fn dropped_in_replaced_and_removed() {
    let watched = Watched::new();
    assert!(watched.registry.ready(&"all".into()).is_err());
    fs::write(watched.path("any.wasm"), noop(1)).unwrap();
    loaded(&watched.next(), "any", &noop(1));
    assert!(watched.registry.ready(&"all".into()).is_ok());
    fs::write(watched.path("any.wasm"), noop(2)).unwrap();
    replaced(&watched.next(), "any", &noop(2));
    fs::remove_file(watched.path("any.wasm")).unwrap();
    assert_eq!(watched.next(), HandlerEvent::Removed { name: "any".into() });
    assert!(watched.registry.ready(&"all".into()).is_err(), "P27");
}

/// Issue 2: a rebuilt Rust handler serves within 300 ms of the file's last write. The bound here leaves room for a busy machine; the
/// figure is printed.
#[test]
fn a_rebuilt_handler_serves_soon() {
    let watched = Watched::new();
    fs::write(watched.path("any.wasm"), noop(0)).unwrap();
    watched.next();
    let mut times = Vec::new();
    for number in 1..8 {
        let bytes = noop(number);
        fs::write(watched.path("any.wasm"), &bytes).unwrap();
        let written = Instant::now();
        replaced(&watched.next(), "any", &bytes);
        times.push(written.elapsed());
    }
    times.sort();
    println!("serving after the last write: median {:?}, {:?} to {:?}", times[3], times[0], times[6]);
    assert!(times[3] < Duration::from_millis(300), "{times:?}");
}

/// A71.
#[test]
fn the_same_content_is_no_change() {
    let watched = Watched::new();
    fs::write(watched.path("any.wasm"), noop(1)).unwrap();
    loaded(&watched.next(), "any", &noop(1));
    let unchanged = HandlerEvent::Unchanged { name: "any".into() };
    fs::write(watched.path("any.wasm"), noop(1)).unwrap();
    assert_eq!(watched.next(), unchanged);
    let touched = fs::File::options().write(true).open(watched.path("any.wasm")).unwrap();
    touched.set_modified(std::time::SystemTime::now()).unwrap();
    assert_eq!(watched.next(), unchanged);
    fs::write(watched.path("copy"), noop(1)).unwrap();
    fs::rename(watched.path("copy"), watched.path("any.wasm")).unwrap();
    assert_eq!(watched.next(), unchanged);
    watched.quiet();
}

/// A72.
#[test]
fn other_files_are_nobodys_business_and_one_change_is_one_reload() {
    let watched = Watched::new();
    for number in 0..300 {
        fs::write(watched.path(&format!("part-{number}.o")), noop(1)).unwrap();
    }
    fs::create_dir(watched.path("target.wasm")).unwrap();
    fs::write(watched.path(".any.wasm"), noop(1)).unwrap();
    for number in 0..20 {
        fs::write(watched.path("any.wasm"), noop(number)).unwrap();
    }
    loaded(&watched.next(), "any", &noop(19));
    watched.quiet();
}

/// A73.
#[test]
fn what_is_broken_is_refused_once_and_the_old_version_serves_on() {
    let watched = Watched::new();
    let (first, second) = (noop(1), noop(2));
    fs::write(watched.path("any.wasm"), &first).unwrap();
    loaded(&watched.next(), "any", &first);
    let refused = |what: &str| {
        let HandlerEvent::Refused { name, error, serving } = watched.next() else { panic!("{what} was not refused") };
        assert_eq!((name.as_str(), serving), ("any", true), "{what}");
        assert_eq!(watched.serving("any"), Some(Digest::of(&first)), "{what}");
        watched.quiet();
        error
    };
    let path = watched.path("any.wasm");
    // In two halves, with a pause that is longer than any settling.
    fs::write(&path, &second[..second.len() / 2]).unwrap();
    assert!(matches!(refused("half"), LoadError::Truncated(_) | LoadError::Invalid(_)));
    // The same again is not news.
    fs::write(&path, &second[..second.len() / 2]).unwrap();
    watched.quiet();
    fs::write(&path, &second[..second.len() - 20]).unwrap();
    assert!(matches!(
        refused("truncated"),
        LoadError::Truncated(_) | LoadError::Invalid(_) | LoadError::MissingExport(_)
    ));
    fs::write(&path, "this is text").unwrap();
    assert!(matches!(refused("text"), LoadError::NotWasm(_)));
    fs::write(&path, b"\0asm\x0d\0\x01\0").unwrap();
    assert!(matches!(refused("another world"), LoadError::MissingExport(_)));
    fs::write(&path, &second).unwrap();
    replaced(&watched.next(), "any", &second);
    // The first version again: it is another content than what serves.
    fs::write(&path, &first).unwrap();
    replaced(&watched.next(), "any", &first);
}

#[test]
fn a_slow_copy_is_read_when_it_is_whole() {
    let watched = Watched::new();
    let bytes = noop(1);
    let mut file = fs::File::create(watched.path("any.wasm")).unwrap();
    for piece in bytes.chunks(bytes.len() / 12) {
        std::io::Write::write_all(&mut file, piece).unwrap();
        // Quieter than that, and half of it would be looked at and refused.
        assert!(watched.events.recv_timeout(Duration::from_millis(10)).is_err());
    }
    loaded(&watched.next(), "any", &bytes);
}

/// A74, with notices and by polling.
#[test]
fn every_way_to_replace_a_file_is_seen() {
    for watched in [Watched::new(), Watched::polling()] {
        let path = watched.path("any.wasm");
        fs::write(&path, noop(1)).unwrap();
        loaded(&watched.next(), "any", &noop(1));
        // An editor's way.
        fs::write(watched.path("any.tmp"), noop(2)).unwrap();
        fs::rename(watched.path("any.tmp"), &path).unwrap();
        replaced(&watched.next(), "any", &noop(2));
        // Deleted and made again.
        fs::remove_file(&path).unwrap();
        fs::write(&path, noop(3)).unwrap();
        replaced(&watched.next(), "any", &noop(3));
        // A symlink swap.
        fs::create_dir(watched.path("versions")).unwrap();
        fs::write(watched.path("versions/4"), noop(4)).unwrap();
        fs::write(watched.path("versions/5"), noop(5)).unwrap();
        for number in [4, 5] {
            let link = watched.path("link");
            std::os::unix::fs::symlink(format!("versions/{number}"), &link).unwrap();
            fs::rename(&link, &path).unwrap();
            replaced(&watched.next(), "any", &noop(number));
        }
        // Same size, same time of modification.
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(watched.path("any.tmp"), noop(6)).unwrap();
        fs::File::options().write(true).open(watched.path("any.tmp")).unwrap().set_modified(modified).unwrap();
        fs::rename(watched.path("any.tmp"), &path).unwrap();
        replaced(&watched.next(), "any", &noop(6));
    }
}

/// What a symlink points to is outside the folder: no notice comes, the poll sees it.
#[test]
fn a_change_behind_a_symlink_is_seen_by_the_poll() {
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("built.wasm");
    fs::write(&target, noop(1)).unwrap();
    let watched = Watched::start(
        |watch| watch.poll = Duration::from_millis(100),
        |folder| std::os::unix::fs::symlink(&target, folder.join("any.wasm")).unwrap(),
    );
    assert_eq!(watched.serving("any"), Some(Digest::of(&noop(1))));
    fs::write(&target, noop(2)).unwrap();
    replaced(&watched.next(), "any", &noop(2));
}

#[test]
fn a_folder_that_is_away_stops_nothing() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("handlers");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("any.wasm"), noop(1)).unwrap();
    let watched =
        Watched::start(|watch| (watch.folder, watch.poll) = (folder.clone(), Duration::from_millis(100)), |_| {});
    fs::rename(&folder, root.path().join("moved")).unwrap();
    let event = watched.next();
    assert!(matches!(&event, HandlerEvent::FolderUnreadable { why } if why.contains("handlers")), "{event:?}");
    assert_eq!(watched.serving("any"), Some(Digest::of(&noop(1))));
    // Another folder of that name is watched like the first.
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("any.wasm"), noop(2)).unwrap();
    replaced(&watched.next(), "any", &noop(2));
}

/// What was refused for another's sake is welcome when the other has gone.
#[test]
fn a_claim_is_free_again_when_its_holder_goes() {
    let watched = Watched::new();
    fs::write(watched.path("first.wasm"), noop(1)).unwrap();
    loaded(&watched.next(), "first", &noop(1));
    fs::write(watched.path("second.wasm"), noop(2)).unwrap();
    let HandlerEvent::Refused { error, serving: false, .. } = watched.next() else { panic!("a refusal") };
    assert!(matches!(error, LoadError::Claimed { .. }), "{error}");
    fs::remove_file(watched.path("first.wasm")).unwrap();
    assert_eq!(watched.next(), HandlerEvent::Removed { name: "first".into() });
    loaded(&watched.next(), "second", &noop(2));
}

/// A refusal that the file cannot help is tried again by itself, and told once.
#[test]
fn a_missing_folder_that_appears_is_noticed() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    let granted = sprag_runtime::Folder { path: data.clone(), guest: "/data".into(), write: false };
    let watched = Watched::start(
        |watch| {
            watch.poll = Duration::from_millis(50);
            watch.configs =
                Arc::new(move |_| HandlerConfig { folders: vec![granted.clone()], ..HandlerConfig::default() });
        },
        |folder| fs::write(folder.join("any.wasm"), noop(1)).unwrap(),
    );
    assert_eq!(watched.serving("any"), None);
    watched.quiet();
    fs::create_dir(&data).unwrap();
    loaded(&watched.next(), "any", &noop(1));
}

#[test]
fn without_watching_everything_is_loaded_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("any.wasm"), noop(1)).unwrap();
    fs::write(folder.path().join("probe.wasm"), guest("probe")).unwrap();
    fs::write(folder.path().join("text.wasm"), "text").unwrap();
    let registry = everything();
    let (tell, events) = mpsc::channel();
    let configs = Arc::new(|_: &sprag_core::ids::HandlerName| config(""));
    load_folder(
        &runtime(),
        &registry,
        WatchConfig::new(folder.path(), configs),
        Arc::new(move |event| _ = tell.send(event)),
    );
    let names: Vec<_> = registry.handlers().iter().map(|handler| handler.name().to_string()).collect();
    assert_eq!(names, ["any", "probe"]);
    let refused = events.try_iter().filter(|event| matches!(event, HandlerEvent::Refused { .. })).count();
    assert_eq!(refused, 1);
    // Nothing to load is no reason to wait.
    let empty = tempfile::tempdir().unwrap();
    let configs = Arc::new(|_: &sprag_core::ids::HandlerName| config(""));
    load_folder(&runtime(), &registry, WatchConfig::new(empty.path(), configs), Arc::new(|_| {}));
}

#[test]
fn the_watcher_ends_when_it_is_dropped() {
    let mut watched = Watched::new();
    let started = Instant::now();
    watched.watcher = None;
    assert!(started.elapsed() < Duration::from_secs(5));
    fs::write(watched.path("any.wasm"), noop(1)).unwrap();
    watched.quiet();
}
