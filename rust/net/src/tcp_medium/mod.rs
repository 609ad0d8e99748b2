//! The TCP medium of softs: a client listens and keeps the slots in its own memory, suppliers send samples into them.
//!
//! A writer sends `offset u32, length u32` (big-endian) and the sample, and gets one byte: 1 when it is stored. A write
//! that is not exactly one slot is answered with 0 and the connection is closed, before its body is read. A length of 0
//! stores nothing and is answered with 1: so a writer learns that its connection is accepted, which a later fence of
//! the owner then ends.

mod address;
mod reaching;
mod receiver;
mod server;
mod slots;
#[cfg(test)]
mod tests;
mod wire;
mod writer;

pub use server::TcpMediumServer;
pub use writer::{TcpMediumWriter, WriteError};
