//! Protocols and state machines of softs-fast, without sockets, clocks or threads.
//!
//! * [`zmtp`]: the ZMTP 3.1 codec of one connection, bytes in, messages out.
//! * [`wire`]: the messages of `docs/wire.md`, both dialects.
//! * [`broker`], [`client`], [`supplier`]: the three state machines. Each takes events (`handle_*`, with the time as a
//!   parameter) and is then drained of its effects (`poll_*`).
//! * [`ServerMachine`]: what a broker and a control channel offer to the event loop that serves their connections.
//! * [`control`]: three more, of the same kind, for the channel by which workers learn their model.
//! * [`flow`]: the control stream between the master of a flow and its workers.
//! * [`link`], [`bridge`]: what two hosts say to each other, and the products that pass between them.
//! * [`framing`]: the frames of flows and links, in and out of bytes.
//! * [`mesh`]: what the ranks of a group on several hosts say to each other.
//! * [`silence`]: when a peer that says nothing counts as lost.
//! * [`store`]: keys and values by which the ranks of a group meet.
//! * [`streams`]: what the ends of a flow and of a store offer to their sockets.
//! * [`standby`]: which of several brokers serves, and which one a peer uses.
#![forbid(unsafe_code)]

pub mod bridge;
pub mod broker;
pub mod client;
pub mod control;
mod dialect;
pub mod flow;
pub mod framing;
pub mod limits;
pub mod link;
pub mod log;
pub mod mesh;
mod patterns;
mod server_machine;
pub mod silence;
pub mod standby;
pub mod store;
pub mod streams;
pub mod supplier;
mod text;
pub mod wire;
pub mod zmtp;

pub use dialect::Dialect;
pub use server_machine::ServerMachine;
