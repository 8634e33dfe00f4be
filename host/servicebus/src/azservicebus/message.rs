//! Messages between the two lines of AMQP crates: by their bytes, which are the same for both.

use ::azservicebus::{ServiceBusMessage, ServiceBusReceivedMessage};
use bytes::Bytes;
use fe2o3_amqp_types_014::messaging::{
    Body, Data, Message as AmqpMessage,
    message::__private::{Deserializable, Serializable},
};
use serde_amqp_014::Value;
use sprag_core::message::Message;
use sprag_transport::Error;

use crate::{
    fault::Fault,
    message::{self, Received},
};

/// Refused is what the crate has no way to send: a body that is not one section of data.
pub(super) fn to_crate(message: &Message) -> Result<ServiceBusMessage, Error> {
    let bytes = message::encode(message);
    let decoded: Result<Deserializable<AmqpMessage<Data>>, _> = serde_amqp_014::from_slice(&bytes);
    decoded.map(|message| ServiceBusMessage::from_raw_amqp_message(message.0)).map_err(|error| {
        Error::Refused(format!("the client `azservicebus` sends bodies of one section of data only: {error}"))
    })
}

pub(super) fn from_crate(message: &ServiceBusReceivedMessage) -> Result<Received, Fault> {
    let raw: &AmqpMessage<Body<Value>> = message.raw_amqp_message();
    let unreadable = |problem: String| Fault::Refused(format!("a message cannot be read: {problem}"));
    let bytes = serde_amqp_014::to_vec(&Serializable(raw)).map_err(|error| unreadable(error.to_string()))?;
    Received::read(Bytes::from(bytes)).map_err(|error| unreadable(error.to_string()))
}
