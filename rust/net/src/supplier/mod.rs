//! The supplier's driver: the thread that runs the generator runs the event loop, and a watchdog does while a call
//! takes long.
//!
//! Work comes two ways: as leases of the broker, and as orders in the lanes of clients on this machine.
//! [`Supplier::next`] returns whichever is next by weight; lanes need neither the broker nor, while there are orders, a
//! system call.

mod claimed_batch;
mod driver;
mod lane_scheduler;
mod shared;
mod task;
mod tasks;
mod wait;
mod watchdog;

pub use crate::lanes::supplier::LanePolicy;
pub use claimed_batch::{LaneTask, Sample};
pub use driver::Supplier;
pub use task::{Batch, Options, Task};
