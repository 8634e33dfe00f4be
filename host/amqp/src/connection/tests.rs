//! Whole conversations between a client made of this crate's own encoder and a connection, without a socket.

mod client;
mod straight;
