//! The supplier's state machine: leases it holds, results it owes, and how many leases it wants.
//!
//! Usage: [`Supplier::handle_connected`] and [`Supplier::handle_message`] bring leases in; [`Supplier::begin`] takes
//! the next one to work on and [`Supplier::finish`] ends it; [`Supplier::poll_transmit`] is drained into the connection
//! when [`Supplier::wants_transmit`] is true. [`Supplier::may_write`] is asked right before the slot is touched
//! (invariant W3).

mod config;
mod credit;
mod lane_commands;
mod lanes;
mod machine;
mod weights;
mod work;

pub use config::Config;
pub use lanes::{LaneChange, LaneId};
pub use machine::Supplier;
pub use weights::{MAX_WEIGHT, Weights};
pub use work::Work;
