//! Processes: forks of this one, and identity and liveness of others.

mod fork_guard;
#[cfg(not(loom))]
mod identity;
mod token;

pub(crate) use fork_guard::OneWriter;
#[cfg(not(loom))]
pub use identity::Identity;
pub use token::ProcessToken;
