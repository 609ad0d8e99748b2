//! Events of a connection.

use crate::Dialect;
use crate::limits::MAX_FRAMES;

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the large one is the frequent one")]
pub enum Event<'a> {
    /// The handshake is done. Comes once, before all messages.
    Ready {
        /// Settled from now on.
        dialect: Dialect,
    },
    /// A whole message.
    Message(Frames<'a>),
    /// The peer of a publisher subscribes to messages with a first frame that starts with `prefix`, or unsubscribes.
    /// Both forms that ZMTP 3 has for it, a message of one frame (3.0) and a command (3.1), come as this.
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
    pub(super) frames: [&'a [u8]; MAX_FRAMES],
    pub(super) len: usize,
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
