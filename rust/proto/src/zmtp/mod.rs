//! ZMTP 3.1 (<https://rfc.zeromq.org/spec/37/>) with the NULL mechanism, without the socket: bytes in, messages out, and the other way round.
//!
//! One [`Codec`] is one connection. Whatever the peer sends, it holds no more than the limits of [`crate::limits`] allow, and it says no
//! as soon as a length is known, not when the bytes have arrived. Hand it bytes, then call [`Codec::poll`] until it has nothing more.

mod buffer;
mod codec;
mod frame;
mod handshake;

pub use codec::Codec;

use crate::Dialect;
use crate::limits::{
    MAX_COMMAND_BYTES, MAX_FRAME_BYTES, MAX_FRAMES, MAX_MESSAGE_BYTES, MAX_PING_CONTEXT_BYTES,
};

/// Which socket type this end plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A broker; its peers are DEALERs.
    Router,
    /// A client or a supplier; its peer is a ROUTER.
    Dealer,
    /// The publishing end of the control channel; its peers are SUBs and XSUBs.
    Publisher,
    /// Who follows a publisher; its peer is a PUB or an XPUB.
    Subscriber,
}

impl Role {
    /// The value of `Socket-Type` in READY.
    pub(crate) fn socket_type(self) -> &'static str {
        match self {
            Self::Router => "ROUTER",
            Self::Dealer => "DEALER",
            Self::Publisher => "PUB",
            Self::Subscriber => "SUB",
        }
    }

    /// Whether it is the side that connects, which speaks first (RFC 37, "The NULL Security Mechanism").
    pub(crate) fn connects(self) -> bool {
        matches!(self, Self::Dealer | Self::Subscriber)
    }

    /// The socket types of its peers: the usual one, and the raw form of that.
    fn peers(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Router => ("DEALER", None),
            Self::Dealer => ("ROUTER", None),
            Self::Publisher => ("SUB", Some("XSUB")),
            Self::Subscriber => ("PUB", Some("XPUB")),
        }
    }
}

/// What a connection has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the large one is the frequent one")]
pub enum Event<'a> {
    /// The handshake is done. Comes once, before all messages.
    Ready {
        /// Settled from now on.
        dialect: Dialect,
        /// The peer's, mostly empty.
        identity: Vec<u8>,
    },
    /// A whole message.
    Message(Frames<'a>),
    /// The peer of a publisher wants messages whose first frame starts with `prefix`, or wants them no more. Both forms that ZMTP 3 has
    /// for it, a message of one frame (3.0) and a command (3.1), come as this.
    Subscription {
        /// Whether it wants them.
        wanted: bool,
        /// Everything starts with an empty one.
        prefix: &'a [u8],
    },
}

/// The frames of one received message, borrowed from the codec's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    frames: [&'a [u8]; MAX_FRAMES],
    len: usize,
}

impl<'a> Frames<'a> {
    /// The frames in order; at least one.
    #[must_use]
    pub fn as_slice(&self) -> &[&'a [u8]] {
        &self.frames[..self.len]
    }
}

impl PartialEq for Frames<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Frames<'_> {}

/// Why a connection cannot go on. The codec has put an ERROR command into its output where the peer can read one; write it, then close.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// The first ten bytes are no signature.
    #[error("peer does not speak ZMTP: its first bytes are no signature")]
    NotZmtp,
    /// ZMTP 1 or 2.
    #[error("peer speaks ZMTP of revision {0}, need 3 or higher")]
    OldVersion(u8),
    /// Another security mechanism; its name.
    #[error("peer wants mechanism \"{0}\", need NULL")]
    Mechanism(String),
    /// NULL knows no servers.
    #[error("peer sets as-server, which NULL does not have")]
    AsServer,
    /// Another socket type; its name.
    #[error("peer is a {have} socket, need {need}")]
    SocketType {
        /// Whom this end talks to.
        need: &'static str,
        /// What the peer says it is.
        have: String,
    },
    /// A message or another command came where READY should be.
    #[error("peer sent something else before READY")]
    NotReady,
    /// Flag bits that a frame cannot have.
    #[error("frame with flags {0:#04x}")]
    Flags(u8),
    /// A frame over the limit.
    #[error("frame of {0} bytes, at most {MAX_FRAME_BYTES} allowed")]
    FrameTooLong(u64),
    /// A message over the limit.
    #[error("message of {0} bytes or more, at most {MAX_MESSAGE_BYTES} allowed")]
    MessageTooLong(usize),
    /// A message of too many frames.
    #[error("message of more than {MAX_FRAMES} frames")]
    TooManyFrames,
    /// A command over the limit, or many commands between the frames of one message.
    #[error("commands of {0} bytes, at most {MAX_COMMAND_BYTES} allowed")]
    CommandTooLong(u64),
    /// A PING over the limit.
    #[error("PING with a context of {0} bytes, at most {MAX_PING_CONTEXT_BYTES} allowed")]
    PingTooLong(usize),
    /// A command whose inner lengths do not add up, or a property that cannot be.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// The peer gave up with an ERROR command; its text.
    #[error("peer refused the connection: \"{0}\"")]
    Peer(String),
}
