//! The loop that holds a session: its messages one after another, and what is parked in it before anything newer.

use std::{sync::Arc, time::Duration};

use sprag_core::{
    machine,
    message::{Delivery, Origin},
    session_state::SessionState,
};
use sprag_transport::{Error, Parked, Session, Settlement};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use crate::{
    delivery::{self, Live, Step},
    endpoint::Endpoint,
    signal::Counters,
};

/// Pause before a session whose state cannot be read is looked at again.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(30);
/// Between two looks at parked messages that a transport may not show at once (P17).
const SECOND_LOOK: Duration = Duration::from_secs(5);
/// Pause before parked messages that somebody else holds are tried again.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Serves a session until it has nothing more to do, then gives it back.
pub(crate) async fn hold(endpoint: Arc<Endpoint>, session: Arc<dyn Session>) {
    let renewed = endpoint.renewals.session(&session);
    let pause = serve(&endpoint, &session).await;
    drop(renewed);
    if let Err(error) = session.release(pause).await {
        debug!(endpoint = %endpoint.config.name, session = %session.id(), %error, "the session could not be given back; its lock will lapse");
    }
}

/// Answers for how long nobody should be offered the session.
async fn serve(endpoint: &Endpoint, session: &Arc<dyn Session>) -> Duration {
    let mut live = match read_state(endpoint, session).await {
        Ok(state) => Live { state, changed: false },
        Err(pause) => return pause,
    };
    // A session that never runs dry lets the others have their turn.
    let turn = Instant::now() + endpoint.lock_duration;
    while !endpoint.is_stopping() && Instant::now() < turn {
        let delivery = match session.receive(Duration::ZERO).await {
            Ok(Some(delivery)) => delivery,
            Ok(None) => return Duration::ZERO,
            Err(error) => return lost(endpoint, session, &error),
        };
        if let Some(pause) = settle_one(endpoint, session, &mut live, &delivery).await {
            return pause;
        }
    }
    Duration::ZERO
}

async fn read_state(endpoint: &Endpoint, session: &Arc<dyn Session>) -> Result<SessionState, Duration> {
    let bytes = session.state().await.map_err(|error| lost(endpoint, session, &error))?;
    SessionState::from_bytes(bytes.as_deref()).map_err(|error| {
        error!(endpoint = %endpoint.config.name, session = %session.id(), %error, "the session waits until its state is mended");
        UNREADABLE_PAUSE
    })
}

/// The session cannot be used any more: one line, and the loop lets go of it.
fn lost(endpoint: &Endpoint, session: &Arc<dyn Session>, error: &Error) -> Duration {
    if matches!(error, Error::LockLost) {
        Counters::add(&endpoint.counters.lock_lost);
    }
    warn!(endpoint = %endpoint.config.name, session = %session.id(), %error, "the session is let go");
    endpoint.config.back_off
}

/// Handles one delivery, with the drain that must come before it. None: go on with the next.
async fn settle_one(
    endpoint: &Endpoint,
    session: &Arc<dyn Session>,
    live: &mut Live,
    delivery: &Delivery,
) -> Option<Duration> {
    loop {
        match delivery::handle(endpoint, Some(session), live, delivery).await {
            Step::Settled => return None,
            Step::LockLost => return Some(endpoint.config.back_off),
            Step::GiveBack { settlement, pause } => {
                give_back(endpoint, session, delivery, settlement).await;
                return Some(pause);
            }
            Step::Drain => {
                if let Err(pause) = drain(endpoint, session, live).await {
                    give_back(endpoint, session, delivery, Settlement::Release).await;
                    return Some(pause);
                }
            }
        }
    }
}

async fn give_back(endpoint: &Endpoint, session: &Arc<dyn Session>, delivery: &Delivery, settlement: Settlement) {
    if let Err(error) = session.settle(delivery.lock, settlement).await {
        debug!(endpoint = %endpoint.config.name, session = %session.id(), %error, "a delivery could not be given back; it comes again when its lock lapses");
    }
}

/// Runs what is parked, in order, under the lock that the loop holds. Ends well when nothing is parked any more or the session is blocked
/// again; an error is the pause after which somebody should look again.
async fn drain(endpoint: &Endpoint, session: &Arc<dyn Session>, live: &mut Live) -> Result<(), Duration> {
    let mut looked_twice = false;
    loop {
        if endpoint.is_stopping() {
            return Err(Duration::ZERO);
        }
        match session.receive_parked().await {
            Ok(Parked::Copy(copy)) => {
                debug_assert_eq!(copy.origin, Origin::Parked);
                match delivery::handle(endpoint, Some(session), live, &copy).await {
                    Step::Settled if live.state.block.is_some() => return Ok(()),
                    // What was found shows that an empty look before it was wrong: it proves nothing about the next one.
                    Step::Settled => looked_twice = false,
                    Step::GiveBack { settlement, pause } => {
                        give_back(endpoint, session, &copy, settlement).await;
                        return Err(pause);
                    }
                    Step::LockLost => return Err(endpoint.config.back_off),
                    Step::Drain => {
                        error!(session = %session.id(), "a parked message asked for a drain; it stays parked");
                        give_back(endpoint, session, &copy, Settlement::Release).await;
                        return Err(UNREADABLE_PAUSE);
                    }
                }
            }
            Ok(Parked::Empty { certain }) => {
                if !certain && live.state.parked > 0 && !looked_twice {
                    looked_twice = true;
                    if !endpoint.pause(SECOND_LOOK).await {
                        return Err(Duration::ZERO);
                    }
                    continue;
                }
                if live.state.parked > 0 && !certain {
                    warn!(endpoint = %endpoint.config.name, session = %session.id(), missing = live.state.parked, "fewer messages were parked than counted");
                }
                *live = Live { state: machine::after_drain(&live.state), changed: true };
                return Ok(());
            }
            Ok(Parked::Busy) => return Err(BUSY_PAUSE),
            Err(error) => return Err(lost(endpoint, session, &error)),
        }
    }
}
