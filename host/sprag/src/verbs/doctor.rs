//! What this machine offers: for a person who wonders why something is slow or missing.

use std::{
    fs,
    io::Write as _,
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    cli::DoctorArgs,
    client::{Client, HostArgs},
    config,
    failure::{Exit, Outcome},
    hostfile::HostFile,
    output::{self, Cell, GOOD, Table, WAITING, cell},
};

#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    ok: bool,
    text: String,
}

/// Kernels from here on have the scan that makes fresh instances cheap.
const PAGEMAP_SCAN: (u32, u32) = (6, 7);

pub(crate) fn doctor(args: &DoctorArgs) -> Outcome {
    let findings = [kernel(), pool(), processors(), disk(&args.dir), fsync(&args.dir), port(), host(&args.dir)]
        .into_iter()
        .chain(toolchains());
    let findings: Vec<Finding> = findings.collect();
    if args.json {
        output::json(&findings)?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["WHAT", "", "FOUND"]);
    for finding in &findings {
        let mark = if finding.ok { Cell("ok".to_owned(), GOOD) } else { Cell("note".to_owned(), WAITING) };
        table.row(vec![cell(finding.name), mark, cell(&finding.text)]);
    }
    let mut text = Vec::new();
    table.write(&mut text).map_err(|error| crate::failure::Failure::failed(error.to_string()))?;
    output::line(String::from_utf8_lossy(&text).trim_end())?;
    Ok(Exit::Done)
}

fn finding(name: &'static str, ok: bool, text: impl Into<String>) -> Finding {
    Finding { name, ok, text: text.into() }
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    finding("kernel", true, format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()))
}

fn pool() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= PAGEMAP_SCAN {
        finding("instance pool", true, "the kernel can scan for changed pages: fresh instances are cheap")
    } else {
        finding(
            "instance pool",
            false,
            format!(
                "the kernel is older than {}.{}: a fresh instance costs about three times as much",
                PAGEMAP_SCAN.0, PAGEMAP_SCAN.1
            ),
        )
    }
}

fn processors() -> Finding {
    match std::thread::available_parallelism() {
        Ok(count) => finding("processors", count.get() > 1, count.to_string()),
        Err(error) => finding("processors", false, error.to_string()),
    }
}

fn disk(folder: &Path) -> Finding {
    match rustix::fs::statvfs(folder) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            finding(
                "disk",
                free > 1 << 30,
                format!("{} free in {}", bytesize::ByteSize(free).display().iec(), folder.display()),
            )
        }
        Err(error) => finding("disk", false, format!("{}: {error}", folder.display())),
    }
}

/// What one durable write costs here: the floor under every latency.
fn fsync(folder: &Path) -> Finding {
    const ROUNDS: usize = 21;
    let measure = || -> std::io::Result<Duration> {
        let mut file = tempfile::tempfile_in(folder)?;
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            file.write_all(&[0; 4_096])?;
            let began = Instant::now();
            file.sync_data()?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        Ok(times[ROUNDS / 2])
    };
    match measure() {
        Ok(median) => finding(
            "fsync",
            median < Duration::from_millis(20),
            format!("{:.2} ms at the median of {ROUNDS}", median.as_secs_f64() * 1_000.0),
        ),
        Err(error) => finding("fsync", false, format!("cannot write in {}: {error}", folder.display())),
    }
}

fn port() -> Finding {
    match TcpListener::bind(config::CONSOLE) {
        Ok(_) => finding("port", true, format!("{} is free", config::CONSOLE)),
        Err(error) => finding(
            "port",
            false,
            format!("{}: {error}; `sprag dev --console 127.0.0.1:0` takes another", config::CONSOLE),
        ),
    }
}

fn host(folder: &Path) -> Finding {
    match HostFile::find(folder) {
        Ok(None) => finding("host", true, "none runs here"),
        Err(error) => finding("host", false, error.to_string()),
        Ok(Some((path, file))) => {
            let args = HostArgs { host: None, token: None, dir: folder.to_owned() };
            let answer = Client::connect(&args).and_then(|client| client.get::<serde_json::Value>("health", &[]));
            match answer {
                Ok(health) => finding(
                    "host",
                    health["ready"] == true,
                    format!("process {} at {}, ready: {}", file.pid, file.address, health["ready"]),
                ),
                Err(_) => finding(
                    "host",
                    false,
                    format!("{} names process {} at {}, which does not answer", path.display(), file.pid, file.address),
                ),
            }
        }
    }
}

fn toolchains() -> Vec<Finding> {
    [
        ("Rust", "cargo", "--version", "handlers in Rust: https://rustup.rs, then `rustup target add wasm32-wasip2`"),
        ("Node", "node", "--version", "handlers in JavaScript: https://nodejs.org"),
        ("Python", "python3", "--version", "handlers in Python: python3"),
        ("componentize-py", "componentize-py", "--version", "handlers in Python: `pip install componentize-py`"),
    ]
    .into_iter()
    .map(|(name, program, argument, missing)| {
        let output = Command::new(program).arg(argument).stdin(Stdio::null()).stderr(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => {
                finding(name, true, String::from_utf8_lossy(&output.stdout).trim())
            }
            _ => finding(name, false, format!("not found; for {missing}")),
        }
    })
    .chain([rust_target()])
    .collect()
}

/// Whether the toolchain on the path can build for a component's target.
fn rust_target() -> Finding {
    let sysroot =
        Command::new("rustc").args(["--print", "sysroot"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let lib = match sysroot {
        Ok(output) if output.status.success() => {
            Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("lib/rustlib")
        }
        _ => return finding("Rust target", false, "no rustc"),
    };
    let found: Vec<&str> = ["wasm32-wasip2", "wasm32-unknown-unknown"]
        .into_iter()
        .filter(|target| fs::exists(lib.join(target)).unwrap_or(false))
        .collect();
    if found.is_empty() {
        finding("Rust target", false, "none; `rustup target add wasm32-wasip2`")
    } else {
        finding("Rust target", true, found.join(", "))
    }
}
