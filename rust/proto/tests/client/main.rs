//! The client's state machine in virtual time: what it sends, and what becomes of its slots.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod blocks;
mod harness;
mod lane_failures;
#[path = "../lane_model/mod.rs"]
mod lane_model;
mod lanes;
mod lost_broker;
mod random;
mod seeking;
mod slots;
mod streams;
mod window;
