//! The runtime with real components: guests from `guests/test`, built by `guests/test/build`.

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
