//! The client's driver: no thread of its own, every call runs the event loop in the caller's thread.

mod batch_queue;
mod driver;
mod gathering;
mod pipeline;
mod requests;
mod slots;
mod state;

pub use crate::transport::nonce::nonce;
pub use crate::waited::Waited;
pub use driver::Client;
pub use gathering::{Batch, GatherError};
pub use pipeline::{GatherPipeline, OwnedRagged, OwnedRows, PipelineBatch, SubmitError};
pub use slots::Slots;
