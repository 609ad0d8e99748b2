//! Processes: forks and threads of this one, and identity and liveness of others.

mod fork_guard;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod identity;
#[cfg(not(loom))]
mod liveness;
#[cfg(not(loom))]
mod stat;
#[cfg(not(loom))]
mod thread_signal;
mod token;

pub(crate) use fork_guard::OneWriter;
#[cfg(not(loom))]
pub use host::host_id;
#[cfg(not(loom))]
pub use identity::Identity;
#[cfg(not(loom))]
pub use liveness::{Liveness, ProcessWatch, is_process_alive};
#[cfg(not(loom))]
pub use stat::start_of;
#[cfg(not(loom))]
pub use thread_signal::{NotSent, ThreadSignal};
pub use token::ProcessToken;
