//! A broker in a thread of its own: bind, run, ask, stop. What it decides is `softs_proto::broker`.

mod event_loop;
mod handle;
mod options;
mod peer;
mod ping_pong;
mod transmit;

pub use handle::BrokerHandle;
pub use options::BrokerOptions;
