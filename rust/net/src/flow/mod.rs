//! The control stream of a flow with real sockets: [`FlowServer`] is the master's end, [`FlowClient`] that of a worker.
//! What they decide is `softs_proto::flow`.
//!
//! Each has one thread, which reads, and answers what needs no caller. A call that sends writes by itself as far as the
//! socket takes it at once, so that it wakes no thread; the thread writes the rest.
//!
//! [`rows`] has values of rows between hosts. Its server, a master and a worker run one loop, with a machine of their own.

mod channel;
mod client;
mod connections;
mod joining;
mod peer_process;
pub mod rows;
mod server;
mod signals;
mod stack;
mod streams;
#[cfg(test)]
mod tests;
mod waiting;
mod worker_end;

pub use client::{ClientOptions, FlowClient};
pub use server::{FlowServer, ServerOptions, Taken};
pub use signals::{Signals, Watch};
pub use stack::pipe;
