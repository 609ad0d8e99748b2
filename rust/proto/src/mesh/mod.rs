//! What two ranks of a group say to each other: a greeting each, then messages, of which both know the length.
//!
//! Both ranks make the same calls, so a message needs no name: it has its number on its connection. Its length is sent
//! before it, and compared; an empty message is not sent. Between messages a rank that waits says so (a ping), so that
//! the other host has something to acknowledge.

mod greeting;
mod incoming;
mod outgoing;

pub use greeting::{GREETING_BYTES, Greeting, Key};
pub use incoming::{HEADER_BYTES, Incoming, Wrong};
pub use outgoing::{Outgoing, Part};
