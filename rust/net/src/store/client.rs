//! The end that asks, on its caller's thread.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use softs_proto::framing::Outbox;
use softs_proto::store::{Answer, Reply, Request};

use crate::error::{NetError, os_text};
use crate::runtime::mutex::lock;
use crate::streams::{Channel, SLICE, Undialled, dial, why};
use crate::tls::{Credentials, Service};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::{KeepAlive, prepare_tcp, wait};
use crate::waited::Waited;

/// How long a call waits for one more connection.
const DIAL: Duration = Duration::from_secs(10);
/// How long it is until the next attempt to reach a store that does not listen yet.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the host of the store may be silent while a call waits.
const SILENT: Duration = Duration::from_secs(4);

/// Asks a store; may be shared between threads. A call that waits has a connection for itself, so it holds up no other one.
#[derive(Debug)]
pub struct StoreClient {
    endpoint: Endpoint,
    credentials: Option<Credentials>,
    idle: Mutex<Vec<Channel>>,
}

impl StoreClient {
    /// Connects within `timeout`; the store may begin to listen meanwhile.
    ///
    /// # Errors
    /// [`NetError::NoStore`], [`NetError::TokenNeeded`] for another machine without credentials,
    /// [`NetError::ForeignOwner`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn connect(
        endpoint: Endpoint,
        credentials: Option<Credentials>,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Waited<Self>, NetError> {
        let (begun, idle) = (Instant::now(), Mutex::default());
        let client = Self { endpoint, credentials, idle };
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            match client.dial(left, interrupted) {
                Ok(Some(channel)) => {
                    lock(&client.idle).push(channel);
                    return Ok(Waited::Ready(client));
                }
                Ok(None) => return Ok(Waited::Interrupted),
                Err(Undialled::Unreached(_)) if left > PAUSE => sleep(PAUSE),
                Err(error) => return Err(client.no_store(error)),
            }
            if interrupted() {
                return Ok(Waited::Interrupted);
            }
        }
    }

    /// Asks once; `take` gets the reply. Without a reply within `timeout` the request is given up.
    ///
    /// # Errors
    /// [`NetError::Lost`], and those of [`Self::connect`] where it needs one more connection.
    pub fn ask<T>(
        &self,
        request: &Request<'_>,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
        take: impl FnOnce(Reply<'_>) -> T,
    ) -> Result<Waited<T>, NetError> {
        let begun = Instant::now();
        let idle = lock(&self.idle).pop();
        let mut channel = match idle {
            Some(channel) => channel,
            None => match self.dial(timeout.min(DIAL), interrupted) {
                Ok(Some(channel)) => channel,
                Ok(None) => return Ok(Waited::Interrupted),
                Err(error) => return Err(self.no_store(error)),
            },
        };
        let (mut outbox, mut answer) = (Outbox::default(), Answer::default());
        request.encode(&mut outbox);
        let mut buffer = [0; 4096];
        loop {
            let is_blocked = channel.write(&mut outbox).is_blocked;
            let read = channel.read(&mut buffer, &mut |bytes| answer.receive(bytes));
            // What came before the end of the connection counts, or tells why.
            if let Some(reply) = answer.poll().map_err(|why| self.lost(why))? {
                let taken = take(reply);
                lock(&self.idle).push(channel);
                return Ok(Waited::Ready(taken));
            }
            match read {
                Ok((0, _)) => {}
                Ok(_) => continue,
                Err(over) => {
                    return Err(self.lost(why(over, "the process that keeps the store has ended")));
                }
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(Waited::TimedOut);
            }
            if !wait(channel.as_fd(), true, is_blocked, left.min(SLICE))? && interrupted() {
                return Ok(Waited::Interrupted);
            }
        }
    }

    fn dial(
        &self,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Channel>, Undialled> {
        let credentials = self.credentials.as_ref().map(|own| (own, Service::Store));
        let dialled = dial(&self.endpoint, credentials, &mut Outbox::default(), timeout, interrupted);
        let channel = dialled.map_err(|error| match error {
            // A name may be known as soon as its host is there.
            Undialled::Other(NetError::BadEndpoint { why, .. }) if self.endpoint.is_named() => {
                Undialled::Unreached(why)
            }
            other => other,
        })?;
        if let Some(channel) = &channel {
            let prepared = prepare_tcp(channel, KeepAlive::within(SILENT));
            prepared.map_err(|error| Undialled::Unreached(os_text(error)))?;
        }
        Ok(channel)
    }

    fn no_store(&self, error: Undialled) -> NetError {
        match error {
            Undialled::Unreached(why) | Undialled::Refused(why) => {
                NetError::NoStore { endpoint: self.endpoint.to_string(), why }
            }
            Undialled::Other(error) => error,
        }
    }

    fn lost(&self, why: String) -> NetError {
        NetError::Lost { endpoint: self.endpoint.to_string(), why }
    }
}
