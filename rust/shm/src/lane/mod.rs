//! Lanes: orders that go from a client to its suppliers, and back, through memory alone.
//!
//! A lane is a ring of cells for one product. The client ([`LaneClient`]) places an order into a cell, any attached supplier
//! ([`LaneSupplier`]) claims it, fills the slot and publishes, and the client takes note. No step is taken in two halves, so whoever dies, at
//! whatever instruction, leaves cells that say exactly what he held. The invariants L1 to L7 are in the crate documentation, the bytes
//! in `docs/segment.md`.

#[cfg(not(loom))]
mod area;
mod atomics;
mod bell;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod errors;
#[cfg(not(loom))]
mod identity;
#[cfg(not(loom))]
mod owner;
#[cfg(not(loom))]
mod peers;
mod ring;
mod shape;
mod word;
#[cfg(not(loom))]
mod worker;

#[cfg(test)]
#[cfg(not(loom))]
mod hostile_tests;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod model_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod sync_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

#[cfg(not(loom))]
pub use area::{N_CLIENT_COUNTERS, N_SUPPLIER_COUNTERS};
#[cfg(not(loom))]
pub use counters::{Counters, LaneActivity, LaneStats};
#[cfg(not(loom))]
pub use identity::Identity;
#[cfg(not(loom))]
pub use owner::{Ending, Finished, LaneClient};
#[cfg(not(loom))]
pub use peers::Supplier;
pub(crate) use shape::Shape;
pub use shape::{MAX_SUPPLIERS, N_LANES};
#[cfg(not(loom))]
pub use worker::{Claim, LaneSupplier};

/// One use of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneRef {
    /// Which lane, below [`N_LANES`].
    pub index: u32,
    /// Which use of it, counted from 1.
    pub generation: u32,
}
