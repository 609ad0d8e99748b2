//! Keys and values by which the ranks of a group meet (`docs/wire.md`, section 10).
//!
//! * [`Request`] and [`Reply`]: the messages; a connection has one request at a time.
//! * [`StoreMachine`]: the process that has the values.
//! * [`Answer`]: the end that asks.

mod answer;
mod machine;
mod message;

pub use answer::Answer;
pub use machine::StoreMachine;
pub use message::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Reply, Request};
