//! A broker in a thread of its own: bind, run, ask, stop. The thread is [`event_loop`]; what it decides is `softs_proto::broker`.

mod duet;
mod event_loop;
mod peers;

use std::time::Duration;

use softs_proto::broker::Config;
use softs_proto::limits;
use softs_proto::log::LogRecord;
use softs_proto::wire::Stats;

use crate::listener::Listener;
use crate::server::ServerThread;
use crate::socket::KeepAlive;
use crate::{Endpoint, NetError};
use event_loop::EventLoop;

/// What a broker is started with.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// Where clients connect to.
    pub frontend: Endpoint,
    /// Where suppliers connect to.
    pub backend: Endpoint,
    /// Settings of the state machine.
    pub config: Config,
    /// Whether other machines may reach a tcp endpoint.
    pub allow_remote: bool,
    /// When a TCP peer counts as dead.
    pub keep_alive: KeepAlive,
    /// Time that a peer has for greeting and READY.
    pub handshake_timeout: Duration,
    /// Bytes that may wait for one peer that does not read.
    pub max_unsent_bytes: usize,
}

impl BrokerOptions {
    /// The two endpoints, and for everything else the limits of `docs/wire.md`.
    #[must_use]
    pub fn new(frontend: Endpoint, backend: Endpoint, config: Config) -> Self {
        Self {
            frontend,
            backend,
            config,
            allow_remote: false,
            keep_alive: KeepAlive::default(),
            handshake_timeout: limits::HANDSHAKE_TIMEOUT,
            max_unsent_bytes: limits::MAX_UNSENT_BYTES,
        }
    }
}

/// A running broker. Dropping it stops it.
///
/// After a fork the child's copy is a husk: it runs nothing, stops nothing, and answers with empty values.
#[derive(Debug)]
pub struct BrokerHandle {
    server: ServerThread<Stats>,
    endpoints: (String, String),
}

impl BrokerHandle {
    /// Binds both endpoints in the caller's thread, so that what is wrong with them is returned, and starts the loop.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::RemoteNotAllowed`], [`NetError::PathTaken`], [`NetError::BadEndpoint`],
    /// [`NetError::Os`]. Nothing stays behind then.
    pub fn start(options: BrokerOptions) -> Result<Self, NetError> {
        let bind = |endpoint| Listener::bind(endpoint, options.allow_remote, options.keep_alive);
        let frontend = bind(&options.frontend)?;
        let backend = bind(&options.backend)?;
        let endpoints = (frontend.local_endpoint().to_owned(), backend.local_endpoint().to_owned());
        let server = ServerThread::start("broker", &endpoints.0, |shared| {
            EventLoop::new(frontend, backend, options, shared)
        })?;
        Ok(Self { server, endpoints })
    }

    /// Frontend and backend with the paths and ports that they really got.
    #[must_use]
    pub fn endpoints(&self) -> (String, String) {
        self.endpoints.clone()
    }

    /// The statistics of now, or of the end where the broker has stopped.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.server.stats()
    }

    /// The next line of log; `None` when none came within `timeout`, or none will come because the broker has stopped.
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
