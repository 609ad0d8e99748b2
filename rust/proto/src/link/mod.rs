//! The link between two hosts: one session at a time, over one authenticated connection (`docs/wire.md`, section 8).
//!
//! * [`Sessions`]: all links of one host: dialling, handshakes, which connection is the session, reconnecting.
//! * [`Frame`]: what both ends say for that.
//! * [`Liveness`]: when a silent peer is lost.
//! * [`Rights`]: what the other host may do.
//!
//! Which peer may begin one is the driver's part: it has the certificates.

mod connection;
mod frames;
mod handshake;
mod identity;
mod liveness;
mod peer;
mod rights;
mod session;

pub use frames::{Frame, Received, Width};
pub use identity::HostId;
pub use liveness::{Due, KEEP_TIME, Liveness};
pub use peer::{FIRST_PAUSE, LONGEST_PAUSE};
pub use rights::{Rights, SCHEME};
pub use session::{Event, Sessions, TOO_LATE};
