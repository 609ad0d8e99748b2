//! Connections that one end serves: what decides for them, and how they end.
//!
//! * [`StreamMachine`]: what the master of a flow, a worker of it, the holder of its rows and a store offer to
//!   their sockets.

mod ending;
mod machine;

pub(crate) use ending::{MAX_REASON_BYTES, Stop, end_of, next_frame, push_end};
pub use machine::{End, StreamMachine};
