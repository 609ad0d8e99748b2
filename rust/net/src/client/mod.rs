//! The client's driver: no thread of its own, every call runs the event loop in the caller's thread.

mod driver;
mod gathering;
mod requests;
mod slots;
mod state;

pub use crate::transport::nonce::nonce;
pub use crate::waited::Waited;
pub use driver::Client;
pub use gathering::{Batch, GatherError};
pub use slots::Slots;
