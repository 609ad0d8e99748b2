//! Memory of Python: buffers, leases of slots, rows, encodings, and threads that wait for a change.

pub(crate) mod buffer;
pub(crate) mod codec;
pub(crate) mod futex;
pub(crate) mod ragged;
pub(crate) mod rows;
