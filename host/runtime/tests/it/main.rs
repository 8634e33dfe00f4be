//! The runtime with real components: guests from `guests/test`, built by `guests/test/build`.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the answer")]

mod cache;
mod capabilities;
mod ends;
mod isolation;
mod load;
mod pool;
mod registry;
mod reload;
mod state;
mod support;
