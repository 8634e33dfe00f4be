//! Whole conversations between a client made of this crate's own encoder and a connection, without a socket.

pub(crate) mod client;
mod errors;
mod flow;
mod links;
mod login;
mod straight;
mod timers;
mod transfers;
