//! Connections of flows and stores: the end that accepts serves all of them in a thread, with a machine that decides; an
//! end that connects joins on the thread of its caller.

mod channel;
mod connections;
mod joining;
mod peer_process;
mod serving;
mod signals;
mod waiting;

pub(crate) use channel::{Channel, why};
pub(crate) use connections::Connections;
pub(crate) use joining::{Joins, Undialled, dial};
pub(crate) use serving::{Shared, StreamOptions, Streams};
pub use signals::{Signals, Watch};
pub(crate) use waiting::SLICE;
