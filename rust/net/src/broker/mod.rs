//! A broker in a thread of its own: bind, run, ask, stop. What it decides is `softs_proto::broker`.

mod handle;
mod machine;

pub use handle::{BrokerHandle, BrokerOptions};
