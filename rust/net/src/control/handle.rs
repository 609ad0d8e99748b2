//! The thread of a control channel as its owner sees it.

use std::time::Duration;

use softs_proto::control::Control;
use softs_proto::limits;
use softs_proto::log::LogRecord;
use softs_proto::wire::ControlStats;

use crate::runtime::event_loop::{EventLoop, Limits};
use crate::runtime::server_thread::ServerThread;
use crate::runtime::standby::bind;
use crate::transport::socket::KeepAlive;
use crate::{Endpoint, NetError};

/// What a control channel is started with.
#[derive(Clone, Debug)]
pub struct ControlOptions {
    /// Where students connect to.
    pub control: Endpoint,
    /// Where subscribers connect to.
    pub publication: Endpoint,
    /// Whether other machines may reach a tcp endpoint.
    pub allow_remote: bool,
    /// When a TCP peer counts as dead.
    pub keep_alive: KeepAlive,
    /// Time that a peer has for greeting and READY.
    pub handshake_timeout: Duration,
}

impl ControlOptions {
    /// The two endpoints, and for everything else the limits of `docs/wire.md`.
    #[must_use]
    pub fn new(control: Endpoint, publication: Endpoint) -> Self {
        Self {
            control,
            publication,
            allow_remote: false,
            keep_alive: KeepAlive::default(),
            handshake_timeout: limits::HANDSHAKE_TIMEOUT,
        }
    }
}

/// A running control channel. Dropping it stops it.
///
/// After a fork the child's copy is inert: it runs nothing, stops nothing, and answers with empty values.
#[derive(Debug)]
pub struct ControlHandle {
    server: ServerThread<ControlStats>,
    endpoints: (String, String),
}

impl ControlHandle {
    /// Binds both endpoints in the caller's thread, so that what is wrong with them is returned, and starts the loop.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::RemoteNotAllowed`], [`NetError::PathTaken`], [`NetError::BadEndpoint`],
    /// [`NetError::Os`]. Nothing stays behind then.
    pub fn start(options: &ControlOptions) -> Result<Self, NetError> {
        let ends = [&options.control, &options.publication];
        let ([control, publication], standby) = bind(ends, options.allow_remote, options.keep_alive)?;
        let machine =
            if options.control.hosts().nth(1).is_some() { Control::with_standbys() } else { Control::new() };
        let endpoints = (control.local_endpoint().to_owned(), publication.local_endpoint().to_owned());
        let limits = Limits {
            handshake_timeout: options.handshake_timeout,
            max_unsent_bytes: limits::MAX_UNSENT_CONTROL_BYTES,
            spin: Duration::ZERO,
        };
        let server = ServerThread::start("control", &endpoints.0, |state| {
            Ok(EventLoop::new(machine, [control, publication], limits, state)?.standing_by(standby))
        })?;
        Ok(Self { server, endpoints })
    }

    /// Control and publication with the paths and ports that they really got.
    #[must_use]
    pub fn endpoints(&self) -> (String, String) {
        self.endpoints.clone()
    }

    /// What it knows now, or knew at the end where it has stopped.
    #[must_use]
    pub fn stats(&self) -> ControlStats {
        self.server.stats()
    }

    /// The next line of log; `None` when none came within `timeout`, or none will come because the channel has stopped.
    #[must_use]
    pub fn next_log(&self, timeout: Duration) -> Option<LogRecord> {
        self.server.next_log(timeout)
    }

    /// Whether the loop runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.server.is_running()
    }

    /// Closes everything, removes paths and locks, and waits for the thread to end. A second call does nothing.
    pub fn stop(&self) {
        self.server.stop();
    }
}
