//! What an event loop knows of a connection.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use softs_proto::silence::Silence;
use softs_proto::zmtp::{Codec, Role};

use crate::transport::socket;

/// One accepted connection.
#[derive(Debug)]
pub(super) struct Peer<S> {
    pub(super) fd: OwnedFd,
    pub(super) codec: Codec,
    pub(super) side: S,
    /// When its handshake must be over; `None` once it is, and then the state machine knows it.
    pub(super) deadline: Option<Instant>,
    /// Where it is connected from, by TCP: its host may be cut off.
    pub(super) tcp_host: Option<IpAddr>,
    pub(super) silence: Silence,
    /// Whether it is in the list of those with something to write.
    pub(super) is_dirty: bool,
    /// Whether epoll waits for room in its socket.
    pub(super) is_blocked: bool,
    /// Its greeting is not read: this broker does not serve.
    pub(super) is_parked: bool,
}

impl<S> Peer<S> {
    pub(super) fn new(fd: OwnedFd, role: Role, side: S, deadline: Instant) -> Self {
        let codec = Codec::new(role);
        let tcp_host = socket::tcp_host(&fd);
        Self {
            fd,
            codec,
            side,
            deadline: Some(deadline),
            tcp_host,
            silence: Silence::default(),
            is_dirty: false,
            is_blocked: false,
            is_parked: false,
        }
    }
}
