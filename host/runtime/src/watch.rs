//! Keeps the registry as the handlers' folder is: hot reload (spec 7).
//!
//! Notices of the operating system only wake it up; what it does follows from looking at the folder: which `.wasm` files there are, and
//! whether their content is another than before. So renames, symlink swaps and file systems without notices are all the same to it, and
//! a build that writes hundreds of other files costs nothing (A71 to A74). A file is read once it has been quiet for a moment; what does not
//! load is refused in one line, and the version before serves on.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use notify::Watcher as _;
use sprag_core::ids::{Digest, HandlerName};

use crate::{
    component::LoadError,
    config::HandlerConfig,
    engine::Runtime,
    handler::{Compile, Handler},
    registry::Registry,
};

/// Files loading at a time. Each has a thread, which spends its time in the compiler.
const MAX_LOADING: usize = 16;
/// A file that is gone may come back: some tools delete before they write.
const GONE_FOR: Duration = Duration::from_millis(250);

/// The configuration of a handler, by name.
pub type Configs = Arc<dyn Fn(&HandlerName) -> HandlerConfig + Send + Sync>;
/// Who is told what happens. Called on the watcher's threads; must not block.
pub type OnEvent = Arc<dyn Fn(HandlerEvent) + Send + Sync>;

#[derive(Clone)]
pub struct WatchConfig {
    pub folder: PathBuf,
    /// How often the folder is looked at in any case.
    pub poll: Duration,
    /// How long a file must be quiet before it is read.
    pub settle: Duration,
    /// Whether to ask the operating system for notices. Without them a change is seen at the next poll.
    pub notices: bool,
    pub configs: Configs,
}

impl WatchConfig {
    pub fn new(folder: impl Into<PathBuf>, configs: Configs) -> Self {
        Self {
            folder: folder.into(),
            poll: Duration::from_secs(1),
            settle: Duration::from_millis(40),
            notices: true,
            configs,
        }
    }
}

/// What happened to a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerEvent {
    /// Its code is being compiled; until it is ready the version before serves.
    Compiling {
        name: HandlerName,
        bytes: usize,
    },
    Loaded {
        name: HandlerName,
        digest: Digest,
        took: Duration,
        cached: bool,
    },
    Replaced {
        name: HandlerName,
        before: Digest,
        digest: Digest,
        took: Duration,
        cached: bool,
    },
    /// Once per content. `serving`: an earlier version serves on.
    Refused {
        name: HandlerName,
        error: LoadError,
        serving: bool,
    },
    /// Written anew with the same content: nothing to do (A71).
    Unchanged {
        name: HandlerName,
    },
    Removed {
        name: HandlerName,
    },
    /// Notices do not work here: changes are seen at the next poll.
    PollingOnly {
        why: String,
    },
    /// The folder cannot be read; what is loaded serves on.
    FolderUnreadable {
        why: String,
    },
    /// Everything that was in the folder at start is loaded or refused.
    FirstPass {
        loaded: usize,
    },
}

/// Writes an event to the log, one line each.
pub fn log_event(event: &HandlerEvent) {
    match event {
        HandlerEvent::Compiling { name, bytes } => tracing::info!(handler = %name, bytes, "compiling"),
        HandlerEvent::Loaded { name, digest, took, cached } => {
            tracing::info!(handler = %name, digest = digest.short(), took = ?took, cached, "handler loaded");
        }
        HandlerEvent::Replaced { name, before, digest, took, cached } => {
            tracing::info!(handler = %name, before = before.short(), digest = digest.short(), took = ?took, cached, "handler replaced");
        }
        HandlerEvent::Refused { name, error, serving: true } => {
            tracing::error!(handler = %name, "{name}.wasm was refused, the version before serves on: {error}");
        }
        HandlerEvent::Refused { name, error, serving: false } => {
            tracing::error!(handler = %name, "{name}.wasm was refused: {error}");
        }
        HandlerEvent::Unchanged { name } => tracing::debug!(handler = %name, "handler file written, content the same"),
        HandlerEvent::Removed { name } => {
            tracing::warn!(handler = %name, "handler removed; endpoints that need it pause")
        }
        HandlerEvent::PollingOnly { why } => {
            tracing::warn!("changes of handlers are seen by polling only: {why}");
        }
        HandlerEvent::FolderUnreadable { why } => tracing::error!("the handlers' folder cannot be read: {why}"),
        HandlerEvent::FirstPass { loaded } => tracing::debug!(loaded, "handlers loaded"),
    }
}

/// Loads what is in the folder, once, and returns when all of it is loaded or refused. For hosts that do not watch.
pub fn load_folder(runtime: &Runtime, registry: &Arc<Registry>, config: WatchConfig, on_event: OnEvent) {
    let (signal, signals) = mpsc::channel();
    let config = WatchConfig { settle: Duration::ZERO, notices: false, poll: Duration::from_millis(50), ..config };
    let mut folder = Folder::new(runtime.clone(), registry.clone(), config, on_event, signal);
    folder.look(Instant::now());
    while !folder.first_pass_done {
        if let Ok(Signal::Ended(ended)) = signals.recv_timeout(folder.next_look(Instant::now())) {
            folder.ended(*ended);
        }
        folder.look(Instant::now());
    }
}

/// Watches until it is dropped.
pub struct Watcher {
    signal: mpsc::Sender<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub fn start(
        runtime: &Runtime,
        registry: &Arc<Registry>,
        config: WatchConfig,
        on_event: OnEvent,
    ) -> io::Result<Self> {
        let (signal, signals) = mpsc::channel();
        let mut folder = Folder::new(runtime.clone(), registry.clone(), config, on_event, signal.clone());
        let thread = std::thread::Builder::new().name("sprag-watch".into()).spawn(move || folder.watch(&signals))?;
        Ok(Self { signal, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The thread may have ended by itself; then nobody listens.
        _ = self.signal.send(Signal::Stop);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

enum Signal {
    /// Something happened in the folder.
    Look,
    Ended(Box<Ended>),
    Stop,
}

/// A load that has ended.
struct Ended {
    name: HandlerName,
    /// What the file looked like when it was read.
    stamp: Stamp,
    result: Outcome,
}

enum Outcome {
    /// The file changed while it was read.
    Moved,
    Same,
    /// Refused before, and reported then.
    Known,
    Loaded(Arc<Handler>),
    Refused(Option<Digest>, LoadError),
}

/// What changes when a file is written or replaced, whatever the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// One `.wasm` file.
struct Seen {
    path: PathBuf,
    stamp: Stamp,
    /// Since when it has looked like this.
    since: Instant,
    /// What it looked like when its content was last dealt with.
    dealt_with: Option<Stamp>,
    gone_since: Option<Instant>,
    loading: bool,
    refused: Option<Refusal>,
}

#[derive(Clone)]
struct Refusal {
    digest: Option<Digest>,
    error: LoadError,
}

impl Refusal {
    /// May go away without a change of the file.
    fn may_pass(&self) -> bool {
        matches!(self.error, LoadError::Read(_) | LoadError::Folder { .. })
    }
}

struct Folder {
    runtime: Runtime,
    registry: Arc<Registry>,
    config: WatchConfig,
    on_event: OnEvent,
    signal: mpsc::Sender<Signal>,
    files: BTreeMap<HandlerName, Seen>,
    looked_before: bool,
    first_pass_done: bool,
    unreadable: Option<String>,
    next_retry: Instant,
}

impl Folder {
    fn new(
        runtime: Runtime,
        registry: Arc<Registry>,
        config: WatchConfig,
        on_event: OnEvent,
        signal: mpsc::Sender<Signal>,
    ) -> Self {
        let next_retry = Instant::now() + config.poll;
        Self {
            runtime,
            registry,
            config,
            on_event,
            signal,
            files: BTreeMap::new(),
            looked_before: false,
            first_pass_done: false,
            unreadable: None,
            next_retry,
        }
    }

    fn tell(&self, event: HandlerEvent) {
        (self.on_event)(event);
    }

    fn watch(&mut self, signals: &mpsc::Receiver<Signal>) {
        let mut notices = Notices::default();
        loop {
            if self.config.notices
                && let Some(why) = notices.keep_up(&self.config.folder, &self.signal)
            {
                self.tell(HandlerEvent::PollingOnly { why });
            }
            self.look(Instant::now());
            let mut signal = signals.recv_timeout(self.next_look(Instant::now()));
            // One look for all that has happened.
            loop {
                match signal {
                    Ok(Signal::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    Ok(Signal::Ended(ended)) => self.ended(*ended),
                    Ok(Signal::Look) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
                match signals.try_recv() {
                    Ok(next) => signal = Ok(next),
                    Err(_) => break,
                }
            }
        }
    }

    /// How long there is nothing to do, if nobody says otherwise.
    fn next_look(&self, now: Instant) -> Duration {
        let settling = self.files.values().filter(|file| !file.loading && file.dealt_with != Some(file.stamp));
        let settling = settling.map(|file| (file.since + self.config.settle).saturating_duration_since(now));
        let going = self.files.values().filter_map(|file| file.gone_since);
        let going = going.map(|since| (since + GONE_FOR).saturating_duration_since(now));
        let soonest = settling.chain(going).min().unwrap_or(self.config.poll);
        soonest.clamp(Duration::from_millis(5), self.config.poll)
    }

    /// Looks at the folder and does what follows.
    fn look(&mut self, now: Instant) {
        let present = match list(&self.config.folder) {
            Ok(present) => {
                self.unreadable = None;
                present
            }
            // What is loaded serves on: a network file system that is away for a moment must not stop everything.
            Err(error) => {
                let why = format!("{}: {error}", self.config.folder.display());
                if self.unreadable.as_ref() != Some(&why) {
                    self.unreadable = Some(why.clone());
                    self.tell(HandlerEvent::FolderUnreadable { why });
                }
                self.first_pass();
                return;
            }
        };
        if now >= self.next_retry {
            self.next_retry = now + self.config.poll;
            for file in self.files.values_mut().filter(|file| file.refused.as_ref().is_some_and(Refusal::may_pass)) {
                file.dealt_with = None;
            }
        }
        for (name, (path, stamp, age)) in &present {
            let quiet = !self.looked_before && age.is_some_and(|age| age > Duration::from_secs(1));
            let since = if quiet { now.checked_sub(self.config.settle).unwrap_or(now) } else { now };
            let file = self.files.entry(name.clone()).or_insert_with(|| Seen {
                path: path.clone(),
                stamp: *stamp,
                since,
                dealt_with: None,
                gone_since: None,
                loading: false,
                refused: None,
            });
            file.gone_since = None;
            if file.stamp != *stamp {
                file.stamp = *stamp;
                file.since = now;
            }
        }
        self.looked_before = true;
        self.forget_gone(&present, now);
        self.start_loading(now);
        self.first_pass();
    }

    fn forget_gone(&mut self, present: &BTreeMap<HandlerName, (PathBuf, Stamp, Option<Duration>)>, now: Instant) {
        let mut gone = Vec::new();
        for (name, file) in &mut self.files {
            if !present.contains_key(name) && !file.loading {
                let since = *file.gone_since.get_or_insert(now);
                if now.saturating_duration_since(since) >= GONE_FOR {
                    gone.push(name.clone());
                }
            }
        }
        for name in gone {
            self.files.remove(&name);
            if self.registry.remove(&name).is_some() {
                self.tell(HandlerEvent::Removed { name });
                self.claims_changed();
            }
        }
    }

    fn start_loading(&mut self, now: Instant) {
        let mut loading = self.files.values().filter(|file| file.loading).count();
        for (name, file) in &mut self.files {
            let settled = now.saturating_duration_since(file.since) >= self.config.settle;
            if file.loading
                || file.gone_since.is_some()
                || !settled
                || file.dealt_with == Some(file.stamp)
                || loading >= MAX_LOADING
            {
                continue;
            }
            let load = Load {
                name: name.clone(),
                path: file.path.clone(),
                stamp: file.stamp,
                serving: self.registry.get(name).map(|handler| handler.digest()),
                refused: file.refused.clone(),
                config: (self.config.configs)(name),
                runtime: self.runtime.clone(),
                on_event: self.on_event.clone(),
            };
            let (signal, ended_name, stamp) = (self.signal.clone(), name.clone(), file.stamp);
            let started = std::thread::Builder::new().name(format!("sprag-load-{name}")).spawn(move || {
                // A panic in the compiler refuses the file and stops nobody else.
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| load.run()));
                let result = result.unwrap_or_else(|_| {
                    Outcome::Refused(None, LoadError::Invalid("the compiler panicked; the log has the details".into()))
                });
                // If the watcher has stopped, nobody wants it.
                _ = signal.send(Signal::Ended(Box::new(Ended { name: ended_name, stamp, result })));
            });
            match started {
                Ok(_) => {
                    file.loading = true;
                    loading += 1;
                }
                // It is tried again at the next look.
                Err(error) => tracing::warn!(handler = %name, "no thread to load it: {error}"),
            }
        }
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { name, stamp, result } = ended;
        let Some(file) = self.files.get_mut(&name) else { return };
        file.loading = false;
        if !matches!(result, Outcome::Moved) {
            file.dealt_with = Some(stamp);
        }
        match result {
            Outcome::Moved | Outcome::Known => {}
            Outcome::Same => {
                file.refused = None;
                self.tell(HandlerEvent::Unchanged { name });
            }
            Outcome::Loaded(handler) => self.install(name, &handler),
            Outcome::Refused(digest, error) => self.refuse(name, digest, error),
        }
    }

    fn install(&mut self, name: HandlerName, handler: &Arc<Handler>) {
        let (digest, took, cached) = (handler.digest(), handler.took(), handler.cached());
        match self.registry.insert(handler.clone()) {
            Ok(before) => {
                if let Some(file) = self.files.get_mut(&name) {
                    file.refused = None;
                }
                self.tell(match before {
                    Some(before) => HandlerEvent::Replaced { name, before: before.digest(), digest, took, cached },
                    None => HandlerEvent::Loaded { name, digest, took, cached },
                });
                self.claims_changed();
            }
            Err(error) => self.refuse(name, Some(digest), error),
        }
    }

    fn refuse(&mut self, name: HandlerName, digest: Option<Digest>, error: LoadError) {
        let Some(file) = self.files.get_mut(&name) else { return };
        let said = file.refused.as_ref().is_some_and(|before| before.digest == digest && before.error == error);
        file.refused = Some(Refusal { digest, error: error.clone() });
        if !said {
            let serving = self.registry.get(&name).is_some();
            self.tell(HandlerEvent::Refused { name, error, serving });
        }
    }

    /// What was refused because another handler had its event types may be welcome now.
    fn claims_changed(&mut self) {
        for file in self.files.values_mut() {
            if file.refused.as_ref().is_some_and(|refusal| matches!(refusal.error, LoadError::Claimed { .. })) {
                file.dealt_with = None;
            }
        }
    }

    fn first_pass(&mut self) {
        let busy =
            self.files.values().any(|file| file.loading || (file.gone_since.is_none() && file.dealt_with.is_none()));
        if !self.first_pass_done && !busy {
            self.first_pass_done = true;
            self.tell(HandlerEvent::FirstPass { loaded: self.registry.handlers().len() });
        }
    }
}

/// A file as a look finds it: where it is, its stamp, and how long ago it was written.
type Listed = (PathBuf, Stamp, Option<Duration>);

/// The `.wasm` files of a folder, by handler name.
fn list(folder: &Path) -> io::Result<BTreeMap<HandlerName, Listed>> {
    let mut present = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "wasm") {
            continue;
        }
        // Hidden files are somebody's half-written ones.
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| !stem.starts_with('.')) else {
            continue;
        };
        // Through symlinks. What cannot be looked at (a link to nowhere, for a moment) counts as not there.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if metadata.is_file() {
            let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            present.insert(HandlerName::from(name), (path.clone(), Stamp::of(&metadata), age));
        }
    }
    Ok(present)
}

/// One file on its way into the registry.
struct Load {
    name: HandlerName,
    path: PathBuf,
    stamp: Stamp,
    serving: Option<Digest>,
    refused: Option<Refusal>,
    config: HandlerConfig,
    runtime: Runtime,
    on_event: OnEvent,
}

impl Load {
    fn run(mut self) -> Outcome {
        let bytes = match self.read() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Outcome::Moved,
            Err(error) => return Outcome::Refused(None, LoadError::Read(error.to_string())),
        };
        let digest = Digest::of(&bytes);
        if self.serving == Some(digest) {
            return Outcome::Same;
        }
        let known = self.refused.as_ref().filter(|refusal| refusal.digest == Some(digest));
        if known.is_some_and(|refusal| !refusal.may_pass() && !matches!(refusal.error, LoadError::Claimed { .. })) {
            return Outcome::Known;
        }
        self.config.name = Some(self.name.clone());
        let (name, on_event) = (self.name, self.on_event);
        let progress = move |step| {
            if let Compile::Started { bytes } = step {
                on_event(HandlerEvent::Compiling { name: name.clone(), bytes });
            }
        };
        match self.runtime.load(&bytes, self.config, progress) {
            Ok(handler) => Outcome::Loaded(handler),
            Err(error) => Outcome::Refused(Some(digest), error),
        }
    }

    /// The content, if it is the one that was seen and stayed so while it was read.
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let mut file = fs::File::open(&self.path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((Stamp::of(&file.metadata()?) == self.stamp).then_some(bytes))
    }
}

/// The operating system's notices, for the folder as it is now.
#[derive(Default)]
struct Notices {
    watcher: Option<notify::RecommendedWatcher>,
    /// The folder that is watched: it may be replaced by another of the same name.
    folder: Option<(u64, u64)>,
    said: Option<String>,
}

impl Notices {
    /// Watches the folder, again if it has been replaced. Says why that does not work, once.
    fn keep_up(&mut self, path: &Path, signal: &mpsc::Sender<Signal>) -> Option<String> {
        let folder = fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if folder.is_none() || (folder == self.folder && self.watcher.is_some()) {
            return None;
        }
        let signal = signal.clone();
        let made = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Opening and reading are our own doing: a look that answered to them would never end (A72).
            use notify::event::{AccessKind, AccessMode, EventKind};
            let reading = event.as_ref().is_ok_and(|event| match event.kind {
                EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
                EventKind::Access(_) => true,
                _ => false,
            });
            if !reading {
                // What exactly happened does not matter, and if the watcher has stopped, neither does that.
                _ = signal.send(Signal::Look);
            }
        });
        let made = made.and_then(|mut watcher| {
            watcher.watch(path, notify::RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        match made {
            Ok(watcher) => {
                self.watcher = Some(watcher);
                self.folder = folder;
                self.said = None;
                None
            }
            Err(error) => {
                let why = error.to_string();
                let new = self.said.as_ref() != Some(&why);
                self.said = Some(why.clone());
                new.then_some(why)
            }
        }
    }
}
