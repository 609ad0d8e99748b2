//! Values of rows from one host to another: a reader asks the process that holds them (`docs/wire.md`, section 7).
//!
//! * [`ToHolder`] and [`ToReader`]: the messages.
//! * [`Serving`]: one connection of the process that holds the values.
//! * [`Joining`] and [`Answers`]: the reader's end, before and after the handshake.

mod answers;
mod joining;
mod message;
mod serving;

pub use answers::{Answers, Gone};
pub use joining::Joining;
pub use message::{
    MAX_VALUES, PIECE_BYTES, RowsMessageError, SEGMENT_ID_BYTES, SegmentId, ToHolder, ToReader, Value,
    Wanted, Why,
};
pub use serving::{MAX_REQUESTS, Memory, Served, Serving};
