//! One lease as a supplier sees it.

use std::sync::Arc;
use std::time::Instant;

/// One lease: make `product_id` and write it to `offset` of the medium at `address`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// What to make.
    pub product_id: Arc<str>,
    /// The client's medium.
    pub address: Arc<str>,
    /// Which segment must lie there, for else it is another medium; 0 if not sent.
    pub segment_id: u64,
    /// Byte offset of the slot.
    pub offset: u64,
    /// Bytes of the client's slots; 0 if not sent.
    pub slot_size: u64,
    /// The number of the sample in the client's stream; 0 from clients that do not number theirs.
    pub sequence: u64,
    /// The client's number of the order; 0 if not known.
    pub order: u64,
    pub(super) lease: Lease,
    pub(super) connection: u64,
    pub(super) leased_at: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    Native(u64),
    Softs(String),
}
