//! The way to the broker, and what every scenario does with it.

use std::time::Duration;

use azservicebus::{
    ServiceBusClient, ServiceBusClientOptions, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusReceivedMessage,
    ServiceBusReceiver, ServiceBusReceiverOptions, ServiceBusRetryOptions, ServiceBusSender, ServiceBusSessionReceiver,
    ServiceBusSessionReceiverOptions, SubQueue, authorization::AzureNamedKeyCredential, core::BasicRetryPolicy,
};
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::scenario::{Outcome, equal};

pub(crate) type Client = ServiceBusClient<BasicRetryPolicy>;

/// How long a message that is there may take to come.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// How long one looks for what should not be there.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(700);

pub(crate) async fn client() -> Outcome<Client> {
    connect(ServiceBusRetryOptions::default()).await
}

/// One that does not try again what was refused.
pub(crate) async fn impatient() -> Outcome<Client> {
    connect(ServiceBusRetryOptions { max_retries: 0, ..ServiceBusRetryOptions::default() }).await
}

pub(crate) async fn connect(retry_options: ServiceBusRetryOptions) -> Outcome<Client> {
    let connection = std::env::var("SPRAG_SERVICEBUS")?;
    let options = ServiceBusClientOptions { retry_options, ..ServiceBusClientOptions::default() };
    if !connection.contains("UseDevelopmentEmulator=true") {
        return Ok(ServiceBusClient::new_from_connection_string(connection, options).await?);
    }
    // It does not know that word, and drops the port of a connection string: the way to an emulator is by name and key.
    let part = |name: &str| {
        let found = connection.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        found.ok_or_else(|| format!("the connection string says no {name}"))
    };
    let address = part("Endpoint")?.trim_start_matches("sb://").trim_end_matches('/').to_owned();
    let key = AzureNamedKeyCredential::new(part("SharedAccessKeyName")?, part("SharedAccessKey")?);
    Ok(ServiceBusClient::unsecured().new_from_named_key_credential(address, key, options).await?)
}

pub(crate) async fn sender(client: &mut Client, entity: &str) -> Outcome<ServiceBusSender> {
    Ok(client.create_sender(entity, Default::default()).await?)
}

/// Sends with a sender of its own. It is disposed of and not dropped: what is dropped ends the client's session, and all else that
/// the client has made hangs from then on.
pub(crate) async fn send<M: Into<ServiceBusMessage>>(
    client: &mut Client,
    entity: &str,
    messages: impl IntoIterator<Item = M, IntoIter: ExactSizeIterator + Send>,
) -> Outcome {
    let mut sender = sender(client, entity).await?;
    sender.send_messages(messages).await?;
    Ok(sender.dispose().await?)
}

pub(crate) async fn receiver(client: &mut Client, queue: &str) -> Outcome<ServiceBusReceiver> {
    Ok(client.create_receiver_for_queue(queue, Default::default()).await?)
}

pub(crate) async fn dead_letters(client: &mut Client, queue: &str) -> Outcome<ServiceBusReceiver> {
    let options = ServiceBusReceiverOptions { sub_queue: SubQueue::DeadLetter, ..Default::default() };
    Ok(client.create_receiver_for_queue(queue, options).await?)
}

pub(crate) fn deleting(prefetch_count: u32) -> ServiceBusReceiverOptions {
    ServiceBusReceiverOptions {
        receive_mode: ServiceBusReceiveMode::ReceiveAndDelete,
        prefetch_count,
        ..Default::default()
    }
}

pub(crate) async fn session(client: &mut Client, queue: &str, id: &str) -> Outcome<ServiceBusSessionReceiver> {
    Ok(client.accept_session_for_queue(queue, id, ServiceBusSessionReceiverOptions::default()).await?)
}

pub(crate) fn message(body: impl Into<String>) -> ServiceBusMessage {
    ServiceBusMessage::new(body.into())
}

pub(crate) fn named(body: impl Into<String>, id: &str) -> Outcome<ServiceBusMessage> {
    let mut message = message(body);
    message.set_message_id(id)?;
    Ok(message)
}

pub(crate) fn in_session(body: impl Into<String>, id: &str) -> Outcome<ServiceBusMessage> {
    let mut message = message(body);
    message.set_session_id(id.to_owned())?;
    Ok(message)
}

pub(crate) fn text(message: &ServiceBusReceivedMessage) -> Outcome<String> {
    Ok(String::from_utf8(message.body()?.to_vec())?)
}

pub(crate) fn texts(messages: &[ServiceBusReceivedMessage]) -> Outcome<Vec<String>> {
    messages.iter().map(text).collect()
}

pub(crate) fn utc(seconds: f64) -> OffsetDateTime {
    OffsetDateTime::now_utc() + time::Duration::seconds_f64(seconds)
}

/// The two kinds of receivers do the same, and have nothing in common but the names.
macro_rules! receiving {
    ($one:ident, $some:ident, $none:ident, $receiver:ty) => {
        pub(crate) async fn $one(receiver: &mut $receiver) -> Outcome<ServiceBusReceivedMessage> {
            Ok(receiver.receive_message_with_max_wait_time(SOON).await?.ok_or("no message came")?)
        }

        /// Asked for one by one: asked for several, it waits until it has all of them or its time is over.
        pub(crate) async fn $some(
            receiver: &mut $receiver,
            count: usize,
            within: Duration,
        ) -> Outcome<Vec<ServiceBusReceivedMessage>> {
            let (mut got, until) = (Vec::new(), Instant::now() + within);
            while got.len() < count && Instant::now() < until {
                got.extend(receiver.receive_message_with_max_wait_time(SOON).await?);
            }
            equal(got.len(), count)?;
            Ok(got)
        }

        pub(crate) async fn $none(receiver: &mut $receiver) -> Outcome {
            let got = receiver.receive_messages_with_max_wait_time(1, BRIEFLY).await?;
            equal(texts(&got)?, Vec::<String>::new())
        }
    };
}

receiving!(receive, receive_some, nothing_comes, ServiceBusReceiver);
receiving!(receive_in, receive_some_in, nothing_comes_in, ServiceBusSessionReceiver);

/// Nothing is left, in whatever state. Soon, because this client does not wait until the broker has settled.
pub(crate) async fn empty(receiver: &mut ServiceBusReceiver) -> Outcome {
    let until = Instant::now() + SOON;
    loop {
        let left = receiver.peek_messages(10, Some(1)).await?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return equal(left.iter().map(|message| message.sequence_number()).collect::<Vec<_>>(), Vec::<i64>::new());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
