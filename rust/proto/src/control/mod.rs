//! The control channel: which model the workers run, and which peer may set it.
//!
//! Three state machines: [`Control`] is the broker's, [`Student`] and [`Subscriber`] are those of its peers. As everywhere in this crate, an event
//! (`handle_*`) changes the state, and what it causes waits to be fetched (`poll_*`).
//!
//! The leader is the student of rank 0. Its SET_MODEL counts the generation up and is published; a later subscriber is told the model of
//! now at once. A seat is held by a connection, so it is free the moment that its student dies. A broker that was restarted knows nothing: the
//! students tell it the newest model that they know, the highest generation wins, and the word of a leader wins over what is remembered.

mod channel;
mod model;
mod rank_registry;
mod student;
mod subscriber;
mod subscriptions;

pub use channel::{Control, Door};
pub use model::Model;
pub use student::{Outcome, Request, Student};
pub use subscriber::{News, Subscriber};
