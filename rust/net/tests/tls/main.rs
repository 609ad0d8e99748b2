//! TLS between hosts over a pipe in memory: which peers are let in, what arrives, and what a peer that lies gets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bounds;
#[path = "../certificates/mod.rs"]
mod certificates;
mod entry;
mod pipe;
mod records;
#[path = "../../../proto/tests/fuzz/rng.rs"]
mod rng;
