//! What owner and writer of a TCP medium send each other.

/// Bytes in front of each sample.
pub(super) const HEADER_LEN: usize = 8;
/// The answer to a sample that is stored.
pub(super) const STORED: u8 = 1;
/// The answer to a write that is refused.
pub(super) const REFUSED: u8 = 0;
