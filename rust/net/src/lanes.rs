//! Lanes between the peers of one host: what `softs-shm` keeps in memory, with the system calls around it.

pub(crate) mod bell;
pub mod counters;
pub(crate) mod owner;
pub(crate) mod worker;
