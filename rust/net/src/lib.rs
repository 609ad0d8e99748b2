//! The impure half of softs-fast: sockets, threads and the clock around the state machines of `softs-proto`.
//!
//! * [`Endpoint`]: where a broker listens.
//! * [`BrokerHandle`]: a broker in a thread of its own.
//! * [`control`]: the channel that says which model the workers run, all three ends of it.
//! * [`Connection`]: a peer's connection to a broker; [`wait`] sleeps until it has something to say.

mod broker;
pub mod client;
mod connection;
pub mod control;
mod doors;
mod endpoint;
mod error;
mod lanes;
mod link;
mod listener;
mod lock;
mod log;
mod peers;
mod server;
mod socket;
mod spin;
pub mod supplier;
pub mod tcp_medium;

pub use broker::{BrokerHandle, BrokerOptions};
pub use connection::Connection;
pub use endpoint::{Endpoint, MAX_SOCKET_PATH_BYTES};
pub use error::NetError;
pub use lanes::counters;
pub use socket::{KeepAlive, wait};
pub use spin::LOOK;
