//! One version of one handler: loaded once, run many times.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sprag_core::{
    ids::{Digest, EndpointName, EventId, EventType, HandlerName},
    message::Message,
    run::{End, UnitOfWork},
    time::Timestamp,
};
use wasmtime::{
    Engine, Store, UpdateDeadline,
    component::{Component, HasSelf, Linker, ResourceTable},
};
use wasmtime_wasi::{FsPerms, WasiCtx};

use crate::{
    bindings::{EverythingPre, sprag::handler as wit},
    component::{self, LoadError, Outside},
    config::{Folder, HandlerConfig, Isolation},
    convert::{Parts, properties, to_guest},
    ends::{self, Came, Stop},
    engine::Runtime,
    input::{Destinations, NoState, RunInput, RunOutput},
    instances::{Kept, Key, Live},
    log::{Pipe, Sink, Stdio},
    run_state::{MAX_HANDLES, RunState, Wasi},
};

/// Time that `describe` has, and instantiation before it: a big component starts slowly on a busy machine.
const DESCRIBE_TIME: Duration = Duration::from_secs(10);
/// What a guest may hand over in one call beside a body: properties, ids, a state value (1 MiB).
const CALL_EXTRA: usize = 2 << 20;
/// Random bytes that a guest gets in one call; the host makes them before it knows whether the guest has room for them (A67).
const MAX_RANDOM: u64 = 1 << 20;

/// How loading goes on, for progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compile {
    /// Compiling a component of this size has begun: a moment for Rust, 10 to 20 seconds for JavaScript and Python.
    Started { bytes: usize },
    /// The code is there: from the cache, or compiled.
    Ready { took: Duration, cached: bool },
}

/// What a component says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// `*` stands for any type that no other handler names.
    pub event_types: Vec<EventType>,
}

/// A loaded handler.
pub struct Handler {
    runtime: Runtime,
    engine: Engine,
    shared: Arc<Shared>,
    digest: Digest,
    info: Info,
    took: Duration,
    cached: bool,
    pre: EverythingPre<RunState>,
    kept: Kept,
}

/// What every run of a handler looks at.
pub(crate) struct Shared {
    pub(crate) name: HandlerName,
    pub(crate) config: HandlerConfig,
    imports_wasi: bool,
}

impl Shared {
    pub(crate) fn hostcall_bytes(&self) -> usize {
        self.config.limits.body.saturating_add(CALL_EXTRA)
    }
}

impl Runtime {
    /// Loads a handler from a file's bytes. Blocks, for as long as the compiler takes; tasks use [`Runtime::load_async`].
    pub fn load(
        &self,
        bytes: &[u8],
        config: HandlerConfig,
        progress: impl Fn(Compile) + Send + Sync,
    ) -> Result<Arc<Handler>, LoadError> {
        let started = Instant::now();
        let name = config.name();
        let engine = self.engine(config.limits.stack).map_err(|error| LoadError::Limits(error.to_string()))?;
        let whole = component::from_file(bytes)?;
        let outside = component::outside(&whole)?;
        component::check(&outside, &name, &config)?;
        let shared = Arc::new(Shared { name, imports_wasi: outside.imports_wasi(), config });
        shared.config.folders.iter().try_for_each(check_folder)?;

        let digest = Digest::of(bytes);
        let key = if matches!(whole, std::borrow::Cow::Borrowed(_)) { digest } else { Digest::of(&whole) };
        let cached = self.inner.cache.as_ref().and_then(|cache| cache.load(&engine, key));
        let was_cached = cached.is_some();
        let component = match cached {
            Some(component) => component,
            None => {
                progress(Compile::Started { bytes: whole.len() });
                let component = Component::from_binary(&engine, &whole).map_err(|error| invalid(&error))?;
                if let Some(cache) = &self.inner.cache {
                    cache.store(&engine, key, &component);
                }
                component
            }
        };
        progress(Compile::Ready { took: started.elapsed(), cached: was_cached });

        let pre = link(&engine, &component, &outside)?;
        let mut handler = Handler {
            runtime: self.clone(),
            engine,
            digest,
            info: Info { event_types: Vec::new() },
            took: Duration::ZERO,
            cached: was_cached,
            pre,
            kept: Kept::new(self.inner.kept.clone()),
            shared,
        };
        handler.info = handler.describe()?;
        handler.took = started.elapsed();
        Ok(Arc::new(handler))
    }

    /// The same beside the async threads.
    pub async fn load_async(
        &self,
        bytes: Vec<u8>,
        config: HandlerConfig,
        progress: impl Fn(Compile) + Send + Sync + 'static,
    ) -> Result<Arc<Handler>, LoadError> {
        let runtime = self.clone();
        match tokio::task::spawn_blocking(move || runtime.load(&bytes, config, progress)).await {
            Ok(loaded) => loaded,
            Err(error) => Err(LoadError::Invalid(format!("loading it did not end: {error}"))),
        }
    }
}

fn invalid(error: &wasmtime::Error) -> LoadError {
    LoadError::Invalid(error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ").replace('\n', " "))
}

fn check_folder(folder: &Folder) -> Result<(), LoadError> {
    let refuse = |why: String| {
        Err(LoadError::Folder { path: folder.path.display().to_string(), guest: folder.guest.clone(), why })
    };
    if !folder.guest.starts_with('/') {
        return refuse("its name inside the handler must begin with `/`".into());
    }
    match WasiCtx::builder().preopened_dir(&folder.path, &folder.guest, perms(folder)) {
        Ok(_) => Ok(()),
        Err(error) => refuse(format!("it cannot be opened: {error}")),
    }
}

fn perms(folder: &Folder) -> FsPerms {
    if folder.write { FsPerms::ReadWrite } else { FsPerms::ReadOnly }
}

/// Links what was granted, and nothing else.
fn link(engine: &Engine, component: &Component, outside: &Outside) -> Result<EverythingPre<RunState>, LoadError> {
    let linked = || -> wasmtime::Result<_> {
        let mut linker = Linker::<RunState>::new(engine);
        wit::types::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        wit::context::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        wit::log::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        wit::outgoing::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        // `component::check` has refused what is imported without a grant.
        if outside.imports("state") {
            wit::state::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        }
        if outside.imports("sql") {
            wit::sql::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        }
        if outside.imports("config") {
            wit::config::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        }
        if outside.imports_wasi() {
            wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        }
        EverythingPre::new(linker.instantiate_pre(component)?)
    };
    linked().map_err(|error| {
        LoadError::WrongWorld(error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ").replace('\n', " "))
    })
}

impl Handler {
    pub fn name(&self) -> &HandlerName {
        &self.shared.name
    }

    /// SHA-256 of the file it came from.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    pub fn info(&self) -> &Info {
        &self.info
    }

    pub fn config(&self) -> &HandlerConfig {
        &self.shared.config
    }

    /// How long loading took, `describe` included.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Its compiled code came from the cache.
    pub fn cached(&self) -> bool {
        self.cached
    }

    /// Runs the handler on one message. Waits for its turn first; the time limit counts from then.
    pub async fn run(&self, input: RunInput) -> RunOutput {
        let input = Arc::new(input);
        let _turn = self.runtime.inner.turns.acquire().await;
        let started = Instant::now();
        let limit = self.shared.config.limits.time;
        let deadline = started + limit;
        let key = Key::of(self.shared.config.isolation, &input);
        if let Some(key) = &key
            && let Some(mut live) = self.kept.take(key)
        {
            live.store.data_mut().begin(input.clone(), deadline);
            live.store.set_epoch_deadline(1);
            let parts = Parts::of(&input.message);
            let properties = properties(&input.message, &parts);
            let message = to_guest(&input, &parts, &properties);
            let called = tokio::time::timeout(limit, live.exports.call_handle(&mut live.store, message)).await;
            let came = match called {
                Ok(Ok(answer)) => Came::Answered(answer),
                Ok(Err(error)) => Came::Broke(error),
                Err(_) => Came::TimedOut,
            };
            return self.finish(came, live, key.clone(), started);
        }
        let mut store = match self.store(input.clone(), deadline) {
            Ok(store) => store,
            Err(stop) => {
                let end = End::failed(sprag_core::outcome::kind::HOST_CAPABILITY, stop.to_string());
                return RunOutput { end, unit: UnitOfWork::default(), took: started.elapsed(), log_dropped: 0 };
            }
        };
        let parts = Parts::of(&input.message);
        let properties = properties(&input.message, &parts);
        let message = to_guest(&input, &parts, &properties);
        let called = tokio::time::timeout(limit, async {
            let exports = self.pre.instantiate_async(&mut store).await?;
            let answer = exports.call_handle(&mut store, message).await?;
            wasmtime::Result::Ok((exports, answer))
        })
        .await;
        match called {
            Ok(Ok((exports, answer))) => match key {
                Some(key) => self.finish(Came::Answered(answer), Live::new(store, exports), key, started),
                None => self.output(Came::Answered(answer), &mut store, started),
            },
            Ok(Err(error)) => self.output(Came::Broke(error), &mut store, started),
            Err(_) => self.output(Came::TimedOut, &mut store, started),
        }
    }

    /// Ends a run of an instance that may be used again.
    fn finish(&self, came: Came, mut live: Live, key: Key, started: Instant) -> RunOutput {
        let healthy = matches!(came, Came::Answered(_));
        let output = self.output(came, &mut live.store, started);
        if healthy && live.store.data().limiter.has_room() {
            self.kept.put(key, live);
        }
        output
    }

    fn output(&self, came: Came, store: &mut Store<RunState>, started: Instant) -> RunOutput {
        let state = store.data_mut();
        let log_dropped = state.sink.end();
        let end = ends::name(came, state, self.shared.config.limits.time);
        let work = std::mem::take(&mut state.work);
        let unit = match &end {
            End::Done | End::Handoff { .. } => work.into_unit(),
            _ => UnitOfWork::default(),
        };
        RunOutput { end, unit, took: started.elapsed(), log_dropped }
    }

    fn store(&self, input: Arc<RunInput>, deadline: Instant) -> Result<Store<RunState>, Stop> {
        let sink = Sink::new(self.shared.name.clone(), input.clone(), self.shared.config.limits.log);
        let wasi = if self.shared.imports_wasi { Some(Box::new(self.wasi(&sink)?)) } else { None };
        let mut store = Store::new(&self.engine, RunState::new(self.shared.clone(), input, deadline, wasi, sink));
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(self.shared.hostcall_bytes());
        store.set_max_component_handles(MAX_HANDLES);
        store.set_epoch_deadline(1);
        // Each tick, a guest that only computes gives way to the thread's other tasks.
        store.epoch_deadline_callback(|store| {
            if Instant::now() >= store.data().deadline {
                return Err(wasmtime::Error::new(Stop::Timeout));
            }
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        Ok(store)
    }

    fn wasi(&self, sink: &Arc<Sink>) -> Result<Wasi, Stop> {
        let mut builder = WasiCtx::builder();
        builder.stdout(Stdio { sink: sink.clone(), pipe: Pipe::Stdout });
        builder.stderr(Stdio { sink: sink.clone(), pipe: Pipe::Stderr });
        // Some toolchains import sockets whether they use them or not: linked, and closed.
        builder.max_random_size(MAX_RANDOM);
        builder.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false);
        for folder in &self.shared.config.folders {
            if let Err(error) = builder.preopened_dir(&folder.path, &folder.guest, perms(folder)) {
                return Err(Stop::Capability(format!("folder {} cannot be opened: {error}", folder.path.display())));
            }
        }
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_HANDLES);
        Ok(Wasi { ctx: builder.build(), table })
    }

    fn describe(&self) -> Result<Info, LoadError> {
        // A thread of its own, because the caller may be a task, where nothing may block on another runtime.
        let described = std::thread::scope(|scope| scope.spawn(|| self.describe_blocking()).join());
        let names = described
            .unwrap_or_else(|_| Err("the host's thread for it panicked".into()))
            .map_err(LoadError::Describe)?;
        if names.is_empty() {
            return Err(LoadError::NoEventTypes);
        }
        if names.iter().any(|name| name.trim().is_empty()) {
            return Err(LoadError::Describe("an event type is blank".into()));
        }
        Ok(Info { event_types: names.into_iter().map(EventType::from).collect() })
    }

    fn describe_blocking(&self) -> Result<Vec<String>, String> {
        let executor =
            tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(|error| error.to_string())?;
        let mut store =
            self.store(Arc::new(nothing()), Instant::now() + DESCRIBE_TIME).map_err(|stop| stop.to_string())?;
        let described = executor.block_on(async {
            tokio::time::timeout(DESCRIBE_TIME, async {
                let exports = self.pre.instantiate_async(&mut store).await?;
                exports.call_describe(&mut store).await
            })
            .await
        });
        let came = match described {
            Ok(Ok(info)) => return Ok(info.event_types),
            Ok(Err(error)) => Came::Broke(error),
            Err(_) => Came::TimedOut,
        };
        match ends::name(came, store.data(), DESCRIBE_TIME) {
            End::Failed { failure, .. } => Err(format!("{}: {}", failure.kind, failure.text)),
            End::Transient { text, .. } => Err(text),
            other => Err(format!("{other:?}")),
        }
    }

    /// Whether a run may share its instance with others.
    pub fn isolation(&self) -> Isolation {
        self.shared.config.isolation
    }
}

/// The input of `describe`: there is no message and nothing may be sent.
fn nothing() -> RunInput {
    struct Nowhere;
    impl Destinations for Nowhere {
        fn check(&self, _: &sprag_core::ids::EntityName) -> Result<(), String> {
            Err("`describe` cannot send".into())
        }
    }
    RunInput {
        endpoint: EndpointName::from(""),
        message: Arc::new(Message::default()),
        message_id: None,
        event_id: EventId::from(""),
        event_type: EventType::from(""),
        session: None,
        enqueued_at: Timestamp::default(),
        attempt: 0,
        source: String::new(),
        destinations: Arc::new(Nowhere),
        state: Arc::new(NoState),
        sql: None,
        max_body: 0,
        trace: None,
    }
}
