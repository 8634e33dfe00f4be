//! Wall time that follows tokio's clock.
//!
//! What lives in memory needs a clock that a test can pause and move: where tokio's time stands still, so does this, and where a paused runtime
//! jumps ahead, this jumps with it. In a running host it is the wall time at the first call plus monotonic time since.

use std::{
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sprag_core::time::Timestamp;
use tokio::time::Instant;

pub fn now() -> Timestamp {
    at(Instant::now())
}

/// The wall time at a moment of tokio's clock.
pub fn at(moment: Instant) -> Timestamp {
    static ANCHOR: OnceLock<(Instant, Timestamp)> = OnceLock::new();
    let (anchor, wall) = *ANCHOR.get_or_init(|| {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        (Instant::now(), Timestamp::default().after(wall))
    });
    match moment.checked_duration_since(anchor) {
        Some(later) => wall.after(later),
        None => wall.before(anchor.duration_since(moment)),
    }
}
