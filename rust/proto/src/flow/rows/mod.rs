//! Values of rows from one host to another: a reader asks the process that holds them (`docs/wire.md`, section 7).
//!
//! * [`Wanted`] and [`ToReader`]: the messages.
//! * [`RowHolder`]: the process that holds the values; [`Serving`] is one connection of it.
//! * [`Answers`]: the reader's end.

mod answers;
mod holder;
mod message;
mod serving;

pub use answers::Answers;
pub use holder::RowHolder;
pub use message::{MAX_VALUES, PIECE_BYTES, SEGMENT_ID_BYTES, SegmentId, ToReader, Value, Wanted, Why};
pub use serving::{MAX_REQUESTS, Memory, Served, Serving};
