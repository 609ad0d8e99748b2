//! What the loop knows of a connection.

use std::os::fd::OwnedFd;
use std::time::Instant;

use softs_proto::broker::Side;
use softs_proto::zmtp::{Codec, Role};

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) fd: OwnedFd,
    pub(super) codec: Codec,
    pub(super) side: Side,
    /// When its handshake must be over; `None` once it is, and then the state machine knows it.
    pub(super) deadline: Option<Instant>,
    /// Whether it is in the list of those with something to write.
    pub(super) is_dirty: bool,
    /// Whether it is in the list of those with an answer to write that can wait.
    pub(super) is_patient: bool,
    /// Whether epoll waits for room in its socket.
    pub(super) is_armed: bool,
}

impl Peer {
    pub(super) fn new(fd: OwnedFd, side: Side, deadline: Instant) -> Self {
        Self {
            fd,
            codec: Codec::new(Role::Router),
            side,
            deadline: Some(deadline),
            is_dirty: false,
            is_patient: false,
            is_armed: false,
        }
    }
}
