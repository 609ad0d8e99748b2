//! Connecting, and the handshake of the end that connects, on the caller's thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softs_proto::flow::Worker;
use softs_proto::flow::rows::Joining;
use softs_proto::framing::Outbox;

use super::connections::write;
use super::waiting::SLICE;
use crate::error::{NetError, os_text};
use crate::transport::connecting::{Connecting, Hosts};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::{self, wait};

/// The state machine of a handshake.
pub(super) trait Joins {
    fn outbox(&mut self) -> &mut Outbox;
    /// Bytes of the connection; whether this end has joined. The error is why one end refused the other.
    fn receive(&mut self, bytes: &[u8]) -> Result<bool, String>;
}

/// How a handshake has ended.
pub(super) enum Joined {
    Yes,
    /// The caller was interrupted.
    Interrupted,
    /// One end refused the other one.
    Refused(String),
    Lost(String),
}

impl Joins for Worker {
    fn outbox(&mut self) -> &mut Outbox {
        Self::outbox(self)
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<bool, String> {
        Self::receive(self, Instant::now(), bytes);
        self.ended().map_or(Ok(self.joined().is_some()), |why| Err(why.to_owned()))
    }
}

impl Joins for Joining {
    fn outbox(&mut self) -> &mut Outbox {
        Self::outbox(self)
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<bool, String> {
        Self::receive(self, bytes)
    }
}

/// Runs the handshake within `timeout` of `begun`.
pub(super) fn join(
    socket: &Arc<OwnedFd>,
    joining: &mut impl Joins,
    begun: Instant,
    timeout: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Joined, NetError> {
    let mut buffer = [0; 4096];
    loop {
        write(socket, joining.outbox());
        match socket::read(socket, &mut buffer) {
            Ok(None) => {}
            // A process that dies ends its connections so.
            Ok(Some(0)) | Err(Errno::CONNRESET) => {
                return Ok(Joined::Lost("it ended the connection without a reason".to_owned()));
            }
            Ok(Some(n)) => {
                let joined = match joining.receive(&buffer[..n]) {
                    Ok(false) => continue,
                    Ok(true) => Joined::Yes,
                    Err(why) => Joined::Refused(why),
                };
                write(socket, joining.outbox());
                return Ok(joined);
            }
            Err(error) => return Ok(Joined::Lost(os_text(error))),
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(Joined::Lost(format!("no answer within {:.1} s", timeout.as_secs_f64())));
        }
        let has_output = !joining.outbox().is_empty();
        if !wait(socket.as_fd(), true, has_output, left.min(SLICE))? && interrupted() {
            return Ok(Joined::Interrupted);
        }
    }
}

/// Connects within `timeout`; `None` when the caller was interrupted.
pub(super) fn connect(
    endpoint: &Endpoint,
    hosts: Hosts,
    timeout: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<Arc<OwnedFd>>, NetError> {
    let in_our_words = |error| match error {
        NetError::NoBroker { endpoint, why } => NetError::NoMaster { endpoint, why },
        NetError::RemoteNotAllowed { endpoint } => NetError::TokenNeeded { endpoint },
        other => other,
    };
    if endpoint.is_local() {
        return socket::connect_local(endpoint, timeout).map(Arc::new).map(Some).map_err(in_our_words);
    }
    let begun = Instant::now();
    let mut attempt = Connecting::begin_to(hosts, endpoint, timeout, begun);
    loop {
        if let Some(outcome) = attempt.poll(Instant::now()) {
            return outcome.map(Some).map_err(in_our_words);
        }
        let left = timeout.saturating_sub(begun.elapsed());
        let Some((fd, write)) = attempt.waitable().filter(|_| !left.is_zero()) else {
            let why = format!("no connection within {:.1} s", timeout.as_secs_f64());
            return Err(NetError::NoMaster { endpoint: endpoint.to_string(), why });
        };
        if !wait(fd.as_fd(), !write, write, left.min(SLICE))? && interrupted() {
            return Ok(None);
        }
    }
}
