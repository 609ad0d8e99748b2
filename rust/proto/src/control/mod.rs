//! The control channel: which model the workers run, and which peer may set it.
//!
//! Four state machines: [`Control`] is the broker's, [`Student`], [`Subscriber`] and [`LinkSeat`] are those of its peers. As
//! everywhere in this crate, an event (`handle_*`) changes the state, and what it causes waits to be fetched
//! (`poll_*`).
//!
//! The leader is the student of rank 0. Its SET_MODEL counts the generation up and is published; a later subscriber is
//! sent the model of now at once. A seat is held by a connection, so it is free the moment that its student dies. A
//! broker that was restarted has no model: the students send it the newest model that they know, the highest generation
//! wins, and a SET_MODEL of a leader wins over remembered models. A link has a broker follow the leader of another host,
//! under the same number, while no student of rank 0 is here.
//!
//! A STOP goes to the workers that subscribe then. Links have it carried out on other hosts too, also on those that are joined
//! again while it holds: until its leader sets the next model, or ends.

mod channel;
mod link_seat;
mod links;
mod model;
mod rank_registry;
mod student;
mod subscriber;
mod subscriptions;

pub use channel::{Control, Endpoint};
pub use link_seat::{Followed, LinkSeat};
pub use model::{Model, Running, generation_of};
pub use student::{Outcome, Request, Student};
pub use subscriber::{News, Subscriber};
