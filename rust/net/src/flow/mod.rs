//! The control stream of a flow with real sockets: [`FlowServer`] is the master's end, [`FlowClient`] that of a worker.
//! What they decide is `softs_proto::flow`.
//!
//! Each has one thread, which reads, and answers what needs no caller. A call that sends writes by itself as far as the
//! socket takes it at once, so that it wakes no thread; the thread writes the rest.

mod client;
mod client_state;
mod peer_process;
mod server;
mod server_loop;
mod server_peers;
mod waiting;

pub use client::{ClientOptions, FlowClient};
pub use server::{FlowServer, ServerOptions, Taken};
