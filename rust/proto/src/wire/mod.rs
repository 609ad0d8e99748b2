//! The messages of `docs/wire.md`: msgpack payloads to and from typed values, for both ends of both dialects.
//!
//! Decoding borrows from the frames, checks every length against [`crate::limits`] and allocates only for lists, never more than the frame itself can hold.

mod control;
mod control_encode;
mod decode;
mod detail;
mod encode;
mod lanes;
mod message;
mod reader;
mod reply;
mod writer;

pub use control::{
    ControlReply, ControlRequest, ControlStats, ModelRef, NO_MODEL_CFG, Publication, check_model,
};
pub use detail::{ClientDetail, Detail, LaneDetail, ProductDetail, SupplierDetail};
pub use lanes::{AnnouncedLane, LaneName, LaneOffer, NO_LANE, Supply};
pub use message::Message;

/// Begins the error of a supplier that nobody else would make the sample either, so that the order need not be tried again. It is no
/// fault of anybody's, and hardly worth a word in a log.
pub const REFUSED: &str = "refused: ";

/// Why a payload could not be read. The text is what the peer gets to see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(pub String);

/// What a client says to a broker.
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
        /// Asks who is connected and what is on order (native).
        detail: bool,
    },
    /// `ORDERS`, native dialect.
    Orders {
        /// The client's medium.
        address: &'a str,
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
    /// `LANES`, native dialect: replaces what this client announced before.
    Lanes {
        /// The client's medium.
        address: &'a str,
        /// Which segment lies there.
        segment_id: u64,
        /// The products whose supply it wants to know, at most [`crate::limits::MAX_ANNOUNCED`].
        lanes: Vec<AnnouncedLane<'a>>,
    },
}

/// What a supplier says to a broker.
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
        /// Leases whose slot is written.
        done: Vec<u64>,
        /// Leases that failed, and why.
        failed: Vec<(u64, &'a str)>,
        /// Leases given back unstarted.
        returned: Vec<u64>,
    },
    /// `GOODBYE`, both dialects.
    Goodbye,
    /// `UNATTACHED`, native dialect: lanes that it cannot serve.
    Unattached(Vec<LaneName<'a>>),
}

/// The answer to a request: one frame, `{ok, error, ...}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply<'a> {
    /// Whether the request was carried out.
    pub ok: bool,
    /// Why not.
    pub error: Option<&'a str>,
    /// Number of the peer, in answer to HELLO.
    pub peer_id: Option<u64>,
    /// Failed attempts after which an order is given up, in answer to HELLO (native).
    pub max_order_attempts: Option<u64>,
    /// Echo of the request (native).
    pub request_id: Option<u64>,
    /// What DISCARD cancelled, softs dialect (`cancelled` is its length).
    pub cancelled: Option<Vec<&'a str>>,
    /// What CANCELS cancelled, native dialect.
    pub cancelled_orders: Option<Vec<u64>>,
    /// In answer to STATS.
    pub stats: Option<Stats>,
    /// In answer to STATS with a product id (native).
    pub diagnosis: Option<Diagnosis>,
    /// In answer to STATS that asks who is connected (native).
    pub detail: Option<Box<Detail>>,
}

/// The broker's statistics; the fields of `softs.BrokerStats`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Orders queued or leased.
    pub pending_orders: u64,
    /// Suppliers that could take one more order now.
    pub available_suppliers: u64,
    /// Clients that said HELLO.
    pub connected_clients: u64,
    /// Suppliers that said HELLO.
    pub connected_suppliers: u64,
    /// Orders fulfilled since the start.
    pub total_completed: u64,
    /// All patterns of all connected suppliers, each once.
    pub product_ids: Vec<String>,
}

/// Why a product may be late.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnosis {
    /// Suppliers with a pattern that matches the product.
    pub matching_suppliers: u64,
    /// How many of them hold leases.
    pub busy_suppliers: u64,
    /// Seconds since the oldest open lease of a matching supplier was given.
    pub busiest_s: f64,
    /// Orders of this product that wait for a supplier.
    pub queued: u64,
}

/// What a broker says to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ToClient<'a> {
    /// The answer to a request; one frame.
    Reply(Reply<'a>),
    /// `FULFILLED`, softs dialect.
    Fulfilled {
        /// The order whose slot is written.
        order_id: &'a str,
    },
    /// `FAILED`, softs dialect.
    Failed {
        /// The order that was given up.
        order_id: &'a str,
    },
    /// `RESULTS`, native dialect.
    Results {
        /// Orders whose slot is written.
        done: Vec<u64>,
        /// Orders that ended otherwise.
        ended: Vec<(u64, EndCode, &'a str)>,
    },
    /// `SUPPLY`, native dialect: who makes the products that it announced.
    Supply(Vec<Supply<'a>>),
    /// `LATE`, native dialect: orders of earlier connections to whose slots nobody writes any more.
    Late(Vec<u64>),
}

/// How an order ended that was not fulfilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndCode {
    /// All attempts used up; nobody writes to the slot any more.
    Failed = 1,
    /// The queue is full: order again later.
    Refused = 2,
    /// The order itself is wrong.
    Invalid = 3,
}

/// What a broker says to a supplier.
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
    /// Bytes of one slot; 0 when the client did not say.
    pub slot_size: u64,
    /// (lease, byte offset of its slot, number of the sample in the client's stream).
    pub leases: Vec<(u64, u64, u64)>,
}

// Each type above has, in `decode` and `encode`:
//   `fn decode(frames: &[&'a [u8]]) -> Result<Self, WireError>` and `fn encode(&self, out: &mut Message)`.
