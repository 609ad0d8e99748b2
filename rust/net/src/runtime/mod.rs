//! Threads that serve many connections: their event loop, their tables, their log.

pub(crate) mod connection_table;
mod end_after;
pub(crate) mod event_loop;
pub(crate) mod log_queue;
pub(crate) mod mutex;
mod peer;
pub(crate) mod server_state;
pub(crate) mod server_thread;
pub(crate) mod standby;

pub use end_after::end_after;
