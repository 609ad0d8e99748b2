//! The control channel with real sockets: [`ControlHandle`] is the broker's end, [`ControlStudent`] and
//! [`ControlSubscriber`] are those of its peers. What they decide is `softs_proto::control`.

mod handle;
mod student;
mod subscriber;

pub use handle::{ControlHandle, ControlOptions};
pub use student::ControlStudent;
pub use subscriber::ControlSubscriber;
