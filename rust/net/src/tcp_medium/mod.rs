//! The TCP medium of softs: a client listens and keeps the slots in its own memory, suppliers send samples into them.
//!
//! A writer of softs sends `offset u32, length u32` (big-endian) and the sample, and gets one byte: 1 when it is stored.
//! A write that is not exactly one slot is answered with 0 and the connection is closed, before its body is read. A
//! length of 0 stores nothing and is answered with 1.
//!
//! A native writer begins with a header of length 0 and a certain offset. The answer shows that its connection is
//! accepted, so that a later fence of the owner ends it; and from an owner of softs-fast it is 2: then each header also
//! carries the number of the order, u64. The owner stores a sample only where its slot still waits for that order. So
//! what a supplier sends late, when its order was given to another one, does not reach a slot that has a new order.
//! Without a number (0, and in writes of softs) the slot must wait for any order at all.

mod address;
mod connection;
mod reaching;
mod receiver;
mod server;
mod slots;
#[cfg(test)]
mod tests;
mod wire;
mod writer;

pub use address::check_congestion;
pub use server::TcpMediumServer;
pub use writer::{TcpMediumWriter, WriteError};
