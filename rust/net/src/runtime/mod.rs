//! Threads that serve many connections: their frame, their tables, their log.

pub(crate) mod connection_table;
pub(crate) mod log_queue;
pub(crate) mod mutex;
pub(crate) mod server_thread;
