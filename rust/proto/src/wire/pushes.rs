//! Messages from a broker to clients and suppliers.

use super::lane_types::{LaneName, LaneOffer, Supply};
use super::reply::Reply;

/// Begins the error of a supplier where no other supplier would make the sample either: the order is not tried again.
/// It is no fault, and is logged at the lowest level.
pub const REFUSED: &str = "refused: ";

/// A message from a broker to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ToClient<'a> {
    /// The answer to a request; one frame.
    Reply(Reply<'a>),
    /// `FULFILLED`, softs dialect.
    Fulfilled {
        /// The order with a slot that is written.
        order_id: &'a str,
    },
    /// `FAILED`, softs dialect.
    Failed {
        /// The order that was given up.
        order_id: &'a str,
    },
    /// `RESULTS`, native dialect.
    Results {
        /// Orders with a slot that is written.
        done: Vec<u64>,
        /// Orders that ended otherwise.
        ended: Vec<(u64, EndCode, &'a str)>,
    },
    /// `SUPPLY`, native dialect: the suppliers of the products that it announced.
    Supply(Vec<Supply<'a>>),
    /// `LATE`, native dialect: orders of earlier connections; no supplier writes to their slots any more.
    Late(Vec<u64>),
}

/// How an order ended that was not fulfilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndCode {
    /// All attempts used up; no supplier writes to the slot any more.
    Failed = 1,
    /// The order itself is wrong.
    Invalid = 2,
    /// Only suppliers of the client's lane can serve it; it waits at the broker no longer.
    Returned = 3,
}

/// A message from a broker to a supplier.
#[derive(Clone, Debug, PartialEq)]
pub enum ToSupplier<'a> {
    /// The answer to a request; one frame.
    Reply(Reply<'a>),
    /// `WORK`, softs dialect.
    Work {
        /// Names the lease in DONE.
        order_id: &'a str,
        /// What to make.
        product_id: &'a str,
        /// The client's medium.
        address: &'a str,
        /// Byte offset of the slot in the medium.
        offset: u64,
    },
    /// `WORKS`, native dialect.
    Works(Vec<WorkGroup<'a>>),
    /// `ATTACH`, native dialect: lanes that it should serve.
    Attach(Vec<LaneOffer<'a>>),
    /// `DETACH`, native dialect: lanes that it should no longer serve.
    Detach(Vec<LaneName<'a>>),
    /// `TERMINATE`, both dialects.
    Terminate,
}

/// Leases on slots of one medium for one product.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkGroup<'a> {
    /// What to make.
    pub product_id: &'a str,
    /// The client's medium.
    pub address: &'a str,
    /// Which segment must lie there; 0 if the client sent none.
    pub segment_id: u64,
    /// Bytes of one slot; 0 if the client sent none.
    pub slot_size: u64,
    /// The leases, in the order in which they are to be worked on: (number in DONES, byte offset of the slot, number of
    /// the sample in the client's stream, 0 from clients that do not number theirs).
    pub leases: Vec<(u64, u64, u64)>,
}
