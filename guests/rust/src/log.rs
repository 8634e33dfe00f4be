//! Lines for the host's log. They carry the message's ids by themselves: `log::info(format_args!("charged {cents}"))`.

use std::fmt::Display;

use crate::bindings::sprag::handler::log::{Level, write};

pub fn debug(text: impl Display) {
    write(Level::Debug, &text.to_string());
}

pub fn info(text: impl Display) {
    write(Level::Info, &text.to_string());
}

pub fn warn(text: impl Display) {
    write(Level::Warn, &text.to_string());
}

pub fn error(text: impl Display) {
    write(Level::Error, &text.to_string());
}
