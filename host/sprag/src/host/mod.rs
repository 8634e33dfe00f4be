//! A host, from start to stop: what `dev` and `run` have in common.
//!
//! Start reading at [`serve`]. `parts` opens the engine and puts the endpoints together, `network` lets Service Bus clients in, `handlers` keeps the
//! handlers and what is known of them, `say` writes what `dev` shows.
//!
//! Order at start: the data folder first, because whoever holds it decides whether anything else may happen; then the port; then handlers and
//! endpoints; last the file that tells the other verbs where the host is. At the end the same backwards.

pub(crate) mod databases;
mod entities;
mod handlers;
mod network;
pub(crate) mod parts;
mod say;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use sprag_broker::Engine;
use sprag_console::Console;
use sprag_core::{ids::HandlerName, seal::Seal};
use sprag_runtime::{Mode, Registry};
use sprag_worker::{
    Left, Running, Stop, Worker, WorkerConfig,
    handlers::Registered,
    operations::{Host as Operating, HostConfig},
    signal::{Counters, Signals},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinHandle,
};

pub(crate) use handlers::Board;
use parts::Parts;

use crate::{
    config::Config,
    failure::{Exit, Failure, Outcome},
    hostfile::{self, HostFile},
    output,
};

/// What differs between `dev` and `run`.
pub(crate) struct Plan {
    pub config: Config,
    /// The folder that is run: `.sprag/host.json` goes there.
    pub folder: PathBuf,
    pub watch: bool,
    /// `dev`: lines for a person. Else the log.
    pub show: Option<say::Show>,
}

pub(crate) use say::Show;

/// How long is waited for things that must not hold up the exit any more.
const LAST: Duration = Duration::from_secs(1);

/// Runs a host until it is told to stop.
pub(crate) fn serve(plan: Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start threads: {error}")))?;
    let outcome = runtime.block_on(run(plan));
    // A component that hangs in a host call must not hang the exit (A70).
    runtime.shutdown_background();
    outcome
}

async fn run(mut plan: Plan) -> Outcome {
    let began = Instant::now();
    let mut signals = Told::listen()?;
    let started = tokio::select! {
        started = start(&mut plan) => started?,
        // Nothing has been taken yet, so there is nothing to finish.
        () = signals.recv() => return Ok(Exit::Done),
    };
    say::ready(&plan, started.address, &started.reached, &started.registry, &started.mode, began.elapsed());

    signals.recv().await;
    say::stopping(&plan);
    // Nobody listens when everything has stopped by itself already.
    let _ = started.stop.send(true);
    let left = tokio::select! {
        left = started.running => left.map_err(|error| Failure::failed(format!("the worker has ended: {error}")))?,
        () = signals.recv() => return Err(unclean("a second signal came before everything was finished", &started.in_flight.list())),
    };
    if !left.is_empty() {
        return Err(unclean("the grace period is over", &left));
    }
    drop(started.watched);
    if let Ok(Ok(Err(error))) = tokio::time::timeout(LAST, started.served).await {
        return Err(Failure::failed(error.to_string()));
    }
    started.network.ended(LAST).await;
    started.engine.close().await;
    drop(started.written);
    drop(started.following);
    say::stopped(&plan);
    Ok(Exit::Done)
}

/// A host that serves.
struct Started {
    address: SocketAddr,
    mode: Mode,
    registry: Arc<Registry>,
    engine: Engine,
    stop: watch::Sender<bool>,
    in_flight: Running,
    running: JoinHandle<Vec<Left>>,
    served: JoinHandle<Result<(), sprag_console::Error>>,
    network: network::Serving,
    reached: network::Reached,
    watched: handlers::Watched,
    following: Option<say::Following>,
    written: hostfile::Written,
}

async fn start(plan: &mut Plan) -> Result<Started, Failure> {
    let engine = parts::open(&plan.config).await?;
    let token = hostfile::random_hex(32);
    let console = bind(&plan.config, token.clone()).await?;
    let address = console.address();
    let network = network::Network::bind(&plan.config.embedded, plan.show.is_some(), &engine).await?;

    let board = Board::new(plan.config.host.handlers.clone(), plan.show.is_some());
    let wasm = parts::runtime(&plan.config).await?;
    let settings = {
        let config = Arc::new(plan.config.clone());
        Arc::new(move |name: &HandlerName| config.handler(name))
    };
    let registry =
        Registry::new(if plan.config.file.is_some() { parts::handlers_of(&plan.config) } else { Vec::new() });
    let watched = handlers::start(&wasm, &registry, plan, settings, &board)?;
    if plan.config.file.is_none() {
        // Which endpoints there are follows from what the handlers claim (P28), so the first look comes before.
        board.first_pass().await;
        plan.config = handlers::endpoints_for(&plan.folder, plan.config.clone(), &registry);
        registry.set_endpoints(parts::handlers_of(&plan.config));
    }
    parts::declare(&engine, &plan.config).await?;
    parts::refuse_unsafe_topology(&plan.config).await?;

    let seal = Seal::new(&parts::control_key(&plan.config)?);
    let (stop, stopped) = Stop::new();
    let parts = Parts::build(&engine, &plan.config).await?;
    let endpoints = parts.endpoints(&plan.config);
    let served_by = Arc::new(Registered(Arc::clone(&registry)));
    let lifecycle = Signals::default();
    let following = say::follow(&lifecycle, plan.show);
    let worker = WorkerConfig {
        endpoints: endpoints.clone(),
        handlers: served_by.clone(),
        flight: plan.config.host.data.join("flight"),
        seal: seal.clone(),
        signals: lifecycle,
        counters: Arc::new(Counters::default()),
        clock: crate::cli::now,
    };
    let worker = Worker::build(worker, stopped.clone())
        .await
        .map_err(|error| Failure::failed(error.to_string()).code("SPR0406"))?;
    let operations = Operating::new(HostConfig {
        endpoints,
        transports: parts.transports(),
        handlers: served_by,
        listing: Arc::new(handlers::Listing { registry: Arc::clone(&registry), board }),
        seal,
        clock: crate::cli::now,
    });
    let reached = network.reached();
    let network = network.serve(&engine, &stopped);
    let served = tokio::spawn(console.serve(Arc::new(operations), async move { stopped.wait().await }));
    let in_flight = worker.running();
    let running = tokio::spawn(worker.run(plan.config.host.shutdown_grace));
    let file = HostFile {
        address: format!("http://{address}"),
        token,
        pid: std::process::id(),
        amqp: reached.amqp,
        administration: reached.administration,
    };
    let written = file.write(&plan.folder).map_err(|error| {
        Failure::failed(format!("cannot write .sprag/host.json in {}: {error}", plan.folder.display())).code("SPR0403")
    })?;
    let mode = wasm.mode().clone();
    Ok(Started {
        address,
        mode,
        registry,
        engine,
        stop,
        in_flight,
        running,
        served,
        network,
        reached,
        watched,
        following,
        written,
    })
}

async fn bind(config: &Config, token: String) -> Result<Console, Failure> {
    let console = sprag_console::Config { listen: config.host.console, token, operator: operator() };
    Console::bind(console).await.map_err(|error| {
        let code = if matches!(error, sprag_console::Error::PortTaken(_)) { "SPR0402" } else { "SPR0104" };
        Failure::failed(error.to_string())
            .code(code)
            .help("another address: [host] console in sprag.toml, or --console 127.0.0.1:0")
    })
}

/// Names what was left (A10, A70).
fn unclean(why: &str, left: &[Left]) -> Failure {
    let mut text = format!("not a clean stop: {why}");
    for run in left {
        let session = run
            .session
            .as_ref()
            .map(|session| format!(" of session {}", output::one_line(session.as_str())))
            .unwrap_or_default();
        text.push_str(&format!(
            "\n  left: event {}{session} at endpoint {}, running for {:.1} s",
            output::one_line(run.event_id.as_str()),
            run.endpoint,
            run.running_for.as_secs_f64()
        ));
    }
    Failure::failed(text).code("SPR0404").help("nothing is lost: what was left is delivered again at the next start")
}

/// Whoever runs the host holds its token, so actions are theirs.
fn operator() -> String {
    std::env::var("USER")
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

/// The signals that end a host.
struct Told {
    terminate: Signal,
    interrupt: Signal,
}

impl Told {
    fn listen() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
