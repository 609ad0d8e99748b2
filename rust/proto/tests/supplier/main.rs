//! The supplier's state machine in virtual time.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod bench;
mod lanes;
mod leases;
