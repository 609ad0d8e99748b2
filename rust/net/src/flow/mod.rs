//! The control stream of a flow with real sockets: [`FlowServer`] is the master's end, [`FlowClient`] that of a worker.
//! What they decide is `softs_proto::flow`.
//!
//! Each has one thread, which reads, and answers what needs no caller. A call that sends writes by itself as far as the
//! socket takes it at once, so that it wakes no thread; the thread writes the rest.
//!
//! [`rows`] has values of rows between hosts.

mod client;
mod client_state;
mod peer_process;
pub mod rows;
mod server;
mod server_loop;
mod server_peers;
mod signals;
mod stack;
mod waiting;

pub use client::{ClientOptions, FlowClient};
pub use server::{FlowServer, ServerOptions, Taken};
pub use signals::{Signals, Watch};
pub use stack::pipe;
