//! Frames of flows and links: bytes of one connection to frames, and frames to bytes.
//!
//! * [`FrameReader`], and [`BulkReader`] where some frames are not to be held.
//! * [`Outbox`]: what waits to be written.
//! * [`MessageError`]: why a frame is refused.

mod fields;
mod frame;
mod outbox;

pub(crate) use fields::Fields;
pub use fields::MessageError;
pub use frame::{BulkFrame, BulkReader, FrameError, FrameReader, HEADER_BYTES, Shape};
pub use outbox::Outbox;
