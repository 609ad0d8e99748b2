//! A peer's connection to one endpoint of a broker: bytes one way, messages the other. It never waits; its owner does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use softs_proto::Dialect;
use softs_proto::wire::Message;
use softs_proto::zmtp::{Codec, Event, Role};

use crate::NetError;
use crate::error::os_text;
use crate::transport::connecting::{Hosts, connect};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::{self, no_broker};

/// Bytes that one [`Connection::receive`] makes room for.
const READ_BYTES: usize = 64 << 10;

/// One connection to a broker. Dropping it closes it, for copies of the descriptor in forked children too.
#[derive(Debug)]
pub struct Connection {
    endpoint: Endpoint,
    /// Shared with threads that wait on it without the lock of its owner.
    fd: Arc<OwnedFd>,
    codec: Codec,
}

impl Connection {
    /// Connects and queues the greeting. The handshake goes on in [`Connection::flush`] and [`Connection::receive`],
    /// and its end is the event `Ready`.
    ///
    /// # Errors
    /// [`NetError::NoBroker`] when no process accepts within `timeout`, [`NetError::ForeignOwner`] when the listener of
    /// an ipc endpoint runs neither as our user nor as root, [`NetError::BadEndpoint`] for a wildcard or an unknown
    /// host, [`NetError::Os`].
    pub fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Self, NetError> {
        let connected = connect(endpoint, Hosts::Any, timeout, &mut || false)?;
        let socket = connected.ok_or_else(|| no_broker(endpoint, timeout, Errno::INTR))?;
        Ok(Self::over(socket, Role::Dealer, endpoint))
    }

    /// Over a socket that is connected, as any kind of peer.
    pub(crate) fn over(fd: Arc<OwnedFd>, role: Role, endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.clone(), fd, codec: Codec::new(role) }
    }

    /// Where it is connected to.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// For [`wait`](crate::wait).
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The socket, for threads that wait on it without the lock of the connection's owner.
    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// What both ends agreed to speak; `None` until the handshake is over.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        self.codec.dialect()
    }

    /// Queues a PING; [`Connection::flush`] sends it.
    pub(crate) fn ping(&mut self) {
        self.codec.ping();
    }

    /// Whether the broker's host may be cut off, and the broker answers PING.
    pub(crate) fn answers_pings(&self) -> bool {
        !self.endpoint.is_local() && self.codec.answers_pings()
    }

    /// Queues one message; [`Connection::flush`] sends it.
    pub fn send(&mut self, message: &Message) {
        self.codec.send(message);
    }

    /// Writes what the kernel takes without waiting; `true` when nothing is left.
    ///
    /// # Errors
    /// [`NetError::Lost`] when the broker is gone. What it sent before can still be received.
    pub fn flush(&mut self) -> Result<bool, NetError> {
        while !self.codec.output().is_empty() {
            match socket::write(&self.fd, self.codec.output()) {
                Ok(0) => return Ok(false),
                Ok(n) => self.codec.advance_output(n),
                Err(error) => return Err(self.lost(os_text(error))),
            }
        }
        Ok(true)
    }

    /// Reads once, without waiting; the number of bytes, 0 when nothing is there.
    ///
    /// # Errors
    /// [`NetError::Lost`] when the broker closed the connection. Everything before that has been received.
    pub fn receive(&mut self) -> Result<usize, NetError> {
        match socket::read_into(&self.fd, self.codec.input(READ_BYTES)) {
            Ok(None) => Ok(0),
            Ok(Some(0)) => Err(self.lost("the broker closed it".to_owned())),
            Ok(Some(n)) => Ok(n),
            Err(error) => Err(self.lost(os_text(error))),
        }
    }

    /// The next event among the received bytes.
    ///
    /// # Errors
    /// [`NetError::Protocol`] when the other end does not speak as it should; the connection is of no use any more.
    pub fn poll(&mut self) -> Result<Option<Event<'_>>, NetError> {
        self.codec.poll().map_err(|error| NetError::Protocol {
            endpoint: self.endpoint.to_string(),
            why: error.to_string(),
        })
    }

    /// Asks the kernel whether the broker still holds its end, without receiving anything.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        socket::is_open(&self.fd)
    }

    /// The error of a connection that has ended.
    pub(crate) fn lost(&self, why: String) -> NetError {
        NetError::Lost { endpoint: self.endpoint.to_string(), why }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        socket::hang_up(&self.fd);
    }
}
