//! What a run costs, against bare wasmtime with the same guest, in the same process, in turns.
//!
//! `cargo bench -p sprag-runtime --bench run [-- [--rounds N] [--config k=v] FILE.wasm…]`; without a file, `guests/out/test-noop.wasm`.
//!
//! "Bare" is what any embedder pays: a store with a limiter and an epoch deadline, `InstancePre::instantiate_async`, the typed call with
//! the 1 KB message lowered into the guest, drop; with the same engine settings and a WASI context only where the guest imports WASI.
//! "Ours" is [`sprag_runtime::Handler::run`], from a core message to a named end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sprag_core::{
    ids::EndpointName,
    message::{Body, Message, Value},
    run::End,
    time::Timestamp,
};
use sprag_runtime::{Anywhere, HandlerConfig, Isolation, Limits, NoState, PoolMode, RunInput, Runtime, RuntimeConfig};

fn main() {
    let (mut rounds, mut files) = (31, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // `cargo bench` and `cargo test` pass these.
            "--bench" | "--test" => {}
            "--rounds" => {
                rounds = arguments.next().and_then(|text| text.parse().ok()).expect("--rounds takes a number")
            }
            file => files.push(file.to_owned()),
        }
    }
    if files.is_empty() {
        files.push(concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/out/test-noop.wasm").to_owned());
    }
    let executor = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("an executor");
    println!("median (min to max) of {rounds} rounds, µs a run, one thread; a 1 KB message with two properties");
    println!(
        "{:<28} {:>26} {:>26} {:>6}   {:>26} {:>26} {:>6}",
        "guest", "fresh bare", "fresh ours", "ratio", "reused bare", "reused ours", "ratio"
    );
    for file in files {
        let bytes =
            std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error} (run guests/test/build first)"));
        executor.block_on(measure(&file, &bytes, rounds));
    }
}

async fn measure(file: &str, bytes: &[u8], rounds: usize) {
    let runtime =
        Runtime::new(RuntimeConfig { pool: PoolMode::Required, ..RuntimeConfig::default() }).expect("a runtime");
    let config = |isolation| HandlerConfig {
        grant: vec!["state".into()],
        config: Some(std::collections::BTreeMap::new()),
        isolation,
        limits: Limits { memory: 256 << 20, ..Limits::default() },
        ..HandlerConfig::default()
    };
    let load =
        |isolation| runtime.load(bytes, config(isolation), |_| {}).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (fresh, reused) = (load(Isolation::Message), load(Isolation::Pooled));
    let bare = bare::Bare::new(bytes);
    let input = input(&fresh.info().event_types[0]);
    let message = bare::Bare::message(&input);
    let mut kept = bare.instance().await;

    // As many runs a round as take about 20 ms, by the slowest kind.
    let started = Instant::now();
    for _ in 0..3 {
        assert_ends(&fresh.run(input.clone()).await.end);
        assert_ends(&reused.run(input.clone()).await.end);
        bare.fresh(&message).await;
    }
    let each = started.elapsed() / 9;
    let fresh_runs =
        u32::try_from(Duration::from_millis(20).as_nanos() / each.as_nanos().max(1)).unwrap_or(1).clamp(3, 2_000);
    let reused_runs = fresh_runs.saturating_mul(8).clamp(20, 8_000);

    let mut taken: [Vec<f64>; 4] = Default::default();
    for _ in 0..rounds {
        let started = Instant::now();
        for _ in 0..fresh_runs {
            bare.fresh(&message).await;
        }
        taken[0].push(micros(started, fresh_runs));
        let started = Instant::now();
        for _ in 0..fresh_runs {
            assert_ends(&fresh.run(input.clone()).await.end);
        }
        taken[1].push(micros(started, fresh_runs));
        let started = Instant::now();
        for _ in 0..reused_runs {
            kept.call(&message).await;
        }
        taken[2].push(micros(started, reused_runs));
        let started = Instant::now();
        for _ in 0..reused_runs {
            assert_ends(&reused.run(input.clone()).await.end);
        }
        taken[3].push(micros(started, reused_runs));
    }
    // Round by round, so that a machine that slows down meets both alike.
    let ratio = |ours: usize, bare: usize| {
        let mut ratios: Vec<f64> = taken[ours].iter().zip(&taken[bare]).map(|(ours, bare)| ours / bare).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    let (fresh_ratio, reused_ratio) = (ratio(1, 0), ratio(3, 2));
    let shown = taken.each_mut().map(|times| {
        times.sort_by(f64::total_cmp);
        format!("{:.1} ({:.1} to {:.1})", times[times.len() / 2], times[0], times[times.len() - 1])
    });
    let name = std::path::Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
    println!(
        "{name:<28} {:>26} {:>26} {:>6.2}   {:>26} {:>26} {:>6.2}",
        shown[0], shown[1], fresh_ratio, shown[2], shown[3], reused_ratio
    );
}

fn assert_ends(end: &End) {
    assert!(matches!(end, End::Done | End::Discard { .. } | End::Failed { .. }), "{end:?}");
    if let End::Failed { failure, .. } = end {
        assert!(!["timeout", "trap", "memory-limit", "bad-result"].contains(&failure.kind.as_str()), "{failure:?}");
    }
}

fn micros(started: Instant, runs: u32) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / f64::from(runs)
}

fn input(event_type: &sprag_core::ids::EventType) -> RunInput {
    let mut message = Message {
        message_id: Some("6f1d8a3e-6a3b-4a55-9b6a-0d0c5a3a9c11".into()),
        session_id: Some("customer-4711".into()),
        subject: Some("order.placed".into()),
        content_type: Some("application/json".into()),
        body: Body::Data(format!("{{\"id\":\"4711\",\"text\":\"{}\"}}", "x".repeat(1_000)).into_bytes().into()),
        ..Message::default()
    };
    message.set_property("EventTypeId", Value::string(event_type.as_str()));
    message.set_property("Priority", Value::Int(3));
    RunInput {
        endpoint: EndpointName::from("billing"),
        message_id: message.message_id.clone(),
        event_id: "order-4711".into(),
        event_type: event_type.clone(),
        session: message.session_id.clone(),
        enqueued_at: Timestamp(1_796_000_461_007),
        attempt: 1,
        source: "6f1d8a3e-6a3b-4a55-9b6a-0d0c5a3a9c11".into(),
        destinations: Arc::new(Anywhere),
        state: Arc::new(NoState),
        sql: None,
        max_body: 1 << 20,
        trace: None,
        message: Arc::new(message),
    }
}

/// Wasmtime as it comes, with imports that do nothing.
mod bare {
    use sprag_core::message::Body;
    use sprag_runtime::RunInput;
    use wasmtime::{
        Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store, StoreLimits,
        StoreLimitsBuilder,
        component::{Component, HasSelf, Linker, ResourceTable},
    };
    use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

    wasmtime::component::bindgen!({
        inline: "
            package sprag:bench;
            world everything {
                include sprag:handler/handler@0.1.0;
                import sprag:handler/state@0.1.0;
                import sprag:handler/config@0.1.0;
            }
        ",
        path: "../../wit",
        imports: { "sprag:handler/state": async },
        exports: { default: async },
    });

    use sprag::handler::{config, context, log, outgoing, state, types};

    pub(super) struct State {
        limits: StoreLimits,
        wasi: Option<(WasiCtx, ResourceTable)>,
    }

    impl WasiView for State {
        fn ctx(&mut self) -> WasiCtxView<'_> {
            let (ctx, table) = self.wasi.as_mut().expect("made where it is imported");
            WasiCtxView { ctx, table }
        }
    }

    impl types::Host for State {}
    impl context::Host for State {
        fn endpoint(&mut self) -> String {
            String::new()
        }
        fn handler(&mut self) -> String {
            String::new()
        }
        fn attempt(&mut self) -> u32 {
            1
        }
        fn remaining(&mut self) -> u64 {
            1_000
        }
        fn trace(&mut self) -> Option<context::TraceContext> {
            None
        }
    }
    impl log::Host for State {
        fn write(&mut self, _: log::Level, _: String) {}
    }
    impl outgoing::Host for State {
        fn publish(&mut self, _: outgoing::OutgoingMessage) -> Result<String, outgoing::PublishError> {
            Ok(String::new())
        }
        fn schedule(&mut self, _: outgoing::OutgoingMessage, _: u64) -> Result<String, outgoing::PublishError> {
            Ok(String::new())
        }
    }
    impl config::Host for State {
        fn get(&mut self, _: String) -> Option<String> {
            None
        }
        fn all(&mut self) -> Vec<(String, String)> {
            Vec::new()
        }
    }
    impl state::Host for State {
        async fn get(&mut self, _: String) -> Result<Option<Vec<u8>>, state::StateError> {
            Ok(None)
        }
        async fn set(&mut self, _: String, _: Vec<u8>) -> Result<(), state::StateError> {
            Ok(())
        }
        async fn delete(&mut self, _: String) -> Result<(), state::StateError> {
            Ok(())
        }
        async fn compare_and_set(
            &mut self,
            _: String,
            _: Option<Vec<u8>>,
            _: Option<Vec<u8>>,
        ) -> Result<bool, state::StateError> {
            Ok(true)
        }
        async fn scan(&mut self, _: String, _: Option<String>, _: u32) -> Result<Vec<state::Entry>, state::StateError> {
            Ok(Vec::new())
        }
    }

    pub(super) struct Bare {
        engine: Engine,
        pre: EverythingPre<State>,
        wasi: bool,
    }

    pub(super) struct Kept {
        store: Store<State>,
        exports: Everything,
    }

    impl Bare {
        pub(super) fn new(bytes: &[u8]) -> Self {
            let mut pool = PoolingAllocationConfig::new();
            pool.max_component_instance_size(4 << 20)
                .max_core_instance_size(4 << 20)
                .max_core_instances_per_component(20)
                .max_memories_per_component(4)
                .max_tables_per_component(10)
                .table_elements(60_000)
                .linear_memory_keep_resident(1 << 20)
                .table_keep_resident(1 << 20)
                .pagemap_scan(Enabled::Auto);
            let mut config = Config::new();
            config
                .epoch_interruption(true)
                .concurrency_support(false)
                .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
            let engine = Engine::new(&config).expect("an engine");
            let component = match Component::from_binary(&engine, bytes) {
                Ok(component) => component,
                Err(_) => {
                    let wrapped = wit_component::ComponentEncoder::default()
                        .module(bytes)
                        .and_then(|mut encoder| encoder.encode())
                        .expect("a module with type information");
                    Component::from_binary(&engine, &wrapped).expect("a component")
                }
            };
            let wasi = component.component_type().imports(&engine).any(|(name, _)| name.starts_with("wasi:"));
            let mut linker = Linker::<State>::new(&engine);
            Everything::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state).expect("imports");
            if wasi {
                wasmtime_wasi::p2::add_to_linker_async(&mut linker).expect("WASI");
            }
            let pre = EverythingPre::new(linker.instantiate_pre(&component).expect("linked")).expect("the contract");
            Self { engine, pre, wasi }
        }

        pub(super) fn message(input: &RunInput) -> types::Message {
            let Body::Data(body) = &input.message.body else { panic!("the bench's message has a data body") };
            types::Message {
                message_id: input.message_id.as_ref().map(ToString::to_string),
                event_id: input.event_id.to_string(),
                event_type: input.event_type.to_string(),
                session_id: input.session.as_ref().map(ToString::to_string),
                correlation_id: None,
                content_type: input.message.content_type.as_deref().map(str::to_owned),
                subject: input.message.subject.as_deref().map(str::to_owned),
                reply_to: None,
                enqueued_at: 1_796_000_461_007,
                properties: vec![
                    types::Property {
                        name: "EventTypeId".into(),
                        value: types::PropertyValue::Text(input.event_type.to_string()),
                    },
                    types::Property { name: "Priority".into(), value: types::PropertyValue::Integer(3) },
                ],
                body: body.to_vec(),
                body_kind: types::BodyKind::Data,
            }
        }

        fn store(&self) -> Store<State> {
            let limits = StoreLimitsBuilder::new().memory_size(256 << 20).build();
            let wasi = self.wasi.then(|| (WasiCtx::builder().build(), ResourceTable::new()));
            let mut store = Store::new(&self.engine, State { limits, wasi });
            store.limiter(|state| &mut state.limits);
            store.set_epoch_deadline(1);
            store
        }

        pub(super) async fn instance(&self) -> Kept {
            let mut store = self.store();
            let exports = self.pre.instantiate_async(&mut store).await.expect("an instance");
            Kept { store, exports }
        }

        pub(super) async fn fresh(&self, message: &types::Message) {
            let mut kept = self.instance().await;
            kept.call(message).await;
        }
    }

    impl Kept {
        pub(super) async fn call(&mut self, message: &types::Message) {
            self.store.set_epoch_deadline(1);
            let answer = self.exports.call_handle(&mut self.store, message).await.expect("the call");
            std::hint::black_box(&answer);
        }
    }
}
