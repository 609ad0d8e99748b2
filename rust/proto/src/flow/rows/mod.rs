//! Values of rows from one host to another: a reader asks the process that holds them (`docs/wire.md`, section 7).
//!
//! * [`Wanted`] and [`ToReader`]: the messages.
//! * [`RowHolder`]: the process that holds the values; [`Serving`] is one connection of it.
//! * [`Joining`] and [`Answers`]: the reader's end, before and after the handshake.

mod answers;
mod holder;
mod joining;
mod message;
mod serving;

pub use answers::{Answers, Gone};
pub use holder::{RowCounts, RowHolder};
pub use joining::Joining;
pub use message::{MAX_VALUES, PIECE_BYTES, SEGMENT_ID_BYTES, SegmentId, ToReader, Value, Wanted, Why};
pub use serving::{MAX_REQUESTS, Memory, Served, Serving};
