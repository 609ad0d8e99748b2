//! Connecting, and the handshake of the end that connects, on the caller's thread.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use softs_proto::framing::Outbox;

use super::channel::{Channel, why};
use crate::error::NetError;
use crate::tls::{Credentials, Over, Service, TlsError};
use crate::transport::connecting::{Hosts, SLICE, connect};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::wait;

/// What is said until the other end has let this one in.
pub(crate) trait Joins {
    fn outbox(&mut self) -> &mut Outbox;
    /// Bytes of the connection.
    fn receive(&mut self, bytes: &[u8]);
    /// Whether this end has joined. The error is why one end refused the other.
    fn joined(&self) -> Result<bool, String>;
}

/// Why there is no connection.
pub(crate) enum Undialled {
    /// Nothing listens there, or what listens says nothing or goes: it may be there later.
    Unreached(String),
    /// One end refused the other one.
    Refused(String),
    Other(NetError),
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

/// Connects and runs the handshake, within `timeout`; `None` when the caller was interrupted. Without credentials the other
/// end has to be on this machine.
pub(crate) fn dial(
    endpoint: &Endpoint,
    credentials: Option<(&Credentials, Service)>,
    joining: &mut impl Joins,
    timeout: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<Channel>, Undialled> {
    let begun = Instant::now();
    let hosts = if credentials.is_some() { Hosts::Any } else { Hosts::Loopback };
    let socket = match connect(endpoint, hosts, timeout, interrupted) {
        Ok(Some(socket)) => socket,
        Ok(None) => return Ok(None),
        Err(NetError::NoBroker { why, .. }) => return Err(Undialled::Unreached(why)),
        Err(error) => return Err(Undialled::Other(error.token_needed())),
    };
    let begun_tls = Channel::begin(socket, credentials, true);
    let mut channel = begun_tls.map_err(|error| Undialled::Refused(error.to_string()))?;
    let mut buffer = [0; 4096];
    loop {
        let is_blocked = channel.write(joining.outbox()).is_blocked;
        if joining.joined().map_err(Undialled::Refused)? && channel.is_ready() {
            return Ok(Some(channel));
        }
        match channel.read(&mut buffer, &mut |bytes| joining.receive(bytes)) {
            Ok((0, _)) => {}
            Ok(_) => continue,
            Err(Over::Failed(error)) if !matches!(error, TlsError::Truncated | TlsError::Unfinished) => {
                return Err(Undialled::Refused(error.to_string()));
            }
            // A process that dies ends its connections so.
            Err(over) => {
                joining.joined().map_err(Undialled::Refused)?;
                return Err(Undialled::Unreached(why(over, "it ended the connection without a reason")));
            }
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let text = format!("no answer within {:.1} s", timeout.as_secs_f64());
            return Err(Undialled::Unreached(text));
        }
        let ready = wait(channel.as_fd(), true, is_blocked, left.min(SLICE)).map_err(Undialled::Other)?;
        if !ready && interrupted() {
            return Ok(None);
        }
    }
}
