//! The broker machine from outside: peers of both dialects that speak encoded frames, in virtual time.

mod model;
mod orders;
mod peers;
mod random;
mod suppliers;
mod wire_limits;
