//! The control stream of a flow: bytes, handshake, messages, limits; with seeds, in every order of events.
#![allow(clippy::disallowed_methods, reason = "the ages of published values need some moment")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bytes;
mod handshake;
mod messages;
mod pair;
mod random;
mod rows;
