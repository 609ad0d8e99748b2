//! The control stream of a flow with real sockets: [`FlowServer`] is the master's end, [`FlowClient`] that of a worker.
//! What they decide is `softs_proto::flow`.
//!
//! Each has one thread, which reads, and answers what needs no caller. A call that sends writes by itself as far as the
//! socket takes it at once, so that it wakes no thread; the thread writes the rest.
//!
//! [`rows`] has values of rows between hosts. Its server, a master and a worker run one loop, with a machine of their own.

mod client;
pub mod rows;
mod server;
mod stack;
#[cfg(test)]
mod tests;
mod worker_end;

pub use client::FlowClient;
pub use server::{FlowServer, Taken};
pub use stack::pipe;
