//! Lanes between the peers of one host: what `softs-shm` keeps in memory, with the system calls around it.

pub(crate) mod client;
pub mod counters;
pub(crate) mod doorbell;
pub(crate) mod supplier;
