//! The embedded broker's face to the network: what an Azure Service Bus client sees.
//!
//! Start reading at [`amqp`] (AMQP 1.0: messages) and [`administration`] (HTTP: entities and rules); [`access`] says who may do what in both.
//! Queues and sessions are the engine's (`sprag-broker`), frames are `sprag-amqp`'s; this crate joins the two.

pub mod access;
pub mod administration;
pub mod amqp;
