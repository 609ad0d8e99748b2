//! The control stream of a flow: one master, many workers, messages in order (`docs/wire.md`, section 6).
//!
//! * [`Handshake`]: how a worker joins. Which processes may connect is the matter of whatever runs the machines.
//! * [`ToMaster`] and [`ToWorker`]: the messages.
//! * [`Master`] and [`Worker`]: the two state machines. A worker answers ASK from what it has published, so whatever
//!   runs the machine can answer while the rest of the process is busy.
//! * [`rows`]: values from one host to another.

mod handshake;
mod limits;
mod master;
mod message;
pub mod rows;
mod seats;
mod send_error;
mod worker;

pub use handshake::{Handshake, Hello};
pub use limits::Limits;
pub use master::Master;
pub use message::{Answer, MAX_NAME_BYTES, ToMaster, ToWorker};
pub use seats::{AskId, Event, Publication};
pub use send_error::{AskError, SendError};
pub use worker::Worker;
