//! The `state` import: what a run sees of its endpoint's key-value pairs.
//!
//! Writes stay here until the commit, and the run sees them. Reads are written down with their versions, for the commit to check (P4); a
//! key read twice is the same twice.

use bytes::Bytes;
use sprag_core::run::{StateRead, Version};

use crate::{
    bindings::sprag::handler::state::{Entry, Host, StateError},
    ends::Stop,
    run_state::{RunState, size},
};

/// As `wit/handler.wit` says.
const MAX_KEY: usize = 1_024;
const MAX_VALUE: usize = 1 << 20;
const MAX_SCAN: u32 = 1_000;
/// Reads of one run that the commit has to check.
const MAX_READS: usize = 100_000;
/// What a scan fetches at first; the next steps grow as the values' sizes allow, so that the host never holds much more than the
/// run's memory limit on a guest's behalf (A67).
const FIRST_STEP: u32 = 32;
const STEP_BYTES: usize = 4 << 20;

type Answer<T> = wasmtime::Result<Result<T, StateError>>;

impl Host for RunState {
    async fn get(&mut self, key: String) -> Answer<Option<Vec<u8>>> {
        if let Err(error) = check_key(&key) {
            return Ok(Err(error));
        }
        Ok(self.read(&key).await?.map(|value| value.map(|bytes| bytes.to_vec())))
    }

    async fn set(&mut self, key: String, value: Vec<u8>) -> Answer<()> {
        self.write(key, Some(value))
    }

    async fn delete(&mut self, key: String) -> Answer<()> {
        self.write(key, None)
    }

    async fn compare_and_set(
        &mut self,
        key: String,
        expected: Option<Vec<u8>>,
        value: Option<Vec<u8>>,
    ) -> Answer<bool> {
        if let Err(error) = check_key(&key) {
            return Ok(Err(error));
        }
        let now = match self.read(&key).await? {
            Ok(now) => now,
            Err(error) => return Ok(Err(error)),
        };
        if now.as_deref() != expected.as_deref() {
            return Ok(Ok(false));
        }
        Ok(self.write(key, value)?.map(|()| true))
    }

    async fn scan(&mut self, prefix: String, after: Option<String>, limit: u32) -> Answer<Vec<Entry>> {
        if limit == 0 || limit > MAX_SCAN {
            return Ok(Err(StateError::Invalid(format!("a scan takes a limit of 1 to {MAX_SCAN}, not {limit}"))));
        }
        if prefix.len() > MAX_KEY || after.as_ref().is_some_and(|after| after.len() > MAX_KEY) {
            return Ok(Err(StateError::Invalid(format!("a key has at most {MAX_KEY} bytes"))));
        }
        let limit = limit as usize;
        let mut found = Vec::new();
        let mut after = after;
        // The run's own writes that the range has, in order, not yet merged in.
        let mut own: std::collections::VecDeque<(String, Option<Bytes>)> = self
            .work
            .writes
            .range(prefix.clone()..)
            .take_while(|(key, _)| key.starts_with(&prefix))
            .filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut step = FIRST_STEP.min(limit as u32);
        loop {
            let stored = match self.fetch(&prefix, after.as_deref(), step).await? {
                Ok(stored) => stored,
                Err(error) => return Ok(Err(error)),
            };
            let last = stored.len() < step as usize;
            let fetched: usize = stored.iter().map(|(key, value)| key.len() + value.len()).sum();
            for (key, value) in stored {
                while let Some((first, _)) = own.front().filter(|(own, _)| *own < key) {
                    debug_assert!(!first.is_empty());
                    let (own_key, own_value) = own.pop_front().expect("looked at just now");
                    found.extend(own_value.map(|value| (own_key, value)));
                }
                match own.front() {
                    Some((first, _)) if *first == key => {
                        let (own_key, own_value) = own.pop_front().expect("looked at just now");
                        found.extend(own_value.map(|value| (own_key, value)));
                    }
                    _ => found.push((key.clone(), value)),
                }
                after = Some(key);
            }
            if last {
                found.extend(own.into_iter().filter_map(|(key, value)| Some((key, value?))));
                break;
            }
            if found.len() >= limit {
                break;
            }
            let each = (fetched / step as usize).max(1);
            step = u32::try_from(STEP_BYTES / each)
                .unwrap_or(u32::MAX)
                .clamp(FIRST_STEP, MAX_SCAN)
                .min((limit - found.len()) as u32 + 1);
        }
        found.truncate(limit);
        Ok(Ok(found.into_iter().map(|(key, value)| Entry { key, value: value.to_vec() }).collect()))
    }
}

impl RunState {
    async fn read(&mut self, key: &str) -> Answer<Option<Bytes>> {
        if let Some(own) = self.work.writes.get(key) {
            return Ok(Ok(own.clone()));
        }
        if let Some((value, _)) = self.work.seen.get(key) {
            return Ok(Ok(value.clone()));
        }
        let read = self.input.state.get(&self.input.endpoint, key).await;
        let (value, version) = match read {
            Ok(Some((value, version))) => (Some(value), version),
            Ok(None) => (None, Version::default()),
            Err(error) => return Ok(Err(self.unavailable(error.0))),
        };
        self.hold(key.len() * 2 + value.as_ref().map_or(0, Bytes::len))?;
        self.note(StateRead::Key { key: key.to_owned(), version })?;
        self.work.seen.insert(key.to_owned(), (value.clone(), version));
        Ok(Ok(value))
    }

    /// One step of a scan, written down as a read.
    async fn fetch(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Answer<Vec<(String, Bytes)>> {
        let stored = match self.input.state.scan(&self.input.endpoint, prefix, after, limit).await {
            Ok(stored) => stored,
            Err(error) => return Ok(Err(self.unavailable(error.0))),
        };
        self.hold(stored.iter().map(|(key, value, _)| key.len() * 2 + value.len()).sum())?;
        let found = stored.iter().map(|(key, _, version)| (key.clone(), *version)).collect();
        self.note(StateRead::Scan { prefix: prefix.to_owned(), after: after.map(str::to_owned), limit, found })?;
        Ok(Ok(stored.into_iter().map(|(key, value, _)| (key, value)).collect()))
    }

    fn write(&mut self, key: String, value: Option<Vec<u8>>) -> Answer<()> {
        if let Err(error) = check_key(&key) {
            return Ok(Err(error));
        }
        let len = value.as_ref().map_or(0, Vec::len);
        if len > MAX_VALUE {
            return Ok(Err(StateError::Invalid(format!(
                "a value has at most {}, this one {}",
                size(MAX_VALUE),
                size(len)
            ))));
        }
        let limit = self.shared.config.limits.outgoing_bytes;
        // A key written before gives back what it took.
        let before = self.work.writes.get(&key).map_or(0, |old| cost(&key, old.as_ref().map_or(0, Bytes::len)));
        let bytes = self.work.bytes - before + cost(&key, len);
        if bytes > limit {
            let text = format!("outgoing messages and state writes of more than {} (limits.outgoing)", size(limit));
            self.faults.output = Some(text.clone());
            return Err(wasmtime::Error::new(Stop::Output(text)));
        }
        self.work.bytes = bytes;
        self.work.writes.insert(key, value.map(Bytes::from));
        Ok(Ok(()))
    }

    fn unavailable(&mut self, text: String) -> StateError {
        self.faults.store.get_or_insert(text);
        StateError::Unavailable
    }

    fn hold(&mut self, bytes: usize) -> wasmtime::Result<()> {
        self.work.held += bytes;
        let limit = self.shared.config.limits.memory;
        if self.work.held > limit {
            let text = format!("more than {} of state were read in one run (limits.memory)", size(limit));
            self.limiter.denied = Some(text.clone());
            return Err(wasmtime::Error::new(Stop::Memory(text)));
        }
        Ok(())
    }

    fn note(&mut self, read: StateRead) -> wasmtime::Result<()> {
        if self.work.reads.len() >= MAX_READS {
            let text = format!("more than {MAX_READS} reads of state in one run");
            self.limiter.denied = Some(text.clone());
            return Err(wasmtime::Error::new(Stop::Memory(text)));
        }
        self.work.reads.push(read);
        Ok(())
    }
}

/// What one write counts: key and value, and something for having them at all.
fn cost(key: &str, value: usize) -> usize {
    key.len() + value + 64
}

fn check_key(key: &str) -> Result<(), StateError> {
    match key.len() {
        0 => Err(StateError::Invalid("the key is empty".into())),
        len if len > MAX_KEY => Err(StateError::Invalid(format!("a key has at most {MAX_KEY} bytes, this one {len}"))),
        _ => Ok(()),
    }
}
