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
    pub(super) lease: Lease,
    pub(super) connection: u64,
    pub(super) leased_at: Instant,
}

impl Work {
    /// A lease of a softs broker, which sends the name of the order, the product, and the address and offset of the slot.
    pub(super) fn of_softs(
        order_id: &str,
        (product_id, address, offset): (&str, &str, u64),
        connection: u64,
        leased_at: Instant,
    ) -> Self {
        Self {
            product_id: product_id.into(),
            address: address.into(),
            segment_id: 0,
            offset,
            slot_size: 0,
            sequence: 0,
            lease: Lease::Softs(order_id.to_owned()),
            connection,
            leased_at,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    Native(u64),
    Softs(String),
}
