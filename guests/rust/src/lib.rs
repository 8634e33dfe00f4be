//! Message handlers for Sprag, in Rust.
//!
//! A handler is a type that says which events it takes and what it does with one message:
//!
//! ```
//! use sprag_handler::{Failure, Handler, Message, Success};
//!
//! #[derive(serde::Deserialize)]
//! struct OrderPlaced { order: String, total_cents: u64 }
//!
//! struct Orders;
//!
//! impl Handler for Orders {
//!     const EVENT_TYPES: &[&str] = &["OrderPlaced"];
//!
//!     fn handle(message: Message) -> Result<Success, Failure> {
//!         let placed: OrderPlaced = message.json()?;
//!         if placed.total_cents == 0 {
//!             return Err(Failure::failed("empty-order", format!("order {} costs nothing", placed.order)));
//!         }
//!         Ok(Success::Done)
//!     }
//! }
//!
//! sprag_handler::export!(Orders);
//! ```
//!
//! Nothing that a run publishes or writes to its state takes effect before it has returned success, and then
//! everything does, in one step with the record that the message is done. So a handler may be run again for the
//! same message, and need not undo anything when it fails.
//!
//! The features `state`, `sql` and `config` add the modules of those names, and with them the import that `sprag.toml`
//! must grant. A component only imports what it calls.

#[cfg(all(feature = "memory", target_arch = "wasm32"))]
mod memory;
mod message;
mod outcome;
mod outgoing;

pub mod context;
pub mod log;

#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "sql")]
pub mod sql;
#[cfg(feature = "state")]
pub mod state;

pub use bindings::sprag::handler::outgoing::PublishError;
pub use bindings::sprag::handler::types::{
    BodyKind, DeadLetter, Failed, Failure, Handoff, Message, Property, PropertyValue, Success, Transient,
};
pub use message::Event;
pub use outgoing::Outgoing;

/// What `wit-bindgen` makes of the contract: for [`export!`], and for what this crate does not wrap.
#[doc(hidden)]
pub mod bindings {
    #![allow(missing_docs, clippy::all, reason = "generated")]
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package sprag:sdk;
            world guest {
                include sprag:handler/handler@0.1.0;
                import sprag:handler/state@0.1.0;
                import sprag:handler/sql@0.1.0;
                import sprag:handler/config@0.1.0;
            }
        ",
        world: "sprag:sdk/guest",
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_bindings",
        default_bindings_module: "sprag_handler::bindings",
        runtime_path: "::sprag_handler::__wit_bindgen::rt",
    });
}

#[doc(hidden)]
pub use wit_bindgen as __wit_bindgen;
// The generated code names its runtime by this crate's name, inside this crate too.
extern crate self as sprag_handler;

/// A message handler. [`export!`] makes a type that implements it the component's handler.
pub trait Handler {
    /// The event types it takes; `*` stands for any type that no other handler of the endpoint names.
    const EVENT_TYPES: &[&str];

    /// Handles one message. `Err` drops everything this run published or wrote.
    fn handle(message: Message) -> Result<Success, Failure>;
}

/// Makes a [`Handler`] the one that this component exports. Once in a crate, at its top level.
#[macro_export]
macro_rules! export {
    ($handler:ty) => {
        const _: () = {
            struct Exported;

            impl $crate::bindings::Guest for Exported {
                fn describe() -> $crate::bindings::sprag::handler::types::HandlerInfo {
                    $crate::__describe::<$handler>()
                }

                fn handle(message: $crate::Message) -> ::core::result::Result<$crate::Success, $crate::Failure> {
                    $crate::__handle::<$handler>(message)
                }
            }

    $crate::bindings::export_bindings!(Exported with_types_in $crate::bindings);
        };
    };
}

#[doc(hidden)]
pub fn __describe<H: Handler>() -> bindings::sprag::handler::types::HandlerInfo {
    bindings::sprag::handler::types::HandlerInfo {
        event_types: H::EVENT_TYPES.iter().map(|name| name.to_string()).collect(),
    }
}

#[doc(hidden)]
pub fn __handle<H: Handler>(message: Message) -> Result<Success, Failure> {
    // A panic ends the run as `trap`, which says nothing; its text belongs into the host's log.
    std::panic::set_hook(Box::new(|panic| log::error(panic)));
    H::handle(message)
}
