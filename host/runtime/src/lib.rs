//! Runs handlers: WebAssembly components behind the contract in `wit/`.
//!
//! A handler is somebody's file. It may be half written, made for another version, spin for ever, ask for all memory or lie about
//! what it was told; none of that may cost more than its own run. So this crate gives every run a fresh instance, limits and a
//! named end, and keeps what the run wants to change as values ([`sprag_core::run::UnitOfWork`]) that somebody else commits.
//!
//! Start reading at [`Handler::run`] (`handler.rs`), then `host.rs` (what a guest can call), `ends.rs` (how an end gets its name) and
//! `component.rs` (what is refused at load). [`Registry`] says which handler serves an event; [`watch`] keeps it up to date.
//!
//! *Invariant:* this crate knows no store, no transport and no loop. What it needs of them are two small traits, [`StateReader`] and
//! [`Destinations`]; nothing a guest does takes effect here.

mod bindings;
mod cache;
mod component;
mod config;
mod convert;
mod ends;
mod engine;
mod handler;
mod host;
mod input;
mod instances;
mod keyvalue;
mod log;
pub mod registry;
mod run_state;
mod sql;
pub mod watch;

pub use self::{
    component::LoadError,
    config::{Folder, HandlerConfig, Isolation, Limits, PoolMode, RuntimeConfig},
    engine::{Error, Mode, Runtime},
    handler::{Compile, Handler, Info},
    input::{Anywhere, Destinations, NoState, RunInput, RunOutput, RunSql, StateReader, Trace, Unavailable},
    registry::{Registry, Resolution},
};
