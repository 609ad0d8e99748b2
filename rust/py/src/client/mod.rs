//! `_core.Client`, and batches that are gathered ahead.

mod ahead;
mod handle;
mod pipeline;
mod targets;

pub(crate) use ahead::Ahead;
pub(crate) use handle::Client;
pub(crate) use pipeline::GatherPipeline;
