//! Endpoints without sessions: messages side by side, none waits for another.

use std::sync::Arc;

use sprag_core::message::Delivery;
use tracing::{debug, error};

use crate::{
    delivery::{self, Live, Step},
    endpoint::Endpoint,
};

/// Handles one message to its end.
pub(crate) async fn handle(endpoint: Arc<Endpoint>, delivery: Delivery) {
    let renewed = endpoint.renewals.delivery(&endpoint, &delivery);
    match delivery::handle(&endpoint, None, &mut Live::default(), &delivery).await {
        Step::Settled | Step::LockLost => {}
        Step::GiveBack { settlement, pause } => {
            // The lock is held for the back-off, since the entity would hand the message out again at once.
            endpoint.pause(pause).await;
            let settled = endpoint.config.transport.settle(&endpoint.config.source, delivery.lock, settlement).await;
            if let Err(error) = settled {
                debug!(endpoint = %endpoint.config.name, %error, "a delivery could not be given back; it comes again when its lock lapses");
            }
        }
        Step::Drain => {
            error!(endpoint = %endpoint.config.name, "a message without a session asked for a drain; it comes again when its lock lapses")
        }
    }
    drop(renewed);
}
