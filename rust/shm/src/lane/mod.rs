//! Lanes: orders from a client to its suppliers, and back, through shared memory only.
//!
//! A lane is a ring of cells for one product. The client ([`LaneClient`]) places an order into a cell, any attached
//! supplier ([`LaneSupplier`]) claims it, fills the slot and publishes, and the client polls it. Each step is one
//! atomic operation, so a process that is killed at any instruction leaves cells that record exactly what it held.
//! The invariants L1 to L7 are in the crate documentation, the bytes in `docs/segment.md`.

#[cfg(not(feature = "loom"))]
mod area;
mod atomics;
mod cell;
#[cfg(not(feature = "loom"))]
mod client;
#[cfg(not(feature = "loom"))]
mod counters;
mod doorbell;
#[cfg(not(feature = "loom"))]
mod errors;
mod lane_ref;
#[cfg(not(feature = "loom"))]
mod peers;
mod ring;
#[cfg(not(feature = "loom"))]
mod supplier;

#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod entry_tests;
#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod hostile_tests;
#[cfg(test)]
#[cfg(feature = "loom")]
mod loom_tests;
#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod model_tests;
#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod sync_tests;
#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests;

#[cfg(not(feature = "loom"))]
pub use area::{N_CLIENT_COUNTERS, N_SUPPLIER_COUNTERS};
#[cfg(not(feature = "loom"))]
pub use client::{Ending, Finished, LaneClient};
#[cfg(not(feature = "loom"))]
pub use counters::{Counters, LaneActivity, LaneStats};
pub use lane_ref::LaneRef;
#[cfg(not(feature = "loom"))]
pub use peers::Supplier;
#[cfg(not(feature = "loom"))]
pub use supplier::{Claim, LaneSupplier};
