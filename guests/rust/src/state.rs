//! Key-value pairs that belong to the endpoint and commit with the run.
//!
//! A run sees its own writes. What it read is checked again when it commits: if another run changed it meanwhile, nothing
//! commits and the run is repeated.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::bindings::sprag::handler::state;

pub use crate::bindings::sprag::handler::state::{Entry, StateError};

/// How many entries [`scan`] asks for at a time: the most that the host gives.
const PAGE: u32 = 1_000;

pub fn get(key: &str) -> Result<Option<Vec<u8>>, StateError> {
    state::get(key)
}

/// The value of this key, read as JSON.
pub fn get_json<T: DeserializeOwned>(key: &str) -> Result<Option<T>, Failure> {
    let Some(bytes) = state::get(key)? else { return Ok(None) };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| Failure::failed("state-value", format!("state {key:?}: {error}")))
}

pub fn set(key: &str, value: &[u8]) -> Result<(), StateError> {
    state::set(key, value)
}

pub fn set_json(key: &str, value: &impl Serialize) -> Result<(), Failure> {
    Ok(state::set(key, &serde_json::to_vec(value)?)?)
}

/// Deleting what is not there is no error.
pub fn delete(key: &str) -> Result<(), StateError> {
    state::delete(key)
}

/// Sets `value` (none: deletes) if the key now holds `expected` (none: is not there). Answers whether it did.
pub fn compare_and_set(key: &str, expected: Option<&[u8]>, value: Option<&[u8]>) -> Result<bool, StateError> {
    state::compare_and_set(key, expected, value)
}

/// All entries whose key starts with `prefix`, in byte order of the keys.
pub fn scan(prefix: &str) -> Result<Vec<Entry>, StateError> {
    let mut entries = scan_page(prefix, None, PAGE)?;
    let mut last_page = entries.len();
    while last_page == PAGE as usize {
        let page = scan_page(prefix, entries.last().map(|entry| entry.key.as_str()), PAGE)?;
        last_page = page.len();
        entries.extend(page);
    }
    Ok(entries)
}

/// Entries whose key starts with `prefix`, after the key `after`, at most `limit` (1 to 1,000).
pub fn scan_page(prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Entry>, StateError> {
    state::scan(prefix, after, limit)
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Failure {
        match error {
            StateError::Invalid(text) => Failure::failed("state-invalid", text),
            // The run ends as transient whatever it returns; this says the same.
            StateError::Unavailable => Failure::transient("the state's store could not be reached"),
        }
    }
}
