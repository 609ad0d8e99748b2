//! Connecting, and the handshake of the end that connects, on the caller's thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::framing::Outbox;

use super::channel::Channel;
use super::waiting::SLICE;
use crate::error::{NetError, os_text};
use crate::tls::{Credentials, Over, Service, TlsError};
use crate::transport::connecting::{Connecting, Hosts};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::{self, wait};

/// What is said until the other end has let this one in.
pub(crate) trait Joins {
    fn outbox(&mut self) -> &mut Outbox;
    /// Bytes of the connection.
    fn receive(&mut self, bytes: &[u8]);
    /// Whether this end has joined. The error is why one end refused the other.
    fn joined(&self) -> Result<bool, String>;
}

/// How a handshake has ended.
pub(crate) enum Joined {
    Yes(Channel),
    /// The caller was interrupted.
    Interrupted,
    /// One end refused the other one.
    Refused(String),
    Lost(String),
}

/// Where nothing is said but what TLS says; what came would be an answer, and nothing was asked for.
impl Joins for Outbox {
    fn outbox(&mut self) -> &mut Outbox {
        self
    }

    fn receive(&mut self, _bytes: &[u8]) {}

    fn joined(&self) -> Result<bool, String> {
        Ok(true)
    }
}

/// Runs the handshake over a socket that is connected, within `timeout` of `begun`.
pub(crate) fn join(
    socket: Arc<OwnedFd>,
    credentials: Option<(&Credentials, Service)>,
    joining: &mut impl Joins,
    (begun, timeout): (Instant, Duration),
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Joined, NetError> {
    let mut channel = match Channel::begin(socket, credentials, true) {
        Ok(channel) => channel,
        Err(error) => return Ok(Joined::Refused(error.to_string())),
    };
    let mut buffer = [0; 4096];
    loop {
        let is_blocked = channel.write(joining.outbox()).is_blocked;
        match joining.joined() {
            Ok(true) if channel.is_ready() => return Ok(Joined::Yes(channel)),
            Ok(_) => {}
            Err(why) => return Ok(Joined::Refused(why)),
        }
        match channel.read(&mut buffer, &mut |bytes| joining.receive(bytes)) {
            Ok((0, _)) => {}
            Ok(_) => continue,
            // A process that dies ends its connections so.
            Err(Over::Closed | Over::Failed(TlsError::Truncated)) => {
                return Ok(match joining.joined() {
                    Err(why) => Joined::Refused(why),
                    Ok(_) => Joined::Lost("it ended the connection without a reason".to_owned()),
                });
            }
            Err(Over::Failed(error @ TlsError::Unfinished)) => return Ok(Joined::Lost(error.to_string())),
            Err(Over::Failed(error)) => return Ok(Joined::Refused(error.to_string())),
            Err(Over::Os(error)) => return Ok(Joined::Lost(os_text(error))),
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(Joined::Lost(format!("no answer within {:.1} s", timeout.as_secs_f64())));
        }
        if !wait(channel.as_fd(), true, is_blocked, left.min(SLICE))? && interrupted() {
            return Ok(Joined::Interrupted);
        }
    }
}

/// Connects within `timeout`; `None` when the caller was interrupted.
pub(crate) fn connect(
    endpoint: &Endpoint,
    hosts: Hosts,
    timeout: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<Arc<OwnedFd>>, NetError> {
    let in_our_words = |error: NetError| match error.token_needed() {
        NetError::NoBroker { endpoint, why } => NetError::NoMaster { endpoint, why },
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
