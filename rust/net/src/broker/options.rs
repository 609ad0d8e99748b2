//! What a broker is started with.

use std::time::Duration;

use softs_proto::broker::Config;
use softs_proto::limits;

use crate::{Endpoint, KeepAlive};

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
