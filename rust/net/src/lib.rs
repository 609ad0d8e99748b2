//! The impure half of softs-fast: sockets, threads and the clock around the state machines of `softs-proto`.
//!
//! * [`Endpoint`]: where a broker listens.
//! * [`BrokerHandle`]: a broker in a thread of its own.
//! * [`control`]: the channel that distributes which model the workers run, all three ends of it.
//! * [`client`] and [`supplier`]: the drivers of the two peers of a broker.
//! * [`HostLink`]: samples from and to other hosts.
//! * [`tls`]: encryption of links and flows.
//! * [`flow`]: the control stream between the master of a flow and its workers.
//! * [`mesh`]: messages between the ranks of a group on several hosts.
//! * [`store`]: keys and values by which the ranks of a group meet.
//! * [`end_after`]: ends this process after another one.
//! * [`is_ours`]: whether the peer of a connection on this machine is this user.
//! * [`Connection`]: a peer's connection to a broker; [`wait`] blocks until it can be read or written.

/// As tests outside the crate call it, which share their certificates with those inside.
#[cfg(test)]
extern crate self as softs_net;

#[cfg(test)]
#[path = "../tests/certificates/mod.rs"]
mod certificates;

mod broker;
pub mod client;
pub mod control;
mod error;
pub mod flow;
mod lanes;
pub mod link;
pub mod mesh;
mod runtime;
pub mod store;
mod streams;
pub mod supplier;
pub mod tls;
mod transport;
mod waited;

pub use broker::{BrokerHandle, BrokerOptions};
pub use error::NetError;
pub use lanes::counters;
pub use link::HostLink;
pub use runtime::end_after;
pub use streams::{Signals, Watch};
pub use transport::{Connection, Endpoint, KeepAlive, MAX_SOCKET_PATH_BYTES, SPIN, is_ours, wait};
