//! What the two ends of a control stream are limited to.

use std::time::Duration;

/// What one message is taken to cost beside its bytes, so that empty ones are bounded too.
pub(super) const MESSAGE_COST: usize = 64;

/// The limits of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the payload of one frame that this end accepts.
    pub frame_bytes: u32,
    /// Bytes that may wait for one peer that does not read.
    pub unsent_bytes: usize,
    /// Bytes of one peer that may wait for the caller of this end; beyond them the connection is not read.
    pub unread_bytes: usize,
    /// Workers that may be joined at the same time.
    pub workers: usize,
    /// Time for the handshake.
    pub handshake: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes: 1 << 20,
            unsent_bytes: 64 << 20,
            unread_bytes: 64 << 20,
            workers: 4096,
            handshake: Duration::from_secs(10),
        }
    }
}
