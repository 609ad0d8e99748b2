//! One host of a peer's endpoint: the attempt to connect, the handshake, and the next attempt after a loss. No step waits.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softs_proto::Dialect;
use softs_proto::log::{Level, LogRecord};
use softs_proto::zmtp::{Event, Role};

use crate::error::NetError;
use crate::transport::backoff::Backoff;
use crate::transport::connecting::Connecting;
use crate::transport::connection::Connection;
use crate::transport::endpoint::Endpoint;
use crate::transport::nonce::nonce;

/// An address of a TCP endpoint that has not answered for so long is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// A host that is being connected to, again and again.
#[derive(Debug)]
pub(crate) struct Dial {
    endpoint: Endpoint,
    role: Role,
    pub(crate) connection: Option<Connection>,
    /// Bytes wait to be written to the connection.
    pub(crate) unwritten: bool,
    /// The handshake has ended: the broker serves.
    ready: Option<Dialect>,
    connected_at: Instant,
    connecting: Option<Connecting>,
    /// When the next attempt begins, where there is neither a connection nor an attempt.
    attempt_at: Instant,
    backoff: Backoff,
    /// Why there is no connection.
    error: Option<NetError>,
    pub(crate) log: VecDeque<LogRecord>,
}

impl Dial {
    pub(crate) fn new(endpoint: Endpoint, role: Role, now: Instant) -> Self {
        Self {
            endpoint,
            role,
            connection: None,
            unwritten: false,
            ready: None,
            connected_at: now,
            connecting: None,
            attempt_at: now,
            // A system without random numbers still has different processes.
            backoff: Backoff::new(nonce().unwrap_or_else(|_| u64::from(std::process::id()))),
            error: None,
            log: VecDeque::new(),
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn error(&self) -> Option<&NetError> {
        self.error.as_ref()
    }

    /// What it speaks, once the handshake has ended.
    pub(crate) fn ready(&self) -> Option<Dialect> {
        self.ready
    }

    /// Whether the host has accepted a connection and does not serve, or not yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.connection.is_some() && self.ready.is_none()
    }

    /// Whether the handshake should have ended long ago, if the host is still there and serves.
    pub(crate) fn is_overdue(&self, now: Instant, limit: Duration) -> bool {
        self.is_unanswered() && now.saturating_duration_since(self.connected_at) >= limit
    }

    /// Goes on with the attempt, or with the handshake; whether bytes came.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        if self.connection.is_none() {
            self.connect(now);
        }
        self.shake().unwrap_or_else(|error| {
            self.lose(now, error);
            false
        })
    }

    /// The broker is used from now on: an end of its connection is news, and the next attempt begins soon.
    pub(crate) fn note_used(&mut self) {
        self.backoff.reset();
        self.error = None;
    }

    /// Asks a broker that is ready for a sign of life.
    pub(crate) fn ping(&mut self, now: Instant) {
        let Some(connection) = self.connection.as_mut().filter(|c| c.answers_pings()) else { return };
        connection.ping();
        if let Err(error) = connection.flush() {
            self.lose(now, error);
        }
    }

    /// The connection has ended, or the attempt.
    pub(crate) fn lose(&mut self, now: Instant, error: NetError) {
        // One line when the state changes, not one per attempt.
        if self.error.is_none() {
            self.report(&error);
        }
        self.drop_connection();
        self.error = Some(error);
        self.attempt_at = now + self.backoff.after_failure();
    }

    /// Ends the connection; the next attempt may begin at once.
    pub(crate) fn drop_connection(&mut self) {
        (self.connection, self.ready, self.connecting) = (None, None, None);
    }

    /// The socket to wait for, and whether to write to it too; and when the next turn is due.
    pub(crate) fn waitable(&self) -> (Option<(Arc<OwnedFd>, bool)>, Option<Instant>) {
        match (&self.connection, &self.connecting) {
            (Some(connection), _) => (Some((connection.socket(), self.unwritten)), None),
            (None, Some(attempt)) => (attempt.waitable(), attempt.deadline()),
            (None, None) => (None, Some(self.attempt_at)),
        }
    }

    /// Begins an attempt to connect, or goes on with it.
    fn connect(&mut self, now: Instant) {
        if self.connecting.is_none() && now < self.attempt_at {
            return;
        }
        let attempt =
            self.connecting.get_or_insert_with(|| Connecting::begin(&self.endpoint, CONNECT_TIMEOUT, now));
        let Some(outcome) = attempt.poll(now) else {
            if let Some(error) = attempt.is_slow(now).filter(|_| self.error.is_none()) {
                self.report(&error);
                self.error = Some(error);
            }
            return;
        };
        self.connecting = None;
        match outcome {
            Ok(socket) => {
                self.connection = Some(Connection::over(socket, self.role, &self.endpoint));
                (self.unwritten, self.connected_at) = (true, now);
            }
            Err(error) => self.lose(now, error),
        }
    }

    /// Reads until the handshake has ended; what comes after it stays for the user of the connection.
    fn shake(&mut self) -> Result<bool, NetError> {
        let Some(connection) = &mut self.connection else { return Ok(false) };
        // What arrived before the end is still good.
        let received = connection.receive();
        while let Some(event) = connection.poll()? {
            if let Event::Ready { dialect, .. } = event {
                self.ready = Some(dialect);
                break;
            }
        }
        let n_received = received?;
        self.unwritten = !connection.flush()?;
        Ok(n_received > 0)
    }

    fn report(&mut self, error: &NetError) {
        let text = format!("{error}; trying again until it is there");
        self.log.push_back(LogRecord { level: Level::Warning, text });
    }
}
