//! What an event loop knows of a connection.

use std::os::fd::OwnedFd;
use std::time::Instant;

use softs_proto::zmtp::{Codec, Role};

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Peer<S> {
    pub(super) fd: OwnedFd,
    pub(super) codec: Codec,
    pub(super) side: S,
    /// When its handshake must be over; `None` once it is, and then the state machine knows it.
    pub(super) deadline: Option<Instant>,
    /// Whether it is in the list of those with something to write.
    pub(super) is_dirty: bool,
    /// Whether epoll waits for room in its socket.
    pub(super) is_blocked: bool,
}

impl<S> Peer<S> {
    pub(super) fn new(fd: OwnedFd, role: Role, side: S, deadline: Instant) -> Self {
        let codec = Codec::new(role);
        Self { fd, codec, side, deadline: Some(deadline), is_dirty: false, is_blocked: false }
    }
}
