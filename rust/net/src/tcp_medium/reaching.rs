//! A supplier's way to the owner: connected, asked for an answer, answered. It blocks no thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::wire::{GREETING, NATIVE, STORED};
use crate::transport::connecting::{Connecting, Hosts};
use crate::transport::socket;
use crate::{Endpoint, NetError};

/// How long the kernel may try one address. A writer that does not wait so long goes on with its work meanwhile.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// A connection that the owner has not accepted yet.
#[derive(Debug)]
pub(super) enum Reaching {
    Connecting(Connecting),
    /// The owner was asked for its answer: an end of the kernel's handshake does not show that its process runs.
    Knocked(Arc<OwnedFd>),
    /// The owner has answered, so that its next fence ends this connection.
    Answered(Accepted),
}

/// A connection that the owner has accepted.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub(super) fd: Arc<OwnedFd>,
    /// Whether the owner reads native headers.
    pub(super) is_native: bool,
}

/// Why a connection or an exchange ended early.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stop {
    /// The owner ended the connection.
    Gone,
    TimedOut,
    Interrupted,
    /// No process listens there, or it may not be connected to.
    Unreachable(NetError),
    Os(Errno),
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        match error {
            Errno::PIPE | Errno::CONNRESET | Errno::CONNABORTED => Self::Gone,
            Errno::TIMEDOUT => Self::TimedOut,
            error => Self::Os(error),
        }
    }
}

impl Reaching {
    pub(super) fn begin(endpoint: &Endpoint, hosts: Hosts, now: Instant) -> Self {
        Self::Connecting(Connecting::begin_to(hosts, endpoint, HANDSHAKE_LIMIT, now))
    }

    /// The connection, once the owner has answered, or why there is none; never waits.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Result<Accepted, Stop>> {
        loop {
            *self = match self {
                Self::Connecting(connecting) => match connecting.poll(now)? {
                    Ok(fd) => match send(&*fd, &GREETING, SendFlags::NOSIGNAL) {
                        Ok(n) if n == GREETING.len() => Self::Knocked(fd),
                        // A few bytes fit into the buffer of every new socket.
                        Ok(_) => return Some(Err(Stop::Gone)),
                        Err(error) => return Some(Err(error.into())),
                    },
                    Err(error) => return Some(Err(Stop::Unreachable(error))),
                },
                Self::Knocked(fd) => {
                    let mut answer = [0];
                    match socket::read(fd, &mut answer) {
                        Ok(None) => return None,
                        Ok(Some(1)) if matches!(answer[0], STORED | NATIVE) => {
                            Self::Answered(Accepted { fd: Arc::clone(fd), is_native: answer[0] == NATIVE })
                        }
                        Ok(_) => return Some(Err(Stop::Gone)),
                        Err(error) => return Some(Err(error.into())),
                    }
                }
                Self::Answered(accepted) => {
                    return Some(if is_quiet(&accepted.fd) { Ok(accepted.clone()) } else { Err(Stop::Gone) });
                }
            };
        }
    }

    /// Whether the kernel's handshake is not over.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(self, Self::Connecting(_))
    }

    /// What becomes readable, or writable (`true`), when [`Self::poll`] should be called.
    pub(super) fn waitable(&self) -> Option<(Arc<OwnedFd>, bool)> {
        match self {
            Self::Connecting(connecting) => connecting.waitable(),
            Self::Knocked(fd) | Self::Answered(Accepted { fd, .. }) => Some((Arc::clone(fd), false)),
        }
    }
}

/// Whether a connection is open: the owner only answers, so what can be read between writes is its end.
pub(super) fn is_quiet(fd: &OwnedFd) -> bool {
    socket::read(fd, &mut [0]) == Ok(None)
}
