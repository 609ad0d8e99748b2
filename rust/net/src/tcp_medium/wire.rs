//! What owner and writer of a TCP medium send each other.

/// Bytes in front of a sample of a writer of softs: offset and length, u32.
pub(super) const HEADER_LEN: usize = 8;
/// Bytes in front of a sample of a native writer: offset and length, and the number of the order, u64.
pub(super) const NATIVE_HEADER_LEN: usize = 16;
/// A native writer begins with this. It stores nothing, as its length is 0, so an owner of softs answers STORED.
pub(super) const GREETING: [u8; HEADER_LEN] = *b"SF\x01\0\0\0\0\0";
/// The answer to a sample that is stored.
pub(super) const STORED: u8 = 1;
/// The answer to a write that is refused.
pub(super) const REFUSED: u8 = 0;
/// The answer to GREETING: native headers from now on.
pub(super) const NATIVE: u8 = 2;
/// The number of an order that the writer does not know.
pub(super) const ANY_ORDER: u64 = 0;
