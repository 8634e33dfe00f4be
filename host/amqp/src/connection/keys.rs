//! Names for what lives on a connection. Numbers on the wire are used again; these never are, as long as the connection lives, so a key
//! that is kept too long finds nothing instead of somebody else.

/// One session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    pub(super) channel: u16,
    pub(super) serial: u64,
}

/// One link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkKey {
    pub(super) session: SessionKey,
    pub(super) handle: u32,
    pub(super) serial: u64,
}

impl LinkKey {
    pub fn session(self) -> SessionKey {
        self.session
    }
}

/// A delivery that the peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IncomingKey {
    pub(super) session: SessionKey,
    /// The delivery-id, continued beyond 32 bits.
    pub(super) id: u64,
}

/// A delivery that we sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutgoingKey {
    pub(super) session: SessionKey,
    /// The delivery-id, continued beyond 32 bits.
    pub(super) id: u64,
}

/// Delivery-ids are 32 bits wide and wrap. Inside we count on, from here, so that numbers before the first one exist too.
pub(super) const FIRST_ID: u64 = 1 << 32;

/// The number nearest to `near` that ends in the given 32 bits.
pub(super) fn continued(near: u64, id: u32) -> u64 {
    let distance = id.wrapping_sub(wire_id(near)).cast_signed();
    near.saturating_add_signed(distance.into())
}

/// What of a number stands on the wire.
pub(super) fn wire_id(id: u64) -> u32 {
    (id & u64::from(u32::MAX)) as u32
}

/// How far `later` is ahead of `earlier` among numbers that wrap; nothing when it is behind.
pub(super) fn ahead(later: u32, earlier: u32) -> u32 {
    let distance = later.wrapping_sub(earlier);
    if distance.cast_signed() < 0 { 0 } else { distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_on_over_the_wrap() {
        assert_eq!(continued(FIRST_ID, 5), FIRST_ID + 5);
        assert_eq!(continued(FIRST_ID, u32::MAX), FIRST_ID - 1);
        let last = continued(FIRST_ID + u64::from(u32::MAX), u32::MAX);
        assert_eq!(continued(last, 0), last + 1);
        assert_eq!(wire_id(last + 1), 0);
    }

    #[test]
    fn who_is_behind_is_not_ahead() {
        assert_eq!(ahead(3, u32::MAX), 4);
        assert_eq!(ahead(u32::MAX, 3), 0);
    }
}
