//! The thread of a control channel as its owner sees it.

use std::time::Duration;

use softs_proto::control::Control;
use softs_proto::limits;
use softs_proto::wire::ControlStats;

use crate::runtime::server_thread::{ServerOptions, ServerThread};
use crate::{Endpoint, NetError};

/// What a control channel is started with.
pub type ControlOptions = ServerOptions<()>;

impl ControlOptions {
    /// Where students and where subscribers connect to, and for everything else the limits of `docs/wire.md`.
    #[must_use]
    pub fn new(control: Endpoint, publication: Endpoint) -> Self {
        Self::over([control, publication], (), limits::MAX_UNSENT_CONTROL_BYTES)
    }
}

/// A running control channel; its endpoints are control and publication.
pub type ControlHandle = ServerThread<ControlStats>;

impl ControlHandle {
    /// Binds both endpoints in the caller's thread, so that what is wrong with them is returned, and starts the loop.
    ///
    /// # Errors
    /// [`NetError::EndpointInUse`], [`NetError::RemoteNotAllowed`], [`NetError::PathTaken`], [`NetError::BadEndpoint`],
    /// [`NetError::Os`]. Nothing stays behind then.
    pub fn start(options: &ControlOptions) -> Result<Self, NetError> {
        let has_standbys = options.ends[0].hosts().nth(1).is_some();
        let machine = if has_standbys { Control::with_standbys() } else { Control::new() };
        Self::run("control", machine, options, Duration::ZERO)
    }
}
