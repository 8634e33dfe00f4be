//! How fast the broker is over AMQP, next to plain batched SQLite that writes the same rows in the same run.
//!
//! Part of `./x bench`; alone: `cargo bench --workspace --bench amqp -- [--quick] [--json FILE] [--only PART]`. Parts: ready, send, batches,
//! receive, crowd. Figures are added to those that the file has, which is how one file gets those of all benchmarks.
//! The broker is a process of its own; the clients are in this one, over TCP, and share the machine with it. They are the client of the
//! tests, which costs less than an SDK: the figures are the broker's, not an SDK's. A busy machine makes a few milliseconds of each fsync,
//! and clients that wait for their outcomes get no more answers from one than they have asked for: that is printed beside each figure.

#[path = "../../tests/support/mod.rs"]
mod support;

mod broker;
#[path = "../../../broker/benches/limit/mod.rs"]
mod limit;
mod load;

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// As in the command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The goals of issue 3 on two shared cores.
const READY_GOAL: f64 = 1_000.0;
const SEND_GOAL: f64 = 5_000.0;
const BATCHES_GOAL: f64 = 20_000.0;
const RECEIVE_GOAL: f64 = 5_000.0;
const MEMORY_GOAL_MIB: f64 = 400.0;

#[derive(Default)]
struct Arguments {
    quick: bool,
    json: Option<String>,
    only: Option<String>,
    broker: Option<String>,
}

fn arguments() -> Arguments {
    let mut arguments = Arguments::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => arguments.quick = true,
            "--json" => arguments.json = Some(words.next().expect("--json takes a file")),
            "--only" => arguments.only = Some(words.next().expect("--only takes a part")),
            broker::ARGUMENT => arguments.broker = Some(words.next().expect("a folder follows")),
            // `cargo bench` passes this.
            "--bench" => {}
            // `cargo nextest` lists and `cargo test` runs benches to see that they start; that is not a measurement.
            "--test" | "--list" => std::process::exit(0),
            other => panic!("no such option: {other}"),
        }
    }
    const PARTS: [&str; 5] = ["ready", "send", "batches", "receive", "crowd"];
    if let Some(only) = &arguments.only {
        assert!(PARTS.contains(&only.as_str()), "no such part: {only}; there are {PARTS:?}");
    }
    arguments
}

fn main() {
    let arguments = arguments();
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).expect("as many files as are allowed");
    let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("an executor");
    if let Some(folder) = arguments.broker {
        return executor.block_on(broker::serve(Path::new(&folder)));
    }
    let base = tempfile::tempdir().expect("a temporary folder");
    let machine = machine(base.path());
    println!("machine   {machine}");
    println!("command   ./x bench{}", if arguments.quick { " --quick" } else { "" });
    println!("broker    a process of its own; clients on the same cores, over TCP; bodies of {} B", load::BODY);
    let bench = Bench { executor, base: base.path(), quick: arguments.quick };
    let mut report = Report::default();
    let wanted = |part: &str| arguments.only.as_deref().is_none_or(|only| only == part);
    if wanted("ready") {
        bench.ready(&mut report);
    }
    if wanted("send") {
        bench.send("send", 1, SEND_GOAL, &mut report);
    }
    if wanted("batches") {
        bench.send("batches", load::BATCH, BATCHES_GOAL, &mut report);
    }
    if wanted("receive") {
        bench.receive("receive", 1, &mut report);
        bench.receive("receive_many", load::IN_FLIGHT, &mut report);
    }
    if wanted("crowd") {
        bench.crowd(&mut report);
    }
    if let Some(file) = arguments.json {
        report.add_to(&file, machine);
        println!("written   {file}");
    }
}

/// Where a figure was measured: a number without it means nothing.
fn machine(dir: &Path) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo");
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mounts = read("/proc/self/mounts");
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    let (_, data) = mounts.filter(|(at, _)| dir.starts_with(at)).max_by_key(|(at, _)| at.len()).unwrap_or(("", "?"));
    let load = read("/proc/loadavg");
    format!(
        "{}, {cores} cores, Linux {}, data on {data}, load before {}",
        processor.map_or("?", |(_, name)| name),
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or("?"),
    )
}

#[derive(Default)]
struct Report(BTreeMap<String, Value>);

impl Report {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// Writes the file, with what is in it already.
    fn add_to(self, file: &str, machine: String) {
        let mut all: BTreeMap<String, Value> = match fs::read_to_string(file) {
            Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file} is no report: {error}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => panic!("{file}: {error}"),
        };
        all.extend(self.0);
        all.entry("machine".to_owned()).or_insert_with(|| machine.into());
        let text = serde_json::to_string_pretty(&all).expect("numbers and texts are JSON");
        fs::write(file, text + "\n").unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}

/// Median, and the two ends.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Self { low: values[0], median: values[values.len() / 2], high: values[values.len() - 1] }
    }

    fn json(&self) -> Value {
        json!({ "min": self.low, "median": self.median, "max": self.high })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(f, "{:.*} ({:.*} to {:.*})", digits, self.median, digits, self.low, digits, self.high)
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// A figure beside its limit.
struct Row<'a> {
    name: &'a str,
    title: &'a str,
    /// What SQLite does meanwhile.
    rows: &'a str,
    /// Messages that wait for an answer at a time.
    in_flight: usize,
    goal: f64,
}

struct Bench<'a> {
    executor: Runtime,
    base: &'a Path,
    quick: bool,
}

impl Bench<'_> {
    fn rounds(&self) -> usize {
        if self.quick { 3 } else { 5 }
    }

    /// What `run` makes in a new folder.
    fn in_folder<T>(&self, run: impl FnOnce(&Path) -> T) -> T {
        let dir = tempfile::tempdir_in(self.base).expect("a folder");
        run(dir.path())
    }

    fn ready(&self, report: &mut Report) {
        let times = if self.quick { 5 } else { 15 };
        let one = |_| self.in_folder(|dir| self.executor.block_on(load::ready(dir)).as_secs_f64() * 1e3);
        let ready = Spread::of((0..times).map(one).collect());
        println!("\nthe broker's process starts in an empty folder, {times} times: median (least to most)");
        println!("  until a client may send {ready} ms   goal {READY_GOAL:.0}: {}", verdict(ready.median < READY_GOAL));
        report.put("broker_ready_ms", ready.json());
    }

    fn send(&self, name: &str, batch: usize, goal: f64, report: &mut Report) {
        let time = Duration::from_secs(if self.quick { 1 } else { 3 });
        let title = format!("{} senders, a connection each, {batch} in a transfer, outcome awaited", load::SENDERS);
        let row = Row { name, title: &title, rows: "inserts", in_flight: load::SENDERS * batch, goal };
        self.beside_sqlite(&row, report, |dir, limit| {
            (self.executor.block_on(load::sends(dir, batch, time)), limit.insert)
        });
    }

    fn receive(&self, name: &str, in_flight: usize, report: &mut Report) {
        let messages = if self.quick { 10_000 } else { 40_000 };
        let title = format!(
            "{} receivers, a connection each, credit {}, completions that each waits for: {in_flight}",
            load::RECEIVERS,
            load::CREDIT
        );
        let row =
            Row { name, title: &title, rows: "deletes", in_flight: load::RECEIVERS * in_flight, goal: RECEIVE_GOAL };
        self.beside_sqlite(&row, report, |dir, limit| {
            (self.executor.block_on(load::receives(dir, messages, in_flight)), limit.delete)
        });
    }

    fn beside_sqlite(&self, row: &Row<'_>, report: &mut Report, run: impl Fn(&Path, limit::Limit) -> (f64, f64)) {
        let Row { name, title, rows, in_flight, goal } = *row;
        let (mut rates, mut limits, mut ratios, mut fsyncs) = (vec![], vec![], vec![], vec![]);
        for _ in 0..self.rounds() {
            let messages = if self.quick { 20_000 } else { 100_000 };
            let limit = self.in_folder(|dir| limit::inserts_and_deletes(dir, messages, load::BODY));
            fsyncs.push(self.in_folder(limit::fsync).as_secs_f64() * 1e3);
            let (rate, limit) = self.in_folder(|dir| run(dir, limit));
            rates.push(rate);
            limits.push(limit);
            ratios.push(rate / limit);
        }
        let (rate, limit, ratio, fsync) =
            (Spread::of(rates), Spread::of(limits), Spread::of(ratios), Spread::of(fsyncs));
        println!("\n{name}: {title}, {} rounds", self.rounds());
        println!("  plain batched SQLite {rows} {limit} messages/s");
        // Clients that wait can have no more answers from one write than they have asked for.
        println!(
            "  fsync                        {fsync:.2} ms, for {in_flight} that wait: {:.0} messages/s",
            in_flight as f64 * 1e3 / fsync.median
        );
        println!("  the broker                   {rate} messages/s   goal {goal:.0}: {}", verdict(rate.median >= goal));
        println!("  of that limit                {ratio:.2}");
        report.put(&format!("amqp_{name}_per_s"), rate.json());
        report.put(&format!("amqp_{name}_sqlite_limit"), limit.json());
        report.put(&format!("amqp_{name}_of_sqlite_limit"), ratio.json());
        report.put(&format!("amqp_{name}_fsync_ms"), fsync.json());
    }

    fn crowd(&self, report: &mut Report) {
        let (before, memory) = self.in_folder(|dir| self.executor.block_on(load::crowd(dir)));
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (before, memory) = (mib(before), mib(memory));
        println!(
            "\n{} connections that hold {} sessions, each with a message in hand, once",
            load::CONNECTIONS,
            load::HELD
        );
        println!("  resident, without them {before:.0} MiB");
        println!(
            "  resident, with them    {memory:.0} MiB   goal {MEMORY_GOAL_MIB:.0}: {}",
            verdict(memory < MEMORY_GOAL_MIB)
        );
        report.put("amqp_crowd_resident_mib", json!({ "without": before, "with": memory }));
    }
}
