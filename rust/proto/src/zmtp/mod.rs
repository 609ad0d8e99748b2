//! ZMTP 3.1 (<https://rfc.zeromq.org/spec/37/>) with the NULL mechanism, without the socket: bytes in, messages out,
//! and the other way round.
//!
//! One [`Codec`] is one connection. Whatever the peer sends, it holds no more than the limits of [`crate::limits`]
//! allow, and it refuses as soon as a length is known, not when the bytes have arrived. Pass bytes in, then call
//! [`Codec::poll`] until it has nothing more.

mod buffer;
mod codec;
mod error;
mod event;
mod frame;
mod handshake;
mod output;
mod role;

pub use codec::Codec;
pub use error::ZmtpError;
pub use event::{Event, Frames};
pub use output::SharedMessage;
pub use role::Role;
