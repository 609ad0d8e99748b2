//! `_core.Client`, and batches that are gathered ahead.

mod ahead;
mod handle;

pub(crate) use ahead::Ahead;
pub(crate) use handle::Client;
