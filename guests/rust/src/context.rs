//! Where and how this run takes place.

use std::time::Duration;

use crate::bindings::sprag::handler::context;

pub use crate::bindings::sprag::handler::context::TraceContext;

/// The endpoint's configured name.
pub fn endpoint() -> String {
    context::endpoint()
}

/// The handler's configured name.
pub fn handler() -> String {
    context::handler()
}

/// Which run of this event this is, counted from 1.
pub fn attempt() -> u32 {
    context::attempt()
}

/// What is left before the run is stopped as `timeout`.
pub fn remaining() -> Duration {
    Duration::from_millis(context::remaining())
}

/// W3C trace context of the message, if it carries one.
pub fn trace() -> Option<TraceContext> {
    context::trace()
}
