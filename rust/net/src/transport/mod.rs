//! Sockets and what is connected by them: endpoints, listeners, one connection, a peer's link to its broker.

pub(crate) mod acceptor;
pub(crate) mod backoff;
pub(crate) mod broker_link;
pub(crate) mod connecting;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod listener;
pub(crate) mod nonce;
pub(crate) mod path_lock;
pub(crate) mod socket;
pub(crate) mod spin;
pub(crate) mod tcp_owner;

pub use connection::Connection;
pub use endpoint::{Endpoint, MAX_SOCKET_PATH_BYTES};
pub use socket::{KeepAlive, wait};
pub use spin::SPIN;
pub use tcp_owner::is_ours;
