//! A broker in a thread of its own: bind, run, ask, stop. What it decides is `softs_proto::broker`.

use softs_proto::broker::{Broker, Config};
use softs_proto::limits;
use softs_proto::wire::Stats;

use crate::runtime::server_thread::{ServerOptions, ServerThread};
use crate::transport::spin::SPIN;
use crate::{Endpoint, NetError};

/// What a broker is started with, the settings of its state machine included.
pub type BrokerOptions = ServerOptions<Config>;

impl BrokerOptions {
    /// Where clients and where suppliers connect to, and for everything else the limits of `docs/wire.md`.
    #[must_use]
    pub fn new(frontend: Endpoint, backend: Endpoint, config: Config) -> Self {
        Self::over([frontend, backend], config, limits::MAX_UNSENT_BYTES)
    }
}

/// A running broker; its endpoints are frontend and backend.
pub type BrokerHandle = ServerThread<Stats>;

impl BrokerHandle {
    /// Binds both endpoints in the caller's thread, so that what is wrong with them is returned, and starts the loop.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::RemoteNotAllowed`], [`NetError::PathTaken`], [`NetError::BadEndpoint`],
    /// [`NetError::Os`]. Nothing stays behind then.
    pub fn start(options: BrokerOptions) -> Result<Self, NetError> {
        Self::run("broker", Broker::new(options.config.clone()), &options, SPIN)
    }
}
