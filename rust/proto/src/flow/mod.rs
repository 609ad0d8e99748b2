//! The control stream of a flow: one master, many workers, messages in order (`docs/wire.md`, section 6).
//!
//! * [`FrameReader`] and [`Outbox`]: bytes of one connection to frames, and frames to bytes.
//! * [`ToMaster`] and [`ToWorker`]: the messages.
//! * [`Master`] and [`Worker`]: the two state machines. A worker answers ASK from what it has published, so whatever
//!   runs the machine can answer while the rest of the process is busy.
//! * [`rows`]: values of rows from one host to another.

mod frame;
mod limits;
mod master;
mod message;
mod outbox;
pub mod rows;
mod seats;
mod send_error;
mod token;
mod worker;

pub use frame::{FrameError, FrameReader, HEADER_BYTES};
pub use limits::Limits;
pub use master::{Admission, Master};
pub use message::{Answered, Challenge, Hello, MAX_NAME_BYTES, MessageError, ToMaster, ToWorker};
pub use outbox::Outbox;
pub use seats::{AskId, Event, Publication};
pub use send_error::{AskError, SendError};
pub use token::{NONCE_BYTES, Nonce, PROOF_BYTES, Proof, Token, TokenError};
pub use worker::{Credentials, Introduction, News, Worker};
