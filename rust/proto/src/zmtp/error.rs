//! Why a connection ends.

use crate::limits::{
    MAX_COMMAND_BYTES, MAX_FRAME_BYTES, MAX_FRAMES, MAX_MESSAGE_BYTES, MAX_PING_CONTEXT_BYTES,
};

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
        /// The socket type that this end talks to.
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
