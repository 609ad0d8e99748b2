//! The broker machine from outside: peers of both dialects that speak encoded frames, in virtual time.
#![allow(clippy::unwrap_used)] // In a test, also in its helpers, a surprise should be a panic.

mod backoff;
mod fairness;
mod lanes;
mod late;
mod links;
mod model;
mod orders;
mod peers;
mod random;
mod suppliers;
mod wire_limits;
