//! The machine a figure was measured on: a number without it means nothing.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

/// Processor, cores, kernel, memory, file system of `dir`: one line.
pub fn describe(dir: &Path) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.split_once(':').map(|(_, value)| value.trim().to_owned()))
            .unwrap_or_else(|| "?".into())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{}, {cores} cores, {} memory, Linux {}, data on {}",
        field(&read("/proc/cpuinfo"), "model name"),
        field(&read("/proc/meminfo"), "MemTotal"),
        kernel.trim(),
        file_system(dir),
    )
}

/// The type of the file system that holds `dir`.
fn file_system(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (_, at, kind) = (words.next()?, words.next()?, words.next()?);
            dir.starts_with(at).then(|| (at.len(), kind.to_owned()))
        })
        .max_by_key(|(len, _)| *len)
        .map_or_else(|| "?".into(), |(_, kind)| kind)
}

/// What one fsync of 4 KiB costs in `dir`, `times` times, sorted.
pub fn fsyncs(dir: &Path, times: usize) -> std::io::Result<Vec<Duration>> {
    let path = dir.join("fsync-probe");
    let mut file = File::create(&path)?;
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        file.write_all(&[0; 4_096])?;
        let began = Instant::now();
        file.sync_data()?;
        took.push(began.elapsed());
    }
    fs::remove_file(path)?;
    took.sort_unstable();
    Ok(took)
}

/// Bytes of this process, or of another, that are in memory.
pub fn resident(pid: Option<u32>) -> u64 {
    let path = pid.map_or_else(|| "/proc/self/status".into(), |pid| format!("/proc/{pid}/status"));
    let status = fs::read_to_string(path).unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}
