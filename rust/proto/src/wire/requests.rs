//! Messages from clients and suppliers to a broker.

use super::lane_types::{AnnouncedLane, LaneName};
use super::medium_profile::MediumProfile;

/// A message from a client to a broker.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientRequest<'a> {
    /// `HELLO`, both dialects.
    Hello {
        /// Random, the same for all connections of one client (native).
        nonce: Option<u64>,
    },
    /// `ORDER`, softs dialect.
    Order {
        /// Chosen by the client, unique within it.
        order_id: &'a str,
        /// What is ordered.
        product_id: &'a str,
        /// The client's medium.
        address: &'a str,
        /// Byte offset of the slot in the medium.
        offset: u64,
    },
    /// `CANCEL`, softs dialect.
    Cancel {
        /// The order to take back.
        order_id: &'a str,
    },
    /// `DISCARD`, softs dialect.
    Discard,
    /// `STATS`, both dialects.
    Stats {
        /// Echoed in the answer (native).
        request_id: Option<u64>,
        /// Asks for a diagnosis of this product (native).
        product_id: Option<&'a str>,
        /// Asks which peers are connected and what is on order (native).
        detail: bool,
    },
    /// `ORDERS`, native dialect.
    Orders {
        /// The client's medium.
        address: &'a str,
        /// Which segment lies there; 0: the medium is no segment.
        segment_id: u64,
        /// Bytes of one slot.
        slot_size: u64,
        /// What is ordered.
        product_id: &'a str,
        /// (order number, byte offset of its slot, number of the sample in the client's stream).
        orders: Vec<(u64, u64, u64)>,
    },
    /// `CANCELS`, native dialect. No orders: all of them.
    Cancels {
        /// Echoed in the answer.
        request_id: u64,
        /// Order numbers.
        orders: Vec<u64>,
    },
    /// `MEDIUM`, native dialect, before HELLO: where its samples go.
    Medium(MediumProfile),
    /// `LANES`, native dialect: replaces what this client announced before.
    Lanes {
        /// The client's medium.
        address: &'a str,
        /// Which segment lies there.
        segment_id: u64,
        /// The products of which it wants to know the supply, at most [`crate::limits::MAX_ANNOUNCED`].
        lanes: Vec<AnnouncedLane<'a>>,
    },
}

/// A message from a supplier to a broker.
#[derive(Clone, Debug, PartialEq)]
pub enum SupplierRequest<'a> {
    /// `HELLO`, both dialects.
    Hello {
        /// Patterns of what it can make.
        product_ids: Vec<&'a str>,
        /// How it wants to be called in errors and statistics (native).
        name: Option<&'a str>,
    },
    /// `READY`. Softs dialect: no credit, meaning one more. Native: the window.
    Ready {
        /// Leases it wants to hold at most (native).
        credit: Option<u64>,
    },
    /// `DONE`, softs dialect.
    Done {
        /// The order it worked on.
        order_id: &'a str,
        /// Whether the slot is written.
        success: bool,
    },
    /// `DONES`, native dialect.
    Dones {
        /// Leases with a slot that is written.
        done: Vec<u64>,
        /// Leases that failed, and why.
        failed: Vec<(u64, &'a str)>,
        /// Leases given back unstarted.
        returned: Vec<u64>,
    },
    /// `MEDIUM`, native dialect, before HELLO: where it can write samples.
    Medium(MediumProfile),
    /// `GOODBYE`, both dialects.
    Goodbye,
    /// `UNATTACHED`, native dialect: lanes that it cannot serve.
    Unattached(Vec<LaneName<'a>>),
    /// `ATTACHED`, native dialect: lanes that it serves now, although it said that it cannot.
    Attached(Vec<LaneName<'a>>),
}
