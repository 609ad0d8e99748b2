//! Processes: forks and threads of this one, and identity and liveness of others.

mod fork_guard;
#[cfg(not(feature = "loom"))]
mod host;
#[cfg(not(feature = "loom"))]
mod identity;
#[cfg(not(feature = "loom"))]
mod liveness;
#[cfg(not(feature = "loom"))]
mod stat;
#[cfg(not(feature = "loom"))]
mod thread_signal;
mod token;

pub(crate) use fork_guard::OneWriter;
#[cfg(not(feature = "loom"))]
pub use host::host_id;
#[cfg(not(feature = "loom"))]
pub use identity::Identity;
#[cfg(not(feature = "loom"))]
pub use liveness::{Liveness, ProcessWatch, is_process_alive};
#[cfg(not(feature = "loom"))]
pub use stat::start_of;
#[cfg(not(feature = "loom"))]
pub use thread_signal::{NotSent, ThreadSignal};
pub use token::ProcessToken;
