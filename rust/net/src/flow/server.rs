//! The master's end: start, send, receive, ask, close.

use std::time::Duration;

use softs_proto::flow::{AskError, Event, Limits, Master, Publication, SendError};
use softs_proto::log::LogRecord;

use crate::error::NetError;
use crate::streams::{Signals, StreamOptions, Streams};
use crate::tls::{Credentials, Service};
use crate::transport::endpoint::Endpoint;
use crate::transport::socket::KeepAlive;
use crate::waited::Waited;

/// Connections beyond the workers that may be joined: those in their handshakes.
const MORE_CONNECTIONS: usize = 256;

/// What has come since the last call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// In order.
    pub events: Vec<Event>,
    /// Lines of log.
    pub log: Vec<LogRecord>,
    /// Why nothing more comes.
    pub ended: Option<String>,
}

/// A running master's end; may be shared between threads. Dropping it closes it.
#[derive(Debug)]
pub struct FlowServer(Streams<Master>);

impl FlowServer {
    /// Listens. With credentials workers have to have their own, and may be on other machines; `keep_alive` says when
    /// those count as dead.
    ///
    /// # Errors
    /// [`NetError::TokenNeeded`] when other machines could reach it without one, [`NetError::EndpointInUse`],
    /// [`NetError::PathTaken`], [`NetError::BadEndpoint`], [`NetError::Os`].
    pub fn start(
        endpoint: &Endpoint,
        credentials: Option<Credentials>,
        limits: Limits,
        keep_alive: KeepAlive,
    ) -> Result<Self, NetError> {
        let options = StreamOptions {
            thread: "softs-flow",
            name: "master",
            max_connections: limits.workers + MORE_CONNECTIONS,
            handshake: limits.handshake,
            stall: None,
        };
        let credentials = credentials.map(|credentials| (credentials, Service::Flow));
        Streams::listen(endpoint, credentials, keep_alive, Master::new(limits), options).map(Self)
    }

    /// Where workers connect to, wildcards resolved.
    pub fn endpoint(&self) -> &str {
        self.0.endpoint()
    }

    /// Sends a message to a worker; never waits for it.
    ///
    /// # Errors
    /// As [`Master::send`].
    pub fn send(&self, worker: u32, payload: &[u8]) -> Result<(), SendError> {
        let mut connections = self.0.shared().lock();
        let peer = connections.machine.send(worker, payload)?;
        self.0.shared().flush(&mut connections, peer);
        Ok(())
    }

    /// Waits until something has come; without a time-out for ever.
    pub fn receive(&self, timeout: Option<Duration>, signals: &mut dyn Signals) -> Waited<Taken> {
        self.0.wait(timeout, signals, |connections| {
            let (log, ended) = (connections.machine.take_log(), connections.ended.clone());
            (!log.is_empty() || connections.machine.has_events() || ended.is_some()).then(|| {
                let (events, resumed) = connections.machine.take_events();
                // Those of which too much waited are read again.
                for id in resumed {
                    self.0.shared().flush(connections, id);
                }
                Taken { events, log, ended }
            })
        })
    }

    /// Asks a worker for what it has published. Its thread answers, whatever the rest of its process does.
    ///
    /// # Errors
    /// The worker is not connected, leaves, or has published nothing of that name.
    pub fn ask(
        &self,
        worker: u32,
        what: &str,
        timeout: Duration,
        signals: &mut dyn Signals,
    ) -> Result<Waited<Publication>, AskError> {
        let ask = {
            let mut connections = self.0.shared().lock();
            let (ask, peer) = connections.machine.ask(worker, what)?;
            self.0.shared().flush(&mut connections, peer);
            ask
        };
        let waited = self.0.wait(Some(timeout), signals, |connections| connections.machine.take_answer(ask));
        let unanswered = match waited {
            Waited::Ready(answer) => return answer.map(Waited::Ready),
            Waited::TimedOut => Waited::TimedOut,
            Waited::Interrupted => Waited::Interrupted,
        };
        self.0.shared().lock().machine.abandon(ask);
        Ok(unanswered)
    }

    /// Waits until all that was sent has been written, `timeout` at most; then tells all workers, ends their
    /// connections and the thread. A second call does nothing.
    pub fn close(&self, timeout: Duration) {
        self.0.close(timeout);
    }
}
