//! What names a peer, and the keys of the broker's tables. A key says nothing about the record that it names.

use super::slab::Key;

/// A connection, to either side; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// Which of the broker's two endpoints a peer has connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where clients connect.
    Frontend,
    /// Where suppliers connect.
    Backend,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident $tag:ident)*) => { $(
        pub(super) enum $tag {}
        $(#[$doc])*
        pub(super) type $key = Key<$tag>;
    )* };
}

keys! {
    /// A connection to the frontend.
    ClientKey ClientTag
    /// A connection to the backend.
    SupplierKey SupplierTag
    /// One order.
    OrderKey OrderTag
    /// A product that has orders or is announced, or was a moment ago.
    ProductKey ProductTag
    /// The suppliers that registered one list of patterns.
    SetKey SetTag
    /// A product that matches such a list.
    InterestKey InterestTag
    /// The orders of one client for one product.
    QueueKey QueueTag
    /// An interned address.
    AddressKey AddressTag
    /// One use of one lane.
    LaneKey LaneTag
    /// A client that has lost a connection.
    LostClientKey LostClientTag
}
