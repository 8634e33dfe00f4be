//! The handler's table `config` in `sprag.toml`.

use serde::de::DeserializeOwned;

use crate::Failure;
use crate::bindings::sprag::handler::config;

/// The value of this key: a text as it is, everything else as JSON.
pub fn get(key: &str) -> Option<String> {
    config::get(key)
}

/// The value of this key, a number, list or table, read as JSON.
pub fn json<T: DeserializeOwned>(key: &str) -> Result<Option<T>, Failure> {
    let Some(text) = config::get(key) else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| Failure::failed("configuration", format!("config.{key} = {text:?}: {error}")))
}

pub fn all() -> Vec<(String, String)> {
    config::all()
}
