//! A broker's thread as its owner sees it.

use std::time::Duration;

use softs_proto::broker::Broker;
use softs_proto::log::LogRecord;
use softs_proto::wire::Stats;

use super::options::BrokerOptions;
use crate::NetError;
use crate::runtime::event_loop::{EventLoop, Limits};
use crate::runtime::server_thread::ServerThread;
use crate::runtime::standby::bind;
use crate::transport::spin::SPIN;

/// A running broker. Dropping it stops it.
///
/// After a fork the child's copy is inert: it runs nothing, stops nothing, and answers with empty values.
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
        let ends = [&options.frontend, &options.backend];
        let ([frontend, backend], standby) = bind(ends, options.allow_remote, options.keep_alive)?;
        let endpoints = (frontend.local_endpoint().to_owned(), backend.local_endpoint().to_owned());
        let limits = Limits {
            handshake_timeout: options.handshake_timeout,
            max_unsent_bytes: options.max_unsent_bytes,
            spin: SPIN,
        };
        let server = ServerThread::start("broker", &endpoints.0, |state| {
            let broker = Broker::new(options.config);
            Ok(EventLoop::new(broker, [frontend, backend], limits, state)?.standing_by(standby))
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
