//! Connections between all ranks of a group on several hosts, one for each pair, without a thread: a call of the group
//! sends and receives on the thread of its caller.
//!
//! * [`Listening`]: a rank that the others can reach; it becomes a [`Mesh`] when all have connected.
//! * `Peer`: one connection, plain or with TLS.

mod exchange;
mod joining;
mod peer;
#[cfg(test)]
mod tests;

pub use exchange::{Mesh, MeshError, Message};
pub use joining::Listening;
