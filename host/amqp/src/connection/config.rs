//! What a server's connections have in common.

use std::time::Duration;

use crate::value::{Map, Symbol};

/// Settings of a connection; the same for all connections of a listener, so they are shared.
#[derive(Debug, Clone)]
pub struct Config {
    pub container_id: String,
    /// The largest frame that we read. Also bounds the input held for a frame that is not complete.
    pub max_frame_size: u32,
    /// The highest channel number; one more is how many sessions a peer may have.
    pub channel_max: u16,
    /// The highest handle; one more is how many links a session may have.
    pub handle_max: u32,
    /// Links of all sessions together. A peer that wants more loses the connection: handles and channels multiply, memory does not.
    pub max_links: usize,
    /// How often the peer has to send something. It is told this, and closed on after [`SILENCE_FACTOR`] times as long.
    pub idle_time_out: Option<Duration>,
    /// Transfers that a session takes before we announce room for more; done at half.
    pub incoming_window: u32,
    /// What a login may use, in the order in which it is offered.
    pub mechanisms: Vec<Symbol>,
    /// Whether a peer may do without SASL.
    pub plain_allowed: bool,
    /// From the first byte to the peer's open.
    pub handshake_time_out: Duration,
    /// How long the peer's close is awaited after ours.
    pub close_time_out: Duration,
    pub offered_capabilities: Vec<Symbol>,
    pub properties: Map,
}

/// The standard lets a peer announce half of what it really waits, so that a frame in flight at the last moment is not too late.
pub const SILENCE_FACTOR: u32 = 2;

/// Peers that want a frame from us more often than this are refused: it would be a flood.
pub const MIN_IDLE_TIME_OUT: Duration = Duration::from_millis(100);

/// The largest SASL frame. The standard says 512 bytes; tokens in a PLAIN response are longer than that.
pub const MAX_SASL_FRAME: u32 = 16 * 1024;

/// The longest delivery-tag that the standard knows.
pub const MAX_DELIVERY_TAG: usize = 32;

impl Default for Config {
    fn default() -> Self {
        Self {
            container_id: "sprag".to_owned(),
            max_frame_size: 65536,
            // Azure's. The .NET SDK opens a session for each link, and a processor of many sessions has many links.
            channel_max: 4_999,
            handle_max: 4095,
            max_links: 10_000,
            idle_time_out: Some(Duration::from_secs(60)),
            incoming_window: 2048,
            mechanisms: ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"].map(Symbol::from_static).to_vec(),
            plain_allowed: false,
            handshake_time_out: Duration::from_secs(30),
            close_time_out: Duration::from_secs(5),
            offered_capabilities: Vec::new(),
            properties: Map::new(),
        }
    }
}
