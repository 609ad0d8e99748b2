//! What owner and writer of a TCP medium send each other.

/// Bytes in front of each sample.
pub(super) const HEADER_LEN: usize = 8;
/// Asks the owner for its answer and stores nothing.
pub(super) const KNOCK: [u8; HEADER_LEN] = [0; HEADER_LEN];
/// The answer to a sample that is stored.
pub(super) const STORED: u8 = 1;
/// The answer to a write that is refused.
pub(super) const REFUSED: u8 = 0;
